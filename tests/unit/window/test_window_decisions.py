"""What a window keeps, merges, rewrites, evicts and spills, and by which costs: recomputed from plain rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.restarted import RestartedJoin

from watersmeet.engine.registry import build
from watersmeet.engine.runtime import run_batch
from watersmeet.join.operator import Batch, advance
from watersmeet.plan import JoinPlan
from watersmeet.state.directory import StateDir
from watersmeet.state.layouts import TimeSlices
from watersmeet.state.run import Run
from watersmeet.state.space import MemorySpace
from watersmeet.testing.arrivals import make_plan, table_of
from watersmeet.window.batch_costs import KernelCosts, Load, batch_cost, hash_cost, loop_cost
from watersmeet.window.cost_model import Stream
from watersmeet.window.explain import Explanation, expected_load, explain_state
from watersmeet.window.kernels import NARROW, distinct, distinct_in
from watersmeet.window.memory_split import Demand, regulate, split

SECOND = 1_000_000
Sent = Sequence[tuple[int, float]]


def plan(window: tuple[float, float] = (10, 10), lateness: float = 0, **tuning: Any) -> JoinPlan:
    options = {
        "window": [round(length * SECOND) for length in window],
        "lateness": round(lateness * SECOND),
        "time_columns": ["_p0", "_p0"],
    }
    return make_plan("window", options=options, payload=(pa.int64(),), tuning=tuning)


def batch(made: JoinPlan, number: int, left: Sent = (), right: Sent = ()) -> Batch:
    """Rows of (key, seconds)."""
    rows = {
        name: table_of(made.input(name), [(key, round(at * SECOND)) for key, at in some])
        for name, some in (("left", left), ("right", right))
    }
    return Batch(number, (number + 1) * SECOND, rows)


class Join(RestartedJoin):
    """A window join whose rows and runs can be counted."""

    def send(self, left: Sent = (), right: Sent = ()) -> dict[str, float]:
        """One batch; returns its counters."""
        results = self.step(batch(self.plan, self.number, left, right))
        return {**self.counters, "results": sum(table.num_rows for table in results)}

    def rows(self, name: str) -> int:
        """The rows held of an input."""
        return sum(store.rows for store in self.saved.stores if store.input == name)

    def runs(self, name: str, tier: str | None = None) -> list[Run]:
        return [run for run in self.saved.runs if run.label == name and tier in (None, run.tier)]

    def times(self, name: str, tier: str | None = None) -> list[float]:
        """The times held of an input, in seconds."""
        return sorted(time for run in self.runs(name, tier) for time in times(run))


def times(run: Run) -> list[float]:
    tables = run.parts if run.tier == "resident" else [page for bucket in range(16) for page in run.read(bucket)]
    return [time / SECOND for table in tables for time in table.column("_p0").to_pylist()]


def streams(seed: int, batches: int, late: float = 3.0) -> Iterator[tuple[Sent, Sent]]:
    """Batches of uneven size, in whole seconds, some rows late, some inputs silent."""
    rng = np.random.default_rng(seed)
    for number in range(batches):
        sides = []
        for _ in range(2):
            count = int(rng.choice([0, 1, 4, 15]))
            at = np.floor(number + rng.uniform(-late, 1, count)).clip(0)
            sides.append([(int(key), float(time)) for key, time in zip(rng.integers(0, 9, count), at, strict=True)])
        yield sides[0], sides[1]


@pytest.mark.parametrize("algorithm", ["HH", "NN", "auto"])
@pytest.mark.parametrize("seed", range(3))
def test_every_row_is_held_or_counted_as_expired(algorithm: str, seed: int) -> None:
    join = Join(plan((14, 6), lateness=2, algorithm=algorithm))
    windows, other = {"left": 14, "right": 6}, {"left": "right", "right": "left"}
    came: dict[str, list[float]] = {"left": [], "right": []}
    gone, late, newest = Counter[str](), Counter[str](), {}
    for left, right in streams(seed, 50):
        counters = join.send(left, right)
        for name, rows in (("left", left), ("right", right)):
            late[name] = sum(at < newest[name] - 2 for _, at in rows) if name in newest else 0
            came[name] += [at for _, at in rows]
        newest |= {name: max(rows) for name, rows in came.items() if rows}
        for name, rows in came.items():
            horizon = newest[other[name]] - 2 - windows[name] if other[name] in newest else -math.inf
            live, held = sorted(at for at in rows if at >= horizon), join.times(name)
            assert [at for at in held if at >= horizon] == live
            assert 4 * (len(held) - len(live)) <= len(live)  # what is dead weighs little, and ...
            gone[name] += int(sum(count for what, count in counters.items() if what.startswith(f"left.{name}.")))
            assert len(held) == len(rows) - gone[name] == join.rows(name)
            assert counters.get(f"late.{name}", 0) == late[name]
            assert counters[f"runs.{name}"] == len(join.runs(name))


@pytest.mark.parametrize("algorithm", ["HH", "NN"])
def test_runs_keep_to_slices_and_a_closed_slice_is_one_run(algorithm: str) -> None:
    join, newest, merged, came = Join(plan((14, 14), lateness=2, algorithm=algorithm)), 0.0, 0.0, 0
    for number, (left, _) in enumerate(streams(5, 60)):
        left = [*left, (0, float(number))]  # no silence: a horizon that jumps makes wider slices
        counters = join.send(left, [(0, at) for _, at in left])
        newest, came = max([newest, *(at for _, at in left)]), came + 2 * len(left)
        slices: Counter[float] = Counter()
        for run in join.runs("left"):
            assert len({time // 2 for time in times(run)}) == 1  # an eighth of window and lateness
            slices[times(run)[0] // 2] += 1
        for number, runs in slices.items():
            if (number + 1) * 2 <= newest - 2:  # nothing more is expected there
                assert runs == 1
        assert counters.get("rows_rewritten", 0) >= 0
        merged += counters.get("rows_rewritten", 0)
    assert 0 < merged < 4 * came


def test_dead_rows_are_rewritten_when_they_are_more_than_a_quarter_of_the_live_ones() -> None:
    join = Join(plan((8, 8), algorithm="NN"))
    join.send(left=[(1, at) for at in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)])
    # 0, 1, 2 of 9 are dead, then 1 of 7; four runs of the right window become one in the end.
    for bound, held, merged in [(8.1, 9, 0), (8.2, 9, 0), (8.3, 7, 7), (8.4, 7, 4)]:
        join.send(right=[(2, bound)])
        assert len(join.times("left")) == held
        assert join.counters.get("rows_rewritten", 0) == merged
    join = Join(plan((8, 8), algorithm="NN"))
    join.send(left=[(1, at) for at in (0.1, 0.2, 0.3, 0.4, 0.5)])
    join.send(right=[(2, 8.2)])
    assert len(join.times("left")) == 5  # one dead for four live ones is not yet too many


def test_a_run_is_indexed_once_scanning_it_has_cost_as_much() -> None:
    """Of a window that is to be sorted from now on: so that what came before is not scanned for ever."""
    costs = {"index": 50.0, "filter": 2.0, "order": 30.0, "scan_call": 1e9, "scan_run": 0.0, "call": 1.0}
    costs |= {"arrange_call": 1.0, "merge_call": 0.0}
    join = Join(plan((1000, 1000), costs=costs))
    join.send(left=[(key, 0) for key in range(100)])
    for number in range(1, 20):
        join.send(right=[(key, number) for key in (*range(8), *range(500, 520))])  # 8 of 28 keys are there
        if indexed := [event for event in join.events if event["kind"] == "index"]:
            break
    ((name, rows, spent),) = [(event["input"], event["rows"], event["spent_ns"]) for event in indexed]
    assert (name, rows) == ("left", 100)
    assert spent / number >= 100 * 2 + 8 * 30
    assert spent / number <= 100 * 2 + 20 * 30  # a filter lets a few rows pass that it should not
    assert spent >= 100 * 50 > spent * (number - 1) / number


def test_the_costs_of_a_batch_by_hand() -> None:
    """Cost of a window of sorted runs and of runs as they came, written out for what the join has seen."""
    prices = KernelCosts()
    join = Join(plan((1000, 1000), costs=prices.model_dump()))
    for number in range(25):
        counters = join.send([(key % 40, number) for key in range(60)], [(key, number) for key in range(30)])
    rows, keys, runs = join.rows("left"), counters["keys.left"], counters["runs.left"]
    assert (rows, keys) == (25 * 60, 40)
    hit = 1 - math.exp(-30 / keys)
    batches = rows / 60 / 8  # in a slice of time, so that a batch begins 1 / batches of them
    rewrites = 1 + math.floor(math.log(batches, 4))
    per_run = rows / runs
    assert per_run > 30  # so probes are looked up in runs
    assert per_run / keys > NARROW  # a key has many rows in a run, and in all of them
    there = 1 - math.exp(-per_run / keys)
    by_hash = prices.arrange_call + prices.merge_call / batches + 60 * (prices.arrange + rewrites * prices.merge)
    by_hash += runs * (prices.call + prices.narrow)
    by_hash += runs * 30 * (prices.filter + there * (prices.probe + prices.near))
    assert counters["cost_ns.left.hash"] == pytest.approx(by_hash, rel=1e-3)
    scan = prices.scan_call + prices.narrow + runs * prices.scan_run
    scan += rows * prices.filter + rows * hit * prices.order + 30 * (prices.probe + prices.near)
    scan += 30 * rows / keys * prices.split
    counted = 60 * (1 + rewrites) * prices.count  # when rows come, and when they are merged
    assert counters["cost_ns.left.loop"] == pytest.approx(60 * rewrites * prices.append + counted + scan, rel=1e-3)


@pytest.mark.parametrize(
    ("inserted", "rows", "slices", "merges", "rewrites"),
    [
        (10, 20, 2.0, 2.0, 0.5),  # a window of two batches: 8 slices would be 4 a batch, and are made wider
        (10, 40, 2.0, 2.0, 0.5),
        (10, 80, 1.0, 1.0, 1.0),
        (10, 320, 0.25, 0.25, 2.0),
        (10, 640, 0.125, 0.125 + 1 / 3, 2.0),  # 8 batches a slice: some of them are merged before it ends
        (0, 100, 0.0, 0.0, 0.0),
        (10, 0, 0.0, 0.0, 0.0),
    ],
)
def test_slices_and_merges_of_a_batch(
    inserted: float, rows: float, slices: float, merges: float, rewrites: float
) -> None:
    load = Load(inserted, probes=1, rows=rows, keys=5, runs=3)
    assert (load.slices, load.merges, load.rewrites) == pytest.approx((slices, merges, rewrites))


def test_a_batch_that_begins_no_slice_pays_for_its_store_alone() -> None:
    prices = KernelCosts()
    load = Load(inserted=0, probes=0, rows=1000, keys=1000, runs=1, probing=0)
    assert batch_cost("N", load, prices) == prices.store_call
    cut = Load(inserted=100, probes=0, rows=400, keys=400, runs=8, probing=0)
    without = loop_cost(cut, prices)
    expected = prices.store_call + 2 * prices.slice_call + 100 * prices.cut + without
    assert batch_cost("N", cut, prices) == pytest.approx(expected)


def test_without_time_columns_rows_have_the_time_of_their_batch() -> None:
    """A batch a second, and windows of a second and a half: rows meet those of their batch and of the one before."""
    join = Join(make_plan("window", options={"window": [1_500_000, 1_500_000]}, payload=(pa.int64(),)))
    results, expired = [], 0.0
    for _ in range(6):
        counters = join.send([(0, 0)], [(0, 0)])
        results.append(counters["results"])
        expired += counters.get("left.left.expired", 0)
    assert results == [1, 3, 3, 3, 3, 3]
    assert (join.rows("left"), join.rows("right"), expired) == (2, 2, 4)


@pytest.mark.parametrize(("window", "lateness", "width"), [((16, 40), 0, (2, 5)), ((16, 40), 8, (3, 6))])
def test_runs_span_an_eighth_of_the_time_that_a_window_holds(
    window: tuple[float, float], lateness: float, width: tuple[float, float]
) -> None:
    join = Join(plan(window, lateness, algorithm="HH"))
    for number in range(12):
        join.send([(0, float(number))], [(0, float(number))])
    for name, seconds in zip(("left", "right"), width, strict=True):
        assert {run.width for run in join.runs(name)} == {seconds * SECOND}


def test_spilled_runs_of_a_slice_are_merged() -> None:
    """A window with nearly all of its rows on disk: no slice of it has more than the runs of an unfinished merge."""
    join, most = Join(plan((40, 40), algorithm="HH", memory=1000)), 0
    for number in range(44):
        join.send([(key, number / 4) for key in range(12)], [(key, number / 4) for key in range(12)])
        slices = Counter(run.slot for run in join.runs("left", "spilled"))
        most = max(most, *slices.values(), 0)
    assert 1 < most <= 6
    assert len(slices) == 3  # of five seconds each


def test_what_has_the_shortest_life_is_spilled_first() -> None:
    """Runs that are probed for the shortest time go; of equals the older one, then the smaller one."""
    join, lives = Join(plan((40, 10), algorithm="HH", memory=6000)), {"left": 40, "right": 10}
    before, times_spilled = {name: Counter[float]() for name in lives}, 0
    for number in range(30):
        join.send([(key, number) for key in range(12)], [(key, number) for key in range(12)])
        assert sum(run.nbytes for run in join.saved.runs if run.tier == "resident") <= 6000
        spilled = {name: Counter(join.times(name, "spilled")) for name in lives}
        new = [at + lives[name] for name in lives for at in (spilled[name] - before[name]).elements()]
        stays = [run_life(run, lives[name]) for name in lives for run in join.runs(name, "resident")]
        assert len(new) == join.counters.get("rows_flushed", 0)
        if new:
            assert max(new) <= min(stays)
            times_spilled += 1
        before = spilled
    assert times_spilled > 3


def run_life(run: Run, window: float) -> float:
    return max(times(run)) + window


@pytest.mark.parametrize("memory_split", ["left", "right", "equal", "rate", "inverse_rate", "optimal"])
def test_shrinking_keeps_the_newest_rows_of_each_window(memory_split: str) -> None:
    join = Join(plan((50, 50), on_overload="shrink", memory=4800, memory_split=memory_split))
    came: dict[str, list[float]] = {"left": [], "right": []}
    for number in range(40):
        rows = {"left": [(1, number + i / 8) for i in range(4)], "right": [(1, number + i / 16) for i in range(12)]}
        join.send(rows["left"], rows["right"])
        for name, some in rows.items():
            came[name] += [at for _, at in some]
            held = join.times(name)
            assert held == sorted(came[name])[-len(held) :] if held else True
        assert sum(run.nbytes for run in join.saved.runs) <= 4800
    shares = len(join.times("left")) / 160, len(join.times("right")) / 480
    sizes = {name: sum(run.nbytes for run in join.runs(name)) for name in came}
    match memory_split:
        case "left" | "optimal":  # the slower one, and it fits
            assert shares[0] == 1
        case "inverse_rate":
            assert 2.3 < sizes["left"] / sizes["right"] < 4
        case "right":
            assert sizes["left"] == 0 or shares[1] == 1
        case "equal":
            assert 0.7 < sizes["left"] / sizes["right"] < 1.4
        case "rate":
            assert 0.2 < sizes["left"] / sizes["right"] < 0.45
    assert sum(sizes.values()) > 0.8 * 4800  # nothing is given away


@pytest.mark.parametrize("seed", range(3))
def test_shrinking_evicts_the_oldest_rows_and_no_more_than_it_must(seed: int) -> None:
    """Rows come out of order, so runs overlap in time; every time is different."""
    join, rng = (
        Join(plan((50, 50), lateness=6, algorithm="NN", on_overload="shrink", memory=4800)),
        np.random.default_rng(seed),
    )
    came: list[float] = []
    evictions = 0
    for number in range(60):
        right = [(1, float(at)) for at in np.round(number + rng.uniform(5, 11, 12), 6)]
        counters = join.send([(1, number + 10)], right)
        held = join.times("right")
        evicted = int(counters.get("left.right.shrunk", 0))
        came = sorted([*came, *(at for _, at in right)])
        assert held == came[-len(held) :]
        assert len(held) == len(came) - evicted or not evicted
        if evicted:
            assert 4800 - 2 * 24 < sum(run.nbytes for run in join.saved.runs) <= 4800
            evictions += 1
        came = held
    assert evictions > 20


@pytest.mark.parametrize(
    ("strategy", "first", "wanted", "given"),
    [
        ("left", "right", (600, 900), (600, 400)),
        ("right", "left", (600, 900), (100, 900)),
        ("optimal", "right", (2000, 2000), (0, 1000)),
        ("rate", "left", (2000, 2000), (200, 800)),
        ("inverse_rate", "left", (2000, 2000), (800, 200)),
        ("equal", "left", (2000, 2000), (500, 500)),
        ("equal", "left", (2000, 300), (700, 300)),
        ("equal", "left", (100, 200), (100, 200)),
    ],
)
def test_a_split_gives_no_window_more_than_it_wants(
    strategy: str, first: str, wanted: tuple[float, float], given: tuple[float, float]
) -> None:
    assert split(strategy, first, (10, 40), wanted, 1000) == pytest.approx(given)


def test_shedding_with_a_memory_budget_still_divides_the_service_rate_as_asked() -> None:
    """Rates and windows are chosen together only if the windows shrink, with the optimal split and equal shedding."""
    for shedding, kept in (("rate", (20, 80)), ("inverse_rate", (50, 50))):
        tuning = {"on_overload": "shrink", "memory": 100_000, "service_rate": 100.0, "shedding": shedding}
        join = Join(plan((10, 10), **tuning))
        for number in range(3):
            join.send([(key, number) for key in range(50)], [(key, number) for key in range(200)])
        shed = next(event for event in join.events if event["kind"] == "shed")
        assert shed["rates"] == [50, 200]
        assert shed["regulated"] == pytest.approx(kept)


@pytest.mark.parametrize(("left", "right"), [(8, 24), (24, 8)])
def test_rates_and_windows_are_chosen_together(left: int, right: int) -> None:
    """The bytes that go with the regulated rates are given to the windows; what one does not need is the other's."""
    join = Join(plan((50, 50), algorithm="HH", on_overload="shrink", memory=4800, service_rate=20.0))
    for number in range(40):
        join.send([(key, number) for key in range(left)], [(key, number) for key in range(right)])
    sizes = {name: sum(run.nbytes for run in join.runs(name)) for name in ("left", "right")}
    best = regulate(Demand(left, 50, 24), Demand(right, 50, 24), 20.0, 4800)
    (shed,) = [event for event in join.events if event["kind"] == "shed"]
    assert shed["rates"] == [left, right]
    assert shed["regulated"] == pytest.approx(best.rates)
    assert (sizes["left"] > sizes["right"]) == (best.bytes[0] > best.bytes[1])
    assert 0.75 * 4800 < sum(sizes.values()) <= 4800


