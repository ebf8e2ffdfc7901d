"""The multi-way join: every driver policy with 2, 3, 4 and 6 inputs, under windows, with optional inputs, and within
tiny budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from watersmeet.plan.options import MAX_DURATION
from watersmeet.testing import Arrival, Script, ending_script, inner_join, random_script
from watersmeet.testing.arrivals import Row
from watersmeet.testing.cases import Case
from watersmeet.testing.oracle import OptionalOracle

DRIVERS = ("timestamp", "round_robin", "consumption_rate", "output_size", "output_rate")
INPUTS = {2: ("left", "right"), 3: ("a", "b", "c"), 4: ("a", "b", "c", "d"), 6: ("a", "b", "c", "d", "e", "f")}
# A key gives rows**inputs results: this many rows of a key and input keep the oracle quick.
ROWS_OF_A_KEY = {2: 1000, 3: 9, 4: 5, 6: 3}
# Enough for runs to be merged, and no more than needed where every batch has many steps.
MOST_BATCHES = {2: 20, 3: 20, 4: 9, 6: 6}
TICK = 1_000_000
LATENESS = 2 * TICK
EARLIEST, LATEST = -(2**63), 2**63 - 1


def sparse_script(seed: int, **shape: Any) -> list[Arrival]:
    """A random script with few rows of each key per input."""
    most = ROWS_OF_A_KEY[len(shape["inputs"])]
    shape["batches"] = min(shape.get("batches", 8), MOST_BATCHES[len(shape["inputs"])])
    seen: Counter[tuple[str, Any]] = Counter()

    def kept(name: str, row: Row) -> bool:
        seen[name, row[0]] += 1
        return row[0] is None or seen[name, row[0]] <= most

    return [
        replace(arrival, rows={name: [row for row in rows if kept(name, row)] for name, rows in arrival.rows.items()})
        for arrival in random_script(seed, **shape)
    ]


def timed_script(seed: int, **shape: Any) -> list[Arrival]:
    """The same with a time in place of the id: up to LATENESS before the batch's clock, the id in the text."""

    def timed(clock: int, row: Row) -> Row:
        key, ident, text = row
        return key, clock - ident % 5 * TICK // 2, f"{ident}{text}"  # half seconds, so that many times are equal

    return [
        replace(a, rows={name: [timed(a.time, row) for row in rows] for name, rows in a.rows.items()})
        for a in sparse_script(seed, tick=TICK, **shape)
    ]


