"""Join types of the semi-stream joins: what is emitted when, what is kept of the table, and what is refused."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.unit.restarted import RestartedJoin

from watersmeet.engine.registry import build
from watersmeet.errors import OptionError
from watersmeet.plan import JoinPlan
from watersmeet.semistream.master_table import MasterTable
from watersmeet.semistream.options import checked_type
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, Script, batch_of
from watersmeet.testing.accounting import contents
from watersmeet.testing.arrivals import Row
from watersmeet.testing.harness import rows_of
from watersmeet.testing.masters import semi_stream_join, semi_stream_plan, write_master

POLICIES = ("aligned", "ssbj", "mesh")
HOW = ("inner", "left", "left_semi", "left_anti")
every_policy = pytest.mark.parametrize("policy", POLICIES)
every_type = pytest.mark.parametrize("how", HOW)
NEVER = {"switching_factor": 1e9, "idle_chunks": 0}  # nothing is ever cached

# Keys with no, one and several rows.
MASTER: list[Row] = [(key, 10 * key + i, "m" * 40) for key in range(24) if key % 4 for i in range(key % 4)]


def made(path: Path, policy: str, how: str, chunk_rows: int = 3, **tuning: Any) -> JoinPlan:
    """A join with a table whose rows of one key are in many chunks, where the policy allows it."""
    rows = list(MASTER)
    random.Random(5).shuffle(rows)
    write_master(str(path), rows, chunk_rows=chunk_rows, layout="hash" if policy == "aligned" else "arrival")
    return semi_stream_plan(str(path), {"policy": policy}, tuning, how=how)


class Join(RestartedJoin):
    """A join whose stored rows can be looked at."""

    def send(self, arrival: Arrival) -> Counter[Row]:
        """One batch; returns its results."""
        return rows_of(self.step(batch_of(self.plan, self.number, arrival)))

    def stored(self, name: str) -> Counter[Any]:
        """The rows of an input that are held."""
        stores = [store for store in self.operator.row_stores() if store.input == name]
        return sum((contents(store) for store in stores), Counter())

    def columns(self, name: str) -> set[str]:
        """The columns of an input's stored rows."""
        return {column for store in self.operator.row_stores() if store.input == name for column in store.schema.names}


def script(seed: int, batches: int = 25) -> Script:
    rng = random.Random(seed)
    return [
        Arrival({"stream": [(rng.choice([None, *range(28)]), 100 * n + i, "s") for i in range(rng.randrange(5))]})
        for n in range(batches)
    ]


