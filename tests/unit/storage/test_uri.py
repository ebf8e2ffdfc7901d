"""URIs of places."""

from __future__ import annotations

import pytest

from watersmeet.errors import StateDirError
from watersmeet.storage.uri import Location, is_local, local_path, located


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3A"])
def test_all_spellings_of_s3_are_one(scheme: str) -> None:
    assert located(f"{scheme}://lake/a/b/") == Location("s3", "lake", "", "a/b")
    assert located(f"{scheme}://lake/a/b").uri == "s3a://lake/a/b"
    assert located(f"{scheme}://lake").uri == "s3a://lake"


def test_the_other_stores() -> None:
    assert located("gs://lake/a").uri == "gs://lake/a"
    assert located("abfs://box@acme.dfs.core.windows.net/a").uri == "abfss://box@acme.dfs.core.windows.net/a"
    assert located("hdfs://name:8020/a/b").uri == "hdfs://name:8020/a/b"


def test_what_is_local() -> None:
    assert [is_local(uri) for uri in ("/a/b", "a/b", "file:///a", "file:/a", "s3://a/b")] == [True] * 4 + [False]


def test_paths_of_what_is_local() -> None:
    uris = ("/a/b", "a/b", "file:/a", "file:///a/b", "file://localhost/a", "/a/file:/b", "s3://a/b", "hdfs://a/b")
    assert [local_path(uri) for uri in uris] == ["/a/b", "a/b", "/a", "/a/b", "/a", "/a/file:/b", None, None]


@pytest.mark.parametrize("uri", ["ftp://host/a", "s3:///a", "abfss://acme.dfs.core.windows.net/a", "s3://a:b@lake/c"])
def test_other_uris_are_refused(uri: str) -> None:
    with pytest.raises(StateDirError, match="expected"):
        located(uri)


@pytest.mark.parametrize("secret", ["canary-77", "canary/7/7", "/canary-77", "canary/7@7", "canary?7", "canary#7/7"])
@pytest.mark.parametrize("scheme", ["s3", "ftp"])
def test_credentials_in_a_uri_are_not_repeated(scheme: str, secret: str) -> None:
    with pytest.raises(StateDirError) as error:
        located(f"{scheme}://AKIA:{secret}@lake/c")
    assert "canary" not in str(error.value)
    assert f"state directory {scheme}://***@lake/c: expected" in str(error.value)


@pytest.mark.parametrize("secret", ["canary-77", "canary/7/7"])
def test_credentials_are_called_what_they_are(secret: str) -> None:
    with pytest.raises(StateDirError, match=r"expected s3://bucket/path, found credentials in it\."):
        located(f"s3://AKIA:{secret}@lake/c")


def test_a_container_is_no_secret() -> None:
    with pytest.raises(StateDirError, match=r"state directory abfss://box@acme@x/a:b@c: expected .*found no such URI"):
        located("abfss://box@acme@x/a:b@c")
