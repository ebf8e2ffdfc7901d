"""The part of Google Cloud Storage's XML API that a state directory needs, as its documentation has it.

What differs from S3 is how a write is made conditional: not by a hash of what is there (`If-Match`), but by the number
of the write that made it, its generation; 0 stands for nothing. No server that can be had here knows these requests.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

REFUSED = b"<Error><Code>PreconditionFailed</Code></Error>"


class _Bucket(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.objects: dict[str, tuple[bytes, int]] = {}  # content, generation
        self.writes = 0
        self.lock = threading.Lock()


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Bucket

    def log_message(self, *rest: object) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        wanted = self.headers.get("x-goog-if-generation-match")
        with self.server.lock:
            _, there = self.server.objects.get(self._name, (b"", 0))
            if wanted is not None and int(wanted) != there:
                return self._answer(412, REFUSED)
            self.server.writes += 1
            self.server.objects[self._name] = content, self.server.writes
        return self._answer(200, generation=self.server.writes)

    def do_GET(self) -> None:
        if not self._name:
            return self._list()
        if self._name not in self.server.objects:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        content, generation = self.server.objects[self._name]
        if not (asked := self.headers.get("Range")):
            return self._answer(200, content, generation)
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        if first >= len(content):
            return self._answer(416)
        part = content[first : last + 1]
        return self._answer(206, part, generation, f"bytes {first}-{first + len(part) - 1}/{len(content)}")

    def do_DELETE(self) -> None:
        with self.server.lock:
            found = self.server.objects.pop(self._name, None)
        self._answer(204 if found else 404)

    def _list(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        prefix, files, folders = asked.get("prefix", [""])[0], [], set()
        for name, (content, generation) in sorted(self.server.objects.items()):
            folder, slash, _ = name[len(prefix) :].partition("/")
            if not name.startswith(prefix):
                continue
            if slash and "delimiter" in asked:
                folders.add(f"<CommonPrefixes><Prefix>{escape(prefix + folder)}/</Prefix></CommonPrefixes>")
                continue
            about = f"<Generation>{generation}</Generation><Size>{len(content)}</Size><ETag>x</ETag>"
            when = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            files.append(f"<Contents><Key>{escape(name)}</Key>{about}{when}</Contents>")
        body = (
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(files)}{''.join(folders)}</ListBucketResult>"
        )
        self._answer(200, body.encode())

    @property
    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).partition("/")[2].partition("/")[2]

    def _answer(self, status: int, body: bytes = b"", generation: int = 0, span: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hash(body):x}"')
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.send_header("x-goog-generation", str(generation))
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def google() -> Iterator[dict[str, str]]:
    """A bucket of any name, as `storage_options`."""
    server = _Bucket()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    account = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    try:
        yield {"base_url": f"http://127.0.0.1:{server.server_port}", "service_account_key": json.dumps(account)}
    finally:
        server.shutdown()
        server.server_close()
