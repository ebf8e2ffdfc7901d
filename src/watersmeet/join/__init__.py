"""What the joins share: admitting rows, clocks, probing, building output rows."""
