"""The page over HTTP: a few fixed files, and documents about the joins it was given. It writes nothing.

    /                              the page
    /assets/NAME                   its files, those of the package by name and no others
    /api/joins                     the names of the joins
    /api/joins/NAME?after=BATCH    what is shown of one, with what is newer than a batch
    /api/joins/NAME/why?key=...    why rows of a key are held; `key` once for each key column
    /api/events                    a line whenever there is something new (server-sent events)

Whoever comes must use a name of this machine (so that no foreign page can read along through a name that it points
here), or show the token if there is one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote, unquote, urlsplit

import anyio
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from watersmeet.view.assets import ASSETS, read_asset
from watersmeet.view.board import Board, as_json

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors {frames}"
)
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
HEARTBEAT = 5  # looks without news after which a page is told to look anyway: silence is news too


def make_site(
    board: Board, *, token: str | None = None, framed: bool = False, is_over: Callable[[], bool] = bool
) -> ASGIApp:
    """The application. With `framed` pages of this machine (a notebook) may show it in a frame. When `is_over`, those
    who listen are sent away."""

    async def page(request: Request) -> Response:
        return Response(read_asset("index.html"), media_type="text/html; charset=utf-8")

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            return PlainTextResponse("There is no such file.", 404)
        return Response(read_asset(name), media_type=f"{ASSETS[name]}; charset=utf-8")

    async def joins(request: Request) -> Response:
        return _json(board.overview())

    async def join(request: Request) -> Response:
        found = board.joins.get(request.path_params["name"])
        after = request.query_params.get("after", "-1")
        if found is None or not after.lstrip("-").isdigit():
            return PlainTextResponse("There is no such join.", 404)
        return _json(await run_sync(found.document, int(after)))

    async def explained(request: Request) -> Response:
        found = board.joins.get(request.path_params["name"])
        keys = request.query_params.getlist("key")
        if found is None or not keys:
            return PlainTextResponse("There is no such join, or no key was given.", 404)
        return _json(await run_sync(found.why, keys[0] if len(keys) == 1 else keys))

    async def events(request: Request) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_news(board, is_over), media_type="text/event-stream", headers=headers)

    routes = [
        Route("/", page),
        Route("/assets/{name}", file),
        Route("/api/joins", joins),
        Route("/api/joins/{name}", join),
        Route("/api/joins/{name}/why", explained),
        Route("/api/events", events),
    ]
    return Guarded(Starlette(routes=routes), token=token, framed=framed)


def _json(value: object) -> Response:
    return Response(as_json(value), media_type="application/json", headers={"Cache-Control": "no-store"})


async def _news(board: Board, is_over: Callable[[], bool]) -> AsyncIterator[str]:
    """The newest batch of each join, whenever one has changed. State is read only while somebody listens."""
    before: dict[str, int] = {}
    silent = 0
    while not is_over():
        now = {name: await run_sync(join.refresh) for name, join in board.joins.items()}
        silent += 1
        if now != before or silent >= HEARTBEAT:
            before, silent = now, 0
            yield f"data: {json.dumps(now)}\n\n"
        for _ in range(5):
            if not is_over():
                await anyio.sleep(0.2)


class Guarded:
    """Lets in who may come in, and tells browsers how little the page needs."""

    def __init__(self, app: ASGIApp, *, token: str | None, framed: bool) -> None:
        self.app, self.token = app, token
        # Browsers keep cookies by host, whatever the port: two pages of one host must not overwrite each other's.
        self.cookie = f"watersmeet-{hashlib.sha256((token or '').encode()).hexdigest()[:16]}"
        self.policy = POLICY.format(frames="http://localhost:* http://127.0.0.1:*" if framed else "'none'")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = self._refused(scope)
        await (refused or self.app)(scope, receive, self._hardened(send))

    def _refused(self, scope: Scope) -> Response | None:
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page only shows things.", 405)
        request = Request(scope)
        if self.token is None:
            host = urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname
            if host not in LOOPBACK:
                return PlainTextResponse("Use localhost or 127.0.0.1 in the address.", 421)
            return None
        given = request.query_params.get("token")
        if given is not None and self._is_token(given) and scope["path"] == "/":
            # Into a cookie, so that the token stands in no address that is shared or logged.
            rest = QueryParams([(k, v) for k, v in request.query_params.multi_items() if k != "token"])
            answer = RedirectResponse(f"/?{rest}" if rest else "/", 303)
            answer.set_cookie(self.cookie, quote(self.token, safe=""), httponly=True, samesite="strict")
            return answer
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(unquote(request.cookies.get(self.cookie, ""))) or self._is_token(bearer):
            return None
        return PlainTextResponse("This page needs its token: open the address that was printed.", 401)

    def _is_token(self, text: str) -> bool:
        return self.token is not None and hmac.compare_digest(text.encode(), self.token.encode())

    def _hardened(self, send: Send) -> Send:
        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = self.policy
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        return hardened
