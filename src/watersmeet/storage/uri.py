"""URIs of places for state and tables.

s3://bucket/path = s3a://bucket/path = s3n://bucket/path     S3, or whatever speaks its protocol
gs://bucket/path                                             Google Cloud Storage
abfs(s)://container@account.dfs.core.windows.net/path        Azure Blob Storage
hdfs://host/path                                             HDFS
file:///path, path                                           a disk, or a file system that all hosts share
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from watersmeet.errors import StateDirError

Store = Literal["s3", "gs", "azure", "hdfs"]
_STORES: dict[str, Store] = {
    "s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfs": "azure", "abfss": "azure", "hdfs": "hdfs",
}  # fmt: skip
_FILE = re.compile(r"^file:(//[^/]*(?=/|$))?")
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/?#]*)/*([^?#]*)$")


@dataclass(frozen=True)
class Location:
    """A place that is not on a file system: a bucket (or container, or name node) and a path in it."""

    store: Store
    bucket: str
    account: str  # of Azure; the host, for HDFS
    path: str

    @property
    def uri(self) -> str:
        """The form in which the place is written down: one for all spellings, the one that Spark knows."""
        scheme = {"s3": "s3a", "gs": "gs", "azure": "abfss", "hdfs": "hdfs"}[self.store]
        host = f"{self.bucket}@{self.account}" if self.store == "azure" else self.bucket or self.account
        return f"{scheme}://{host}/{self.path}".rstrip("/")


def is_local(uri: str) -> bool:
    """Whether this is a path, or a URI of one."""
    return "://" not in uri or uri.startswith("file:")


def local_path(uri: str) -> str | None:
    """The path on a file system of hosts that a place is given as; None for one in an object store.

    What stands in a URI is the path, as Spark takes it: a percent sign is one.

    >>> local_path("state/orders"), local_path("file:///data/a%20b"), local_path("file:/data"), local_path("s3://lake")
    ('state/orders', '/data/a%20b', '/data', None)
    """
    return _FILE.sub("", uri, count=1) if is_local(uri) else None


def located(uri: str) -> Location:
    """The place a URI stands for.

    >>> located("s3://lake/state/orders").uri, located("s3a://lake/state/orders/").uri
    ('s3a://lake/state/orders', 's3a://lake/state/orders')
    >>> located("abfss://lake@acme.dfs.core.windows.net/state")
    Location(store='azure', bucket='lake', account='acme.dfs.core.windows.net', path='state')
    """
    match = _URI.match(uri)
    store = _STORES.get(match[1].lower()) if match else None
    if match is None or store is None:
        raise _unknown(uri, match[1] if match else "no scheme")
    host, path = match[2], match[3].rstrip("/")
    if store == "hdfs":
        return Location(store, "", host, path)
    bucket, _, account = host.partition("@") if store == "azure" else (host, "", "")
    if not bucket or (store == "azure" and not account) or "@" in bucket + account or ":" in bucket:
        shown = _without_user(uri)
        raise StateDirError(
            f"state directory {shown}",
            expected=f"{match[1]}://{'container@account.dfs.core.windows.net' if store == 'azure' else 'bucket'}/path",
            found="credentials in it" if shown != uri or ("@" in host and store != "azure") else "no such URI",
            hint="Give credentials as storage_options, as Spark's Hadoop settings or in the environment.",
        )
    return Location(store, bucket, account, path)


def _without_user(uri: str) -> str:
    """The URI without a name and a password before an "@": a secret may have slashes, and an "@" of its own. What
    has no colon is a container of Azure's."""
    return re.sub(r"(?<=://)[^@]*:.*@", "***@", uri)


def _unknown(uri: str, scheme: str) -> StateDirError:
    return StateDirError(
        f"state directory {_without_user(uri)}",
        expected="a path, or a URI of a store that Watersmeet knows",
        found=scheme,
        hint="Give a path, or a URI such as file:///..., s3://..., gs://..., abfss://... or hdfs://....",
    )
