"""Estimates: arrival rates, selectivities, frequencies, costs. Numbers only."""
