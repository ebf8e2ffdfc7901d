"""Streaming DataFrames in, a streaming DataFrame out."""
