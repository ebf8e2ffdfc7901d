"""State: sorted runs of rows, and versions of them on disk. Knows nothing of joins."""
