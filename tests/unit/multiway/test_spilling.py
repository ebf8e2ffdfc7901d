"""A multiway join within a budget: what is flushed, merged and read, and that budgets may come and go."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.conformance.cases.multiway import INPUTS, TICK, sparse_script, timed_script

from watersmeet.columns.arrow import data_bytes, hash_keys
from watersmeet.engine.registry import build
from watersmeet.errors import FanOutError, OptionError
from watersmeet.join import generations
from watersmeet.join.operator import Batch, advance, resume, saved
from watersmeet.multiway import spilling
from watersmeet.multiway.mjoin import MJoin
from watersmeet.multiway.options import MultiwayOptions
from watersmeet.state.space import MemorySpace
from watersmeet.testing import accounting, batch_of, inner_join, make_plan
from watersmeet.testing.arrivals import Row
from watersmeet.testing.harness import rows_of

ABC = ("a", "b", "c")
ROW = 24  # bytes of a row of `numbered`: hash, key, payload


def mjoin(inputs: Sequence[str] = ABC, *, buckets: int = 4, window: int | None = None, **tuning: Any) -> MJoin:
    options: dict[str, Any] = {"buckets": buckets}
    if window is not None:
        options |= {"window": window, "lateness": 0, "time": dict.fromkeys(inputs, "_p0")}
    plan = make_plan("mjoin", inputs, options, payload=(pa.int64(),), tuning={"page_rows": 16, **tuning})
    operator = build(plan, MemorySpace())
    assert isinstance(operator, MJoin)
    return operator


def rows(keys: Any, payload: Any) -> pa.Table:
    column = pa.array(keys, pa.int64())
    return pa.table({"_hash": hash_keys([column]), "_k0": column, "_p0": pa.array(payload, pa.int64())})


def numbered(keys: Any) -> pa.Table:
    return rows(keys, np.arange(len(keys)))


def count(operator: MJoin, batch: Batch) -> int:
    return sum(table.num_rows for table in advance(operator, batch))


def keys_of(operator: MJoin, bucket: int, wanted: int) -> list[int]:
    """So many keys that fall into a bucket."""
    keys = np.arange(100 * wanted)
    hashes = hash_keys([pa.array(keys)])
    found: list[int] = keys[operator.buckets.of(hashes) == bucket][:wanted].tolist()
    return found


def counters(operator: MJoin) -> dict[str, float]:
    return operator.metrics.counters


def events(operator: MJoin, kind: str) -> list[dict[str, Any]]:
    return [event for event in operator.metrics.events if event["kind"] == kind]


# -- flushing


def test_the_largest_buckets_of_all_inputs_leave_until_half_of_the_budget_is_free() -> None:
    operator = mjoin(memory=100 * ROW)
    sizes = {0: 10, 1: 20, 2: 30, 3: 15}
    keys = [key for bucket, size in sizes.items() for key in keys_of(operator, bucket, size)]
    count(operator, Batch(0, rows={"a": numbered(keys)}))  # 75 rows, and room for 75 more is wanted
    assert events(operator, "flush") == [{"kind": "flush", "rows": 50, "buckets": 2}]
    assert operator.stores["a"].bucket_rows.tolist() == [10, 0, 0, 15]
    assert operator.stores["a"].disk_rows().tolist() == [0, 20, 30, 0]
    assert counters(operator)["rows_flushed"] == 50
    assert counters(operator)["runs_flushed"] == 1


def test_a_bucket_is_as_large_as_the_rows_of_all_inputs_in_it() -> None:
    operator = mjoin(memory=40 * ROW)
    arrivals = [("a", 3), ("a", 3), ("a", 3), ("a", 0), ("a", 0), ("b", 0), ("b", 0), ("c", 2)]
    for number, (name, bucket) in enumerate(arrivals):
        count(operator, Batch(number, rows={name: numbered(keys_of(operator, bucket, 5))}))
    # 40 rows, of which 10 and 10 in bucket 0; 20 are to leave
    assert [store.disk_rows().tolist() for store in operator.stores.values()] == [[10, 0, 0, 0], [10, 0, 0, 0], [0] * 4]
    assert operator.generations.resident.tolist() == [0, 0, 5, 15]
    assert counters(operator)["runs_flushed"] == 2


def test_there_is_room_for_another_batch_of_the_same_size() -> None:
    operator = mjoin(memory=300 * ROW, buckets=16)
    for number in range(12):
        batch = {name: numbered(np.arange(20) + 20 * number) for name in ABC}
        count(operator, Batch(number, rows=batch))
        held = sum(store.nbytes for store in operator.stores.values())
        assert held + sum(map(data_bytes, batch.values())) <= 300 * ROW
    assert any(store.spilled for store in operator.stores.values())
    assert all(store.resident_rows for store in operator.stores.values())


def test_what_is_on_disk_is_in_few_runs_however_many_flushes_there_were() -> None:
    operator, most = mjoin(memory=1, buckets=4), 0
    for number in range(200):
        count(operator, Batch(number, rows={name: numbered(np.arange(6) + 6 * number) for name in ABC}))
        most = max(most, len(operator.stores["a"].spilled))
    assert most <= 3 * 3  # fewer than FANOUT of each size
    assert operator.stores["a"].spilled_rows == 1200


def test_rows_on_disk_say_in_which_batches_they_came() -> None:
    operator = mjoin(("a", "b"), memory=50 * ROW, buckets=1)
    for number in range(6):
        count(operator, Batch(number, rows={"a": numbered([number] * 8)}))
    assert [(run.tier, run.oldest, run.newest) for run in operator.stores["a"].runs] == [("spilled", 0, 5)]
    for number in range(6, 9):
        count(operator, Batch(number, rows={"b": numbered([number] * 8)}))
    count(operator, Batch(9))
    came = [(run.tier, run.oldest, run.newest) for store in operator.stores.values() for run in store.runs]
    assert came == [("spilled", 0, 5), ("spilled", 6, 8)]


# -- merging


def test_idle_batches_find_all_that_is_owed() -> None:
    operator = mjoin(memory=1)
    found = sum(count(operator, Batch(i, rows={name: numbered([1, 2, 3])})) for i, name in enumerate(ABC))
    assert found == 0
    assert count(operator, Batch(3)) == 3
    assert count(operator, Batch(4)) == 0
    assert "pages_read" not in counters(operator)  # nothing is owed any more
    assert sum(store.spilled_rows for store in operator.stores.values()) == 9


def test_an_idle_batch_keeps_to_its_pages_and_finishes_the_last_bucket() -> None:
    def idle(idle_pages: int) -> int:
        operator = mjoin(("a", "b"), memory=1, idle_pages=idle_pages, buckets=8, page_rows=99)
        for number, name in enumerate(("a", "b")):
            count(operator, Batch(number, rows={name: numbered(range(80))}))
        count(operator, Batch(2))
        merged = int(counters(operator).get("buckets_merged", 0))
        assert counters(operator).get("pages_read", 0) == 2 * merged
        assert counters(operator).get("pages_written", 0) == 2 * merged
        return merged

    assert [idle(pages) for pages in (0, 1, 4, 5, 12, 1000)] == [0, 1, 1, 2, 3, 8]


def test_buckets_that_owe_most_come_first() -> None:
    operator = mjoin(("a", "b"), memory=1, idle_pages=1)
    sizes = {0: 5, 1: 9, 2: 14, 3: 3}
    for number, name in enumerate(("a", "b")):
        keys = [key for bucket, size in sizes.items() for key in keys_of(operator, bucket, size)]
        count(operator, Batch(number, rows={name: numbered(keys)}))
    found = [count(operator, Batch(2 + i)) for i in range(4)]
    assert found[:2] == [14, 9]
    assert sum(found) == 31


def test_a_merged_bucket_stays_in_memory_while_less_than_half_of_it_is_used() -> None:
    operator = mjoin(("a", "b"), memory=100 * ROW)
    small, large = keys_of(operator, 0, 20), keys_of(operator, 1, 30)
    count(operator, Batch(0, rows={"a": numbered(small + large + keys_of(operator, 2, 50))}))
    count(operator, Batch(1, rows={"b": numbered(small + large + keys_of(operator, 3, 50))}))
    assert operator.generations.resident.tolist() == [0, 0, 0, 0]
    assert count(operator, Batch(2)) == 50
    assert operator.generations.resident.tolist() == [40, 0, 0, 0]  # 40 rows fit into the half, 60 do not
    assert operator.generations.disk.tolist() == [0, 60, 50, 50]
    assert [event["rows_spilled_again"] for event in events(operator, "merge")] == [0, 60]


def test_many_generations_of_a_bucket_are_merged_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "LARGEST", 0)  # none is merged while rows come
    operator, sides = mjoin(memory=1, buckets=1), []
    read = operator.generations.read

    def reading(bucket: int, resident: Any, numbers: Any = None, step_rows: int = 0) -> Any:
        sides.append(len(operator.generations.numbers(bucket)) if numbers is None else len(numbers))
        return read(bucket, resident, numbers, step_rows)

    monkeypatch.setattr(operator.generations, "read", reading)
    for number in range(20):
        count(operator, Batch(number, rows={name: numbered([number, -1]) for name in ABC}))
    assert len(operator.generations.numbers(0)) == 20
    assert count(operator, Batch(20)) == 20**3 - 20  # of key -1: all combinations, less those of one batch
    assert sides == [spilling.FAN_IN, spilling.FAN_IN, 6]  # 20 generations, 13, 6
    assert list(operator.generations.numbers(0).values()) == [120]


def test_a_fan_out_on_disk_is_refused_before_it_is_built() -> None:
    operator = mjoin(memory=1, max_results=999)
    for number, name in enumerate(ABC):
        count(operator, Batch(number, rows={name: numbered([7] * 10)}))
    with pytest.raises(FanOutError, match=r"max_results=999 .* 1e\+03 more combinations .*'a': 10"):
        count(operator, Batch(3))


def test_rows_that_wait_for_nothing_leave_when_their_bucket_is_merged() -> None:
    operator = mjoin(memory=1)
    for number, name in enumerate(ABC):
        ended = frozenset({name}) if name != "a" else frozenset[str]()
        count(operator, Batch(number, rows={name: numbered([1, 2])}, ended=ended))
    assert operator.stores["a"].held == 2  # b and c have ended, but what they have on disk is owed
    assert count(operator, Batch(3)) == 2
    assert [operator.stores[name].held for name in ABC] == [0, 2, 2]
    assert counters(operator)["left.a.ended"] == 2
    assert count(operator, Batch(4, rows={"a": numbered([1])})) == 0  # its partners are on disk
    assert count(operator, Batch(5, ended=frozenset({"a"}))) == 1
    assert not any(store.held for store in operator.stores.values())


# -- budgets that change


@pytest.mark.parametrize("inputs", [2, 3, 4])
@pytest.mark.parametrize("seed", range(8))
def test_every_combination_once_with_another_budget_in_every_batch(inputs: int, seed: int) -> None:
    rng, names = random.Random(f"{inputs} {seed}"), INPUTS[inputs]
    script = sparse_script(seed, inputs=names, batches=14, batch_rows=rng.choice([1, 3, 9]), idle_share=0.3)
    found, state = Counter[Row](), None
    for number, arrival in enumerate(script):
        tuning = {
            "memory": rng.choice([None, 1, 500, 2000]),
            "idle_pages": rng.choice([0, 2, 1000]),
            "page_rows": rng.choice([1, 4]),
        }
        plan = make_plan("mjoin", names, {"buckets": 3}, tuning=tuning)
        operator = build(plan, MemorySpace())
        if state is not None:
            resume(operator, state)
        found += rows_of(advance(operator, batch_of(plan, number, arrival)))
        accounting.check(operator, script, number + 1)
        state = saved(operator)
    assert found == inner_join(script, names)


def test_without_a_budget_rows_come_back_a_few_pages_a_batch() -> None:
    operator = mjoin(("a", "b"), memory=1)
    for number, name in enumerate(("a", "b")):
        count(operator, Batch(number, rows={name: numbered(range(60))}))
    free = mjoin(("a", "b"), idle_pages=1)
    resume(free, saved(operator))
    found, disk = [], []
    for number in range(2, 7):
        found.append(count(free, Batch(number, rows={"a": numbered([1000 + number])})))
        disk.append(sum(bool(rows) for rows in free.generations.disk))
    assert disk == [3, 2, 1, 0, 0]
    assert sum(found) == 60
    assert found[-1] == 0
    assert count(free, Batch(7, rows={"a": numbered(range(60))})) == 60  # at once, as ever


# -- windows


def test_with_a_window_results_come_as_without_a_budget() -> None:
    script = timed_script(3, inputs=ABC, batches=16, batch_rows=12, keys=5)
    options = {"window": 3 * TICK, "lateness": 2 * TICK, "time": dict.fromkeys(ABC, "_p0"), "buckets": 3}
    found = {}
    for memory in (None, 800):
        plan = make_plan("mjoin", ABC, options, tuning={"memory": memory, "page_rows": 4})
        operator = build(plan, MemorySpace())
        found[memory] = [rows_of(advance(operator, batch_of(plan, n, arrival))) for n, arrival in enumerate(script)]
    assert found[800] == found[None]
    assert sum(map(len, found[800]))


def test_pages_that_are_out_of_reach_are_not_read() -> None:
    """c is silent, so that nothing expires; what is far away in time or in another bucket is not read."""
    operator = mjoin(window=10, memory=1, buckets=4)
    for number in range(5):
        count(operator, Batch(number, rows={"b": rows(range(20), [100 * number] * 20)}))
    count(operator, Batch(5, rows={"c": rows([1], [400])}))
    [key] = keys_of(operator, int(operator.buckets.of(hash_keys([pa.array([1])]))[0]), 1)
    count(operator, Batch(6, rows={"a": rows([key], [395])}))
    assert counters(operator)["pages_read"] == 2  # of b and c, at the time 400
    assert count(operator, Batch(7, rows={"a": rows([1], [395])})) == 1
    assert count(operator, Batch(8, rows={"a": rows([1], [150])})) == 0
    assert "pages_read" not in counters(operator)


def test_runs_that_expire_soonest_leave_first() -> None:
    operator = mjoin(("a", "b"), window=50, memory=400 * ROW)
    for number in range(10):
        batch = {name: rows(range(10), [10 * number + i for i in range(10)]) for name in ("a", "b")}
        count(operator, Batch(number, rows=batch))
    tight = mjoin(("a", "b"), window=50, memory=60 * ROW)
    resume(tight, saved(operator))
    count(tight, Batch(10, rows={"a": rows([1], [100])}))
    for store in tight.stores.values():
        assert max(run.time_to or 0 for run in store.spilled) < min(run.time_from or 0 for run in store.resident)
    assert 0 < sum(store.nbytes for store in tight.stores.values()) <= 60 * ROW


# -- options


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"idle_pages": 3}, "idle_pages=3, which has none"),
        ({"page_rows": 3}, "page_rows=3, which has none"),
        ({"memory": "1 MB", "window": "1 s", "idle_pages": 3}, "idle_pages=3, which has none"),
        ({"memory": 0}, "memory"),
        ({"memory": "much"}, "'much' is not a size"),
        ({"memory": "1 MB", "buckets": 0}, "buckets"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        MultiwayOptions.checked("multiway_join", {"time": {"a": "_p0"}} if "window" in wrong else None, **wrong)


def test_a_share_of_the_budget_must_hold_a_page() -> None:
    plan = make_plan("mjoin", ABC, payload=(pa.int64(), pa.string()))
    least = 8192 * (8 + 8 + 8 + 4)
    MultiwayOptions(memory=least).check_plan("multiway_join", plan)
    said = "memory of at least 224 KiB: a page of 8192 rows of at least 28 bytes in each of 1 partitions"
    with pytest.raises(OptionError, match=said):
        MultiwayOptions(memory=least - 1).check_plan("multiway_join", plan)
    MultiwayOptions(memory=least - 1, page_rows=8000).check_plan("multiway_join", plan)


def test_buckets_may_be_said_before_there_is_a_budget() -> None:
    assert MultiwayOptions.checked("multiway_join", buckets=8).buckets == 8
