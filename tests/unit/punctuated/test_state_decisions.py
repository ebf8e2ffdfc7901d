"""What waits, what is spilled and merged, what is purged and when: counted again from plain rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.conformance.cases.punctuated import CASES
from tests.unit.restarted import RestartedJoin

from watersmeet.columns.arrow import hash_keys
from watersmeet.columns.partitions import Partition
from watersmeet.engine.registry import build
from watersmeet.join.operator import Origin, advance, take_over
from watersmeet.plan import JoinPlan
from watersmeet.plan.metrics import Metrics
from watersmeet.punctuated.generations import Generations
from watersmeet.punctuated.promises.patterns import Pattern, punctuation_table
from watersmeet.punctuated.purge_policies import purge_policy
from watersmeet.state.accounts import Accounts
from watersmeet.state.buckets import Buckets
from watersmeet.state.layouts import SizeTiers
from watersmeet.state.rows import RowStore
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, Script, batch_of, make_plan
from watersmeet.testing.arrivals import KEYS
from watersmeet.testing.cases import Case
from watersmeet.testing.harness import rows_of

NAMES = ("left", "right")
ROW = 24  # bytes of a row with a hash, a key and a number
ONE_LEFT = {"kind": "one_to_many", "one": "left"}


def slim(options: dict[str, Any] | None = None, **tuning: Any) -> JoinPlan:
    """A join of rows that all have one size."""
    return make_plan("punctuated", options=options, payload=(pa.int64(),), tuning=tuning)


class Join(RestartedJoin):
    """A join whose rows are counted where they are held."""

    def send(self, arrival: Arrival) -> Counter[Any]:
        """One batch; returns its results."""
        found = rows_of(self.step(batch_of(self.plan, self.number, arrival)))
        self.counters |= self._held()
        return found

    def _held(self) -> dict[str, float]:
        """The rows of each input: those that wait, those on disk, those in memory, and all of them."""
        found: Counter[str] = Counter()
        for store in self.saved.stores:
            spilled = sum(run.rows for run in store.runs if run.tier == "spilled")
            place = "waiting" if store.name.endswith(".waiting") else "resident"
            found[f"{place}_rows.{store.input}"] += store.rows - spilled
            found[f"spilled_rows.{store.input}"] += spilled
            found[f"state_rows.{store.input}"] += store.rows
        return dict(found)

    @property
    def resident_bytes(self) -> int:
        return sum(run.nbytes for run in self.saved.runs if run.tier == "resident")


def keys(left: Iterable[int] = (), right: Iterable[int] = (), said: dict[str, pa.Table] | None = None) -> Arrival:
    rows = {"left": [(key, key) for key in left], "right": [(key, -key) for key in right]}
    return Arrival({name: some for name, some in rows.items() if some}, punctuations=said or {})


def said(**patterns: Pattern) -> dict[str, pa.Table]:
    """A punctuation for some inputs."""
    return {name: punctuation_table(KEYS, [[pattern]]) for name, pattern in patterns.items()}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_row_that_came_is_held_or_gone_for_a_counted_reason(case: Case) -> None:
    for seed in range(2):
        script: Script = case.random_script(seed, batches=12, batch_rows=9, end=False)
        join, came, gone = Join(case.plan()), Counter[str](), Counter[str]()
        for arrival in script:
            join.send(arrival)
            for name in NAMES:
                came[name] += len(arrival.rows.get(name, ()))
                for counter, count in join.counters.items():
                    if counter.startswith(f"left.{name}."):
                        gone[name] += int(count)
                assert join.count(f"state_rows.{name}") == came[name] - gone[name]
            purged = sum(event["rows"] for event in join.of_kind("purge"))
            assert purged <= sum(count for counter, count in join.counters.items() if counter.startswith("left."))


def taken(join: Join, arrival: Arrival, waiting: dict[str, int]) -> dict[str, int]:
    """How many rows of each input were processed in a batch; `waiting` is brought up to date."""
    found = {}
    for name in NAMES:
        now = join.count(f"waiting_rows.{name}")
        found[name] = waiting[name] + len(arrival.rows.get(name, ())) - now
        waiting[name] = now
    return found


@pytest.mark.parametrize("scheduling", ["sequential", "priority", "value", "priority_value"])
def test_a_quota_is_used_up_and_exceeded_by_one_key_at_most(scheduling: str) -> None:
    quota, waiting = 6, dict.fromkeys(NAMES, 0)
    join = Join(slim(quota=quota, scheduling=scheduling))
    rng = np.random.default_rng(4)
    for number in range(40):
        count = int(rng.choice([0, 2, 5, 14])) if number < 30 else 0
        left, right = rng.integers(0, 30, count), rng.integers(0, 30, max(0, count - 3))
        arrival = keys(left.tolist(), right.tolist())
        there = sum(waiting.values()) + count + max(0, count - 3)
        join.send(arrival)
        processed = taken(join, arrival, waiting)
        if there <= quota:
            assert sum(processed.values()) == there
        else:
            assert quota <= sum(processed.values()) < quota + 6  # no key comes more often than that
        assert join.count("state_rows.left") - join.count("resident_rows.left") == waiting["left"]
    assert sum(waiting.values()) == 0


def test_oldest_rows_are_processed_first() -> None:
    join = Join(slim(quota=3))
    join.send(keys(left=range(10)))
    assert (join.count("waiting_rows.left"), join.count("resident_rows.left")) == (7, 3)
    join.send(keys(right=range(100, 105)))
    assert (join.count("waiting_rows.left"), join.count("waiting_rows.right")) == (4, 5)
    join.send(keys(right=range(200, 205)))
    assert (join.count("waiting_rows.left"), join.count("waiting_rows.right")) == (1, 10)
    join.send(keys(left=[300]))
    assert (join.count("waiting_rows.left"), join.count("waiting_rows.right")) == (1, 8)


def test_priority_serves_the_one_side_and_then_gives_the_other_its_turn() -> None:
    join, waiting = Join(slim({"constraints": [ONE_LEFT]}, quota=4, scheduling="priority")), dict.fromkeys(NAMES, 0)
    first = keys(range(11), range(100, 110))
    join.send(first)
    assert taken(join, first, waiting) == {"left": 4, "right": 0}
    order = []
    for key in range(200, 205):
        arrival = keys(right=[key])
        join.send(arrival)
        processed = taken(join, arrival, waiting)
        order.append((processed["left"], processed["right"]))
    assert order == [(0, 4), (4, 0), (0, 4), (3, 1), (0, 4)]


def test_without_a_one_side_the_input_with_fewer_waiting_rows_has_priority() -> None:
    join, waiting = Join(slim(quota=4, scheduling="priority")), dict.fromkeys(NAMES, 0)
    arrival = keys(range(9), range(100, 103))
    join.send(arrival)
    assert taken(join, arrival, waiting) == {"left": 1, "right": 3}


def test_value_oriented_scheduling_takes_the_rows_that_promises_speak_of() -> None:
    for scheduling, early in (("value", True), ("sequential", False)):
        join = Join(slim(quota=2, scheduling=scheduling))
        join.send(keys(range(20), [15]))
        join.send(keys([101], [100]))
        join.send(keys(right=[102], said=said(left=Pattern.value(15))))
        found = join.send(keys(right=[103]))
        assert (found == Counter({(15, 15, -15): 1})) == early
        if early:  # what waited for them is purged with them
            assert join.count("left.right.punctuation") == 1


def test_priority_outweighs_value_and_value_decides_within_an_input() -> None:
    join = Join(slim({"constraints": [ONE_LEFT]}, quota=4, scheduling="priority_value"))
    waiting = dict.fromkeys(NAMES, 0)
    first = keys(range(4), [50, *range(100, 120)], said=said(left=Pattern.value(50)))
    join.send(first)
    assert taken(join, first, waiting) == {"left": 4, "right": 0}  # the one side first, whatever is promised
    second = keys(left=[200])
    found = join.send(second)
    assert taken(join, second, waiting) == {"left": 0, "right": 4}  # then the other's turn ...
    assert not found
    assert join.count("left.right.punctuation") == 1  # ... and of its rows the one that the promise covers


@pytest.mark.parametrize(("constraints", "rest"), [([], 3), ([{"kind": "clustered", "input": "right"}], 0)])
def test_a_cluster_that_is_begun_is_read_to_its_end(constraints: list[dict[str, str]], rest: int) -> None:
    """Left rows first, three a batch; then one row of a cluster is the third of its batch, and three more have come."""
    join = Join(slim({"constraints": [ONE_LEFT, *constraints]}, quota=3))
    join.send(keys(left=range(20)))
    join.send(keys(right=[70]))
    join.send(keys(right=[70, 70, 70]))
    for number in range(4):
        join.send(keys(left=[100 + number]))
        assert join.count("waiting_rows.right") == 4
    join.send(keys(left=[104]))
    assert join.count("waiting_rows.right") == rest


def test_rows_that_wait_keep_their_partners_from_being_dropped_and_purged() -> None:
    one_right = {"kind": "one_to_many", "one": "right"}
    join = Join(slim({"constraints": [one_right]}, quota=3, scheduling="priority"))
    found = join.send(keys(left=range(12)))
    assert join.count("waiting_rows.left") == 9
    # No left row will come any more, but some wait: right rows that overtake them must be stored.
    found += join.send(keys(right=range(12), said=said(left=Pattern.anything())))
    assert join.count("waiting_rows.left") == 9
    assert join.count("resident_rows.right") + sum(found.values()) == 3
    for _ in range(6):
        found += join.send(Arrival())
    assert found == Counter({(key, key, -key): 1 for key in range(12)})
    assert join.count("state_rows.right") == 0


def test_memory_pressure_lifts_the_quota() -> None:
    join = Join(slim({"buckets": 4}, quota=2, memory=20 * ROW))
    join.send(keys(range(10)))
    assert (join.count("waiting_rows.left"), join.of_kind("quota_lifted")) == (8, [])
    join.send(keys(right=range(100, 112)))
    assert [event["rows"] for event in join.of_kind("quota_lifted")] == [18]  # of 22, less two quotas
    assert join.count("waiting_rows.left") == join.count("waiting_rows.right") == 0


class Bucketed:
    """Rows per bucket, in memory and on disk, and how many generations each has there."""

    def __init__(self, buckets: int) -> None:
        self.buckets = Buckets(buckets)
        self.memory, self.disk = np.zeros(buckets, int), np.zeros(buckets, int)
        self.generations = np.zeros(buckets, int)

    def add(self, arrival: Arrival) -> None:
        for rows in arrival.rows.values():
            hashes = hash_keys([pa.array([row[0] for row in rows], pa.int64())])
            self.memory += np.bincount(self.buckets.of(hashes), minlength=len(self.memory))

    def flush(self, memory: int) -> tuple[int, int] | None:
        """Rows and buckets of the flush that is due."""
        size = ROW * int(self.memory.sum())
        if size <= memory:
            return None
        order = sorted(range(len(self.memory)), key=lambda bucket: (-self.memory[bucket], bucket))
        chosen: list[int] = []
        while ROW * self.memory[chosen].sum() < size - memory + memory // 2:
            chosen.append(order[len(chosen)])
        rows = int(self.memory[chosen].sum())
        self.disk[chosen] += self.memory[chosen]
        self.generations[chosen] += 1
        self.memory[chosen] = 0
        return rows, len(chosen)


@pytest.mark.parametrize("memory_rows", [30, 47])
@pytest.mark.parametrize("seed", range(3))
def test_a_flush_takes_the_largest_buckets_until_half_of_memory_is_free(seed: int, memory_rows: int) -> None:
    memory, model = memory_rows * ROW, Bucketed(5)
    join = Join(slim({"buckets": 5}, memory=memory))
    rng = np.random.default_rng(seed)
    flushes = 0
    for _ in range(25):
        count = int(rng.integers(0, 12))
        arrival = keys(rng.integers(0, 1000, count).tolist(), rng.integers(0, 1000, 12 - count).tolist())
        model.add(arrival)
        join.send(arrival)
        wanted = model.flush(memory)
        assert [(event["rows"], event["buckets"]) for event in join.of_kind("flush")] == ([wanted] if wanted else [])
        assert join.count("rows_flushed") == (wanted[0] if wanted else 0)
        assert sum(join.count(f"resident_rows.{name}") for name in NAMES) == model.memory.sum()
        assert sum(join.count(f"spilled_rows.{name}") for name in NAMES) == model.disk.sum()
        assert join.resident_bytes <= memory
        flushes += wanted is not None
    assert flushes > 3


@pytest.mark.parametrize("seed", range(4))
def test_buckets_that_owe_most_are_merged_first_and_within_the_pages(seed: int) -> None:
    memory, model = 40 * ROW, Bucketed(5)
    join = Join(slim({"buckets": 5}, memory=memory, idle_pages=1))
    rng = np.random.default_rng(seed)
    for _ in range(9):  # few flushes: generations are not merged yet
        arrival = keys(rng.integers(0, 1000, 5).tolist(), rng.integers(0, 1000, 4).tolist())
        model.add(arrival)
        join.send(arrival)
        model.flush(memory)
    for _ in range(20):
        owed = {
            bucket: int(model.memory[bucket] + (model.disk[bucket] if model.generations[bucket] > 1 else 0))
            for bucket in np.flatnonzero(model.disk).tolist()
        }
        owing = sorted((bucket for bucket in owed if owed[bucket]), key=lambda bucket: (-owed[bucket], bucket))
        join.send(Arrival())
        assert [event["bucket"] for event in join.of_kind("merge")] == owing[:1]  # one page is used up at once
        if not owing:
            assert join.count("pages_read") == join.count("buckets_merged") == 0
            break
        (merge,) = join.of_kind("merge")
        bucket, rows = owing[0], int(model.memory[owing[0]] + model.disk[owing[0]])
        assert join.count("pages_read") >= 1
        assert merge["rows_spilled_again"] in (0, rows)
        if back := merge["rows_spilled_again"] == 0:
            assert ROW * rows <= memory // 2
        model.memory[bucket], model.disk[bucket] = (rows, 0) if back else (0, rows)
        model.generations[bucket] = 0 if back else 1
        assert sum(join.count(f"spilled_rows.{name}") for name in NAMES) == model.disk.sum()
    else:
        pytest.fail("the merging never ends")


@pytest.mark.parametrize(("stay", "back"), [(36, True), (45, True), (51, False)])
def test_what_a_merge_leaves_returns_to_memory_if_it_fits_into_half(stay: int, back: bool) -> None:
    join = Join(slim({"buckets": 1}, memory=100 * ROW))
    join.send(keys(range(101)))
    assert (join.count("spilled_rows.left"), join.count("resident_rows.left")) == (101, 0)
    join.send(Arrival())
    assert join.of_kind("merge") == []  # nothing is owed
    join.send(Arrival(punctuations=said(right=Pattern.between(stay, None))))
    assert [(event["bucket"], event["rows_spilled_again"]) for event in join.of_kind("merge")] == [
        (0, 0 if back else stay)
    ]
    assert join.count("left.left.punctuation") == 101 - stay
    assert (join.count("resident_rows.left"), join.count("spilled_rows.left")) == ((stay, 0) if back else (0, stay))
    join.send(Arrival())
    assert join.of_kind("merge") == []  # all that was promised is done


def test_a_row_whose_partners_may_be_on_disk_is_kept_until_its_bucket_is_merged() -> None:
    join = Join(slim({"buckets": 1}, memory=20 * ROW))
    join.send(keys(left=range(21)))
    assert join.count("spilled_rows.left") == 21
    found = join.send(Arrival({"right": [(3, -3), (50, -50)]}, ended=frozenset(["left"])))
    assert found == Counter()
    assert join.count("resident_rows.right") == 2  # left has ended, but its row 3 is on disk
    assert join.send(Arrival()) == Counter({(3, 3, -3): 1})
    assert join.count("state_rows.right") == 0


@pytest.mark.parametrize(("purge", "due"), [("immediate", [1, 1, 1, 1]), ("batch", [0, 0, 3, 0])])
def test_when_a_purge_is_due(purge: str, due: list[int]) -> None:
    join = Join(slim(purge=purge, purge_after=3))
    join.send(keys(left=range(10)))
    for number, promises in enumerate(due):
        join.send(Arrival({"left": [(100 + number, 0)]}, punctuations=said(right=Pattern.value(2 * number))))
        assert [(e["input"], e["rows"], e["promises"]) for e in join.of_kind("purge")] == (
            [("left", promises, promises)] if promises else []
        )
        assert join.count("purges") == (promises > 0)
    join.send(Arrival())  # an idle batch purges what is left
    assert join.count("left.left.punctuation") == (1 if purge == "batch" else 0)
    assert join.count("resident_rows.left") == 10


def test_few_runs_are_kept_and_none_that_is_mostly_dead() -> None:
    join, most = Join(slim()), 0
    for number in range(80):
        rows = {"left": [(10 * number + i, 0) for i in range(10)]}
        join.send(Arrival(rows, punctuations=said(right=Pattern.between(None, 10 * number - 300, "neither"))))
        runs = [run for run in join.saved.runs if run.label == "left"]
        live = join.count("resident_rows.left")
        assert live == min(10 * (number + 1), 310)
        assert live <= sum(run.rows for run in runs) <= 2 * live
        most = max(most, len(runs))
    assert most <= 9  # three of each of three sizes


def test_rows_written_again_are_counted() -> None:
    join = Join(slim())
    join.send(keys(left=range(10)))
    for stay, written in ((5, 0), (4, 4), (3, 0)):  # half of a run may be dead, not more
        join.send(Arrival(punctuations=said(right=Pattern.between(stay, None))))
        assert join.count("rows_rewritten") == written
        assert join.count("resident_rows.left") == stay


def test_a_row_is_rewritten_once_per_size_of_run() -> None:
    """Runs of 1100 rows are merged by fours into 4400, and those into 17600."""
    join, rewritten, sizes = Join(slim()), 0, []
    for number in range(16):
        join.send(keys(left=range(1100 * number, 1100 * number + 1100)))
        rewritten += join.count("rows_rewritten")
        sizes.append(sorted((run.rows // 1100 for run in join.saved.runs if run.label == "left"), reverse=True))
    assert sizes[:8] == [[1], [1] * 2, [1] * 3, [4], [4, 1], [4, 1, 1], [4, 1, 1, 1], [4, 4]]
    assert sizes[-1] == [16]
    assert rewritten == 2 * 16 * 1100


@pytest.mark.parametrize(("rows", "merged"), [(1 << 17, True), ((1 << 17) + 1, False)])
def test_generations_of_more_than_half_a_million_rows_are_not_merged(rows: int, merged: bool) -> None:
    """Four of a size are merged, but no batch stalls."""
    plan = slim({"buckets": 2})
    schema = plan.inputs[0].schema
    buckets, accounts = Buckets(2), Accounts(Metrics())
    store = RowStore("left", schema, SizeTiers(), MemorySpace(), accounts, buckets=buckets, counts_buckets=True)
    generations = Generations({"left": store}, buckets)
    keys = pa.array(np.arange(rows))
    table = pa.table([pa.array(np.sort(hash_keys([keys]))), keys, keys], schema=schema)
    for number in range(4):
        assert generations.due() == []
        generations.write({"left": table}, {"left": (number, number)})
    assert generations.due() == ([1, 2, 3, 4] if merged else [])


def test_a_merged_generation_has_the_number_of_the_oldest() -> None:
    """Of two rows with a key that should be unique the later one is wrong, before a merge and after it."""
    join = Join(slim({"buckets": 2}, memory=8 * ROW))
    numbers = []
    for number in range(5):
        join.send(keys(left=range(10 * number, 10 * number + 10)))
        numbers.append(sorted({run.slot for run in join.saved.runs if run.tier == "spilled"}))
    assert numbers == [[1], [1, 2], [1, 2, 3], [1], [1, 5]]


def test_a_purge_is_due_when_there_is_anything_to_purge() -> None:
    for idle, pressure in ((False, False), (True, False), (False, True)):
        at_once, together = (
            [policy.due(promises, idle=idle, pressure=pressure) for promises in (0, 1, 2, 3)]
            for policy in (purge_policy("immediate", 3), purge_policy("batch", 3))
        )
        assert at_once == [False, True, True, True]
        assert together == ([False, True, True, True] if idle or pressure else [False, False, False, True])


def test_a_promise_of_everything_counts_as_one() -> None:
    join = Join(slim())
    join.send(keys(left=range(10)))
    join.send(Arrival(punctuations=said(right=Pattern.anything())))
    assert [(event["rows"], event["promises"]) for event in join.of_kind("purge")] == [(10, 1)]


def test_a_second_row_of_a_unique_key_is_dropped_when_the_first_comes_from_disk() -> None:
    join = Join(slim({"buckets": 1, "constraints": [ONE_LEFT]}, memory=20 * ROW, on_violation="drop"))
    join.send(keys(left=range(21)))
    assert join.count("spilled_rows.left") == 21
    join.send(Arrival({"left": [(5, 999), (50, 50)]}))
    join.send(Arrival())
    assert [event["bucket"] for event in join.of_kind("merge")] == [0]
    assert (join.count("left.left.violation"), join.count("violations.left.one_to_many")) == (1, 1)
    assert join.count("state_rows.left") == 22
    found = join.send(keys(right=[5, 50])) + join.send(Arrival())
    assert found == Counter({(5, 5, -5): 1, (50, 50, -50): 1})


def keys_of_bucket(bucket: int, keys: range) -> list[int]:
    """Of some keys those in one of two buckets."""
    places = Buckets(2).of(hash_keys([pa.array(keys)]))
    return [key for key, place in zip(keys, places.tolist(), strict=True) if place == bucket]


@pytest.mark.parametrize("purge", ["immediate", "batch"])
def test_a_promised_row_leaves_memory_when_no_merge_leaves_any_of_its_bucket_on_disk(purge: str) -> None:
    plan = slim({"buckets": 2}, memory=100 * ROW, idle_pages=1, purge=purge, purge_after=1000)
    join = Join(replace(plan, how="left"))
    waiting, fillers = keys_of_bucket(1, range(1000, 2000))[0], keys_of_bucket(0, range(1000, 2000))
    old = keys_of_bucket(1, range(400))[:101]
    join.send(keys(right=old))
    assert join.count("spilled_rows.right") == len(old)
    join.send(keys([waiting], fillers[:1]))
    join.send(keys(right=fillers[1:2], said=said(right=Pattern.value(waiting))))
    join.send(keys(right=fillers[2:3], said=said(left=Pattern.between(0, 399))))
    assert join.count("resident_rows.left") == 1  # what is on disk of its bucket may match it, as far as is known
    found: list[Counter[Any]] = []
    while not join.count("left.right.punctuation"):
        some = fillers[3 + 101 * len(found) :][:101]
        assert len(some) == 101, "generations are never merged"
        found.append(join.send(keys(right=some)))
    assert found[-1] == Counter({(waiting, waiting, None): 1})
    assert not any(found[:-1])
    assert join.count("left.left.punctuation") == 1
    assert join.count("state_rows.left") == 0


def test_a_promise_that_a_waiting_row_held_up_reaches_the_disk_when_that_row_has_gone() -> None:
    join = Join(replace(slim({"buckets": 2}, memory=20 * ROW, quota=3), how="left_semi"))
    old, others = keys_of_bucket(1, range(100))[:31], keys_of_bucket(0, range(100, 200))[:9]
    join.send(keys(right=old))
    join.send(keys(left=others))
    join.send(keys(left=old[:1], said=said(left=Pattern.value(old[0]))))  # those with lower hashes go first
    join.send(Arrival())
    assert [event["bucket"] for event in join.of_kind("merge")] == [1]
    assert (join.count("waiting_rows.left"), join.count("spilled_rows.right")) == (1, 31)
    assert join.send(keys(right=old[:1])).total() == 1  # both rows are processed, and neither is stored
    join.send(Arrival())
    assert join.count("left.right.punctuation") == 1
    assert join.count("spilled_rows.right") == 30
    join.send(Arrival())
    assert join.of_kind("merge") == []


def test_a_promised_row_leaves_when_what_was_on_disk_of_its_bucket_goes_to_another_partition() -> None:
    plan = replace(slim({"buckets": 2}, memory=100 * ROW), how="left")
    heir = Partition(1, 2, 1)
    mine, others = (
        [key for key in keys_of_bucket(1, range(1000)) if heir.owns(hash_keys([pa.array([key])]))[0] == is_mine]
        for is_mine in (True, False)
    )
    join = Join(plan)
    join.send(keys(right=others[:101]))
    join.send(keys(left=mine[:1], said=said(right=Pattern.value(mine[0]))))
    assert (join.count("spilled_rows.right"), join.count("resident_rows.left")) == (101, 1)
    divided = replace(plan, partitions=2, former=(1,))
    operator = build(divided, MemorySpace())
    take_over(operator, heir, [Origin(Partition(0, 1, 0), join.operator)], join.number - 1)
    found = rows_of(advance(operator, batch_of(divided, join.number, keys(left=mine[1:2]))))
    assert found == Counter({(mine[0], mine[0], None): 1})
