"""Window joins: every algorithm, both clocks, every way to meet overload.

The oracle joins by nested loops over plain rows. What is dropped under overload it takes from the operator's own
account (the regulated rates, the horizons): the answer must be the join of exactly what the account says was there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.engine.registry import build
from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.join.operator import advance
from watersmeet.plan import JoinPlan
from watersmeet.plan.options import MAX_DURATION
from watersmeet.state.rules import Horizon
from watersmeet.state.space import MemorySpace
from watersmeet.testing.arrivals import Arrival, Row, Script, batch_of, make_plan, random_script, table_of
from watersmeet.testing.cases import Case
from watersmeet.testing.oracle import BinaryOracle, Held
from watersmeet.window.cells import cell_length
from watersmeet.window.shedding import kept
from watersmeet.window.window_join import WindowJoin

SECOND = 1_000_000
UNIX = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH = datetime(2024, 2, 29, tzinfo=UTC)
EARLIEST, LATEST = -(2**63), 2**63 - 1
PAYLOAD = (pa.int64(), pa.string(), pa.timestamp("us", "UTC"))
SIDES = ("left", "right")
FOREVER = 10**30
NEVER = EARLIEST - 1  # the newest time of an input that has sent nothing

Waits = tuple[int | None, int | None]  # None: the interval is open

plan_with_times = partial(make_plan, payload=PAYLOAD)
plan_with_numbers = partial(make_plan, payload=(pa.int64(), pa.string(), pa.int64()))


def timed(script: Script, seed: int, *, jitter: float = 3.0, stragglers: float = 0.05) -> Script:
    """A script whose rows get a time: near their batch's, out of order, often equal, some late, some null."""
    rng = random.Random(seed + 1)

    def one(row: Row, number: int) -> Row:
        if rng.random() < 0.02:
            return (*row, None)
        offset = rng.randrange(-int(2 * jitter), 2) / 2  # half seconds: equal times and exact window edges are common
        if rng.random() < stragglers:
            offset -= rng.randrange(0, 30)
        return (*row, EPOCH + timedelta(seconds=number + offset))

    return [
        replace(
            arrival,
            rows={name: [one(row, number) for row in rows] for name, rows in arrival.rows.items()},
            time=(number + 1) * SECOND,
        )
        for number, arrival in enumerate(script)
    ]


def timed_script(seed: int, *, jitter: float = 3.0, stragglers: float = 0.05, **shape: Any) -> Script:
    """A random script with times."""
    return timed(random_script(seed, **shape), seed, jitter=jitter, stragglers=stragglers)


def crowded_script(seed: int, **shape: Any) -> Script:
    """Few keys, each many times within a window, and many late rows."""
    return timed_script(seed, stragglers=0.2, **{**shape, "keys": min(3, shape.get("keys", 3))})


def one_falls_silent(seed: int, **shape: Any) -> Script:
    """Now and then one input sends nothing for some batches, while the other one goes on."""
    rng = random.Random(seed + 3)
    script, silent = [], {"left": 0, "right": 0}
    for arrival in timed_script(seed, **shape):
        for name in SIDES:
            silent[name] = max(0, silent[name] - 1) or (rng.randrange(2, 7) if rng.random() < 0.15 else 0)
        rows = {name: rows for name, rows in arrival.rows.items() if not silent[name]}
        script.append(replace(arrival, rows=rows))
    return script


def far_script(seed: int, **shape: Any) -> Script:
    """Times at both ends of what 64 bits hold: batches at the earliest ones, a mixed one, then batches at the latest.

    They are whole numbers, because no datetime lies that far away.
    """
    rng = random.Random(seed + 2)
    script = random_script(seed, **shape)

    def far(row: Row, number: int) -> Row:
        early = number < len(script) // 2 if number != len(script) // 2 else rng.random() < 0.5
        base = EARLIEST + number * SECOND if early else LATEST - (len(script) - number) * SECOND
        time = base + rng.randrange(-6, 5) * SECOND // 2
        return (*row, min(max(time, EARLIEST), LATEST))

    return [
        replace(
            arrival,
            rows={name: [far(row, number) for row in rows] for name, rows in arrival.rows.items()},
            time=(number + 1) * SECOND,
        )
        for number, arrival in enumerate(script)
    ]


