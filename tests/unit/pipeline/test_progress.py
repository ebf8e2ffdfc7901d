"""What a view shows: totals, rates, stalls, memory, what the operator does."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from watersmeet.chooser.decide import Choice
from watersmeet.chooser.story import Side, Story, record_story
from watersmeet.pipeline import progress
from watersmeet.pipeline.display import JsonDisplay, LiveDisplay, PlainDisplay, make_display, render
from watersmeet.pipeline.history import BatchRecord, History
from watersmeet.pipeline.progress import (
    InputProgress,
    ProgressTracker,
    Rate,
    Report,
    Snapshot,
    doing,
)
from watersmeet.plan.quantities import format_duration
from watersmeet.state.directory import StateDir
from watersmeet.testing.arrivals import make_plan, random_script
from watersmeet.testing.harness import run_stored

INPUTS = {"left": "orders", "right": "payments"}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run_some(directory: StateDir, batches: int) -> int:
    """Run the first batches of a fixed script; returns how many rows came out."""
    directory.create()
    script = random_script(1, batches=50)[:batches]
    return run_stored(make_plan("symmetric", ("left", "right"), {}), script, directory).rows.total()


def test_history_reads_everything_and_then_only_what_is_new(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    history = History(directory)
    assert history.refresh() == []
    first = run_some(directory, 3)
    assert [record.batch for record in history.refresh()] == [0, 1, 2]
    assert history.refresh() == []
    everything = run_some(directory, 40)  # runs the first ones again, as Spark may: they must not count twice
    assert [record.batch for record in history.refresh()] == list(range(3, 40))
    assert sum(record.rows_out for record in history.batches.values()) == everything
    assert first < everything


def test_history_that_starts_late_reads_the_segments(state_dir: str) -> None:
    history = History(StateDir(state_dir))
    history.refresh()
    assert sorted(history.batches) == list(range(len(history.batches)))
    assert len(history.batches) >= 40
    assert history.finished
    assert history.ended == {"left", "right"}
    assert history.finished_in == max(history.batches)


def test_a_batch_that_partitions_commit_one_by_one_counts_once(tmp_path: Path) -> None:
    counters = {"rows_flushed": 3.0, "delay_max": 2.0}
    record = {"time": 5, "rows_out": 2, "counters": counters, "events": [{"kind": "flush"}], "timings": {"join": 0.1}}
    sizes = {"resident_bytes": 10, "spilled_bytes": 1, "state_rows": 3}
    batch = BatchRecord(0)
    for rows in (1, 4):
        batch.add({**record, **sizes, "rows_in": {"left": rows}})
    assert (batch.rows_in["left"], batch.rows_out, batch.resident_bytes, batch.partitions) == (5, 4, 20, 2)
    assert batch.seconds == pytest.approx(0.1)
    assert batch.counters == {"rows_flushed": 6.0, "delay_max": 2.0}  # a gauge of the worst partition does not add up


def test_rates_forget() -> None:
    rate = Rate()
    rate.add(100.0, 50)
    assert rate.at(105.0, since=0.0) == 5.0
    assert rate.at(111.0, since=0.0) == 0.0
    rate.add(112.0, 30)
    assert rate.at(113.0, since=110.0) == 10.0


def batch_report(number: int, seconds: float = 1.5) -> Report:
    return {"batchId": number, "durationMs": {"addBatch": 1, "triggerExecution": int(seconds * 1000)}}


IDLE_REPORT: Report = {"batchId": 99, "durationMs": {"latestOffset": 1, "triggerExecution": 2}}


def states(snapshot: Snapshot) -> set[str]:
    return {one.state for one in snapshot.inputs}


def test_the_tracker(tmp_path: Path) -> None:
    clock = Clock()
    directory = StateDir(tmp_path)
    earlier = run_some(directory, 2)
    tracker = ProgressTracker("p", directory.uri, INPUTS, budget=1000, lags=lambda: {"left": "3 files"}, clock=clock)
    clock.now += 1
    snapshot = tracker.update()
    assert snapshot.results == earlier
    assert snapshot.result_rate == 0.0  # an earlier run's results have no rate now
    assert (snapshot.batch, snapshot.batch_seconds) == (1, None)
    everything = run_some(directory, 20)
    clock.now += 1
    snapshot = tracker.update([batch_report(19)])
    assert snapshot.results == everything
    assert snapshot.result_rate == pytest.approx((everything - earlier) / 2)
    assert (snapshot.batch, snapshot.batch_seconds) == (19, 1.5)
    assert [one.name for one in snapshot.inputs] == ["orders", "payments"]
    assert snapshot.inputs[0].lag == "3 files"
    assert snapshot.remaining == "orders: 3 files"
    assert states(snapshot) == {"flowing"}
    null_keys = [
        sum(record.counters.get(f"left.{name}.null_key", 0) for record in History(directory).refresh())
        for name in INPUTS
    ]
    assert [one.null_keys for one in snapshot.inputs] == null_keys
    assert all(null_keys)
    clock.now += 5
    assert states(tracker.update([IDLE_REPORT])) == {"stalled"}
    tracker.phase = "done"
    assert states(tracker.update()) == {"open"}


def test_the_tracker_keeps_the_newest_batches_and_the_totals_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "BATCHES", 5)
    directory = StateDir(tmp_path)
    tracker = ProgressTracker("p", directory.uri, INPUTS, clock=Clock())
    for batches in (3, 12, 13, 40):
        everything = run_some(directory, batches)
        shown = tracker.update([batch_report(batches - 1)])
        assert (shown.results, shown.batch) == (everything, batches - 1)
        assert sorted(tracker.history.batches) == list(range(max(batches - 5, 0), batches))
    again = ProgressTracker("p", directory.uri, INPUTS, clock=Clock())
    assert sorted(again.history.batches) == list(range(35, 40))
    assert again.update().inputs == tuple(replace(one, rate=0.0, state="waiting") for one in shown.inputs)
    assert again.update().results == everything


def test_a_batch_and_its_duration_are_shown_together(tmp_path: Path) -> None:
    tracker = ProgressTracker("p", str(tmp_path), INPUTS, clock=Clock())
    run_some(StateDir(tmp_path), 1)
    before = tracker.update()  # the partitions have written the batch, Spark has not committed it
    assert (before.batch, before.batch_seconds) == (None, None)
    run_some(StateDir(tmp_path), 2)
    after = tracker.update([batch_report(0, 2.5)])
    assert (after.batch, after.batch_seconds) == (0, 2.5)
    again = tracker.update([IDLE_REPORT])  # of a trigger without a batch
    assert (again.batch, again.batch_seconds) == (0, 2.5)
    assert tracker.update([batch_report(1, 0.25)]).batch_seconds == 0.25


def test_nothing_has_stalled_before_the_first_batch_has_ended_or_while_one_is_under_way(tmp_path: Path) -> None:
    clock = Clock()
    tracker = ProgressTracker("p", str(tmp_path), INPUTS, clock=clock)
    clock.now += 15
    assert states(tracker.update()) == {"waiting"}
    run_some(StateDir(tmp_path), 5)
    tracker.update()
    clock.now += 15  # another partition takes long
    assert states(tracker.update()) == {"flowing"}
    assert states(tracker.update([batch_report(number) for number in range(5)])) == {"flowing"}
    clock.now += 60  # a long batch: what it has found is not known yet
    assert states(tracker.update()) == {"flowing"}


def test_an_input_without_a_row_is_waited_for_and_then_stalled(tmp_path: Path) -> None:
    clock = Clock()
    tracker = ProgressTracker("p", str(tmp_path), INPUTS, clock=clock)
    clock.now += 15
    assert states(tracker.update([IDLE_REPORT])) == {"waiting"}
    clock.now += 4
    (first, _) = tracker.update([IDLE_REPORT]).inputs
    assert (first.state, first.silent_seconds) == ("stalled", 4.0)


def test_an_input_that_has_ended_has_no_lag(state_dir: str) -> None:
    tracker = ProgressTracker("p", state_dir, INPUTS, lags=lambda: {"left": "1 files"}, clock=Clock())
    snapshot = tracker.update()
    assert {one.state for one in snapshot.inputs} == {"ended"}
    assert snapshot.inputs[0].lag is None
    assert snapshot.remaining is None


def test_what_the_operator_does() -> None:
    assert doing("reading", None) == "waiting for the first batch"
    record = BatchRecord(3)
    assert doing("reading", record) == "idle"
    assert doing("finishing", record) == "finish"
    record.events.update(["md-task", "md-task", "flush"])
    assert doing("reading", record) == "idle: md-task x2, flush"
    record.events.update(["choice", "choice", "choice"])  # made when the join was built
    assert doing("reading", record) == "idle: md-task x2, flush"
    record.rows_in["left"] = 1
    assert doing("reading", record).startswith("arrival")


def test_durations_for_people() -> None:
    lengths = (0, 7, 1_500, 20_000, 1_000_000, 630_000_000, 600_000_000, 7_200_000_000, 172_800_000_000)
    assert [format_duration(length) for length in lengths] == [
        "0 s", "7 us", "1500 us", "20 ms", "1 s", "630 s", "10 min", "2 h", "2 d",
    ]  # fmt: skip


def snapshot(batch: int | None = 4, **changes: object) -> Snapshot:
    inputs = (
        InputProgress("orders", 12_000, 1500.0, "3 files", "flowing", 0.0),
        InputProgress("payments", 8_000, 0.0, None, "stalled", 7.0, null_keys=1_234),
    )
    values = {
        "name": "p", "phase": "reading", "elapsed": 12.0, "batch": batch, "batch_seconds": 0.5, "inputs": inputs,
        "results": 4242, "result_rate": 99.0, "resident_bytes": 5_000_000, "spilled_bytes": 7_000_000,
        "state_rows": 20_000, "budget": 8_000_000, "doing": "idle: dd-task", "remaining": "orders: 3 files",
    }  # fmt: skip
    return Snapshot(**{**values, **changes})  # type: ignore[arg-type]


def test_the_live_view_has_it_all() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(render(snapshot()))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in (
        "orders", "12,000", "1,500", "3 files", "flowing", "stalled 7 s", "1,234 without a key", "4,242", "99/s",
        "5.0 MB of 8.0 MB resident",
        "7.0 MB spilled", "idle: dd-task", "0.50 s", "reading",
    ):  # fmt: skip
        assert words in text


def test_the_plain_view_speaks_once_per_batch_and_now_and_then() -> None:
    out = io.StringIO()
    with PlainDisplay(lambda text: text.replace("orders", "***"), out) as display:
        display.show(snapshot(4))
        display.show(snapshot(4, elapsed=13.0))
        display.show(snapshot(5, elapsed=14.0))
        display.show(snapshot(5, elapsed=25.0))
        display.say("orders are here")
    lines = out.getvalue().splitlines()
    assert len(lines) == 4
    assert "batch 4 (0.50 s): " in lines[0]
    assert " batch -: " in shown_plainly(snapshot(None, batch_seconds=None))
    assert " batch 4: " in shown_plainly(snapshot(4, batch_seconds=None))
    assert "*** 12,000 rows (flowing, lag 3 files), payments 8,000 rows (stalled, 1,234 without a key)" in lines[0]
    assert "orders" not in out.getvalue()


def test_what_was_chosen_and_why_is_in_every_view() -> None:
    made = snapshot(choices=(Choice("join", "window", "within was given"), Choice("algorithm", "auto", "it is fast")))
    console = Console(file=io.StringIO(), width=100)
    console.print(render(made))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "join: window, because within was given" in text
    assert "algorithm: auto, because it is fast" in text
    out = io.StringIO()
    display = PlainDisplay(str, out)
    for batch in (4, 5):
        display.show(replace(made, batch=batch))
    assert [line for line in out.getvalue().splitlines() if line.startswith("chosen")] == [
        "chosen: join: window, because within was given", "chosen: algorithm: auto, because it is fast",
    ]  # fmt: skip
    out = io.StringIO()
    JsonDisplay(str, out).show(made)
    first = json.loads(out.getvalue())["choices"][0]
    assert first == {"what": "join", "value": "window", "why": "within was given"}


def test_the_choices_of_a_run_are_those_beside_the_state(tmp_path: Path) -> None:
    assert ProgressTracker("p", str(tmp_path), INPUTS, clock=Clock()).update().choices == ()
    choice = Choice("join", "progressive", "nothing else fits")
    sides = (Side("left", 8), Side("right", 8))
    record_story(StateDir(tmp_path), Story("join", "symmetric", "inner", "k", sides, {}, 1, (choice,)))
    assert ProgressTracker("p", str(tmp_path), INPUTS, clock=Clock()).update().choices == (choice,)


def shown_plainly(one: Snapshot) -> str:
    out = io.StringIO()
    PlainDisplay(str, out).show(one)
    return out.getvalue()


def test_the_json_view_is_json_line_by_line() -> None:
    out = io.StringIO()
    with JsonDisplay(lambda text: text.replace("orders", '"***'), out) as display:
        display.show(snapshot(4))
        display.show(snapshot(4, elapsed=13.0))
        display.show(snapshot(4, phase="done"))
        display.say("done with orders")
    first, second, message = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (first["event"], first["batch"], first["inputs"][0]["name"]) == ("progress", 4, '"***')
    assert second["phase"] == "done"
    assert message == {"event": "message", "text": 'done with "***'}


def test_the_style_follows_the_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(make_display("auto", str, Terminal()), LiveDisplay)
    assert isinstance(make_display("auto", str, io.StringIO()), PlainDisplay)
    with make_display("live", str, Terminal()) as display:
        display.show(snapshot())
        display.say("hello")