def test_the_load_that_rates_let_expect() -> None:
    load = expected_load(Stream(100, 64, 50), Stream(20, 30, 5), interval=0.5)
    per_slice = 128 / 8
    runs = 8 + 1 + 3 * (1 + math.log(per_slice, 4))
    assert load == Load(50, 10, 6400, 50, pytest.approx(runs))
    assert expected_load(Stream(100, 2, 500), Stream(20, 30, 5), interval=0.5) == Load(50, 10, 200, 200, 5)


def test_at_the_crossover_both_structures_cost_the_same() -> None:
    costs = KernelCosts()
    load = Load(inserted=100, probes=5, rows=100_000, keys=10_000, runs=12)
    turn = Explanation.crossover(load, costs)
    assert turn is not None
    there = Load(100, turn, 100_000, 10_000, 12)
    assert hash_cost(there, costs) == pytest.approx(loop_cost(there, costs), rel=1e-6)
    assert Explanation(load, there, costs).choice[0] == ("H" if turn < 5 else "N")
    free = KernelCosts(filter=0, order=0, scan_call=0, scan_run=0, append=0, probe=1, split=0, near=0, count=0)
    assert Explanation.crossover(load, free) is None  # scanning never costs more
    text = str(Explanation(load, load, free))
    assert text.count("  nested loops at any number of probes") == 2
    assert f"nested loops up to {turn:,.1f} probes a batch" in str(Explanation(load, load, costs))