def far_script(seed: int, **shape: Any) -> list[Arrival]:
    """Times at both ends of what 64 bits hold: batches at the earliest, a mixed one, then batches at the latest."""
    script = sparse_script(seed, **shape)

    def far(number: int, row: Row) -> Row:
        key, ident, text = row
        early = number < len(script) // 2 if number != len(script) // 2 else ident % 2 == 0
        base = EARLIEST + number * TICK if early else LATEST - (len(script) - number - 2) * TICK
        return key, min(max(base - ident % 5 * TICK // 2, EARLIEST), LATEST), f"{ident}{text}"

    return [
        replace(a, rows={name: [far(number, row) for row in rows] for name, rows in a.rows.items()})
        for number, a in enumerate(script)
    ]


def window_oracle(script: Script, inputs: tuple[str, ...], window: int) -> Counter[Row]:
    """All combinations of one key whose times (the first payload column) lie within the window."""
    answer: Counter[Row] = Counter()
    for row, count in inner_join(script, inputs).items():
        times = row[1::2]
        if max(times) - min(times) <= window:
            answer[row] += count
    return answer


def straggling_script(seed: int, **shape: Any) -> list[Arrival]:
    """Some rows are late."""

    def late(row: Row) -> Row:
        key, time, text = row
        return key, time - (6 * TICK if time // TICK % 3 == 0 else 0), text

    script = timed_script(seed, **shape)
    return [replace(a, rows={name: [late(row) for row in rows] for name, rows in a.rows.items()}) for a in script]


def without_late_rows(script: Script, inputs: tuple[str, ...], window: int) -> Counter[Row]:
    """The join of the rows that are not late."""
    newest: dict[str, int] = {}
    kept = []
    for arrival in script:
        known = {
            name: [row for row in rows if row[0] is not None and row[1] >= newest.get(name, EARLIEST) - LATENESS]
            for name, rows in arrival.rows.items()
        }
        for name, rows in known.items():
            newest[name] = max([newest.get(name, EARLIEST), *(row[1] for row in rows)])
        kept.append(replace(arrival, rows=known, seen=None))
    return window_oracle(kept, inputs, window)


def plain(driver: str, inputs: int) -> Case:
    return Case(
        f"mjoin {driver} {inputs}",
        "mjoin",
        tuning={"driver": driver, "slices": 3},
        inputs=INPUTS[inputs],
        script=sparse_script,
        variation=inputs != 3 and driver != "output_size",
    )


def windowed(driver: str, inputs: int, window: int, script: Callable[..., Script] = timed_script) -> Case:
    names = INPUTS[inputs]
    options = {"window": window, "lateness": LATENESS, "time": dict.fromkeys(names, "_p0")}
    return Case(
        f"mjoin {driver} {inputs} window {window}{' far' * (script is far_script)}",
        "mjoin",
        options,
        {"driver": driver, "slices": 3},
        inputs=names,
        script=script,
        oracle=partial(window_oracle, inputs=names, window=window),
    )


def budgeted(inputs: int, memory: int, idle_pages: int, buckets: int, window: int | None = None, **tuning: Any) -> Case:
    """So little memory that almost everything is flushed, and pages of a few rows."""
    case = plain("output_size", inputs) if window is None else windowed("output_size", inputs, window)
    shown = {"memory": memory, "idle_pages": idle_pages, "buckets": buckets, **tuning}
    return replace(
        case,
        name=" ".join([case.name, *(f"{name}={value}" for name, value in shown.items())]),
        options={**case.options, "buckets": buckets},
        tuning={**case.tuning, "memory": memory, "idle_pages": idle_pages, "page_rows": 4, **tuning},
    )


def optional(case: Case, *names: str) -> Case:
    """The same with optional inputs, which end one after the other in every second script. Under a budget results may
    come later than they are known."""
    answer = OptionalOracle(case.inputs, names, window=case.options.get("window"), lateness=LATENESS).answer

    def uneven_script(seed: int, **shape: Any) -> Script:
        script = case.script(seed, **shape)
        return ending_script(script, shape["inputs"], seed) if shape.get("end", True) and seed % 2 else script

    return replace(
        case,
        name=f"{case.name} optional {' '.join(names)}",
        options={**case.options, "optional": list(names)},
        script=uneven_script,
        oracle=lambda script: sum(answer(script), Counter()),
        by_batch=None if "memory" in case.tuning else answer,
        variation=len(case.inputs) != 3 or len(names) > 1,
    )


CASES = [plain(driver, inputs) for inputs in INPUTS for driver in DRIVERS]
CASES += [windowed("timestamp", 2, 0), windowed("output_size", 3, TICK), windowed("round_robin", 4, 3 * TICK)]
CASES += [
    replace(
        windowed("output_size", inputs, 2 * TICK, straggling_script),
        name=f"mjoin {inputs}, late rows dropped",
        tuning={"late": "drop"},
        oracle=partial(without_late_rows, inputs=INPUTS[inputs], window=2 * TICK),
    )
    for inputs in (2, 3)
]
CASES += [
    windowed("timestamp", 2, 0, far_script),
    windowed("round_robin", 3, 3 * TICK, far_script),
    windowed("output_size", 4, MAX_DURATION, far_script),
]
CASES += [
    budgeted(2, 900, 3, 3),
    budgeted(2, 1, 1000, 1, page_rows=1),
    budgeted(3, 900, 4, 3),
    budgeted(3, 400, 0, 2, driver="timestamp"),
    budgeted(4, 1500, 8, 2, driver="round_robin"),
    budgeted(2, 500, 0, 3, window=TICK),
    budgeted(3, 700, 0, 2, window=3 * TICK, driver="timestamp"),
]
CASES += [
    optional(plain("output_size", 2), "right"),
    optional(plain("timestamp", 2), "left"),
    optional(plain("output_size", 3), "c"),
    optional(plain("round_robin", 3), "b", "a"),
    optional(plain("timestamp", 4), "d", "b"),
    optional(budgeted(2, 900, 3, 3), "right"),
    optional(budgeted(2, 1, 1000, 1, page_rows=1), "left"),
    optional(budgeted(3, 900, 4, 3), "b"),
    optional(budgeted(3, 400, 0, 2, driver="timestamp"), "c", "a"),
    optional(budgeted(4, 1500, 8, 2, driver="round_robin"), "b", "d"),
    optional(windowed("output_size", 2, TICK), "right"),
    optional(windowed("timestamp", 3, 3 * TICK), "a"),
    optional(windowed("round_robin", 4, 2 * TICK), "d", "b"),
    optional(windowed("round_robin", 3, 3 * TICK, far_script), "c", "b"),
]
