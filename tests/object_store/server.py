"""An S3 server on this machine: moto's, in a process of its own, with what is needed to measure and to disturb it.

    python -m tests.object_store.server PORT [SECONDS]

It prints its port when it is ready. SECONDS are added to every request. `GET /_requests` answers with the requests so
far, by method. Whose key they were signed with is not looked at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACCESS_KEY = "access-canary-91c7"
SECRET_KEY = "secret-canary-4be2"
COUNTS = "/_requests"
ROOT = Path(__file__).parents[2]


class Delayed:
    """Adds a delay to every request, and counts them by method and kind of object."""

    def __init__(self, app: Callable[..., Iterable[bytes]], seconds: float) -> None:
        self.app, self.seconds = app, seconds
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == COUNTS:
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self.counts).encode()]
        with self.lock:
            self.counts[_kind(environ)] += 1
            self.counts["bytes_in"] += int(environ.get("CONTENT_LENGTH") or 0)
        time.sleep(self.seconds)

        def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
            with self.lock:
                self.counts["bytes_out"] += length if environ["REQUEST_METHOD"] == "GET" else 0
            return start_response(status, headers, *rest)

        return self.app(environ, started)


def _kind(environ: dict[str, Any]) -> str:
    method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
    if method == "GET" and "list-type" in query:
        return "LIST"
    if method == "GET" and "/control/" in environ["PATH_INFO"]:
        return "MARKER"  # the driver looks for the next one
    return "DELETE" if method == "POST" and query.startswith("delete") else str(method)


def main(port: int, seconds: float) -> None:
    """Serve until killed, or until whoever started it is gone."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open, as they do elsewhere

        def log_request(self, *rest: Any) -> None:
            """Say nothing."""

    app = Delayed(DomainDispatcherApplication(create_backend_app), seconds)
    server = make_server("127.0.0.1", port, app, threaded=True, request_handler=Quiet)
    print(server.server_port, flush=True)
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    server.serve_forever()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


@dataclass
class Server:
    """A running server."""

    endpoint: str

    @property
    def options(self) -> dict[str, str]:
        """As `storage_options`."""
        return {"endpoint": self.endpoint, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}

    @property
    def hadoop(self) -> dict[str, str]:
        """As Hadoop settings."""
        return {
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": ACCESS_KEY,
            "fs.s3a.secret.key": SECRET_KEY,
        }

    def counts(self) -> Counter[str]:
        """The requests so far."""
        with urllib.request.urlopen(f"{self.endpoint}{COUNTS}") as answer:
            return Counter(json.load(answer))

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT"))


@contextmanager
def serving(*, seconds: float = 0.0, port: int = 0) -> Iterator[Server]:
    """A server with the bucket `lake`."""
    command = [sys.executable, "-m", "tests.object_store.server", str(port), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        made = Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
        made.make_bucket("lake")
        yield made
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
