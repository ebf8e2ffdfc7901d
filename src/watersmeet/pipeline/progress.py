"""Where a running join stands: Spark's progress reports and the join's own manifests, put together.

`ProgressTracker.update` is called a few times a second with the query's newest reports and returns a `Snapshot`, which
the displays draw. Rates are over the last seconds of wall time; everything else is counted by the join itself.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import filesize

from watersmeet.chooser.decide import Choice
from watersmeet.chooser.story import recorded_story
from watersmeet.errors import StateError
from watersmeet.pipeline.history import BatchRecord, History
from watersmeet.state.directory import StateDir

RATE_SECONDS = 10.0
BATCHES = 100  # the newest ones are kept, of others the totals
# An input is called stalled when reports have shown nothing of it for this long (and it is not known to have ended).
STALL_SECONDS = 3.0

Report = Mapping[str, Any]


@dataclass(frozen=True)
class InputProgress:
    """One input: rows so far, rows per second now, what waits at the source, whether anything comes, and how many rows
    came without a key."""

    name: str
    rows: int
    rate: float
    lag: str | None
    state: (
        str  # "waiting" (for its first rows in this run), "flowing", "stalled" or "ended"; "open" when the run is over
    )
    silent_seconds: float
    null_keys: int = 0


@dataclass(frozen=True)
class Snapshot:
    """What a display shows."""

    name: str
    phase: str  # "starting", "reading", "finishing", "done"
    elapsed: float
    batch: int | None  # the newest one that Spark has committed
    batch_seconds: float | None  # how long it took; None if that was in an earlier run
    inputs: tuple[InputProgress, ...]
    results: int
    result_rate: float
    resident_bytes: int
    spilled_bytes: int
    state_rows: int
    budget: int | None
    doing: str
    remaining: str | None
    counters: dict[str, float] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()  # made when the join was built, with their reasons

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


class Rate:
    """Amounts per second over the last `RATE_SECONDS`."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now: float, amount: int) -> None:
        """Count `amount` at `now`."""
        self._seen.append((now, amount))

    def at(self, now: float, since: float) -> float:
        """The rate at `now`, for something that runs since `since`."""
        while self._seen and self._seen[0][0] < now - RATE_SECONDS:
            self._seen.popleft()
        span = min(RATE_SECONDS, max(now - since, 1.0))
        return sum(amount for _, amount in self._seen) / span


