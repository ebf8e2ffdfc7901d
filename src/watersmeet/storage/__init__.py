"""Where bytes are: URIs and credentials, object stores, the cache of a host. Knows nothing of state or joins."""