def test_a_running_join_is_explained_by_its_fullest_partition_as_it_is_now(tmp_path: Path) -> None:
    directory, made = StateDir(tmp_path), plan((1000, 1000), algorithm="NN")
    sizes = {0: [3, 1, 1, 1], 1: [2, 2, 2, 6], 2: [9, 1, 1, 1]}  # 6, 12 and 12 rows
    for part, counts in sizes.items():
        for number, count in enumerate(counts):
            left, right = [(key, number) for key in range(count)], [(part, number)] * (part + 1)
            list(run_batch(made, directory, part, batch(made, number, left, right), attempt="0"))
    found = explain_state(directory, KernelCosts())
    assert found is not None
    # 12 and 8 rows, 6 and 4, 12 and 12: the third has most; its runs and averages are those of the last batch.
    assert (found.left.rows, found.right.rows) == (12, 12)
    assert found.right.keys == 1
    assert found.right.probes == pytest.approx(((9 * 0.7 + 0.3) * 0.7 + 0.3) * 0.7 + 0.3)
    assert found.right.inserted == pytest.approx(3)
    first = explain_state(StateDir(tmp_path / "none"), KernelCosts())
    assert first is None


def test_of_equal_partitions_the_first_is_explained(tmp_path: Path) -> None:
    directory, made = StateDir(tmp_path), plan((1000, 1000), algorithm="NN")
    for part, (left, right) in enumerate([(4, 6), (6, 4)]):
        rows = batch(made, 0, [(key, 0) for key in range(left)], [(key, 0) for key in range(right)])
        list(run_batch(made, directory, part, rows, attempt="0"))
    found = explain_state(directory, KernelCosts())
    assert found is not None
    assert (found.left.rows, found.right.rows) == (4, 6)


