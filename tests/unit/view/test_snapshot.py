"""What the page shows of a join: numbers that are those of its metrics, and what is new since a batch."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from tests.troubled_joins import (
    fan_out,
    healthy,
    late_rows,
    rows_of,
    run_join,
    silent_input,
    small_budget,
    two_partitions,
)

from watersmeet.chooser.decide import Choice
from watersmeet.chooser.story import Side, Story, record_story
from watersmeet.pipeline.failures import record_failure
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.state.directory import StateDir
from watersmeet.state.history import metrics_history, newest_manifests
from watersmeet.testing.arrivals import make_plan
from watersmeet.view.board import Board, ShownJoin, as_json, short_name
from watersmeet.view.reading import JoinReader
from watersmeet.view.snapshot import Snapshot


def document(folder: Path, **given: object) -> dict:  # type: ignore[type-arg]
    reader = JoinReader(folder)
    reader.refresh()
    found: dict = json.loads(as_json(Snapshot(reader, **given).document()))  # type: ignore[type-arg, arg-type]
    return found


def test_totals_are_those_of_the_metrics(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "join")
    directory = StateDir(folder)
    entries = [entry for one in newest_manifests(directory) for entry in metrics_history(directory, one)]
    shown = document(folder)
    rows: Counter[str] = sum((Counter(entry["rows_in"]) for entry in entries), Counter())
    assert {one["internal"]: one["rows"] for one in shown["inputs"]} == rows
    assert [one["name"] for one in shown["inputs"]] == ["orders", "payments"]
    assert shown["results"]["rows"] == sum(entry["rows_out"] for entry in entries)
    last = [entry for entry in entries if entry["batch"] == 11]
    assert shown["state"]["rows"] == sum(entry["state_rows"] for entry in last)
    assert shown["state"]["resident_bytes"] == sum(entry["resident_bytes"] for entry in last)
    assert sum(shown["series"]["results"]) == shown["results"]["rows"]
    assert sum(sum(part["rows"].values()) for part in shown["partition_list"]) == sum(rows.values())
    assert shown["troubles"] == []
    assert (shown["status"], shown["family"], len(shown["partition_list"])) == ("running", "progressive", 4)


def test_silence_lasts_up_to_the_newest_batch(tmp_path: Path) -> None:
    """A batch that takes long is no silence: nobody knows yet what it has found."""
    folder = silent_input(tmp_path / "join")
    now = int(time.time() * 1e6)
    for at in (now, now + 30_000_000):
        orders, payments = document(folder, now=at)["inputs"]
        assert orders["silent_seconds"] == 0
        assert (payments["silent_seconds"], payments["silent_batches"]) == (24, 12)


def test_what_is_new_and_what_was_known_make_the_whole(tmp_path: Path) -> None:
    reader = JoinReader(small_budget(tmp_path / "join"))
    reader.refresh()
    whole, new = Snapshot(reader).document(), Snapshot(reader).document(after=14)
    assert new["series"]["batch"] == [15, 16, 17, 18, 19]
    assert whole["series"]["resident"][15:] == new["series"]["resident"]
    assert [one for one in whole["decisions"] if one["batch"] > 14] == new["decisions"]
    assert whole["results"] == new["results"]


def test_a_batch_counts_when_all_partitions_have_committed_it(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "join")
    (folder / "part-00003" / "v-000000000011.json").unlink()
    assert document(folder)["newest_batch"] == 10


def test_only_the_newest_batches_of_a_long_run_are_read(tmp_path: Path) -> None:
    plan = make_plan("symmetric")
    folder = run_join(tmp_path / "join", plan, [{"left": rows_of([n])} for n in range(40)])
    reader = JoinReader(folder, most=10)
    reader.refresh()
    assert [one.batch for one in reader.complete] == list(range(30, 40))
    assert reader.rows["left"] == 10


def test_how_long_rows_wait_that_may_be_unmatched(tmp_path: Path) -> None:
    batches = [{"left": rows_of([n]), "right": rows_of([n % 2])} for n in range(6)]
    plan = make_plan("symmetric")
    assert "held" not in document(run_join(tmp_path / "inner", plan, batches))["delay"]
    shown = document(run_join(tmp_path / "left", replace(plan, how="left"), batches, every=2.0, ends_ago=1.0))
    assert list(shown["delay"]["held"]) == ["orders"]
    assert 11 <= shown["delay"]["held"]["orders"] < 60, "the first row came five batches and a second ago"


def test_what_was_chosen_and_why(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "join")
    assert document(folder)["choices"] == [], "a join of which nothing is known"
    sides = (Side("left", 8), Side("right", 8))
    story = Story("progressive_join", "symmetric", "inner", "k", sides, {}, 4)
    record_story(StateDir(folder), story)
    called = {"what": "join", "value": "progressive", "why": "progressive_join was called"}
    assert document(folder)["choices"] == [called]
    choice = Choice("join", "progressive", "nothing is <known>")
    record_story(StateDir(folder), replace(story, choices=(choice,)))
    assert document(folder)["choices"] == [asdict(choice)]


def test_what_bounds_the_state_and_what_does_not(tmp_path: Path) -> None:
    folder = late_rows(tmp_path / "join")
    state = document(folder)["state"]
    assert (state["bound"], state["bound_text"]) == ("window", "Bounded by the window of 1 min")
    assert not state["unbounded"]
    sides = (Side("left", 8), Side("right", 8))
    options = {"window": [None, 60_000_000], "lateness": 0, "memory": None}
    record_story(StateDir(folder), Story("window_join", "window", "inner", "k", sides, options, 1))
    state = document(folder)["state"]
    assert (state["bound"], state["bound_text"]) == ("none", "Nothing bounds the rows held of orders")
    assert state["unbounded"], "an interval that is open on a side"


def test_a_join_that_is_silent_does_not_fill_the_disk_at_the_rate_of_before(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "join")
    live = {"phase": "reading"}
    now = int(time.time() * 1e6)
    soon, later = (document(folder, live=live, now=at)["state"]["full_in"] for at in (now, now + 3_600_000_000))
    assert later > 50 * soon


def test_rows_waited_although_none_has_been_answered_since(tmp_path: Path) -> None:
    reader = JoinReader(healthy(tmp_path / "join"))
    reader.refresh()
    reader.complete[4].counters |= {"delay_p50": 1.0, "delay_p95": 3.0}
    assert Snapshot(reader).document()["delay"]["waits"]["p95"] == 3.0


def test_decisions_of_all_partitions_are_in_order(tmp_path: Path) -> None:
    options = ProgressiveOptions(memory=10_000, page_rows=64, buckets=4)
    plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
    batches = [{"left": rows_of(range(200 * n, 200 * n + 200))} for n in range(6)]
    reader = JoinReader(run_join(tmp_path / "join", two_partitions(plan), batches))
    reader.refresh()
    made = [(one.batch, one.partition) for one in reader.decisions]
    assert made == sorted(made)
    assert {partition for _, partition in made} == {0, 1}


def test_times_of_rows_have_their_zone(tmp_path: Path) -> None:
    clock = document(late_rows(tmp_path / "join"))["inputs"][0]["clock"]
    assert clock.endswith(" UTC")
    assert str(datetime.now(UTC))[:10] <= clock


def test_the_columns_of_a_key_are_told(tmp_path: Path) -> None:
    assert document(healthy(tmp_path / "join"))["key_columns"] == [{"name": "_k0", "type": "int64"}]


def test_totals_say_from_which_batch_on(tmp_path: Path) -> None:
    folder = run_join(tmp_path / "join", make_plan("symmetric"), [{"left": rows_of([n])} for n in range(40)])
    reader = JoinReader(folder, most=10)
    reader.refresh()
    assert Snapshot(reader).document()["counted_from"] == 30
    assert document(folder)["counted_from"] == 0


def test_restarts_and_failures_stand_on_the_time_axis(tmp_path: Path) -> None:
    plan = make_plan("symmetric")
    batches = [{"left": rows_of([n])} for n in range(6)]
    folder = run_join(tmp_path / "join", plan, batches, run_id=lambda number: "first" if number < 4 else "second")
    record_failure(StateDir(folder), "window_join: expected <this>, found that. Do something.")
    shown = document(folder)
    assert [one["batch"] for one in shown["restarts"]] == [4]
    assert [one["message"][:11] for one in shown["failures"]] == ["window_join"]
    assert shown["troubles"][0]["title"] == "The last run failed"
    assert shown["status"] == "stopped"
    assert "expected <this>" in shown["troubles"][0]["sentence"]


def test_decisions_are_sentences_with_their_numbers(tmp_path: Path) -> None:
    shown = document(small_budget(tmp_path / "join"))
    flush = next(one for one in shown["decisions"] if one["kind"] == "flush")
    assert flush["sentence"].startswith(f"{flush['numbers']['rows']:,} rows of {flush['numbers']['input']}, bucket ")
    assert flush["numbers"]["input"] in ("orders", "payments")
    assert shown["state"]["budget"] == 20_000


def test_hot_keys_have_shares_of_rows_and_results(tmp_path: Path) -> None:
    (first, *_) = document(fan_out(tmp_path / "join"))["keys"]["hot"]
    assert first["key"] == "42"
    assert first["result_share"] > 0.95
    assert 0.8 < first["shares"]["payments"] < 0.85


def test_a_finished_join_is_not_silent(tmp_path: Path) -> None:
    plan = make_plan("symmetric")
    batches = [{"left": rows_of([n] * 50)} for n in range(20)]
    folder = run_join(tmp_path / "join", plan, batches, ended=frozenset({"left", "right"}))
    shown = document(folder)
    assert shown["status"] == "finished"
    assert not [one for one in shown["troubles"] if one["id"].startswith("silent")]


def test_joins_have_names_that_differ(tmp_path: Path) -> None:
    places = [healthy(tmp_path / str(n) / "orders") for n in range(2)]
    assert list(Board.of(places).joins) == ["orders", "orders-2"]
    assert short_name("") == "join"


def test_a_join_that_is_not_built_yet_is_waited_for(tmp_path: Path) -> None:
    shown = ShownJoin(tmp_path / "later", "later", waits=True)
    shown.every = 0.0
    assert shown.document()["status"] == "starting"
    healthy(tmp_path / "later")
    assert shown.document()["newest_batch"] == 11


def test_damaged_state_is_told_and_nothing_fails(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "join")
    shown = ShownJoin(folder, "join")
    shown.every = 0.0
    assert shown.document()["problem"] is None
    (folder / "part-00000" / "v-000000000012.json").write_text("{")
    assert "v-000000000012.json" in str(shown.document()["problem"])
