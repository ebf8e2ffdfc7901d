"""What a join has done so far: while partitions are at different batches, and after its state was divided anew."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from watersmeet.chooser.explanation import explained, rates_of
from watersmeet.chooser.observed import Observed, observe
from watersmeet.chooser.story import Side, Story
from watersmeet.engine.rescale import rescale
from watersmeet.engine.runtime import run_batch
from watersmeet.plan import JoinPlan
from watersmeet.state.description import Description, record_inputs
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import register_join
from watersmeet.testing import Arrival, make_plan
from watersmeet.testing.divisions import shares

SECOND = 1_000_000
LEFT, RIGHT = Side("left", 48), Side("right", 40)


def started(folder: Path) -> tuple[StateDir, JoinPlan]:
    directory = StateDir(folder)
    directory.create()
    plan = register_join("test", directory, replace(make_plan("symmetric"), partitions=2))
    record_inputs(directory, Description.plain(plan))
    return directory, plan


def run(directory: StateDir, plan: JoinPlan, number: int, partitions: range = range(100)) -> None:
    """A batch with 20 left rows and 10 right ones, five of them with a partner, in some partitions."""
    keys = range(20 * number, 20 * number + 20)
    arrival = Arrival({"left": [(key, key, "x") for key in keys], "right": [(key, key, "y") for key in keys[:10]]})
    for partition, batch in shares(plan, number, arrival):
        if partition in partitions:
            list(run_batch(plan, directory, partition, batch, query="q", run_id="r"))


def test_partitions_that_are_a_batch_ahead(tmp_path: Path) -> None:
    directory, plan = started(tmp_path)
    assert observe(directory) is None
    run(directory, plan, 0)
    run(directory, plan, 1, range(1))  # the other partition is still at work
    seen = observe(directory)
    assert seen is not None
    assert seen.held("left") == seen.rows_in["left"]
    assert 20 < seen.held("left") < 40


def test_a_state_that_was_divided_anew_has_its_whole_history(tmp_path: Path) -> None:
    directory, plan = started(tmp_path)
    for number in range(3):
        run(directory, plan, number)
    before = observe(directory)
    rescale(directory, 5)
    after = observe(directory)
    assert before is not None
    assert after is not None
    assert (after.rows_in, after.rows_out, after.batches) == (before.rows_in, before.rows_out, 3)
    assert (after.held("left"), after.held("right")) == (60, 30)
    assert after.row_bytes("left") is None, "files are shared by the new partitions"


WINDOW = {"window": [60 * SECOND, 0], "time": ["a", "b"], "lateness": 0, "late": "drop"}
STORY = Story("join", "window", "left", "k", (LEFT, RIGHT), WINDOW, 2)


def test_an_input_that_holds_no_row_has_gone_through_the_same_time() -> None:
    seen = Observed(rows_in=Counter(left=600, right=60), rates={"left": 1e5, "right": 1e4}, density={"left": 10.0})
    assert rates_of(STORY, seen) == {"left": 10.0, "right": 1.0}
    assert rates_of(STORY, replace(seen, rows_in=Counter(left=600))) == {"left": 10.0, "right": 0.0}
    arrival = replace(STORY, options={**WINDOW, "time": None})
    assert rates_of(arrival, seen) == {"left": 1e5, "right": 1e4}, "times of rows are those of their batches"


def test_rates_that_are_known_of_some_inputs() -> None:
    text = str(explained(STORY, None, {"left": 5.0}))
    assert "rows are held (at the rates given; at 1,000 rows/s, since none of right is known yet)" in text
    assert "about 300 rows, 14.4 kB, at 5 rows/s" in text
    assert "about 0 rows, 0 bytes, at 1,000 rows/s" in text


def test_late_rows_are_told() -> None:
    seen = Observed(totals=Counter({"late.left": 3, "late.right": 0, "unmatched.left.expired": 2}))
    lines = str(replace(explained(STORY, None), observed=seen)).splitlines()
    assert lines[-2:] == ["  unmatched: 2 rows of left (expired)", "  late: 3 rows of left, dropped"]
    joined = replace(STORY, options={**WINDOW, "late": "join"})
    assert str(replace(explained(joined, None), observed=seen)).endswith("3 rows of left, joined with what was held")
