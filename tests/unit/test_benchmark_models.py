"""What the benchmarks compute without Spark: the events of Nexmark, and the model of a micro-batch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module")
def events() -> Iterator[ModuleType]:
    sys.path.insert(0, BENCHMARKS)
    yield importlib.import_module("nexmark_events")
    sys.path.remove(BENCHMARKS)


@pytest.fixture(scope="module")
def scaling() -> Iterator[ModuleType]:
    sys.path.insert(0, BENCHMARKS)
    yield importlib.import_module("scaling")
    sys.path.remove(BENCHMARKS)


def test_the_events_are_pinned(events: ModuleType) -> None:
    numbers = np.arange(10_000)
    bids, auctions, persons = events.bids(numbers), events.auctions(numbers), events.persons(numbers)
    assert events.VERSION == 1
    assert (persons.num_rows, auctions.num_rows, bids.num_rows) == (200, 600, 9_200)
    sums = {name: pc.sum(bids[name]).as_py() for name in ("auction", "bidder", "price")}
    assert sums == PINNED
    assert pc.sum(pc.binary_length(auctions["a_extra"])).as_py() == PINNED_TEXT


PINNED = {"auction": 11_550_445, "bidder": 9_679_432, "price": 70_813_276_269}
PINNED_TEXT = 229_281


def test_events_do_not_depend_on_the_files(events: ModuleType) -> None:
    (whole, _), halves = list(events.batches(2_000, 1)), list(events.batches(2_000, 2))
    for kind in events.KINDS:
        assert pa.concat_tables([half[kind] for half in halves[:2]]).equals(whole[kind])


def test_the_distributions_are_the_published_ones(events: ModuleType) -> None:
    numbers = np.arange(200_000)
    bids, auctions = events.bids(numbers), events.auctions(numbers)
    # the hot one by chance among the others too: half, and a little more
    places = (numbers % 50 >= 4).nonzero()[0]
    hot = events.last_auction(numbers[places]) // 100 * 100 + 1000
    assert 0.49 < np.mean(bids["auction"].to_numpy() == hot) < 0.53
    sellers = events.last_person(numbers[(numbers % 50 >= 1) & (numbers % 50 < 4)]) // 100 * 100 + 1000
    assert 0.73 < np.mean(auctions["seller"].to_numpy() == sellers) < 0.77
    lengths = auctions["expires"].to_numpy() - auctions["a_time"].to_numpy()
    assert (lengths.min(), lengths.max()) == (1, events.LONGEST_AUCTION)
    prices = np.log10(bids["price"].to_numpy() / 100)
    assert abs(np.mean(prices) - 3) < 0.05
    assert prices.max() <= 6
    assert 95 < pc.mean(pc.binary_length(bids["b_extra"])).as_py() + 32 < 105
    size = sum(pc.mean(pc.binary_length(auctions[name])).as_py() for name in ("item_name", "description", "a_extra"))
    assert 490 < size + 56 < 510
    assert pc.unique(auctions["category"]).sort().to_pylist() == [10, 11, 12, 13, 14]


def test_the_fit_finds_the_costs(scaling: ModuleType) -> None:
    costs = {"driver": 0.2, "task": 0.01, "slot": 0.05, "row": 2e-6, "remote": 0.1, "move": 1e-6}
    places = ((1, 1, 1), (4, 1, 1), (2, 2, 1), (4, 2, 1), (8, 2, 1), (2, 2, 2), (4, 2, 2))
    settings = [(n, *place) for n in (10_000, 100_000) for place in places]
    samples = [(scaling.terms(*one), scaling.predicted(costs, *one)) for one in settings]
    assert scaling.fit(samples) == pytest.approx(costs)


def test_the_fit_keeps_what_is_known(scaling: ModuleType) -> None:
    costs = {"driver": 0.2, "task": 0.01, "slot": 0.05, "row": 2e-6, "remote": 0.1, "move": 1e-6}
    # In rounds of as many partitions as cores, tasks in the driver and in the slots cannot be told apart.
    settings = [(n, p, 1, e) for n in (10_000, 100_000) for p in (1, 4) for e in (1, 2)]
    samples = [(scaling.terms(*one), scaling.predicted(costs, *one)) for one in settings]
    assert scaling.fit(samples, {"task": 0.01}) == pytest.approx(costs)


def test_executors_are_processes_of_a_cluster(scaling: ModuleType) -> None:
    masters = ("local[2]", scaling.SMALL, scaling.LARGE)
    assert [scaling.executors_of(master) for master in masters] == [1, 2, 4]


def test_no_cost_is_negative(scaling: ModuleType) -> None:
    settings = [(n, p, 2) for n in (10_000, 100_000) for p in (2, 4, 8)]
    samples = [(scaling.terms(*one), 0.3 - 0.01 * one[1] + 1e-6 * one[0]) for one in settings]
    found = scaling.fit(samples)
    assert found["task"] == 0
    assert min(found.values()) >= 0


@pytest.fixture(scope="module")
def grid() -> Iterator[ModuleType]:
    sys.path.insert(0, BENCHMARKS)
    yield importlib.import_module("grid")
    sys.path.remove(BENCHMARKS)


@pytest.fixture(scope="module")
def skew() -> Iterator[ModuleType]:
    sys.path.insert(0, BENCHMARKS)
    yield importlib.import_module("skew")
    sys.path.remove(BENCHMARKS)


def test_rows_of_a_grid_add_up(grid: ModuleType) -> None:
    """2 x 2: every row is there twice, also those that came before."""
    join = grid.Join(4, [5], both=True)
    for _ in range(6):
        done = join.batch({"left": np.array([600.0]), "right": np.array([400.0])}, others=4000.0)
    (key,) = join.table.keys.values()
    assert (key.split, len(key.grid), len(key.grid[0])) == ("left", 2, 2)
    assert done["copies"].tolist() == [1000]
    assert (join.held["left"].sum(), join.held["right"].sum()) == (7200, 4800)


def test_rows_counted_without_joining_add_up(grid: ModuleType) -> None:
    join = grid.Join(4, [5], both=False)
    for _ in range(6):
        done = join.batch({"left": np.array([600.0]), "right": np.array([400.0])}, others=4000.0)
    (key,) = join.table.keys.values()
    assert (key.split, len(key.holders)) == ("left", 4)
    assert done["copies"].tolist() == [1200]
    assert join.held["left"].sum() == 3600
    assert join.held["right"].tolist() == [[2400.0] * 4]


def test_pieces_that_have_been_measured_are_left_out(skew: ModuleType) -> None:
    timed, untimed = {"rows_per_second": 1}, {"copied_share": 0.1}
    everything = ["hot", "off", "spark", "salted"]
    assert skew.missing({}, everything, timed=True) == [("hot", "off"), ("spark",), ("salted",)]
    assert skew.missing({"hot": timed, "spark": timed}, everything, timed=True) == [("hot", "off"), ("salted",)]
    assert skew.missing({"hot": untimed, "off": untimed}, ["hot", "off"], timed=True) == [("hot", "off")]
    assert skew.missing({"hot": untimed, "off": untimed}, ["hot", "off"], timed=False) == []
