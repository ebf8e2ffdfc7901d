"""Joins that use several kinds of facts at once: windows together with punctuations and constraints."""
