"""Multi-way joins: one n-ary operator, with the driver input chosen anew after every buffer."""
