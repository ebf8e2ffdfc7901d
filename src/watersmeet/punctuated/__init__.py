"""The metadata-aware join: punctuations and constraints tell which rows can never match again."""
