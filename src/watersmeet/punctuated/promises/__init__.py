"""Promises of a source: which keys it will not send any more, how they are written, stored and looked up."""
