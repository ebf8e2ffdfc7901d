"""Estimates: arrival rates, selectivities, frequencies. Numbers only."""
