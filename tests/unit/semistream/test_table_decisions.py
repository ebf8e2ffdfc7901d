"""Which chunks are read, what is cached and evicted, how many runs wait: counted again from plain rows."""

from __future__ import annotations

from collections import Counter
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.restarted import RestartedJoin

from watersmeet.columns.arrow import hash_keys
from watersmeet.plan import JoinPlan
from watersmeet.semistream.master_table import MasterTable
from watersmeet.testing import Arrival, batch_of
from watersmeet.testing.harness import rows_of
from watersmeet.testing.masters import semi_stream_join, semi_stream_plan, write_master

PAYLOAD = (pa.int64(),)
ROW = 24  # bytes of a row with a hash, a key and a number; a waiting one also knows its batch
WAITING = ROW + 4
ENTRY = 40  # what a cached key costs besides its rows
NEVER = {"switching_factor": 1e9}  # nothing is ever cached


def written(
    path: Path, rows: list[tuple[int, int]], chunk_rows: int = 1, layout: Any = "hash"
) -> list[tuple[int, int]]:
    write_master(str(path), rows, chunk_rows=chunk_rows, layout=layout, payload=PAYLOAD)
    return rows


def plan(path: Path, policy: str = "aligned", **tuning: Any) -> JoinPlan:
    return semi_stream_plan(str(path), {"policy": policy}, {"idle_chunks": 0, **tuning}, payload=PAYLOAD)


class Join(RestartedJoin):
    """A join of a stream of keys."""

    def send(self, keys: list[int], **more: Any) -> Counter[Any]:
        """One batch; returns its results."""
        arrival = Arrival({"stream": [(key, self.number) for key in keys]} if keys else {}, **more)
        return rows_of(self.step(batch_of(self.plan, self.number, arrival)))

    @property
    def waiting_runs(self) -> int:
        return sum("_ats" in run.table.column_names for run in self.saved.runs)


class Chunks:
    """The aligned policy on lists: which chunk a key is in, who waits for it, which are read."""

    def __init__(self, path: Path, max_delay: int) -> None:
        self.lows = MasterTable(str(path)).partition(1, 0).lows
        self.max_delay = max_delay
        self.waiting: dict[int, list[tuple[int, int]]] = {}  # chunk -> (key, batch)

    def batch(self, number: int, keys: list[int]) -> dict[int, list[tuple[int, int]]]:
        """The chunks that a batch reads, with all that waited for them."""
        if keys:
            hashes = hash_keys([pa.array(keys, pa.int64())])
            for key, chunk in zip(keys, np.searchsorted(self.lows, hashes, side="right") - 1, strict=True):
                self.waiting.setdefault(int(chunk), []).append((key, number))
        first = {chunk: min(batch for _, batch in rows) for chunk, rows in self.waiting.items()}
        late = [chunk for chunk in first if number - first[chunk] >= self.max_delay - 1]
        reads = max(len(late), ceil(len(first) / self.max_delay))
        rest = [chunk for chunk in first if chunk not in late]
        rest.sort(key=lambda chunk: (-len(self.waiting[chunk]), first[chunk], chunk))
        return {chunk: self.waiting.pop(chunk) for chunk in [*late, *rest[: reads - len(late)]]}


@pytest.mark.parametrize(("max_delay", "chunk_rows"), [(1, 3), (3, 1), (5, 4)])
def test_the_chunks_that_are_due_and_those_most_waited_for_are_read(
    tmp_path: Path, max_delay: int, chunk_rows: int
) -> None:
    master = written(tmp_path, [(key, 10 * key + i) for key in range(30) for i in range(1 + key % 2)], chunk_rows)
    join, model = Join(plan(tmp_path, max_delay=max_delay, **NEVER)), Chunks(tmp_path, max_delay)
    rng, reads = np.random.default_rng(max_delay), 0
    for number in range(40):
        keys = rng.zipf(1.5, int(rng.choice([0, 3, 12]))).clip(0, 35).tolist()
        found = join.send(keys)
        read = model.batch(number, keys)
        done = [row for rows in read.values() for row in rows]
        answer = semi_stream_join([Arrival({"stream": done})], master)
        assert found == answer
        assert join.count("chunks_read") == len(read)
        reads += len(read)
        assert join.counters["cycles"] == round(reads / len(model.lows), 6)
        waiting = sum(len(rows) for rows in model.waiting.values())
        assert join.count("waiting_rows.stream") == waiting
        assert WAITING * waiting <= join.count("memory_bytes") <= 2 * WAITING * waiting  # at most half is dead
        assert join.count("left.stream.answered") == len(done)
        delays = sorted(number - batch for _, batch in done)
        if delays:
            assert join.count("delay_max") == delays[-1]
            for share in (50, 95, 99):
                assert join.count(f"delay_p{share}") == np.percentile(delays, share, method="lower")


