"""Three ways to show a running join: a live table on a terminal, a line per batch in a log, JSON for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich import filesize
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from watersmeet.pipeline.progress import InputProgress, Snapshot

_STATE_STYLES = {"waiting": "dim", "flowing": "green", "stalled": "yellow", "ended": "dim", "open": "dim"}
Redact = Callable[[str], str]


class Display(Protocol):
    """Shows snapshots and says a few words; used as a context manager around a run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, snapshot: Snapshot) -> None:
        """The situation now."""

    def say(self, message: str) -> None:
        """Something worth telling once."""


def make_display(style: str, redact: Redact, stream: TextIO | None = None) -> Display:
    """The display for a style: "live", "plain", "json", or "auto" (live on a terminal, plain elsewhere)."""
    out = stream or sys.stdout
    if style == "auto":
        style = "live" if out.isatty() else "plain"
    kinds: dict[str, type[LiveDisplay | PlainDisplay | JsonDisplay]] = {
        "live": LiveDisplay, "plain": PlainDisplay, "json": JsonDisplay
    }  # fmt: skip
    return kinds[style](redact, out)


class _Base:
    def __init__(self, redact: Redact, out: TextIO) -> None:
        self.redact = redact
        self.out = out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.out.flush()


class LiveDisplay(_Base):
    """A table that is redrawn in place."""

    def __init__(self, redact: Redact, out: TextIO) -> None:
        super().__init__(redact, out)
        self.console = Console(file=out)
        self._live = Live(console=self.console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, snapshot: Snapshot) -> None:
        """Redraw."""
        self._live.update(render(snapshot))

    def say(self, message: str) -> None:
        """A line above the table."""
        self.console.print(Text(self.redact(message)))


class PlainDisplay(_Base):
    """One line whenever a batch has been added, and at least every ten seconds."""

    SILENCE = 10.0

    def __init__(self, redact: Redact, out: TextIO) -> None:
        super().__init__(redact, out)
        self._last: tuple[int | None, str] | None = None
        self._at = 0.0

    def show(self, snapshot: Snapshot) -> None:
        """A line, if there is news."""
        if self._last is None:
            for line in _chosen(snapshot):
                self._line(f"chosen: {line}")
        key = (snapshot.batch, snapshot.phase)
        if key == self._last and snapshot.elapsed - self._at < self.SILENCE:
            return
        self._last, self._at = key, snapshot.elapsed
        inputs = ", ".join(f"{i.name} {i.rows:,} rows{_state_note(i)}" for i in snapshot.inputs)
        self._line(
            f"{snapshot.elapsed:7.1f}s {snapshot.phase} batch {_batch(snapshot)}: {inputs}; "
            f"{snapshot.results:,} results ({snapshot.result_rate:,.0f}/s); {_memory(snapshot)}; {snapshot.doing}"
            + (f"; to do: {snapshot.remaining}" if snapshot.remaining else "")
        )

    def say(self, message: str) -> None:
        """A line."""
        self._line(message)

    def _line(self, text: str) -> None:
        print(self.redact(text), file=self.out, flush=True)


class JsonDisplay(_Base):
    """A JSON object per line: `{"event": "progress", ...}` per batch, `{"event": "message", ...}`."""

    def __init__(self, redact: Redact, out: TextIO) -> None:
        super().__init__(redact, out)
        self._last: tuple[int | None, str] | None = None

    def show(self, snapshot: Snapshot) -> None:
        """A line per batch and per change of phase."""
        key = (snapshot.batch, snapshot.phase)
        if key != self._last:
            self._last = key
            self._line({"event": "progress", **snapshot.as_dict()})

    def say(self, message: str) -> None:
        """A line with a message."""
        self._line({"event": "message", "text": message})

    def _line(self, content: dict[str, object]) -> None:
        print(json.dumps(_redacted(content, self.redact)), file=self.out, flush=True)


def _redacted(value: Any, redact: Redact) -> Any:
    """Text inside a structure redacted piece by piece, so that the structure stays what it is."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _redacted(inner, redact) for key, inner in value.items()}
    return [_redacted(inner, redact) for inner in value] if isinstance(value, list | tuple) else value


def render(snapshot: Snapshot) -> Panel:
    """The live table."""
    inputs = Table(box=None, pad_edge=False, expand=True)
    for heading in ("input", "rows", "rows/s", "lag", ""):
        inputs.add_column(heading, justify="left" if heading in ("input", "") else "right", header_style="bold")
    for one in snapshot.inputs:
        note = Text(one.state + (f" {one.silent_seconds:.0f} s" if one.state == "stalled" else ""))
        note.stylize(_STATE_STYLES[one.state])
        if one.null_keys:
            note.append(f", {one.null_keys:,} without a key", "yellow")
        inputs.add_row(one.name, f"{one.rows:,}", f"{one.rate:,.0f}", one.lag or "-", note)
    facts = Table.grid(padding=(0, 2))
    facts.add_row(Text("results", style="bold"), f"{snapshot.results:,}  ({snapshot.result_rate:,.0f}/s)")
    facts.add_row(Text("memory", style="bold"), _memory(snapshot))
    facts.add_row(Text("now", style="bold"), snapshot.doing)
    facts.add_row(Text("batch", style="bold"), _batch(snapshot))
    if snapshot.remaining:
        facts.add_row(Text("to do", style="bold"), snapshot.remaining)
    for line in _chosen(snapshot):
        facts.add_row(Text("chosen", style="bold"), Text(line, style="dim"))
    return Panel(Group(inputs, "", facts), title=f"{snapshot.name}: {snapshot.phase}, {snapshot.elapsed:.0f} s")


def _chosen(snapshot: Snapshot) -> list[str]:
    return [f"{one.what}: {one.value}, because {one.why}" for one in snapshot.choices]


def _batch(snapshot: Snapshot) -> str:
    took = "" if snapshot.batch_seconds is None else f" ({snapshot.batch_seconds:.2f} s)"
    return "-" if snapshot.batch is None else f"{snapshot.batch}{took}"


def _memory(snapshot: Snapshot) -> str:
    of_budget = f" of {filesize.decimal(snapshot.budget)}" if snapshot.budget else ""
    text = f"{filesize.decimal(snapshot.resident_bytes)}{of_budget} resident"
    if snapshot.budget or snapshot.spilled_bytes:
        text += f", {filesize.decimal(snapshot.spilled_bytes)} spilled"
    return f"{text}, {snapshot.state_rows:,} rows"


def _state_note(one: InputProgress) -> str:
    lag = f", lag {one.lag}" if one.lag and not one.lag.startswith("0 ") else ""
    null_keys = f", {one.null_keys:,} without a key" if one.null_keys else ""
    return f" ({one.state}{lag}{null_keys})"
