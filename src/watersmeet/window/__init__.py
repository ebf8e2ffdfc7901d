"""Window joins: two unbounded streams, each with a moving window of its own."""