def test_an_idle_batch_reads_so_many_more_of_the_most_wanted_chunks(tmp_path: Path) -> None:
    written(tmp_path, [(key, 0) for key in range(30)])
    join = Join(plan(tmp_path, max_delay=100, **NEVER, idle_chunks=3))
    join.send([1] * 5 + [2] * 4 + [3] * 3 + [4] * 2 + [5, 6])
    assert join.count("chunks_read") == 1  # a hundredth of six, rounded up
    found = join.send([])
    assert {row[0] for row in found} == {2, 3, 4, 5} or {row[0] for row in found} == {2, 3, 4, 6}
    assert join.count("chunks_read") == 4


@pytest.mark.parametrize("policy", ["aligned", "mesh"])
def test_four_short_runs_that_wait_become_one(tmp_path: Path, policy: str) -> None:
    written(tmp_path, [(key, 0) for key in range(60)], layout="hash" if policy == "aligned" else "arrival")
    join, runs = Join(plan(tmp_path, policy, max_delay=60, **NEVER)), 0
    for number in range(30):
        join.send(list(range(60)))
        runs += 1
        if runs == 4:
            runs = 1
            assert join.count("rows_rewritten") >= 4 * (60 - number)
        else:
            assert join.count("rows_rewritten") == 0
        assert join.waiting_runs == runs


@pytest.mark.parametrize("policy", ["aligned", "ssbj", "mesh"])
def test_the_bytes_that_are_reported_are_those_of_the_state(tmp_path: Path, policy: str) -> None:
    written(tmp_path, [(key, key) for key in range(40)], 2, "hash" if policy == "aligned" else "arrival")
    join = Join(plan(tmp_path, policy, max_delay=4))
    rng = np.random.default_rng(1)
    collected = 0
    for _ in range(30):
        join.send(rng.zipf(1.3, 40).clip(0, 60).tolist())
        tables = {name: table for name, table in join.saved.tables.items() if not name.endswith(".chunks")}
        beside = [*tables.values(), *(table for store in join.saved.stores for table in store.tables.values())]
        size = sum(run.nbytes for run in join.saved.runs) + sum(table.nbytes for table in beside)
        # Marks of single rows are a few bytes more or less when they are written.
        assert join.count("memory_bytes") == pytest.approx(size, abs=12)
        cache = sum(table.nbytes for name, table in tables.items() if ".cache." in name)
        cache += sum(run.nbytes for store in join.saved.stores if store.name == "master.1" for run in store.runs)
        assert join.count("cache_bytes") == cache
        collected += any("collector" in name for name in tables)
    assert (collected > 0) == (policy == "ssbj")


