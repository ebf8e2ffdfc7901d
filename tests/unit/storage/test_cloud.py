"""What the client of a store is told of who we are."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from watersmeet.storage.cloud import CloudBlobs
from watersmeet.storage.credentials import find_credentials
from watersmeet.storage.uri import located


@pytest.mark.parametrize("given", [{}, {"session_token": "ours"}])
def test_keys_are_sent_with_no_token_but_their_own(monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"AWS_{name}", "of-others")
    seen: list[tuple[str, str | None]] = []

    class Store(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.headers["Authorization"], self.headers.get("x-amz-security-token")))
            self.send_response(200)
            self.send_header("ETag", "x")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *rest: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = located("s3://lake/state")
        keys = {"access_key_id": "our-key", "secret_access_key": "our-secret", **given}
        found = find_credentials(place, {"endpoint": f"http://127.0.0.1:{server.server_port}", **keys})
        CloudBlobs(place, found).put("x", [memoryview(b"x")])
        server.shutdown()
    ((signed, token),) = seen
    assert "Credential=our-key/" in signed
    assert token == given.get("session_token")
