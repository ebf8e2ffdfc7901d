"""Dividing a state by reference: what is written, what is shared, what is deleted, and what is said of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from watersmeet.cli import app
from watersmeet.engine.held_rows import complete_version, in_division, present
from watersmeet.engine.inheritance import bring_up
from watersmeet.engine.registry import build
from watersmeet.engine.rescale import Rescaled, rescale
from watersmeet.engine.runtime import run_batch
from watersmeet.engine.why import why
from watersmeet.errors import CorruptStateError, MissingVersionError, OptionError, StateMismatchError
from watersmeet.pipeline.history import History
from watersmeet.pipeline.lock import RunLock
from watersmeet.pipeline.names import InputNames, record_names
from watersmeet.pipeline.progress import ProgressTracker
from watersmeet.plan import JoinPlan
from watersmeet.spark.ticks import TICKED
from watersmeet.state.description import INPUTS_FILE, Description, record_inputs, recorded_inputs
from watersmeet.state.directory import StateDir
from watersmeet.state.history import newest_manifests
from watersmeet.state.identity import register_join
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore
from watersmeet.state.sweeping import sweep
from watersmeet.testing import Arrival, make_plan
from watersmeet.testing.arrivals import Row
from watersmeet.testing.divisions import shares
from watersmeet.testing.harness import rows_of
from watersmeet.view.reading import JoinReader
from watersmeet.view.snapshot import Snapshot


def built(directory: StateDir, partitions: int) -> JoinPlan:
    """What building the join does."""
    directory.create()
    plan = register_join("test", directory, replace(make_plan("symmetric"), partitions=partitions))
    record_inputs(directory, Description.plain(plan))
    return plan


def run(plan: JoinPlan, directory: StateDir, number: int, arrival: Arrival, query: str = "q") -> Counter[Row]:
    found: Counter[Row] = Counter()
    for partition, batch in shares(plan, number, arrival):
        found += rows_of(run_batch(plan, directory, partition, batch, query=query, run_id=f"run-{number}"))
    return found


def arrival(number: int, rows: int = 500) -> Arrival:
    keys = range(number * rows, (number + 1) * rows)
    return Arrival({"left": [(key, key, "x" * 20) for key in keys], "right": [(key, key, "y") for key in keys[:10]]})


def run_files(folder: Path, division: int) -> list[Path]:
    return [file for file in folder.glob(f"part-*.{division}/run-*") if file.stat().st_size]


def test_twice_as_many_partitions_write_no_rows(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    plan = built(directory, 2)
    for number in range(3):
        run(plan, directory, number, arrival(number))
    directory.publish(TICKED, b"")
    before = {path: path.read_bytes() for path in (tmp_path / TICKED, *tmp_path.glob("part-*/*"))}
    done = rescale(directory, 4)
    assert (done.before, done.partitions, done.version, done.rows) == (2, 4, 2, 1530)
    assert rescale(directory, 4) == Rescaled(4, 4, 2, rows=0)  # nothing to do
    assert {path: path.read_bytes() for path in before} == before  # nothing was touched
    named = [run.file for manifest in newest_manifests(directory) for run in manifest.runs]
    assert named
    assert all(file.startswith("part-0000") and "." not in file.split("/")[0] for file in named)
    rows = sum(path.stat().st_size for path in tmp_path.glob("part-0000[01]/run-*"))
    bitmaps = sum(path.stat().st_size for path in run_files(tmp_path, 1))
    assert bitmaps < rows / 2  # small files are mostly headers
    plan = recorded_inputs(directory).plan
    assert (plan.partitions, plan.former) == (4, (2,))
    found = run(plan, directory, 3, Arrival({"right": [(key, -key, "z") for key in range(0, 1500, 7)]}))
    assert {row[0] for row in found} == set(range(0, 1500, 7))
    assert set(found.values()) == {1}


def test_the_first_batch_of_a_division_does_it_by_itself(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    plan = built(directory, 3)
    for number in range(3):
        run(plan, directory, number, arrival(number))
    plan = built(directory, 5)
    assert {one.division for one in newest_manifests(directory)} == {0}  # nothing has happened yet
    assert [reason.partition for reason in why(directory, 77, input="left")] != []
    assert sum(run(plan, directory, 3, arrival(0, rows=20)).values()) == 10 + 10 + 10
    assert {one.division for one in newest_manifests(directory)} == {1}
    assert complete_version(directory, present(directory).plan) == 3
    assert len(why(directory, 5, input="left")) == 2


def test_the_numbers_of_partitions_are_those_of_the_record_of_the_join(tmp_path: Path) -> None:
    """The description of the inputs is written after it, and may be older."""
    directory = StateDir(tmp_path)
    plan = built(directory, 2)
    for number in range(3):
        run(plan, directory, number, arrival(number))
    older = directory.read(INPUTS_FILE)
    rescale(directory, 3)
    directory.publish(INPUTS_FILE, older)
    assert (present(directory).plan.partitions, present(directory).plan.former) == (3, (2,))
    assert rescale(directory, 3).rows == 0
    assert in_division(directory, 0).plan.partitions == 2
    plan = built(directory, 4)
    directory.publish(INPUTS_FILE, older)
    done = rescale(directory, 5)
    assert (done.before, done.rows) == (3, 1530)
    plan = built(directory, 5)
    assert (plan.partitions, plan.former) == (5, (2, 3))


def test_shares_of_another_number_of_partitions_are_damage(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    plan = built(directory, 2)
    run(plan, directory, 0, arrival(0))
    with pytest.raises(CorruptStateError, match=r"v-000000000000.json.*: expected one of 3 partitions, found one of 2"):
        run(replace(plan, partitions=3), directory, 1, arrival(1))


def test_what_lies_beyond_the_division_that_is_divided_is_deleted(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    run(built(directory, 2), directory, 0, arrival(0))
    for partitions in (3, 5):  # of neither a batch is completed
        plan = built(directory, partitions)
        partition, batch = next(shares(plan, 1, arrival(1)))
        list(run_batch(plan, directory, partition, batch, query="q", run_id="run-1"))
    assert (tmp_path / "part-00000.2").exists()
    assert rescale(directory, 4).before == 2
    assert not (tmp_path / "part-00000.2").exists()
    assert {one.division for one in newest_manifests(directory)} == {1}


def test_a_batch_that_is_repeated_starts_in_the_former_division(tmp_path: Path) -> None:
    """The last batch was complete, but Spark does not know: it is repeated in the new division."""
    directory = StateDir(tmp_path)
    plan = built(directory, 2)
    for number in range(4):
        run(plan, directory, number, arrival(number % 2))
    plan = built(directory, 6)
    again = run(plan, directory, 3, arrival(1))
    assert again == Counter(run_plainly([arrival(number % 2) for number in range(4)], tmp_path / "plain"))
    assert sum(one.history[-1]["rows_in"].get("left", 0) for one in newest_manifests(directory)) == 500
    history = History(directory)
    history.refresh()
    assert {number: record.rows_in["left"] for number, record in history.batches.items()} == dict.fromkeys(
        range(4), 500
    )


def run_plainly(script: list[Arrival], folder: Path) -> Counter[Row]:
    directory = StateDir(folder)
    plan = built(directory, 1)
    return [run(plan, directory, number, one) for number, one in enumerate(script)][-1]


def test_rescale_and_then_a_repeat_counts_as_no_repeat(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    directory = StateDir(tmp_path)
    plan = built(directory, 2)
    for number in range(3):
        run(plan, directory, number, arrival(number))
    rescale(directory, 3)
    plan = recorded_inputs(directory).plan
    run(plan, directory, 2, arrival(2))
    assert {manifest.repeats for manifest in newest_manifests(directory)} == {0}
    assert not recwarn.list
    history = History(directory)
    history.refresh()
    assert [history.batches[number].rows_in["left"] for number in range(3)] == [500] * 3


def test_files_of_former_divisions_go_when_nobody_names_them(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    plan = built(directory, 2)
    for number in range(3):
        run(plan, directory, number, arrival(number))
    plan = built(directory, 4)
    assert sweep(directory, plan) == 0  # no batch has run: the old state is needed
    for number in range(3, 6):
        run(plan, directory, number, arrival(number))
    sweep(directory, plan)
    named = {file for one in newest_manifests(directory) for file in one.files() if "/" in file}
    assert named <= {str(path.relative_to(tmp_path)) for path in tmp_path.glob("part-0000[01]/run-*")}
    for number in range(6, 40):  # until all rows have been merged
        run(plan, directory, number, arrival(number, rows=50))
    assert sweep(directory, plan) > 0
    assert [path.name for path in tmp_path.glob("part-0000[01]/run-*")] == []
    for partition in range(2):
        kept = {path.name for path in (tmp_path / f"part-{partition:05d}").iterdir()}
        assert {name[0] for name in kept} <= {"v", "m"}
    history = History(directory)
    history.refresh()
    assert sorted(history.batches) == list(range(40))
    assert sum(record.rows_in["left"] for record in history.batches.values()) == 6 * 500 + 34 * 50


def test_a_version_that_is_collected_while_files_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = StateDir(tmp_path)
    plan = built(directory, 2)
    for number in range(3):
        run(plan, directory, number, arrival(number))
    plan = built(directory, 4)
    for number in range(3, 40):
        run(plan, directory, number, arrival(number, rows=50))
    there = set(tmp_path.glob("part-0000[01]/run-*"))
    listed = PartitionStore.versions

    def overtaken(store: PartitionStore) -> list[int]:
        """The versions of a partition whose task commits and collects right after they were listed."""
        found = listed(store)
        if store.partition == 2:
            directory.delete(f"{store.folder}/v-{found[0]:012d}.json")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(PartitionStore, "versions", overtaken)
        assert sweep(directory, plan) == 0
    assert set(tmp_path.glob("part-0000[01]/run-*")) == there != set()
    for number in range(40, 43):
        run(plan, directory, number, arrival(number, rows=50))
    assert sweep(directory, plan) > 0


def test_a_new_query_is_refused_in_whatever_division(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    run(built(directory, 2), directory, 0, arrival(0))
    plan = built(directory, 3)
    with pytest.raises(StateMismatchError, match="expected state of query another, found state of query q"):
        run(plan, directory, 0, arrival(0), query="another")


def test_a_version_that_is_nowhere(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    run(built(directory, 2), directory, 0, arrival(0))
    plan = built(directory, 3)
    with pytest.raises(MissingVersionError, match="expected version 7, which the next batch starts from"):
        run(plan, directory, 8, arrival(0))


@pytest.mark.parametrize("partitions", [0, -1, 2.5, True, "4", 100_001, 10**9])
def test_numbers_that_are_none(partitions: Any, tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    built(directory, 2)
    with pytest.raises(OptionError, match="expected partitions from 1 to 100,000"):
        rescale(directory, partitions)


def test_a_join_that_has_not_run(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    built(directory, 2)
    assert rescale(directory, 3).version is None
    plan = recorded_inputs(directory).plan
    assert run(plan, directory, 0, arrival(0)).total() == 10
    assert rescale(directory, 3).before == 3


def test_accounts_are_those_of_all_partitions(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    plan = built(directory, 2)
    run(plan, directory, 0, Arrival({"left": [(None, 1, "x"), (1, 2, "x"), (2, 3, "x")]}))
    run(plan, directory, 1, arrival(0))
    rescale(directory, 5)
    plan = recorded_inputs(directory).plan
    came: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for partition in range(5):
        space = MemorySpace()
        operator = build(plan, space)
        bring_up(operator, PartitionStore(directory, partition, 1), 2, "q", "x")
        came.update(operator.accounts.came)
        for reasons in operator.accounts.left.values():
            left.update(reasons)
    assert came == {"left": 503, "right": 10}
    assert left == {"null_key": 1}


def test_the_commands(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    run(built(directory, 2), directory, 0, arrival(0))
    runner = CliRunner()
    result = runner.invoke(app, ["rescale", str(tmp_path), "--partitions", "3"])
    assert (result.exit_code, result.stdout) == (0, "2 partitions have become 3: 510 rows after batch 0\n")
    result = runner.invoke(app, ["rescale", str(tmp_path), "--partitions", "3"])
    assert (result.exit_code, result.stdout) == (0, "the state has 3 partitions already\n")
    result = runner.invoke(app, ["why", str(tmp_path), "--key", "7"])
    assert result.stdout.splitlines() == [
        "left row of batch 0, in memory, waits until right ends",
        "right row of batch 0, in memory, waits until left ends",
    ]
    result = runner.invoke(app, ["why", str(tmp_path), "--key", "7", "--input", "left", "--json"])
    facts = json.loads(result.stdout)
    assert (facts["row"], facts["batches"], facts["waits_for"]) == (
        {"_k0": 7, "_p0": 7, "_p1": "x" * 20},
        [0, 0],
        "end",
    )
    result = runner.invoke(app, ["why", str(tmp_path), "--key", "12345"])
    assert result.stdout == "no row with the key 12345 is held: none has come, or all have left\n"
    result = runner.invoke(app, ["why", str(tmp_path), "--key", "seven"])
    assert result.exit_code == 2
    assert "expected a key (_k0: int64), found 'seven'" in result.stderr


def test_a_pipeline_that_runs_is_not_divided(tmp_path: Path) -> None:
    directory = StateDir(tmp_path / "state")
    run(built(directory, 2), directory, 0, arrival(0))
    record_names(directory, InputNames({"left": "orders", "right": "payments"}))
    with RunLock(str(tmp_path / "state")):
        result = CliRunner().invoke(app, ["rescale", str(tmp_path), "--partitions", "3"])
    assert result.exit_code == 1
    assert "running now" in result.stderr
    result = CliRunner().invoke(app, ["why", str(tmp_path), "--key", "7", "--input", "orders"])
    assert result.stdout == "orders row of batch 0, in memory, waits until payments ends\n"
    with RunLock(str(tmp_path / "another"), str(tmp_path / "checkpoint")):  # a neighbour
        assert CliRunner().invoke(app, ["rescale", str(tmp_path), "--partitions", "3"]).exit_code == 0


INPUTS = {"left": "orders", "right": "payments"}
BEFORE_AND_AFTER = [(4, 2), (2, 4), (3, 3)]


def of_page(reader: JoinReader) -> dict[str, Any]:
    reader.refresh()
    return Snapshot(reader).document()


def of_run(tracker: ProgressTracker, batch: int | None = None) -> tuple[list[int], int, int]:
    """What a run shows, if need be when Spark has reported a batch."""
    shown = tracker.update([] if batch is None else [{"batchId": batch, "durationMs": {"addBatch": 1}}])
    return [one.rows for one in shown.inputs], shown.results, shown.state_rows


@pytest.mark.parametrize(("before", "after"), BEFORE_AND_AFTER)
@pytest.mark.parametrize("looks", [4, 2, 0])  # batches that an open page has seen before
def test_totals_are_of_all_divisions(tmp_path: Path, before: int, after: int, looks: int) -> None:
    directory = StateDir(tmp_path)
    plan = built(directory, before)
    page = JoinReader(tmp_path)
    tracker = ProgressTracker("p", str(tmp_path), INPUTS)
    for number in range(4):
        run(plan, directory, number, arrival(number, rows=50))
        if number + 1 == looks:
            assert of_page(page)["newest_batch"] == number
            assert of_run(tracker) == ([50 * looks, 10 * looks], 10 * looks, 60 * looks)
    plan = built(directory, after)
    if looks:
        page.refresh()  # nothing has run in the new division
    for number in range(4, 7):
        run(plan, directory, number, arrival(number, rows=50))
    for reader in (page, JoinReader(tmp_path)):
        shown = of_page(reader)
        assert (shown["newest_batch"], shown["partitions"]) == (6, after)
        assert shown["series"]["batch"] == list(range(7))
        assert [(one["rows"], one["held_rows"]) for one in shown["inputs"]] == [(350, 350), (70, 70)]
        assert shown["results"]["rows"] == 70
        assert [one["number"] for one in shown["partition_list"]] == list(range(after))
        assert sum(sum(held["rows"] for held in one["held"].values()) for one in shown["partition_list"]) == 420
        assert shown["troubles"] == []
    for one in (tracker, ProgressTracker("p", str(tmp_path), INPUTS)):
        assert of_run(one) == of_run(one) == ([350, 70], 70, 420)


@pytest.mark.parametrize(("before", "after"), BEFORE_AND_AFTER[:2])
@pytest.mark.parametrize("ahead", [False, True])  # by `watersmeet rescale`, or by the first batch
def test_a_batch_that_is_repeated_in_the_new_division_counts_once(
    tmp_path: Path, before: int, after: int, ahead: bool
) -> None:
    directory = StateDir(tmp_path)
    plan = built(directory, before)
    for number in range(3):
        run(plan, directory, number, arrival(number, rows=50))
    page = JoinReader(tmp_path)
    tracker = ProgressTracker("p", str(tmp_path), INPUTS)
    assert (of_page(page)["results"]["rows"], of_run(tracker)) == (30, ([150, 30], 30, 180))
    if ahead:
        rescale(directory, after)
        assert (of_page(page)["results"]["rows"], of_run(tracker)) == (30, ([150, 30], 30, 180))
    plan = built(directory, after)
    for number in range(2, 4):
        run(plan, directory, number, arrival(number, rows=50))
        rows = 50 * (number + 1)
        for reader in (page, JoinReader(tmp_path)):
            shown = of_page(reader)
            assert [one["rows"] for one in shown["inputs"]] == [rows, rows // 5]
            assert shown["results"]["rows"] == rows // 5
            assert shown["series"]["batch"] == list(range(number + 1))
            seen_before = reader is page and ahead and number == 2  # it has that version of the new partitions
            assert len(shown["partition_list"]) == (before if seen_before else after)
        for one in (tracker, ProgressTracker("p", str(tmp_path), INPUTS)):
            assert of_run(one, number) == ([rows, rows // 5], rows // 5, rows + rows // 5)


def test_batches_of_a_former_division_are_news(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    plan = built(directory, 4)
    history = History(directory)
    run(plan, directory, 0, arrival(0, rows=50))
    assert [(one.batch, one.partitions, one.whole) for one in history.refresh()] == [(0, 4, 4)]
    run(plan, directory, 1, arrival(1, rows=50))
    plan = built(directory, 2)
    run(plan, directory, 2, arrival(2, rows=50))
    expected = [(0, 4, 4), (1, 4, 4), (2, 2, 2)]
    for one in (history, History(directory)):
        begun = one.beginnings
        news = one.refresh()
        assert [(record.batch, record.partitions, record.whole) for record in news] == expected
        assert list(one.batches.values()) == news
        assert one.beginnings == begun + (one is history)
        assert one.refresh() == []