class Mesh:
    """MESHJOIN on lists: which results each batch brings at the latest and at the earliest."""

    def __init__(self, path: Path, how: str, max_delay: int) -> None:
        table = MasterTable(str(path)).partition(1, 0)
        self.chunks = [
            [tuple(row.values())[1:] for row in table.read(number).to_pylist()] for number in range(table.count)
        ]
        self.how, self.pace, self.step = how, -(-table.count // max_delay), 0
        self.waiting: list[tuple[Row, int, bool]] = []  # row, step of its entry, whether it has matched

    def batch(self, rows: list[Row]) -> Counter[Row]:
        nothing = () if self.how == "left_anti" else (None, None)
        keyless = [row for row in rows if row[0] is None]
        found = Counter((*row, *nothing) for row in keyless if self.how in ("left", "left_anti"))
        self.waiting += [(row, self.step, False) for row in rows if row[0] is not None]
        for _ in range(self.pace):
            if not self.waiting:
                break
            chunk = self.chunks[self.step % len(self.chunks)]
            self.step += 1
            kept = []
            for row, entry, before in self.waiting:
                partners = [master[1:] for master in chunk if master[0] == row[0]]
                if self.how in ("inner", "left"):
                    found.update((*row, *partner) for partner in partners)
                elif partners:
                    found.update([row] if self.how == "left_semi" else [])
                    continue
                matched = before or bool(partners)
                if self.step - entry < len(self.chunks):
                    kept.append((row, entry, matched))
                elif not matched and self.how in ("left", "left_anti"):
                    found[*row, *nothing] += 1
            self.waiting = kept
        return found


@every_type
@pytest.mark.parametrize("max_delay", [1, 3, 7])
def test_mesh_answers_in_the_batch_of_the_chunk_that_decides(tmp_path: Path, how: str, max_delay: int) -> None:
    join = Join(made(tmp_path, "mesh", how, max_delay=max_delay, idle_chunks=0))
    model = Mesh(tmp_path, how, max_delay)
    for arrival in script(max_delay):
        step = model.step
        assert join.send(arrival) == model.batch(list(arrival.rows["stream"]))
        assert join.counters.get("chunks_read", 0) == model.step - step  # none once all have been answered
        assert join.counters["waiting_rows.stream"] == len(model.waiting)


@every_policy
@pytest.mark.parametrize("how", ["left_semi", "left_anti"])
@pytest.mark.parametrize("factor", [0.05, 1e9])
def test_a_row_is_answered_or_waits(tmp_path: Path, policy: str, how: str, factor: float) -> None:
    """So in the aligned policy every row is answered in the batch in which its chunk is read."""
    join = Join(made(tmp_path, policy, how, max_delay=5, switching_factor=factor, idle_chunks=0))
    came: list[Row] = []
    found: Counter[Row] = Counter()
    for arrival in script(3):
        came += arrival.rows["stream"]
        found += join.send(arrival)
        waiting = {int(row[2]) for row in join.stored("stream")}
        done = [row for row in came if row[1] not in waiting]
        assert found == semi_stream_join([Arrival({"stream": done})], MASTER, how)


@every_policy
@every_type
def test_rows_with_a_null_key_are_answered_at_once(tmp_path: Path, policy: str, how: str) -> None:
    join = Join(made(tmp_path, policy, how, max_delay=9, **NEVER))
    found = join.send(Arrival({"stream": [(None, 1, "s"), (None, 2, "s")]}))
    wanted = how in ("left", "left_anti")
    assert sum(found.values()) == (2 if wanted else 0)
    assert {row[:3] for row in found} == ({(None, 1, "s"), (None, 2, "s")} if wanted else set())
    assert join.counters.get("unmatched.stream.null_key", 0) == (2 if wanted else 0)
    assert join.counters["left.stream.null_key"] == 2


@every_policy
@every_type
def test_every_unmatched_row_is_counted_with_its_reason(tmp_path: Path, policy: str, how: str) -> None:
    join = Join(made(tmp_path, policy, how, max_delay=3, switching_factor=0.05))
    total: Counter[str] = Counter()
    rows = script(8)
    for arrival in [*rows, Arrival(ended=frozenset({"stream"}))]:
        join.send(arrival)
        total.update({name: int(count) for name, count in join.counters.items() if "." in name})
    came = [row for arrival in rows for row in arrival.rows["stream"]]
    known = {row[0] for row in MASTER}
    absent = sum(row[0] is not None and row[0] not in known for row in came)
    assert absent > 0
    assert total["unmatched.stream.answered"] == (absent if how in ("left", "left_anti") else 0)
    assert total["left.stream.answered"] == sum(row[0] is not None for row in came)


@pytest.mark.parametrize("policy", ["aligned", "ssbj"])
@pytest.mark.parametrize("how", ["left", "left_anti"])
def test_a_cached_absence_answers_at_once(tmp_path: Path, policy: str, how: str) -> None:
    join = Join(made(tmp_path, policy, how, max_delay=5))
    for number in range(30):
        # The key becomes hot when a row of it has been waiting for a while: it is entered once.
        found = join.send(Arrival({"stream": [(4, 1000 * number + i, "s") for i in range(30 if number > 1 else 1)]}))
    assert join.counters["cached_keys"] == 1
    assert join.counters.get("chunks_read", 0) == 0
    assert join.counters["unmatched.stream.answered"] == sum(found.values()) == 30
    assert {row[1] // 1000 for row in found} == {29}


@pytest.mark.parametrize("policy", ["aligned", "ssbj"])
@pytest.mark.parametrize("how", ["left_semi", "left_anti"])
def test_the_cache_of_a_semi_or_anti_join_keeps_one_key_in_place_of_rows(tmp_path: Path, policy: str, how: str) -> None:
    size, hot = {}, 7  # three rows
    for each in ("inner", how):
        join = Join(made(tmp_path / each, policy, each, max_delay=5))
        for number in range(30):
            join.send(Arrival({"stream": [(hot, 1000 * number + i, "s" * 40) for i in range(60)]}))
        assert join.counters["cached_keys"] == 1
        assert join.counters["held_rows.master"] == (3 if each == "inner" else 1)
        size[each] = join.counters["cache_bytes"]
    assert join.columns("master") == {"_hash", "_k0"}
    assert size[how] < size["inner"] / 2


@pytest.mark.parametrize("how", ["right", "rightouter", "full", "outer", "FULL_OUTER"])
def test_unmatched_rows_of_the_table_are_refused_with_the_reason(how: str) -> None:
    with pytest.raises(OptionError, match="how") as caught:
        checked_type("semi_stream_join", how)
    assert "The table's unmatched rows are not a result of the stream" in str(caught.value)
    assert "how 'inner', 'left', 'left_semi', 'left_anti'" in str(caught.value)
    assert repr(how) in str(caught.value)


@pytest.mark.parametrize("how", ["sideways", "", None, 3])
def test_an_unknown_type_is_refused(how: Any) -> None:
    with pytest.raises(OptionError, match="'left_semi', 'left_anti', in any of PySpark's spellings") as caught:
        checked_type("semi_stream_join", how)
    assert repr(how) in str(caught.value)
    assert "not a result" not in str(caught.value)


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("leftouter", "left"),
        ("left_outer", "left"),
        ("semi", "left_semi"),
        ("leftSemi", "left_semi"),
        ("anti", "left_anti"),
    ],
)
def test_all_spellings_of_pyspark_are_known(how: str, name: str) -> None:
    assert checked_type("semi_stream_join", how).name == name


def test_the_operator_refuses_a_plan_that_it_cannot_answer(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not a result of the stream"):
        build(semi_stream_plan(str(tmp_path), how="full"), MemorySpace())


def test_the_type_is_part_of_the_identity(tmp_path: Path) -> None:
    plans = [semi_stream_plan(str(tmp_path), how=how) for how in ("inner", "left")]
    assert plans[0].fingerprint() != plans[1].fingerprint()
