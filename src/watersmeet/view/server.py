"""The page on an address of this machine, in a thread of its own."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from types import TracebackType
from typing import Self
from urllib.parse import quote

import uvicorn

from watersmeet.errors import OptionError
from watersmeet.view.board import Board
from watersmeet.view.site import LOOPBACK, make_site

START_SECONDS = 10.0
HEIGHT = 720  # of the frame in a notebook, in pixels
# All addresses of this machine, and one of the network that is nobody's.
EVERYWHERE = {"0.0.0.0": (socket.AF_INET, "192.0.2.1"), "::": (socket.AF_INET6, "2001:db8::1")}


class PageServer:
    """A running page. `url` is its address; `stop` ends it, as the end of a `with` block does.

    On an address that others can reach there is always a token: the one given, or one made up, which `url` has.
    """

    def __init__(
        self, board: Board, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None, framed: bool = False
    ) -> None:
        self.board = board
        self.token = token or (None if host in LOOPBACK else secrets.token_urlsafe(24))
        self._socket = _bound(host, port)
        shown = _reachable(host)
        self.address = f"http://{shown}:{self._socket.getsockname()[1]}/"
        config = uvicorn.Config(
            make_site(board, token=self.token, framed=framed, is_over=lambda: self._server.should_exit),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=3,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="watersmeet-ui", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)

    @property
    def url(self) -> str:
        """The address to open, with the token if it takes one."""
        return self.address if self.token is None else f"{self.address}?token={quote(self.token, safe='')}"

    def wait(self) -> None:
        """Until the page is stopped."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def stop(self) -> None:
        """End the page; the joins do not notice."""
        self._server.should_exit = True
        self._thread.join(START_SECONDS)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Watersmeet page at {self.url}>"

    def _repr_html_(self) -> str:
        """The page in a frame, for notebooks. In the address the token is escaped; the rest is made here."""
        return f'<iframe src="{self.url}" title="Watersmeet" width="100%" height="{HEIGHT}" style="border:0"></iframe>'


def _reachable(host: str) -> str:
    """A host as it stands in an address. All addresses of this machine are none: the one that others reach it by is."""
    if host in EVERYWHERE:
        family, elsewhere = EVERYWHERE[host]
        with socket.socket(family, socket.SOCK_DGRAM) as asked:  # nothing is sent
            try:
                asked.connect((elsewhere, 9))
                host = asked.getsockname()[0]
            except OSError:  # there is no network
                host = "localhost"
    return f"[{host}]" if ":" in host else host


def _bound(host: str, port: int) -> socket.socket:
    """A socket at an address, so that it is known, or refused, before anything starts."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        raise OptionError(
            "ui",
            expected="an address of this machine with a free port",
            found=f"{host}, port {port} ({error})",
            hint="Leave the port out for any free one, and the host for this machine alone.",
            option="port",
        ) from error
    return found