@pytest.mark.parametrize("how", ["inner", "left_semi"])
def test_of_a_semi_join_the_right_window_is_never_scanned(tmp_path: Path, how: str) -> None:
    directory, made = StateDir(tmp_path), replace(plan((1000, 1000)), how=how)
    for number in range(3):
        rows = batch(made, number, [(number, number)], [(key, number) for key in range(40)])
        list(run_batch(made, directory, 0, rows, attempt="0"))
    scans_are_free = KernelCosts(filter=0, order=0, scan_call=0, scan_run=0, append=0, probe=1, count=0)
    found = explain_state(directory, scans_are_free)
    assert found is not None
    assert found.choice == ("NN" if how == "inner" else "NH")
    assert ("hash in any case: of its rows only keys and times are kept" in str(found)) == (how != "inner")


def test_distinct_keys_are_counted_or_estimated() -> None:
    rng = np.random.default_rng(2)
    few = rng.integers(0, 1 << 64, 300, dtype=np.uint64)
    assert distinct(np.tile(few, 13)[:4096]) == 300  # exact up to the sample's size
    assert distinct(np.sort(np.tile(few, 13))[:4096]) == len(np.unique(np.sort(np.tile(few, 13))[:4096]))
    many = rng.integers(0, 1 << 64, 20_000, dtype=np.uint64)
    assert distinct(np.tile(many, 3)) == pytest.approx(20_000, rel=0.1)
    for keys in (50, 400):
        seen = keys * (1 - math.exp(-500 / keys))
        found = distinct_in(10_000, 500, round(seen))
        assert found == pytest.approx(keys, rel=0.05)


