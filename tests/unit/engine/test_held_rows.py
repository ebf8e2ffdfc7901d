"""The rows of every join, read back from its state directory: all that are held, each with what it waits for."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.cases import CASES
from tests.conformance.sampling import every_case
from tests.troubled_joins import nulls_match

from watersmeet.engine.held_rows import HeldRows, as_key, complete_version, open_rows, user_table
from watersmeet.engine.runtime import run_batch
from watersmeet.engine.why import Reason, why
from watersmeet.errors import CorruptStateError, MissingVersionError, OptionError, StateDirError
from watersmeet.plan import JoinPlan
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.state.description import Description, record_inputs, recorded_inputs
from watersmeet.state.directory import StateDir
from watersmeet.state.store import PartitionStore
from watersmeet.state.stored_run import StoredRun
from watersmeet.testing import Arrival, batch_of, make_plan, random_script
from watersmeet.testing.arrivals import Row
from watersmeet.testing.cases import Case
from watersmeet.testing.keys import COMPOSITE, STRINGS

SECOND = 10**6


def begin(plan: JoinPlan, folder: Path) -> StateDir:
    directory = StateDir(folder)
    directory.create()
    record_inputs(directory, Description.plain(plan))
    return directory


def run(plan: JoinPlan, directory: StateDir, number: int, arrival: Arrival, run_id: str = "one") -> int:
    return sum(
        table.num_rows for table in run_batch(plan, directory, 0, batch_of(plan, number, arrival), run_id=run_id)
    )


def rows_of(directory: StateDir, name: str, key: list[Any] | None = None, version: int | None = None) -> Counter[Row]:
    description = recorded_inputs(directory)

    wanted = None if key is None else as_key("test", description, key)
    found: Counter[Row] = Counter()
    for some in open_rows(directory, description, 0, name, version=version, key=wanted):
        columns = [column.to_pylist() for column in user_table(description, name, some.table).columns]
        found.update(zip(*columns, strict=True))
    return found


def count(held: Iterator[HeldRows]) -> int:
    return sum(some.table.num_rows for some in held)


@every_case
def test_all_rows_that_are_held_and_no_others(case: Case, tmp_path: Path) -> None:
    plan = case.plan()
    directory = begin(plan, tmp_path)
    script = case.random_script(5, batches=7, end=False)
    came: dict[str, Counter[Row]] = defaultdict(Counter)
    for number, arrival in enumerate(script):
        run(plan, directory, number, arrival)
        for name, rows in arrival.rows.items():
            came[name].update(rows)
    manifest = PartitionStore(directory, 0).manifest(len(script) - 1)
    for spec in plan.inputs:
        held = rows_of(directory, spec.name)
        assert held.total() == sum(store["rows"] for store in manifest.stores if store["input"] == spec.name)
        if case.how in ("left_semi", "left_anti") and spec.name != plan.inputs[0].name:
            assert {row[0] for row in held} <= {row[0] for row in came[spec.name]}  # keys, and nothing else
        else:
            assert held <= came[spec.name]
        by_key: dict[Any, Counter[Row]] = defaultdict(Counter)
        for row, count in held.items():
            by_key[row[0]][row] += count
        for key, rows in by_key.items():
            assert rows_of(directory, spec.name, [key]) == rows
        reasons = [reason for key in by_key for reason in why(directory, key, input=spec.name)]
        assert len(reasons) == held.total()
        for reason in reasons:
            assert reason.version == len(script) - 1
            arrived = [n for n, one in enumerate(script) for row in one.rows.get(spec.name, ()) if is_of(reason, row)]
            assert any(reason.batches[0] <= n <= reason.batches[1] for n in arrived), (reason, arrived)


def is_of(reason: Reason, row: Row) -> bool:
    """Whether a row as it came is that of a reason; columns that are not kept say nothing."""
    kept = [(one, other) for one, other in zip(reason.row.values(), row, strict=True) if one is not None]
    return all(one == other for one, other in kept)


@pytest.mark.parametrize("memory", [None, 12], ids=["in memory", "spilled"])
@pytest.mark.parametrize("how", ["left", "right", "full", "left_semi", "left_anti", "inner"])
def test_rows_know_whether_they_have_matched(how: str, memory: int | None, tmp_path: Path) -> None:
    options = ProgressiveOptions(memory_rows=memory)
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning(), how=how)
    directory = begin(plan, tmp_path)
    script = random_script(3, batches=8, keys=12, batch_rows=5, end=False, idle_share=0.3, null_share=0)
    seen: dict[str, set[Any]] = {"left": set(), "right": set()}
    for number, arrival in enumerate(script):
        run(plan, directory, number, arrival)
        for name, rows in arrival.rows.items():
            seen[name] |= {row[0] for row in rows}
    found = [reason for key in range(12) for reason in why(directory, key)]
    preserved = {"left": {"left"}, "right": {"right"}, "full": {"left", "right"}}.get(how, set())
    if memory is not None:
        assert False in {reason.in_memory for reason in found}
    for reason in found:
        other = seen["right" if reason.input == "left" else "left"]
        if reason.input in preserved:
            if reason.matched:
                assert reason.row["_k0"] in other
            elif memory is None:  # what is on disk may not have been compared yet
                assert reason.row["_k0"] not in other
        elif how in ("left_semi", "left_anti") and reason.input == "left":
            assert reason.matched is False or not reason.in_memory
        else:
            assert reason.matched is None
    assert found


@pytest.mark.parametrize("keys", [STRINGS, COMPOSITE], ids=str)
def test_keys_of_other_types(keys: Any, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.operator == "symmetric").with_keys(keys)
    plan = case.plan()
    directory = begin(plan, tmp_path)
    script = case.random_script(5, batches=4, end=False)
    for number, arrival in enumerate(script):
        run(plan, directory, number, arrival)
    width = len(keys.kinds)
    came = Counter(row for arrival in script for row in arrival.rows.get("left", ()) if None not in row[:width])
    key = next(iter(came))[:width]
    wanted = Counter({row: count for row, count in came.items() if row[:width] == key})
    assert rows_of(directory, "left", list(key)) == wanted
    assert len(why(directory, list(key), input="left")) == wanted.total()


def test_bytes_are_asked_for_as_text_or_as_they_are_shown(tmp_path: Path) -> None:
    plan = make_plan("symmetric", keys=(pa.binary(),))
    directory = begin(plan, tmp_path)
    run(plan, directory, 0, Arrival({"left": [(b"\xff\x00", 1, "x"), (b"0xf", 2, "y")]}))
    assert [len(why(directory, key)) for key in ("0xff00", "0xFF00", b"\xff\x00", "0xf", "0xff")] == [1, 1, 1, 1, 0]


def window_plan() -> JoinPlan:
    options = {"window": [60 * SECOND, 30 * SECOND], "lateness": 10 * SECOND, "time_columns": ["_p0", "_p0"]}
    return make_plan("window", options=options, payload=(pa.timestamp("us", "UTC"), pa.string()), how="left")


def at(seconds: int) -> int:
    return 1_700_000_000 * SECOND + seconds * SECOND


def test_the_sentence_says_until_when(tmp_path: Path) -> None:
    plan = window_plan()
    directory = begin(plan, tmp_path)
    run(plan, directory, 0, Arrival({"left": [(17, at(0), "a"), (18, at(1), "b")], "right": []}))
    (reason,) = why(directory, 17)
    assert reason.sentence == (
        "left row of batch 0, in memory, not matched yet, waits until right passes 2023-11-14 22:14:30 UTC "
        "(nothing has come yet)"
    )
    run(plan, directory, 1, Arrival({"right": [(18, at(30), "c")]}))
    (reason,) = why(directory, "17")
    assert reason.sentence == (
        "left row of batch 0, in memory, not matched yet, waits until right passes 2023-11-14 22:14:30 UTC "
        "(now 2023-11-14 22:13:50 UTC)"
    )
    assert (reason.until, reason.now, reason.waits_for, reason.inputs) == (at(70), at(30), "time", ("right",))
    left, right = why(directory, 18)
    assert left.matched is True
    assert "batch 0, in memory, matched, waits until right passes" in left.sentence
    assert right.sentence == (
        "right row of batch 1, in memory, waits until left passes 2023-11-14 22:14:30 UTC (now 2023-11-14 22:13:21 UTC)"
    )
    # At 70 seconds the row may still be matched by a late one, after that no more.
    run(plan, directory, 2, Arrival({"right": [(99, at(70), "d")]}))
    assert len(why(directory, 17)) == 1
    assert run(plan, directory, 3, Arrival({"right": [(99, at(70) + 1, "d")]})) == 1
    assert why(directory, 17) == [] or why(directory, 17)[0].waits_for == "sweep"


def test_names_of_sources_and_limits(tmp_path: Path) -> None:
    plan = make_plan("symmetric")
    directory = begin(plan, tmp_path)
    run(plan, directory, 0, Arrival({"left": [(1, n, "x") for n in range(5)], "right": [(1, 9, "y")]}))
    named = {"left": "orders", "right": "payments"}.__getitem__
    found = why(directory, 1, named=named)
    assert [reason.sentence for reason in found][-1] == "payments row of batch 0, in memory, waits until orders ends"
    assert len(found) == 6
    assert len(why(directory, 1, limit=3)) == 3
    assert why(directory, 2) == []


def test_other_joins_say_what_they_wait_for(tmp_path: Path) -> None:
    sentences: dict[str, set[str]] = {}
    for case in (case for case in CASES if case.how == "inner" and not case.variation):
        directory = begin(case.plan(), tmp_path / str(len(sentences)) / case.name.replace("/", "-").replace(" ", "-"))
        for number, arrival in enumerate(case.random_script(5, batches=5, end=False, keys=12, batch_rows=12)):
            run(case.plan(), directory, number, arrival)
        reasons = [reason for key in range(0, 12, 3) for reason in why(directory, key)]
        sentences.setdefault(case.operator, set()).update(reason.waits_for for reason in reasons)
    assert sentences["symmetric"] == {"end"}
    assert sentences["mjoin"] >= {"end", "time"}
    assert sentences["punctuated"] >= {"promise", "partner", "turn"}
    assert sentences["semi_stream"] == {"table"}
    assert "time" in sentences["window"]


# -- versions, and files that are not as they should be


def test_a_version_that_is_complete(tmp_path: Path) -> None:
    plan = replace(make_plan("symmetric"), partitions=2)
    directory = begin(plan, tmp_path)
    assert complete_version(directory, plan) is None
    for partition, batches in ((0, 3), (1, 2)):
        for number in range(batches):
            batch = batch_of(plan, number, Arrival({"left": [(number, number, "x")]}))
            list(run_batch(plan, directory, partition, batch, run_id="one"))
    assert complete_version(directory, plan) == 1
    description = recorded_inputs(directory)
    assert [count(open_rows(directory, description, p, "left", near=1)) for p in range(2)] == [2, 2]
    assert count(open_rows(directory, description, 0, "left", version=0)) == 1


def test_a_version_that_is_gone(tmp_path: Path) -> None:
    plan = make_plan("symmetric")
    directory = begin(plan, tmp_path)
    for number in range(6):
        run(plan, directory, number, Arrival({"left": [(1, number, "x")]}))
    assert rows_of(directory, "left", version=4).total() == 5
    with pytest.raises(MissingVersionError, match="expected version 2, found versions 3 to 5") as caught:
        rows_of(directory, "left", version=2)
    assert "leave `version` out" in str(caught.value)


def test_a_version_that_is_open_can_be_read_to_its_end(tmp_path: Path) -> None:
    options = ProgressiveOptions(memory_rows=4)
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
    directory = begin(plan, tmp_path)
    for number in range(3):
        run(plan, directory, number, Arrival({"left": [(1, number, "x"), (number, 7, "y")]}))
    held = open_rows(directory, recorded_inputs(directory), 0, "left", version=2)
    before = {path.name for path in (tmp_path / "part-00000").iterdir()}
    for number in range(3, 12):
        run(plan, directory, number, Arrival({"left": [(1, number, "x")]}))
    assert before & {path.name for path in (tmp_path / "part-00000").iterdir()} == set()
    assert count(held) == 6


def test_a_version_that_is_collected_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan("symmetric")
    directory = begin(plan, tmp_path)
    for number in range(3):
        run(plan, directory, number, Arrival({"left": [(1, number, "x")]}))
    description = recorded_inputs(directory)
    state = PartitionStore.state
    upcoming = deque(range(3, 9))

    def slow(self: PartitionStore, *rest: Any) -> Any:
        with monkeypatch.context() as patch:  # the query goes on meanwhile, merges the runs and collects them
            patch.setattr(PartitionStore, "state", state)
            while upcoming:
                number = upcoming.popleft()
                run(plan, directory, number, Arrival({"left": [(1, number, "x")]}))
        return state(self, *rest)

    monkeypatch.setattr(PartitionStore, "state", slow)
    assert count(open_rows(directory, description, 0, "left", near=2)) == 9
    monkeypatch.setattr(PartitionStore, "state", state)
    run(plan, directory, 9, Arrival())
    monkeypatch.setattr(PartitionStore, "state", slow)
    upcoming.extend(range(10, 30))
    with pytest.raises(MissingVersionError, match="expected version 9, found versions 27 to 29"):
        open_rows(directory, description, 0, "left", version=9)


def test_a_key_takes_the_pages_of_its_bucket_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ProgressiveOptions(memory_rows=40, page_rows=8)
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
    directory = begin(plan, tmp_path)
    for number in range(4):
        run(plan, directory, number, Arrival({"left": [(key, number, "x") for key in range(200)]}))
    read: list[tuple[str, int]] = []
    page = StoredRun.page

    def noted(self: StoredRun, index: int) -> pa.Table:
        read.append((self.name, index))
        return page(self, index)

    monkeypatch.setattr(StoredRun, "page", noted)
    everything, every_page = rows_of(directory, "left"), len(read)
    assert everything.total() == 800
    assert every_page >= 80
    for key in range(0, 200, 7):
        read.clear()
        assert rows_of(directory, "left", [key]) == Counter({row: n for row, n in everything.items() if row[0] == key})
        assert len(set(read)) == len(read) <= every_page * 2 / options.buckets  # buckets are not of one size


def test_a_damaged_file_is_our_error(tmp_path: Path) -> None:
    plan = make_plan("symmetric")
    directory = begin(plan, tmp_path)
    run(plan, directory, 0, Arrival({"left": [(1, 2, "x" * 500)]}))
    (path,) = (tmp_path / "part-00000").glob("run-*.arrow")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"x" * 500, b"y" * 500))
    with pytest.raises(CorruptStateError, match="checksum"):
        rows_of(directory, "left")
    path.write_bytes(content[:-1])
    with pytest.raises(CorruptStateError, match="bytes"):
        why(directory, 1)
    path.unlink()
    with pytest.raises(CorruptStateError, match="no file"):
        why(directory, 1)


def test_a_directory_without_the_record(tmp_path: Path) -> None:
    with pytest.raises(StateDirError, match=r"no join\.json"):
        why(str(tmp_path), 1)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ([1, 2], r"a value for each key column \(_k0: int64\), found 2 of them"),
        ("seventeen", r"a key \(_k0: int64\), found 'seventeen'"),
        (None, "a null matches nothing in this join"),
    ],
)
def test_keys_that_are_none(key: Any, message: str, tmp_path: Path) -> None:
    directory = begin(make_plan("symmetric"), tmp_path)
    with pytest.raises(OptionError, match=message):
        why(directory, key)


def test_a_null_that_matches_can_be_looked_for(tmp_path: Path) -> None:
    plan = nulls_match(make_plan("symmetric", keys=(pa.int64(), pa.bool_())))
    directory = begin(plan, tmp_path)
    run(plan, directory, 0, Arrival({"left": [(0, True, 1, "null"), (0, False, 2, "zero")]}))
    assert [(one.row["_k0"], one.row["_p1"]) for one in why(directory, None)] == [(None, "null")]
    assert [(one.row["_k0"], one.row["_p1"]) for one in why(directory, 0)] == [(0, "zero")]


def test_an_input_that_is_none(tmp_path: Path) -> None:
    directory = begin(make_plan("symmetric"), tmp_path)
    with pytest.raises(OptionError, match="expected input 'left' or 'right', found 'middle'"):
        why(directory, 1, input="middle")
