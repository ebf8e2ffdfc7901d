"""`ui`: the page from a program or a notebook."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from inspect import getattr_static
from typing import TYPE_CHECKING, Any

from watersmeet.errors import OptionError, extra
from watersmeet.plan.options import checked_path, known_names
from watersmeet.spark.explaining import places_of
from watersmeet.spark.failure import error
from watersmeet.state.directory import CONTROL
from watersmeet.view.board import Board, ShownJoin, short_name

if TYPE_CHECKING:
    from watersmeet.view.server import PageServer

WHO, PLACE = "ui", "query_or_state_dir"
FIRST_BATCH_SECONDS = 60.0
# How Spark names the source that reads a join's control markers.
_MARKERS = re.compile(rf"^FileStreamSource\[(?:file:(?://)?)?(/.*)/{CONTROL}\]$")


@known_names
def ui(
    query_or_state_dir: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
) -> PageServer:
    """Show a join in the browser: how it flows, what it holds, what it decides and what is wrong with it.

    The page reads the state directory and, of a query, how long its newest micro-batch took and why it failed. It
    lives until `stop` or the end of the `with` block; in a notebook the value shows itself as a frame. It needs
    `pip install 'watersmeet[ui]'`.

    Args:
        query_or_state_dir: A running query, whose joins are found by its sources or its plan, a state directory, or a
            list of them.
        host: The address to listen on. Any but that of this machine needs a token, which is made up if none is given.
        port: The port; 0 for any free one.
        token: What a visitor must show, as part of the address.

    Returns:
        The running page: `url` is its address, `stop()` ends it.

    Raises:
        OptionError: The query has no join, or the address is taken.
        StateDirError: A directory has no state of a join.
        MissingExtraError: The packages of `watersmeet[ui]` are not installed.

    >>> import watersmeet as wm
    >>> with wm.ui("state/orders") as page:  # doctest: +SKIP
    ...     print(page.url)
    http://127.0.0.1:40123/
    """
    with extra("ui", "wm.ui"):
        from watersmeet.view.server import PageServer
    _check_text("host", host)
    if token is not None:
        _check_text("token", token)
    joins = list(_joins(query_or_state_dir))
    if not joins:
        raise OptionError(
            WHO,
            expected=f"{PLACE} = a query, a state directory, or a list of them",
            found=repr(query_or_state_dir),
            hint="Name at least one join.",
            option=PLACE,
        )
    return PageServer(Board(joins), host=host, port=port, token=token, framed=True)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise OptionError(
            WHO, expected=f"{name} = a text", found=repr(value), hint="Leave it out for the default.", option=name
        )


def _joins(given: Any) -> Iterator[ShownJoin]:
    if isinstance(given, list | tuple):
        for one in given:
            yield from _joins(one)
    elif getattr_static(given, "lastProgress", None) is not None:  # a Column would make up an attribute
        for place in _state_dirs(given):
            yield ShownJoin(place, short_name(place), live=_Live(given))
    else:
        place = checked_path(WHO, PLACE, given)
        yield ShownJoin(place, short_name(place))


class _Live:
    """What the query knows beside the state: whether it runs, how long its newest micro-batch took, why it failed."""

    def __init__(self, query: Any) -> None:
        self.query = query
        self.failures: list[dict[str, Any]] = []

    def __call__(self) -> dict[str, Any]:
        query = self.query
        try:
            phase, progress = "reading" if query.isActive else "stopped", query.lastProgress
            if phase == "stopped" and not self.failures and (failure := query.exception()) is not None:
                self.failures = [{"time": int(time.time() * 1e6), "message": _told(failure)}]
        except Exception:  # the session has ended, in one of the many ways in which Spark and Connect say so
            return {"phase": "stopped", "failures": self.failures}
        took = progress["durationMs"] if progress is not None else {}
        batch = took["triggerExecution"] / 1e3 if "addBatch" in took else None
        return {"phase": phase, "batch_seconds": batch, "failures": self.failures}


def _told(failure: BaseException) -> str:
    """The failure of a query: the error of its join, or what Spark says first."""
    from watersmeet.pipeline.build import first_lines  # whoever has no pipeline need not load them

    found = error(failure)
    return str(found) if found is not None else first_lines(failure)


def _state_dirs(query: Any) -> list[str]:
    """The state directories of a query's joins, by the folders of markers that it reads; of joins with state in an
    object store, which read none, by their names in its plan."""
    deadline = time.monotonic() + FIRST_BATCH_SECONDS
    while (progress := query.lastProgress) is None and query.isActive and time.monotonic() < deadline:
        time.sleep(0.1)
    sources = progress["sources"] if progress is not None else []
    found = (_MARKERS.match(str(source["description"])) for source in sources)
    places = [os.path.normpath(match[1]) for match in found if match] or places_of(printed_plan(query))
    if not places:
        raise OptionError(
            WHO,
            expected="a query with a join that this process has built",
            found="none among its sources" if sources else "a query without a first batch",
            hint="Give the state directory in place of the query. A broadcast join is Spark's own, and has no page.",
            option=PLACE,
        )
    return places


def printed_plan(query: Any) -> str:
    """What Spark prints of a query's plan."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        query.explain()
    return printed.getvalue()
