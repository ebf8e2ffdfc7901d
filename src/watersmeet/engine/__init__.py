"""Runs an operator: finds it by name, gives it a batch, commits its state."""
