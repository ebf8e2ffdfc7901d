"""Pipelines: a stream join described in a file, run by one command, and shown while it runs."""
