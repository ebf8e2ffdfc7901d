"""The page of a pipeline that runs: what is in its state, the phase of the run, how long its micro-batches take,
and the backlog of its sources."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from watersmeet.pipeline.config import LoadedPipeline
from watersmeet.pipeline.display import Display
from watersmeet.pipeline.progress import Snapshot
from watersmeet.view.board import Board, ShownJoin

if TYPE_CHECKING:
    from watersmeet.view.server import PageServer


class Watching:
    """A display that passes everything on, and remembers the newest snapshot for the page."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self._newest: Snapshot | None = None

    def page(self, loaded: LoadedPipeline, *, host: str, port: int, token: str | None) -> PageServer:
        """Serve the page of a pipeline, which may not have begun yet."""
        from watersmeet.view.server import PageServer

        join = ShownJoin(loaded.state_dir, loaded.pipeline.name, live=self.live, waits=True)
        return PageServer(Board([join]), host=host, port=port, token=token)

    def live(self) -> dict[str, Any]:
        """What only this process knows."""
        newest = self._newest
        if newest is None:
            return {"phase": "starting"}
        backlog = {one.name: one.lag for one in newest.inputs if one.lag is not None}
        return {"phase": newest.phase, "backlog": backlog, "batch_seconds": newest.batch_seconds}

    def __enter__(self) -> Self:
        self.display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.display.__exit__(kind, error, trace)

    def show(self, snapshot: Snapshot) -> None:
        """The situation now."""
        self._newest = snapshot
        self.display.show(snapshot)

    def say(self, message: str) -> None:
        """Something worth telling once."""
        self.display.say(message)
