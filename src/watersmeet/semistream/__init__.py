"""Semi-stream joins: a fast stream against a huge table, with the cheapest exact cache."""