class ProgressTracker:
    """Follows one run of a join.

    `inputs` are the join's inputs with the names to show for them. `lags` gives what waits at each source, by input
    name, and is asked once per update; `budget` is the join's memory in bytes, if it has a limit.
    """

    def __init__(
        self,
        name: str,
        state_dir: str,
        inputs: Mapping[str, str],
        *,
        budget: int | None = None,
        lags: Callable[[], Mapping[str, str]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.inputs = dict(inputs)
        self.budget = budget
        self.phase = "starting"
        self.history = History(StateDir(state_dir))
        self._lags = lags
        self._clock = clock
        self._started = clock()
        self._rows: Counter[str] = Counter()
        self._null_keys: Counter[str] = Counter()
        self._results = 0
        self._rates = {name: Rate() for name in self.inputs}
        self._result_rate = Rate()
        self._last_rows: dict[str, float] = {}  # inputs that gave rows in this run, and when
        self._reports: tuple[float, float] | None = None  # when the first and the newest report of this run came
        self._batch_seconds: float | None = None
        self._choices = _choices(self.history.directory)
        self._beginnings = 0  # of the history, when it was added up
        self._add_up()  # totals of earlier runs of this join count, their rates do not
        earlier = self._complete()
        self._batch = earlier.batch if earlier else None

    def _add_up(self) -> None:
        """Add what is new to the totals, or add all up anew if the history begins anew."""
        news = self._refresh()
        if news and self._beginnings != self.history.beginnings:
            self._beginnings = self.history.beginnings
            self._rows.clear()
            self._null_keys.clear()
            self._results = 0
        for record in news:
            self._rows.update(record.rows_in)
            self._null_keys.update({name: int(record.counters.get(f"left.{name}.null_key", 0)) for name in self.inputs})
            self._results += record.rows_out
        self.history.forget(keep=BATCHES)

    def _refresh(self) -> list[BatchRecord]:
        try:
            return self.history.refresh()
        except StateError:  # a view never stops a run; the run itself reports what is wrong with the state
            return []

    @property
    def rows(self) -> int:
        """Rows of all inputs so far."""
        return self._rows.total()

    def update(self, reports: Sequence[Report] = ()) -> Snapshot:
        """The situation now, given Spark's newest progress reports."""
        now = self._clock()
        rows, results = Counter(self._rows), self._results
        self._add_up()
        for name, rate in self._rates.items():
            if came := self._rows[name] - rows[name]:
                rate.add(now, came)
                self._last_rows[name] = now
        self._result_rate.add(now, self._results - results)
        for report in reports:
            self._take(report, now)
        return self._snapshot(now)

    def _take(self, report: Report, now: float) -> None:
        """A report ends a trigger: with a batch, or (while nothing comes) without one."""
        self._reports = (self._reports[0] if self._reports else now, now)
        if "addBatch" in report["durationMs"]:
            self._batch = int(report["batchId"])
            self._batch_seconds = report["durationMs"].get("triggerExecution", 0) / 1000
            record = self.history.batches.get(self._batch, BatchRecord(self._batch))
            self._last_rows.update({name: now for name, rows in record.rows_in.items() if rows})

    def _snapshot(self, now: float) -> Snapshot:
        last = self._newest()
        lags = {name: lag for name, lag in self._lags().items() if name not in self.history.ended}
        return Snapshot(
            name=self.name,
            phase=self.phase,
            elapsed=now - self._started,
            batch=self._batch,
            batch_seconds=self._batch_seconds,
            inputs=tuple(self._input(name, lags.get(name), now) for name in self.inputs),
            results=self._results,
            result_rate=self._result_rate.at(now, self._started),
            resident_bytes=last.resident_bytes if last else 0,
            spilled_bytes=last.spilled_bytes if last else 0,
            state_rows=last.state_rows if last else 0,
            budget=self.budget,
            doing=doing(self.phase, last),
            remaining=self._remaining(lags, last),
            counters=dict(last.counters) if last else {},
            choices=self._choices,
        )

    def _newest(self) -> BatchRecord | None:
        """The batch to show: the newest that Spark has committed."""
        return self.history.batches.get(-1 if self._batch is None else self._batch) or self._complete()

    def _complete(self) -> BatchRecord | None:
        """The newest batch that all partitions have committed, perhaps not Spark yet."""
        complete = [number for number, record in self.history.batches.items() if record.complete]
        return self.history.batches[max(complete)] if complete else None

    def _input(self, name: str, lag: str | None, now: float) -> InputProgress:
        # While a batch is under way nobody knows what it has found: silence lasts up to the newest report, not to now.
        silent = 0.0
        if self._reports is not None:
            first, newest = self._reports
            silent = max(newest - self._last_rows.get(name, first), 0.0)
        if name in self.history.ended:
            state = "ended"
        elif self.phase in ("done", "stopped"):
            state = "open"
        elif silent >= STALL_SECONDS:
            state = "stalled"
        else:
            state = "flowing" if name in self._last_rows else "waiting"
        return InputProgress(
            self.inputs[name],
            self._rows[name],
            self._rates[name].at(now, self._started),
            lag,
            state,
            silent,
            self._null_keys[name],
        )

    def _remaining(self, lags: Mapping[str, str], last: BatchRecord | None) -> str | None:
        """What is known to be left: unread data at the sources, then data on disk that the end of the join reads."""
        waiting = [f"{self.inputs[name]}: {lag}" for name, lag in lags.items() if not lag.startswith("0 ")]
        if last and last.spilled_bytes and not self.history.finished:
            waiting.append(f"{filesize.decimal(last.spilled_bytes)} on disk")
        return ", ".join(waiting) or None


def _choices(directory: StateDir) -> tuple[Choice, ...]:
    try:
        story = recorded_story(directory)
    except StateError:  # it explains; a view never stops a run
        return ()
    return () if story is None else story.choices


def doing(phase: str, last: BatchRecord | None) -> str:
    """What the operator did in its newest batch, in its own words: the kinds of its decisions, most frequent first."""
    if last is None:
        return "waiting for the first batch"
    stage = "arrival" if any(last.rows_in.values()) else "finish" if phase == "finishing" else "idle"
    events = Counter({kind: count for kind, count in last.events.items() if kind != "choice"})  # made before it
    kinds = [f"{kind} x{count}" if count > 1 else kind for kind, count in events.most_common(4)]
    return f"{stage}: {', '.join(kinds)}" if kinds else stage
