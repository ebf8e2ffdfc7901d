"""The number of the release. It stands here alone: the build and `watersmeet.__version__` read it."""

__version__ = "0.1.0"
