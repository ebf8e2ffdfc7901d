"""What a process knows of the places it may use: credentials and cache of each, by URI.

The driver finds them out and remembers them; they travel to the tasks inside the function that Spark ships, never in a
plan, a manifest or a log. Whoever opens a place finds its settings here, those of the nearest folder above it that has
any, or those by which its bucket was first reached. Any other place is opened with what the environment says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from watersmeet.storage.cache import HostCache, open_cache
from watersmeet.storage.credentials import Credentials, Lookup, find_credentials
from watersmeet.storage.retrying import RetryingBlobs
from watersmeet.storage.uri import Location, is_local, located


@dataclass(frozen=True)
class Access:
    """How a place is reached."""

    credentials: Credentials = field(default_factory=Credentials)
    cache: int | None = None  # bytes
    cache_dir: str | None = None
    local_dirs: str | None = None  # Spark's

    def packed(self) -> dict[str, Any]:
        """As plain values, to travel."""
        return {
            "settings": self.credentials.settings,
            "found": self.credentials.found,
            "cache": self.cache,
            "cache_dir": self.cache_dir,
            "local_dirs": self.local_dirs,
        }

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any]) -> Access:
        """What `packed` made."""
        rest = {name: packed[name] for name in ("cache", "cache_dir", "local_dirs")}
        return cls(Credentials(packed["settings"], packed["found"]), **rest)


Packed = dict[str, dict[str, Any]]  # by URI, as plain values

_KNOWN: dict[str, Access] = {}


def remember(
    uri: str,
    *,
    options: Mapping[str, object] | None = None,
    hadoop: Lookup | None = None,
    cache: int | None = None,
    cache_dir: str | None = None,
    local_dirs: str | None = None,
) -> Access | None:
    """Find out how a place is reached, for the rest of the process; None if it is a local one."""
    if is_local(uri):
        return None
    location = located(uri)
    access = Access(find_credentials(location, options, hadoop), cache, cache_dir, local_dirs)
    _note(location, access)
    return access


def remember_packed(packed: Packed) -> None:
    """The same in a task: what the driver has found out, by URI."""
    for uri, access in packed.items():
        _note(located(uri), Access.unpacked(access))


def _note(location: Location, access: Access) -> None:
    """For the place, and for the rest of its bucket while nobody says otherwise: a table knows its joins by URI."""
    _KNOWN[location.uri] = access
    _KNOWN.setdefault(replace(location, path="").uri, access)


def packed_access(*uris: str) -> Packed:
    """What a task must know of these places."""
    return {located(uri).uri: access_to(uri).packed() for uri in uris if not is_local(uri)}


def access_to(uri: str) -> Access:
    """How a place is reached."""
    return _known(uri) or Access(find_credentials(located(uri)))


def is_known(uri: str) -> bool:
    """Whether the place, or a folder above it, was registered."""
    return _known(uri) is not None


def _known(uri: str) -> Access | None:
    above = located(uri).uri
    while above and above not in _KNOWN:
        above = above.rpartition("/")[0]
    return _KNOWN.get(above)


def open_blobs(uri: str) -> RetryingBlobs:
    """The store below a URI: one client per place and process, so that connections stay open."""
    location, access = located(uri), access_to(uri)
    return _client(location, tuple(sorted(access.credentials.settings.items())))


def cache_for(uri: str) -> HostCache:
    """The host's cache for a place."""
    access = access_to(uri)
    return _cache(access.cache_dir, access.cache, access.local_dirs)


@lru_cache(maxsize=64)
def _client(location: Location, settings: tuple[tuple[str, str], ...]) -> RetryingBlobs:
    if location.store == "hdfs":
        from watersmeet.storage.shared_files import hdfs

        return RetryingBlobs(hdfs(location), location.uri)
    from watersmeet.storage.cloud import CloudBlobs

    return RetryingBlobs(CloudBlobs(location, Credentials(dict(settings))), location.uri)


@lru_cache(maxsize=16)
def _cache(folder: str | None, limit: int | None, local_dirs: str | None) -> HostCache:
    return open_cache(folder, limit, local_dirs)
