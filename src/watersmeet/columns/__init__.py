"""Columns of rows: hashing, sorting, matching, grouping and gathering them, with NumPy and Arrow."""