@pytest.mark.parametrize("max_delay", [1, 3])
def test_a_key_is_cached_if_what_waits_for_it_costs_more(tmp_path: Path, max_delay: int) -> None:
    """n rows of a key that waited for T batches stand for n (T + 1) / 2T at any time; surely, one deviation less."""
    master = written(tmp_path, [(key, i) for key in range(12) for i in range(key)], 1)
    join, model = Join(plan(tmp_path, max_delay=max_delay)), Chunks(tmp_path, max_delay)
    cached: set[int] = set()
    rng = np.random.default_rng(5)
    for number in range(4 * max_delay):  # then keys are judged for eviction
        keys = [key for key in range(14) for _ in range(int(rng.integers(0, 14)))]
        join.send(keys)
        new: dict[int, int] = {}
        for rows in model.batch(number, [key for key in keys if key not in cached]).values():
            interval = number - min(batch for _, batch in rows) + 1
            for key, count in Counter(key for key, _ in rows).items():
                waited = WAITING * count * (1 - 1 / sqrt(count)) * (interval + 1) / (2 * interval)
                copies = sum(k == key for k, _ in master)
                if waited > ENTRY + ROW * copies:
                    new[key] = copies
        admitted = [(event["keys"], event["rows"], event["bytes"]) for event in join.of_kind("admit")]
        wanted = (len(new), sum(new.values()), ROW * sum(new.values()))
        assert admitted == ([wanted] if new else [])
        assert join.count("keys_admitted") == len(new)
        cached |= set(new)
        assert join.count("cached_keys") == len(cached)
        assert join.count("held_rows.master") == sum(k in cached for k, _ in master)
    assert len(cached) > 3


def test_a_row_that_just_pays_is_not_cached(tmp_path: Path) -> None:
    """Four rows surely stand for two: 56 bytes at once. An absence costs 40; with a factor of 1.4 it does not pay."""
    written(tmp_path, [(1, 1)])
    for factor, cached in ((1.4, 0), (1.39, 1)):
        join = Join(plan(tmp_path, max_delay=1, switching_factor=factor))
        join.send([77] * 4)
        assert join.count("cached_keys") == cached


def test_the_best_candidates_that_fit_are_admitted(tmp_path: Path) -> None:
    written(tmp_path, [(key, key) for key in (1, 2, 3)], 1)
    stream, price = [1] * 20 + [2] * 30 + [3] * 25, ENTRY + ROW
    for room, keys in [
        (3 * price, [1, 2, 3]),
        (3 * price - 1, [2, 3]),
        (2 * price, [2, 3]),
        (2 * price - 1, [2]),
        (price, [2]),
    ]:
        join = Join(plan(tmp_path, max_delay=1, memory=WAITING * len(stream) + room))
        join.send(stream)
        (event,) = join.of_kind("admit")
        assert (event["keys"], event["rows"], event["bytes"]) == (len(keys), len(keys), ROW * len(keys))
        join.send([1, 2, 3])
        assert join.count("cache_hits") == len(keys)
        assert join.counters["hit_share"] == pytest.approx(len(keys) / 3)


def test_ssbj_caches_a_hot_key_when_a_collector_has_seen_every_chunk(tmp_path: Path) -> None:
    master = written(tmp_path, [(1, 1), *((key, key) for key in range(2, 9))], 1, "arrival")  # 8 chunks
    join = Join(plan(tmp_path, "ssbj", max_delay=8))
    hot = [1] * 30 + [2] + [50] * 30
    found, admitted = Counter[Any](), {}
    for number in range(20):
        found += join.send(hot if number < 12 else [])
        for event in join.of_kind("admit"):
            admitted.setdefault(number, []).append((event["keys"], event["rows"], event["bytes"]))
    # One chunk a batch: the collectors of batch 0 are complete in batch 7. Key 2 has four rows waiting from batch 3 on,
    # which surely stand for two: more than an entry and a row. The next collectors start half a cycle after the first.
    assert admitted == {7: [(2, 1, ROW)], 11: [(1, 1, ROW)]}
    assert found == semi_stream_join([Arrival({"stream": [(key, n) for key in hot]}) for n in range(12)], master)
    assert join.count("cached_keys") == 3


@pytest.mark.parametrize(("rows", "absences"), [(2, 0), (3, 1)])
def test_ssbj_caches_an_absence_that_its_rows_have_proved(tmp_path: Path, rows: int, absences: int) -> None:
    """Three rows of 36 bytes surely stand for 46: too few for a collector, but more than an entry without rows."""
    written(tmp_path, [(key, key) for key in range(4)], 1, "arrival")
    join = Join(plan(tmp_path, "ssbj", max_delay=4))
    cached = []
    for number in range(5):
        join.send([77] * rows if number == 0 else [])
        cached.append(join.count("cached_keys"))
    assert cached == [0, 0, 0, absences, absences]


