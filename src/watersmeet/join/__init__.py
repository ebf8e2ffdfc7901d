"""What the joins share: the contract, admitting rows, clocks, probing, building output rows."""
