"""Hot keys of inputs with promises: who has rows of a key knows what was promised of it, and finds what breaks it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

import watersmeet.engine.guests
import watersmeet.engine.hot_tables
from tests.conformance.cases.combined import case as windowed
from tests.conformance.cases.punctuated import CLUSTERED, ONE_RIGHT
from tests.conformance.cases.punctuated import case as punctuated
from tests.conformance.test_divisions import script_of
from tests.conformance.test_spreading import PARTITIONS, PROMISED, deciding, plan_of
from tests.faults.memory_dir import MemoryDir
from watersmeet.columns.arrow import HASH, hash_keys, hashes_of
from watersmeet.columns.partitions import partition_of
from watersmeet.columns.spark_hash import hash_of_long
from watersmeet.engine.heat import Heat
from watersmeet.engine.registry import build
from watersmeet.engine.spreading import empty
from watersmeet.errors import BrokenPromiseError
from watersmeet.plan.hot_table import HotKey, HotTable, home_of
from watersmeet.punctuated.promises.patterns import Pattern, punctuation_table
from watersmeet.punctuated.promises.shared import SharedRange
from watersmeet.state.history import metrics_history, newest_manifests
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore
from watersmeet.testing import Script, run_in_memory
from watersmeet.testing.arrivals import KEYS, Arrival
from watersmeet.testing.cases import Case
from watersmeet.testing.spreading import run_spread


def counted(directory: MemoryDir) -> Counter[str]:
    """The counters of all batches and partitions."""
    found: Counter[str] = Counter()
    for manifest in newest_manifests(directory):
        for entry in metrics_history(directory, manifest):
            found.update(entry["counters"])
    return found


def breaking(script: Script, seed: int) -> list[Arrival]:
    """The script with further promises, of keys of which rows may come."""
    rng, made = random.Random(seed), []
    for arrival in script:
        tables = dict(arrival.punctuations)
        for name in ("left", "right"):
            if rng.random() < 0.4:
                key = rng.randrange(8)
                pattern = Pattern.value(key) if rng.random() < 0.7 else Pattern.between(key, key + 1)
                false = punctuation_table(KEYS, [[pattern]])
                tables[name] = pa.concat_tables([tables[name], false]) if name in tables else false
        made.append(replace(arrival, punctuations=tables, seen=None))
    return made


BROKEN = [
    *(replace(punctuated(how, on_violation="drop"), how=how) for how in ("inner", "left", "right", "left_semi")),
    replace(punctuated("left_anti", purge="batch", purge_after=4, on_violation="drop"), how="left_anti"),
    punctuated("quota", quota=3, on_violation="drop"),
    punctuated("disk", memory=900, idle_pages=2, on_violation="drop"),
    windowed("drop", "left", on_violation="drop", lengths=(30, 30)),
    windowed("drop, disk", "inner", on_violation="drop", lengths=(30, 30), memory=600),
]


@pytest.mark.parametrize("case", BROKEN, ids=str)
def test_rows_that_break_a_promise_are_dropped_wherever_they_go_and_counted_once(case: Case) -> None:
    broken = copies = spread = 0
    for seed in range(3):
        script = breaking(script_of(case, seed, batch_rows=14, batches=10, keys=8), seed)
        whole, directory = run_in_memory(case.plan(), script), MemoryDir({})
        with deciding(seed) as whim:
            found: Counter[Any] = sum(run_spread(plan_of(case), script, directory), Counter())
        assert found == whole.rows
        assert whole.operator is not None
        counters, accounts = counted(directory), whole.operator.accounts
        for name in ("left", "right"):
            expected = accounts.left.get(name, {}).get("violation", 0)
            said = sum(n for metric, n in counters.items() if metric.startswith(f"violations.{name}."))
            assert said == expected
            broken += expected
            copies += int(counters[f"left.{name}.violation"]) - expected
        spread += whim.spread
    assert broken > 10
    assert copies > 0, "every copy has left for this reason"
    assert spread


Decision = Callable[..., HotTable]


class Fixed:
    """Decides that the rows of one key go to its home before some batch, and then to other partitions alone."""

    def __init__(self, key: int, split: str, *, lines: int = 3) -> None:
        number, first = hash_of(key), home(key)
        self.away = [one for one in range(PARTITIONS) if one != first][: lines - 1]
        grid = ((first,), *((one,) for one in self.away))
        self.key = HotKey(number, split, grid, (tuple(range(lines)), (0,)), tuple(range(1, lines)))

    def __call__(
        self,
        before: HotTable,
        heats: Sequence[Heat],
        splits: Collection[str],
        witnessed: Collection[str],
        *,
        both: bool,
    ) -> HotTable:
        assert self.key.split in splits
        return HotTable.of([self.key])


def placed(plan_case: Case, script: Script, decision: Decision, directory: MemoryDir) -> Iterator[Counter[Any]]:
    decided = patch.object(watersmeet.engine.hot_tables, "decide", decision)
    with decided, patch.object(watersmeet.engine.guests, "LOOK_EVERY", 1):
        yield from run_spread(plan_of(plan_case), script, directory)


def hash_of(key: int) -> int:
    return int(hash_keys([pa.array([key], pa.int64())])[0])


def home(key: int) -> int:
    return home_of(hash_of(key), PARTITIONS)


AWAY = [one for one in range(PARTITIONS) if one != home(7)]
NEIGHBOUR = next(key for key in range(8, 1000) if home(key) == home(7))
SIGN = next(key for key in range(8, 1000) if home(key) == AWAY[0])


def rows(*keys: int, first: int = 0) -> list[tuple[int, int, str]]:
    return [(key, first + i, f"{first + i}") for i, key in enumerate(keys)]


def said(*keys: int) -> pa.Table:
    return punctuation_table(KEYS, [[Pattern.value(key)] for key in keys])


@pytest.mark.parametrize("promised", ["left", "right"])
@pytest.mark.parametrize("mode", ["raise", "drop"])
def test_a_partition_hears_what_was_promised_before_it_got_the_key(promised: str, mode: str) -> None:
    """Before the second batch all rows of the key are at home, which alone has heard of it."""
    case = punctuated("heard", on_violation=mode)
    other = {"left": "right", "right": "left"}[promised]
    script = [
        Arrival({"left": rows(7), "right": rows(7)}, punctuations={promised: said(7)}),
        Arrival({promised: rows(7, 7, 7, first=10), other: []}),
    ]
    directory, fixed = MemoryDir({}), Fixed(7, "left")
    if mode == "raise":
        with pytest.raises(BrokenPromiseError, match=f"no row of input '{promised}' with a key in punctuation 7"):
            list(placed(case, script, fixed, directory))
        return
    assert [sum(found.values()) for found in placed(case, script, fixed, directory)] == [1, 0]
    assert counted(directory)[f"violations.{promised}.punctuation"] == 3


def test_a_promise_purges_in_all_partitions_that_have_the_key() -> None:
    """Also there where the key came in a later batch; and what is taken from home has been judged there."""
    case = punctuated("purged")
    script = [
        Arrival({"left": rows(7), "right": rows(7, 7)}, punctuations={"right": said(7)}),
        Arrival({"left": rows(*[7] * 8, first=10), "right": []}),
        Arrival({"left": [], "right": rows(1)}, punctuations={"left": said(7)}),
    ]
    directory, fixed = MemoryDir({}), Fixed(7, "left")
    found = list(placed(case, script, fixed, directory))
    assert [sum(one.values()) for one in found] == [2, 16, 0]
    counters = counted(directory)
    assert counters["rows_copied.right"] == 2 * len(fixed.away), "of rows that had been promised to be the last ones"
    assert counters["left.right.punctuation"] == 2 * (1 + len(fixed.away))
    assert counters["violations.right.punctuation"] == 0
    for partition in range(PARTITIONS):
        manifest = PartitionStore(directory, partition).manifest(2)
        assert manifest.hot["guests"] == {}, "nothing of the key is left there"
        assert empty(fixed.key, fixed.key.grid, (), "left", heats_of(directory, 2))


def heats_of(directory: MemoryDir, version: int) -> list[Heat]:
    manifests = [PartitionStore(directory, partition).manifest(version) for partition in range(PARTITIONS)]
    return [Heat.from_json(one.hot["heat"]) for one in manifests]


def test_a_row_without_a_future_is_not_taken_in() -> None:
    """Home purges after many promises; the partition that gets the key knows at once."""
    case = punctuated("lazy", purge="batch", purge_after=1000)
    script = [
        Arrival({"left": [], "right": rows(7, 7)}),
        Arrival({"left": rows(NEIGHBOUR), "right": []}, punctuations={"left": said(7)}),
        Arrival({"left": [], "right": rows(7, first=10)}),
    ]
    directory, fixed = MemoryDir({}), Fixed(7, "left")
    found: Counter[Any] = sum(placed(case, script, fixed, directory), Counter())
    assert not found
    counters = counted(directory)
    assert counters["rows_copied.right"] == 3 * len(fixed.away)
    assert counters["left.right.punctuation"] == 3 * len(fixed.away) + 1, "two at home wait to be purged"
    for partition in fixed.away:
        assert PartitionStore(directory, partition).manifest(2).history[-1]["counters"]["held_rows.right"] == 0


def test_a_second_row_of_a_unique_key_is_found_where_the_first_was_taken_in() -> None:
    """Partitions that get a key know of its one row, which came before."""
    script = [
        Arrival({"left": [], "right": rows(7)}),
        Arrival({"left": rows(7, 7, 7), "right": []}),
        Arrival({"left": [], "right": rows(7, first=10)}),
    ]
    case, fixed = punctuated("unique", ONE_RIGHT), Fixed(7, "left")
    found = placed(case, script, fixed, MemoryDir({}))
    assert [sum(next(found).values()) for _ in range(2)] == [0, 3]
    with pytest.raises(BrokenPromiseError, match="every key at most once on input 'right'"):
        next(found)
    directory = MemoryDir({})
    assert [sum(one.values()) for one in placed(case, script[:2], fixed, directory)] == [0, 3]
    assert counted(directory)["left.left.one_to_many"] == 3, "each left with the copy of its partner"


def test_a_torn_cluster_is_found_by_who_takes_over_that_it_has_ended() -> None:
    """Home has seen that the cluster is over; the row that goes on with it comes to another partition."""
    case = punctuated("clustered", {**CLUSTERED, "input": "left"})
    script = [
        Arrival({"left": rows(7), "right": rows(7)}),
        Arrival({"left": rows(NEIGHBOUR, first=5), "right": []}),
        Arrival({"left": rows(7, first=10), "right": []}),
    ]
    found = placed(case, script, Fixed(7, "left"), MemoryDir({}))
    assert sum(next(found).values()) == 1
    assert sum(next(found).values()) == 0
    with pytest.raises(BrokenPromiseError, match="clustered 7"):
        next(found)


class Turning:
    """Decides on one place for a key, and on another one when a partition has had some other key."""

    def __init__(self, before: HotKey, after: HotKey, sign: int) -> None:
        self.before, self.after, self.sign = before, after, hash_of(sign)

    def __call__(
        self,
        before: HotTable,
        heats: Sequence[Heat],
        splits: Collection[str],
        witnessed: Collection[str],
        *,
        both: bool,
    ) -> HotTable:
        turned = self.after in before.keys.values() or any(self.sign in heat.keys for heat in heats)
        return HotTable.of([self.after if turned else self.before])


def grids(key: int, cells: Sequence[int]) -> tuple[HotKey, HotKey]:
    """A grid of one line, whose right rows go to the second column, and the same with a line for new left rows."""
    first, second = (home(key), cells[0]), (cells[1], cells[2])
    return (
        HotKey(hash_of(key), "left", (first,), ((0,), (0, 1)), (0,), (1,)),
        HotKey(hash_of(key), "left", (first, second), ((0, 2), (0, 1)), (1,), (1,)),
    )


def test_what_a_partition_alone_knows_is_taken_over_with_its_rows() -> None:
    """The second place of the first line has seen that a cluster is over, and purged by it. Whoever takes what it has
    left of the key would miss the rows that are gone."""
    case = punctuated("grid", {**CLUSTERED, "input": "left"})
    script = [
        Arrival({"left": [], "right": []}),
        Arrival({"left": rows(7), "right": rows(7, 7)}),
        Arrival({"left": rows(SIGN, first=5), "right": []}),
        Arrival({"left": rows(7, first=10), "right": []}),
    ]
    directory = MemoryDir({})
    found = placed(case, script, Turning(*grids(7, AWAY), SIGN), directory)
    assert [sum(next(found).values()) for _ in range(3)] == [0, 2, 0]
    assert counted(directory)["left.right.clustered"] == 2
    with pytest.raises(BrokenPromiseError, match="clustered 7"):
        next(found)


def test_what_home_was_promised_is_taken_over_where_rows_come_from_another_partition() -> None:
    """The partition from which rows are taken has never had any, and heard of nothing."""
    case = punctuated("grid", on_violation="drop")
    script = [
        Arrival({"left": rows(7), "right": []}, punctuations={"left": said(7)}),
        Arrival({"left": [], "right": rows(SIGN)}),
        Arrival({"left": rows(7, first=10), "right": rows(7, first=10)}),
    ]
    directory = MemoryDir({})
    found = list(placed(case, script, Turning(*grids(7, AWAY), SIGN), directory))
    assert [sum(one.values()) for one in found] == [0, 0, 1]
    assert counted(directory)["violations.left.punctuation"] == 1
    assert counted(directory)["left.left.violation"] == 2


def test_partitions_that_have_copies_left_are_told_what_purges_them() -> None:
    """The second line has left the grid, and with it a copy that nothing waits for there."""
    number, grid = hash_of(7), ((home(7),), (AWAY[0],))
    spread = HotKey(number, "left", grid, ((0, 1), (0,)), (1,))
    cooled = HotKey(number, "left", grid[:1], ((0,), (0,)), (0,), stale=(AWAY[0],))
    script = [
        Arrival({"left": [], "right": rows(7)}),
        Arrival({"left": rows(7), "right": []}, punctuations={"right": said(7)}),
        Arrival({"left": [], "right": rows(SIGN)}),
        Arrival({"left": [], "right": []}, punctuations={"left": said(7)}),
    ]
    directory = MemoryDir({})
    results, there = [], []
    for version, found in enumerate(placed(punctuated("stale"), script, Turning(spread, cooled, SIGN), directory)):
        results.append(sum(found.values()))
        there.append(list(PartitionStore(directory, AWAY[0]).manifest(version).hot["guests"]))
    assert results == [0, 1, 0, 0]
    assert there == [[], [str(number)], [str(number)], []]
    assert counted(directory)["left.right.punctuation"] == 2


PLAIN = [
    case for case in PROMISED if case.operator == "punctuated" and not (case.tuning or case.options["constraints"])
]


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_keys_leave_when_promises_have_purged_them(case: Case) -> None:
    """Partitions forget keys of which nothing is left, and lines without rows leave the grid."""
    retired = 0
    for seed in range(3):
        script = script_of(case, seed, batch_rows=12, batches=14, keys=4)
        with deciding(seed) as whim:
            found: Counter[Any] = sum(run_spread(plan_of(case), script, MemoryDir({})), Counter())
        assert found == case.expected(script)
        retired += whim.retired
    assert retired > 5


def test_promises_of_others_keys_are_held_apart() -> None:
    """Of its own keys a partition holds one interval; it says nothing of those between them that belong to others."""
    keys = np.arange(400)
    table = pa.table({HASH: hash_of_long(keys), "_k0": keys}).sort_by(HASH)
    homes = partition_of(hashes_of(table), PARTITIONS)
    shared = SharedRange("left", KEYS, PARTITIONS, here=0)
    shared.add_keys(table.filter(pa.array(homes == 0)), 0, "punctuation")
    assert len(shared) == 1
    assert ((shared.find(table) > 0) == (homes == 0)).all()
    foreign = table.filter(pa.array(homes == 1)).slice(0, 3)
    shared.add_keys(foreign, 1, "clustered")
    assert (shared.find(foreign) == 2).all()
    assert shared.explain(foreign.slice(0, 1)).startswith("clustered")
    told = shared.find(table) > 0
    assert told.sum() == (homes == 0).sum() + 3
    tables, values = shared.save()
    again = SharedRange("left", KEYS, PARTITIONS, here=0)
    again.restore(tables, values)
    assert (again.find(table) == shared.find(table)).all()
    again.add_punctuations(punctuation_table(KEYS, [[Pattern.between(None, 200)]]), 2)
    assert ((again.find(table) > 0) == (told | (table.column("_k0").to_numpy() <= 200))).all()
    again.add_everything("ended", 3)
    assert (again.find(table) == 8).all()


@pytest.mark.parametrize(
    ("case", "matter"),
    [
        (replace(punctuated("full"), how="full"), "how='full'"),
        (replace(punctuated("left", {"kind": "one_to_many", "one": "left"}), how="left"), "unique on the left input"),
        (punctuated("both", ONE_RIGHT, {"kind": "one_to_many", "one": "left"}), "unique on both inputs"),
        (punctuated("keep", on_violation="keep"), "on_violation='keep'"),
        (punctuated("drop", ONE_RIGHT, on_violation="drop"), "on_violation='drop' and constraints"),
        (windowed("keep", "inner", on_violation="keep"), "on_violation='keep'"),
    ],
    ids=str,
)
def test_what_cannot_be_divided_says_why(case: Case, matter: str) -> None:
    operator = type(build(case.plan(), MemorySpace()))
    assert operator.splits(case.plan()) == ()
    found = operator.kept_whole(case.plan())
    assert found is not None
    assert matter in found[0]
    assert found[1].endswith(".")
