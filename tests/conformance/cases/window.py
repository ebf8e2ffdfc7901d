"""Window joins: every algorithm, both clocks, every way to meet overload.

The oracle joins by nested loops over plain rows. What is dropped under overload it takes from the operator's own
account (the regulated rates, the horizons): the answer must be the join of exactly what the account says was there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.engine.registry import build
from watersmeet.join.operator import advance
from watersmeet.plan import JoinPlan
from watersmeet.plan.options import MAX_DURATION
from watersmeet.state.rules import Horizon
from watersmeet.state.space import MemorySpace
from watersmeet.testing.arrivals import Row, Script, batch_of, make_plan, random_script, table_of
from watersmeet.testing.cases import Case
from watersmeet.window.shedding import kept
from watersmeet.window.window_join import WindowJoin

SECOND = 1_000_000
UNIX = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH = datetime(2024, 2, 29, tzinfo=UTC)
EARLIEST, LATEST = -(2**63), 2**63 - 1
PAYLOAD = (pa.int64(), pa.string(), pa.timestamp("us", "UTC"))
SIDES = ("left", "right")

plan_with_times = partial(make_plan, payload=PAYLOAD)
plan_with_numbers = partial(make_plan, payload=(pa.int64(), pa.string(), pa.int64()))


def timed_script(seed: int, *, jitter: float = 3.0, stragglers: float = 0.05, **shape: Any) -> Script:
    """A random script whose rows have a time: near their batch's, out of order, often equal, some late, some null."""
    rng = random.Random(seed + 1)

    def timed(row: Row, number: int) -> Row:
        if rng.random() < 0.02:
            return (*row, None)
        offset = rng.randrange(-int(2 * jitter), 2) / 2  # half seconds: equal times and exact window edges are common
        if rng.random() < stragglers:
            offset -= rng.randrange(0, 30)
        return (*row, EPOCH + timedelta(seconds=number + offset))

    return [
        replace(
            arrival,
            rows={name: [timed(row, number) for row in rows] for name, rows in arrival.rows.items()},
            time=(number + 1) * SECOND,
        )
        for number, arrival in enumerate(random_script(seed, **shape))
    ]


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


def answer(
    script: Script,
    window: tuple[int, int],
    lateness: int,
    arrival_clock: bool,
    dropped: Callable[[int, str, list[Row]], list[Row]] = lambda number, name, rows: rows,
    cut: Callable[[int, str], int | None] = lambda number, name: None,
) -> Counter[Row]:
    """All results: each new row meets the rows held and the new ones; then every row no longer needed is let go."""
    wait = dict(zip(SIDES, window, strict=True))
    held: dict[str, list[tuple[int, Row]]] = {name: [] for name in SIDES}
    newest: dict[str, int] = {}
    ended: set[str] = set()
    found: Counter[Row] = Counter()
    for number, arrival in enumerate(script):
        new: dict[str, list[tuple[int, Row]]] = {}
        for name in SIDES:
            rows = dropped(number, name, list(arrival.rows.get(name, ())))
            known = [row for row in rows if row[0] is not None and (arrival_clock or row[3] is not None)]
            new[name] = [(arrival.time if arrival_clock else micros(row[3]), row) for row in known]
        for lefts, rights in (("new", "held"), ("held", "new"), ("new", "new")):
            for lt, left in new["left"] if lefts == "new" else held["left"]:
                for rt, right in new["right"] if rights == "new" else held["right"]:
                    if left[0] == right[0] and -window[1] <= rt - lt <= window[0]:
                        found[(*left, *right[1:])] += 1
        for name in SIDES:
            held[name] += new[name]
            times = [arrival.time] if arrival_clock else [time for time, _ in new[name]]
            if times:
                newest[name] = max(max(times), newest.get(name, max(times)))
        for name, other in (SIDES, SIDES[::-1]):
            if other in ended:
                held[name] = []
            if other in newest:
                earliest = newest[other] - (0 if arrival_clock else lateness) - wait[name]
                held[name] = [(time, row) for time, row in held[name] if time >= earliest]
            limit = cut(number, name)
            if limit is not None:
                held[name] = [(time, row) for time, row in held[name] if time >= limit]
        ended |= arrival.ended
    return found


def accounted(script: Script, typed: Script, plan: JoinPlan, window: tuple[int, int], lateness: int) -> Counter[Row]:
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

    return answer(script, window, lateness, False, dropped, lambda number, name: horizons[number, name])


def case(
    name: str,
    window: tuple[float, float] = (4, 4),
    lateness: float = 3,
    *,
    arrival_clock: bool = False,
    script: Callable[..., Script] = timed_script,
    **tuning: Any,
) -> Case:
    lengths = (round(window[0] * SECOND), round(window[1] * SECOND))
    options: Mapping[str, Any] = {
        "window": list(lengths),
        "lateness": round(lateness * SECOND),
        "time_columns": None if arrival_clock else ["_p2", "_p2"],
    }
    plan = plan_with_numbers if script is far_script else plan_with_times
    made = Case(f"window-{name}", "window", options, tuning, script=script, make_plan=plan)
    if tuning.get("on_overload", "keep") == "keep":
        oracle = partial(answer, window=lengths, lateness=round(lateness * SECOND), arrival_clock=arrival_clock)
        return replace(made, oracle=oracle)
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
    yield case("shed", (5, 5), on_overload="shed", service_rate=5)
    yield case("shrink", (20, 20), on_overload="shrink", memory=1500)
    yield case("shrink-and-shed", (10, 10), on_overload="shrink", memory=1500, service_rate=6)
    for algorithm in ("HH", "HN", "NN"):
        yield case(f"far-{algorithm}", algorithm=algorithm, script=far_script)
    yield case("far-longest", (MAX_DURATION // SECOND, 0), MAX_DURATION // SECOND, script=far_script)
    yield case("far-disk", (6, 6), algorithm="HN", memory=600, script=far_script)
    yield case("far-shrink", (20, 20), on_overload="shrink", memory=1500, script=far_script)


CASES = list(cases())
