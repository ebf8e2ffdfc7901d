"""Joins with something wrong: each runs a real operator in process, over a state directory, with batches up to now."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from watersmeet.engine.runtime import run_batch
from watersmeet.pipeline.names import InputNames, record_names
from watersmeet.plan import JoinPlan
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.punctuated.options import PunctuatedOptions
from watersmeet.state.description import Description, record_inputs
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import register_join
from watersmeet.testing.arrivals import Arrival, Row, batch_of, make_plan
from watersmeet.testing.masters import semi_stream_plan, write_master
from watersmeet.window.options import WindowOptions

SECOND = 1_000_000
TIMED = (pa.int64(), pa.string(), pa.timestamp("us", "UTC"))
NAMES = {"left": "orders", "right": "payments"}
Rows = Sequence[Row]


def run_join(
    folder: Path,
    plan: JoinPlan,
    batches: Sequence[Mapping[str, Rows]],
    *,
    ends_ago: float = 1.0,
    every: float = 2.0,
    names: Mapping[str, str] | None = None,
    run_id: Callable[[int], str] = lambda number: "one",
    ended: frozenset[str] = frozenset(),
    signals: Mapping[int, tuple[int, ...]] | None = None,
) -> Path:
    """Run batches `every` so many seconds apart, the last of them `ends_ago` seconds before now."""
    directory = StateDir(folder)
    directory.create()
    register_join("test", directory, plan)
    record_inputs(directory, Description.plain(plan))
    record_names(directory, InputNames(NAMES if names is None else names))
    first = int((time.time() - ends_ago - every * (len(batches) - 1)) * SECOND)
    for number, rows in enumerate(batches):
        last = number == len(batches) - 1
        at = first + int(number * every * SECOND)
        sent = (signals or {}).get(number, ())
        arrival = Arrival(rows, time=at, ended=ended if last else frozenset(), signals=sent)
        for partition in range(plan.partitions):
            mine = batch_of(plan, number, arrival)
            kept = {
                name: table.filter(pa.array(table.column("_hash").to_numpy() % plan.partitions == partition))
                for name, table in mine.rows.items()
            }
            for _ in run_batch(plan, directory, partition, replace(mine, rows=kept), run_id=run_id(number)):
                pass
    return folder


def rows_of(keys: Sequence[object], *rest: object) -> Rows:
    """Rows with these keys."""
    return [(key, number, "x", *rest) for number, key in enumerate(keys)]


def _random(seed: int, rows: int, keys: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, keys, rows).tolist()


def two_partitions(plan: JoinPlan, partitions: int = 2) -> JoinPlan:
    """The plan with more than one partition."""
    return JoinPlan(plan.operator, plan.inputs, plan.output, plan.options, plan.tuning, partitions, plan.how)


def nulls_match(plan: JoinPlan) -> JoinPlan:
    """The plan with nulls in its one key that match nulls: a flag is the second column of the key."""
    key, flag, *rest = plan.output
    assert (key.column, flag.column) == ("_k0", "_k1")
    return replace(plan, output=(replace(key, null_if="_k1"), *rest))


def healthy(folder: Path) -> Path:
    """Nothing is wrong: many keys, both inputs flow, all fits."""
    batches = [{name: rows_of(_random(i, 200, 5000)) for i, name in enumerate(NAMES, 2 * n)} for n in range(12)]
    return run_join(folder, two_partitions(make_plan("symmetric"), 4), batches)


def hot_key(folder: Path) -> Path:
    """Half of all orders have one key, which no payment has."""
    batches = [
        {
            "left": rows_of([7] * 150 + _random(n, 150, 5000)),
            "right": rows_of([k + 10_000 for k in _random(n, 300, 500)]),
        }
        for n in range(10)
    ]
    return run_join(folder, two_partitions(make_plan("symmetric")), batches)


def silent_input(folder: Path) -> Path:
    """Payments stop after the third batch."""
    batches: list[Mapping[str, Rows]] = [{name: rows_of(_random(n, 100, 5000)) for name in NAMES} for n in range(3)]
    batches += [{"left": rows_of(_random(n, 100, 5000))} for n in range(12)]
    return run_join(folder, make_plan("symmetric"), batches)


def fan_out(folder: Path) -> Path:
    """Ten thousand payments of one key; every order of it has as many results."""
    batches: list[Mapping[str, Rows]] = [{"right": rows_of([42] * 1000 + _random(n, 200, 5000))} for n in range(10)]
    batches += [{"left": rows_of([42] * 20 + _random(n, 2000, 5000))} for n in range(8)]
    return run_join(folder, make_plan("symmetric"), batches)


def late_rows(folder: Path) -> Path:
    """A tenth of the payments is two minutes old, and only ten seconds are allowed."""
    options = WindowOptions(window="1 minute", lateness="10 seconds", time_columns=["_p2", "_p2"])
    plan = make_plan("window", options=options.identity(), tuning=options.tuning(), payload=TIMED)
    now = time.time()
    batches = []
    for n in range(12):
        at = datetime.fromtimestamp(now - 2 * (12 - n), UTC)
        old = datetime.fromtimestamp(now - 2 * (12 - n) - 120, UTC)
        left = rows_of(_random(n, 100, 50), at)
        right = [
            (*row[:3], old if number % 10 == 0 else at) for number, row in enumerate(rows_of(_random(n, 100, 50), at))
        ]
        batches.append({"left": left, "right": right})
    return run_join(folder, plan, batches)


def three_inputs(folder: Path) -> Path:
    """Many clicks, few buys and views, in one join."""
    amounts = {"buys": 5, "clicks": 400, "views": 20}
    plan = two_partitions(make_plan("mjoin", inputs=tuple(amounts)), 3)
    batches = [{name: rows_of(_random(n, rows, 300)) for name, rows in amounts.items()} for n in range(6)]
    return run_join(folder, plan, batches, names={})


def new_versions(folder: Path) -> Path:
    """A stream with a few frequent keys, joined with a table that gets another version on the way."""
    table = str(folder.parent / "table")
    for version in (1, 2):
        write_master(table, [(key, key, f"v{version}") for key in range(200)], chunk_rows=16)
    plan = semi_stream_plan(table, tuning={"max_delay": 4, "idle_chunks": 0})
    batches = [{"stream": rows_of([1, 2, 3] * 30 + _random(n, 20, 200))} for n in range(20)]
    return run_join(folder, plan, batches, names={}, signals={6: (2,)})


def small_quota(folder: Path) -> Path:
    """Far more rows than a batch may process, and memory for few of those that wait."""
    options = PunctuatedOptions(quota=20, memory=12_000)
    plan = make_plan("punctuated", options=options.identity(), tuning=options.tuning())
    batches = [{name: rows_of(_random(2 * n + i, 150, 3000)) for i, name in enumerate(NAMES)} for n in range(12)]
    return run_join(folder, plan, batches)


def small_budget(folder: Path) -> Path:
    """A budget of 20 kB for ten times as much."""
    options = ProgressiveOptions(memory=20_000, page_rows=64, buckets=8)
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
    batches = [{name: rows_of(_random(2 * n + i, 200, 3000)) for i, name in enumerate(NAMES)} for n in range(20)]
    return run_join(folder, plan, batches)