def test_a_collector_is_given_up_when_its_rows_outweigh_what_waits(tmp_path: Path) -> None:
    written(tmp_path, [(1, i) for i in range(40)], 4, "arrival")  # ten chunks, all of one key
    join = Join(plan(tmp_path, "ssbj", max_delay=10))
    given_up = []
    for number in range(10):
        join.send([1] * 20 if number == 0 else [99])
        given_up += [number] * join.count("keys_given_up")
    # 20 waiting rows of 36 bytes surely stand for 559; 40 and six chunks of 4 rows of 24 bytes are more than that. It
    # is judged after a quarter, a half and three quarters of its cycle: 2, 5 and 8 chunks.
    assert given_up == [7]
    assert join.count("cached_keys") == 0


@pytest.mark.parametrize(("policy", "fits", "least"), [("aligned", 175, 160), ("mesh", 175, 120), ("mesh", 150, 150)])
def test_an_overload_finishes_no_more_rows_than_it_must(tmp_path: Path, policy: str, fits: int, least: int) -> None:
    written(tmp_path, [(key, key) for key in range(50)], 1, "hash" if policy == "aligned" else "arrival")
    row = WAITING if policy == "aligned" else WAITING + 8 + 1  # the step at which it came, and its status
    memory = fits * row
    join = Join(plan(tmp_path, policy, max_delay=50, memory=memory, **NEVER))
    for _ in range(8):
        join.send(list(range(50)))
        assert join.count("memory_bytes") <= memory
        overloads = join.of_kind("overload")
        assert join.count("overloads") == len(overloads)
        if overloads:
            (event,) = overloads
            assert event["bytes"] > memory == event["memory"]
            assert (event["rows"], event["rows_that_fit"]) == (50, int(50 * memory / event["bytes"]))
            # What left are the rows of one batch (mesh), or as few chunks as are enough (aligned).
            assert join.count("waiting_rows.stream") >= least
    assert overloads


def test_a_join_begins_with_the_version_it_is_told(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        write_master(str(tmp_path), [(1, version)], payload=PAYLOAD)
    join = Join(plan(tmp_path, version=2, max_delay=1))
    assert join.send([1]) == Counter({(1, 0, 2): 1})
    assert join.count("version") == 2
    join = Join(plan(tmp_path, version=2, max_delay=1))
    assert join.send([1], signals=(3,)) == Counter({(1, 0, 3): 1})


def test_keys_are_judged_every_four_rounds_and_spared_for_three(tmp_path: Path) -> None:
    written(tmp_path, [(key, key) for key in (1, 2)], 1)
    join = Join(plan(tmp_path, max_delay=1))
    join.send([1] * 20 + [2] * 20)
    assert join.count("cached_keys") == 2
    evicted = {}
    for number in range(1, 14):
        join.send([1] * 20 if number < 5 else [])
        for event in join.of_kind("evict"):
            evicted[number] = (event["keys"], event["stay"], join.count("keys_evicted"))
    # Judged in batch 4, when the unused key has been watched for five batches; what is used stays until it is not used
    # any more. The counting began anew in batch 5, so it is judged again in batch 9.
    assert evicted == {4: (1, 1.0, 1), 9: (1, 1.0, 1)}
    assert join.count("cached_keys") == 0


def test_the_keys_that_answer_least_for_their_bytes_make_room_first(tmp_path: Path) -> None:
    written(tmp_path, [(key, i) for key in (1, 2, 3) for i in range(2)], 2)
    join = Join(plan(tmp_path, max_delay=1))
    join.send([1] * 30 + [2] * 30 + [3] * 30)
    for _ in range(2):
        join.send([1] * 5 + [2] * 9 + [3] * 7)
    size = join.count("cache_bytes")
    assert join.count("cached_keys") == 3
    small = Join(plan(tmp_path, max_delay=1, memory=size - 1))
    small.operator.restore(join.saved)
    small.number = join.number
    small.send([])
    assert (small.count("keys_evicted"), small.count("cached_keys")) == (1, 2)
    assert small.count("cache_bytes") < size
    small.send([2, 3])
    assert small.count("cache_hits") == 2
