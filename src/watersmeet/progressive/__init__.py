"""Progressive joins: results from the first batch on."""