def test_slices_know_how_far_the_horizon_moves_in_a_batch() -> None:
    made = plan()
    operator = build(made, MemorySpace())
    moves = []
    for number, at in enumerate((50.0, 57.0, 57.0, 90.0)):
        list(advance(operator, batch(made, number, [(1, at)], [(2, at)])))
        moves.append([store.layout.advance for store in operator.row_stores() if isinstance(store.layout, TimeSlices)])
    assert moves == [[0, 0], [7 * SECOND] * 2, [0, 0], [33 * SECOND] * 2]


def test_a_row_that_passes_by_is_probed_with_and_not_stored() -> None:
    """The left window is 0: a left row matches what is stored, and no right row that comes later can match it."""
    join = Join(plan((0, 10)))
    join.send(right=[(1, 0), (1, 3)])
    counters = join.send(left=[(1, 2), (1, 3)], right=[(2, 4)])
    assert counters["results"] == 3  # the first matches one right row, the second both
    assert join.runs("left") == []
    assert counters["left.left.expired"] == 2
    join.send(left=[(1, 6)])  # ahead of the right input, which may still send one of the same time
    assert join.times("left") == [6]


@pytest.mark.parametrize("how", ["left", "left_anti"])
def test_a_slice_that_the_horizon_is_inside_of_comes_from_disk_once(how: str) -> None:
    """Ten rows a second that match nothing, in slices of ten seconds, with memory for three slices of nine."""
    memory, seconds = 3 * 100 * 24 + 100, range(100, 200)
    join, flushed = Join(replace(plan((80, 0), memory=memory), how=how)), 0.0
    for number in range(seconds.stop):
        counters = join.send([(10 * number + i, number) for i in range(10)], [(-1, number)])
        assert sum(run.nbytes for run in join.saved.runs if run.tier == "resident") <= memory
        if number in seconds:
            assert counters["results"] == 10
            flushed += counters.get("rows_flushed", 0)
    assert flushed <= 1.1 * 10 * len(seconds)  # each row goes to disk once
