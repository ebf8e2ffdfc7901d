"""One S3 server for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.object_store.server import Server, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving() as made:
        yield made