def micros(time: datetime | int) -> int:
    return time if isinstance(time, int) else (time - UNIX) // timedelta(microseconds=1)


class WindowOracle(BinaryOracle):
    """Rows match within windows; what is behind the horizon is certain, and is matched with nothing any more.

    In a semi or anti join right rows are there until the whole cell of time that they are in is behind the horizon.
    """

    def __init__(
        self,
        how: str,
        window: Waits,
        lateness: int,
        arrival_clock: bool,
        cut: Callable[[int, str], int | None] = lambda number, name: None,
        timeout: int | None = None,
        drop: bool = False,
        where: Callable[[Row, Row], bool] | None = None,  # on columns of both inputs
    ) -> None:
        super().__init__(how, width=3, where=where or (lambda left, right: True))
        self.drop = drop
        self.timeout, self.active = timeout, dict[str, int]()
        self.waits = {side: FOREVER if wait is None else wait for side, wait in zip(SIDES, window, strict=True)}
        self.lateness, self.arrival_clock = 0 if arrival_clock else lateness, arrival_clock
        self.cut = cut
        self.newest: dict[str, int] = {}
        self.horizon: dict[str, int] = {}
        kept = min(max(self.waits["right"], 0), MAX_DURATION) + self.lateness
        thinned = self.exists and where is None
        self.cells = {"left": 1, "right": cell_length(sum(self.waits.values()), kept) if thinned else 1}

    def is_null(self, row: Row) -> bool:
        return row[0] is None or (not self.arrival_clock and row[3] is None)

    def time_of(self, row: Row, arrival: Arrival) -> int:
        return arrival.time if self.arrival_clock else micros(row[3])

    def joins(self, left: Held, right: Held) -> bool:
        near = -self.waits["right"] <= right.time - left.time <= self.waits["left"]
        return near and super().joins(left, right)

    def drops(self, side: str, row: Held) -> bool:
        return self.drop and row.time < self.newest.get(side, NEVER) - self.lateness

    def learn(self, number: int, arrival: Arrival, new: Mapping[str, Sequence[Held]]) -> None:
        for side in SIDES:
            times = [arrival.time] if self.arrival_clock else [one.time for one in new[side]]
            self.newest[side] = max([*times, self.newest.get(side, NEVER)])
        for side in SIDES if self.timeout is not None else ():
            if new[side] or side not in self.active:
                self.active[side] = arrival.time
            if arrival.time - self.active[side] >= self.timeout:
                self.newest[side] = max(self.newest[side], self.newest[self.other(side)])
        for side in SIDES:
            if self.newest[self.other(side)] > NEVER:
                bound = max(self.newest[self.other(side)] - self.lateness, EARLIEST)  # there are no times before
                self._advance(side, (bound - self.waits[side]) // self.cells[side] * self.cells[side])
            if (limit := self.cut(number, side)) is not None:
                self._advance(side, limit)

    def _advance(self, side: str, horizon: int) -> None:
        self.horizon[side] = max(horizon, self.horizon.get(side, horizon))

    def certain(self, side: str, row: Held) -> bool:
        return super().certain(side, row) or row.time < self.horizon.get(side, row.time)


def answer(
    script: Script,
    window: Waits,
    lateness: int,
    arrival_clock: bool,
    cut: Callable[[int, str], int | None] = lambda number, name: None,
    how: str = "inner",
    timeout: int | None = None,
    drop: bool = False,
    where: Callable[[Row, Row], bool] | None = None,
) -> list[Counter[Row]]:
    """The rows owed in each batch."""
    return WindowOracle(how, window, lateness, arrival_clock, cut, timeout, drop, where).answer(script)


def accounted(script: Script, typed: Script, plan: JoinPlan, window: Waits, lateness: int) -> Counter[Row]:
    """The answer less what a run of the operator says that it dropped."""
    operator = build(plan, MemorySpace())
    assert isinstance(operator, WindowJoin)
    shares: dict[tuple[int, str], float] = {}
    horizons: dict[tuple[int, str], int | None] = {}
    for number, arrival in enumerate(typed):
        for _ in advance(operator, batch_of(plan, number, arrival)):
            pass
        for event in operator.metrics.events:
            if event["kind"] == "shed":
                for name, rate, limit in zip(SIDES, event["rates"], event["regulated"], strict=True):
                    shares[number, name] = limit / rate if rate else 1.0
        for name, store in operator.stores.items():
            assert isinstance(store.rule, Horizon)
            horizons[number, name] = store.rule.time

    def dropped(number: int, name: str, rows: list[Row]) -> list[Row]:
        share = shares.get((number, name), 1.0)
        if share >= 1.0 or not rows:
            return rows
        seen = list(typed[number].rows[name])  # the operator drops rows by their keys
        mask: np.ndarray[Any, Any] = kept(table_of(plan.input(name), seen), number, share)
        return [row for row, stays in zip(rows, mask, strict=True) if stays]

    thinned = [
        replace(
            arrival, rows={name: dropped(number, name, list(rows)) for name, rows in arrival.rows.items()}, seen=None
        )
        for number, arrival in enumerate(script)
    ]
    return sum(answer(thinned, window, lateness, False, lambda number, name: horizons[number, name]), Counter())


def case(
    name: str,
    window: tuple[float | None, float | None] = (4, 4),
    lateness: float = 3,
    *,
    arrival_clock: bool = False,
    script: Callable[..., Script] = timed_script,
    how: str = "inner",
    **tuning: Any,
) -> Case:
    left, right = (None if length is None else round(length * SECOND) for length in window)
    lengths = left, right
    options: Mapping[str, Any] = {
        "window": list(lengths),
        "lateness": round(lateness * SECOND),
        "time_columns": None if arrival_clock else ["_p2", "_p2"],
    }
    plan = plan_with_numbers if script is far_script else plan_with_times
    # Intervals that do not contain zero, and open ones, are variations of the windows, but for two.
    leading = ("between 2 and 5, HN", "between 2 and 5, disk")
    variation = name.startswith(("between", "from", "up to")) and name not in leading
    made = Case(
        f"window-{name}", "window", options, tuning, script=script, make_plan=plan, how=how, variation=variation
    )
    if tuning.get("on_overload", "keep") == "keep":
        clock = {"lateness": round(lateness * SECOND), "arrival_clock": arrival_clock}
        more = {"timeout": tuning.get("idle_timeout"), "drop": tuning.get("late") == "drop"}
        return replace(made, by_batch=partial(answer, window=lengths, how=how, **more, **clock))
    return replace(made, account=partial(accounted, window=lengths, lateness=round(lateness * SECOND)))


# Costs at which a scan soon costs more than an index, so that `auto` changes structures within a few small batches.
EAGER = {
    "arrange": 5.0,
    "index": 5.0,
    "filter": 3.0,
    "order": 5.0,
    "probe": 1.0,
    "call": 0.0,
    "scan_call": 0.0,
    "scan_run": 0.0,
    "merge_call": 0.0,
    "arrange_call": 0.0,
    "merge": 1.0,
}


def cases() -> Iterator[Case]:
    for algorithm in ("auto", "HH", "HN", "NH", "NN"):
        yield case(algorithm, algorithm=algorithm)
    yield case("auto-eager", costs=EAGER)
    yield case("uneven", (7, 0.5), algorithm="HN")
    yield case("zero-length", (0, 0), 2)
    yield case("no-lateness", (3, 2), 0)
    yield case("long", (1000, 1000), algorithm="HN")
    yield case("arrival-clock", (2, 3), arrival_clock=True)
    yield case("disk", (6, 6), algorithm="HN", memory=600)
    for how in ("left_semi", "left_anti"):
        yield case(f"{how}, crowded", (1, 1.5), 6, how=how, script=crowded_script)
        yield case(f"{how}, crowded, disk", (5, 9), 3, how=how, script=crowded_script, algorithm="HH", memory=500)
        yield case(f"{how}, far", (4, 9), 5, how=how, script=far_script)
        yield case(f"{how}, arrival-clock", (2, 5), arrival_clock=True, how=how)
    for how in [how for how in JOIN_TYPES if how != "inner"]:
        yield case(f"{how}, HN", (4, 2), 3, algorithm="HN", how=how)
        yield case(f"{how}, disk", (6, 5), 2, algorithm="NH", memory=600, how=how)
    yield case("full, idle timeout", (3, 2), 1, how="full", idle_timeout=2 * SECOND, script=one_falls_silent)
    yield case("full, auto-eager", how="full", costs=EAGER)
    yield case("full, zero-length", (0, 0), 0, how="full")
    yield case("full, arrival-clock", (2, 3), arrival_clock=True, how="full")
    yield case("full, long", (1000, 1000), how="full")
    yield case("full, far", algorithm="HN", script=far_script, how="full")
    yield case("shed", (5, 5), on_overload="shed", service_rate=5)
    yield case("shrink", (20, 20), on_overload="shrink", memory=1500)
    yield case("shrink-and-shed", (10, 10), on_overload="shrink", memory=1500, service_rate=6)
    for algorithm in ("HH", "HN", "NN"):
        yield case(f"far-{algorithm}", algorithm=algorithm, script=far_script)
    yield case("far-longest", (MAX_DURATION // SECOND, 0), MAX_DURATION // SECOND, script=far_script)
    yield case("far-disk", (6, 6), algorithm="HN", memory=600, script=far_script)
    yield case("far-shrink", (20, 20), on_overload="shrink", memory=1500, script=far_script)
    yield from intervals()
    for how in JOIN_TYPES:
        yield case(f"{how}, late rows dropped", (4, 2), 1, late="drop", how=how)
    yield case("full, between 1 and 4, late rows dropped", (4, -1), 0, late="drop", how="full", algorithm="HN")


def intervals() -> Iterator[Case]:
    """From `low` to `high` is written (high, -low): intervals that do not contain zero, or are open."""
    yield case("between 2 and 5", (5, -2), 3)
    yield case("between 2 and 5, HN", (5, -2), 3, algorithm="HN")
    yield case("between -6 and -1.5, NH", (-1.5, 6), 1, algorithm="NH")
    yield case("between 3 and 3", (3, -3), 0)
    yield case("between 2 and 5, disk", (5, -2), 2, algorithm="HN", memory=600)
    yield case("between 1 and 4, arrival-clock", (4, -1), arrival_clock=True)
    yield case("between 2 and 8, shed", (8, -2), on_overload="shed", service_rate=5)
    yield case("between 2 and 20, shrink", (20, -2), on_overload="shrink", memory=1500)
    yield case("between 2 and 10, shrink-and-shed", (10, -2), on_overload="shrink", memory=1500, service_rate=6)
    yield case("from 0", (None, 0), 2)
    yield case("from 2, HN", (None, -2), 1, algorithm="HN")
    yield case("up to -1, disk", (-1, None), 1, memory=600)
    for how in [how for how in JOIN_TYPES if how != "inner"]:
        yield case(f"{how}, between 2 and 5", (5, -2), 3, algorithm="HN", how=how)
        yield case(f"{how}, between -5 and -1, disk", (-1, 5), 2, memory=600, how=how)
        yield case(f"{how}, from 1", (None, -1), 2, how=how)
    yield case("full, up to 2", (2, None), 1, how="full")
    yield case("full, between 1 and 4, arrival-clock", (4, -1), arrival_clock=True, how="full")
    yield case(
        "full, between 2 and 5, idle timeout", (5, -2), 1, how="full", idle_timeout=2 * SECOND, script=one_falls_silent
    )
    for name, window in {"2 to 5": (5, -2), "-5 to -2": (-2, 5), "from 2": (None, -2), "up to -2": (-2, None)}.items():
        yield case(f"full, far, {name}", window, algorithm="HN", script=far_script, how="full")
    longest = MAX_DURATION // SECOND
    yield case("full, far, longest", (longest, -longest), script=far_script, how="full")


CASES = list(cases())
