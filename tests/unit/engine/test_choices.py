"""What was chosen when a join was built is in its metrics: once in every run of the query, beside what a batch did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from watersmeet.engine.runtime import run_batch
from watersmeet.state.directory import StateDir
from watersmeet.state.history import metrics_history, newest_manifests
from watersmeet.state.identity import register_join
from watersmeet.testing.arrivals import Arrival, batch_of, make_plan

CHOICES = [{"what": "join", "value": "progressive", "why": "two streams"}]


def run(folder: Path, numbers: range, run_id: str, choices: list[dict[str, str]] = CHOICES) -> None:
    plan, directory = make_plan("symmetric"), StateDir(folder)
    directory.create()
    register_join("test", directory, plan)
    for number in numbers:
        batch = batch_of(plan, number, Arrival({"left": [(number, 1, "a")]}, time=number + 1))
        list(run_batch(plan, directory, 0, batch, run_id=run_id, choices=choices))


def entries(folder: Path) -> list[dict[str, Any]]:
    (manifest,) = newest_manifests(StateDir(folder))
    return list(metrics_history(StateDir(folder), manifest))


def events(folder: Path) -> dict[int, list[dict[str, Any]]]:
    return {entry["batch"]: entry["events"] for entry in entries(folder) if entry["events"]}


def test_choices_are_recorded_when_a_run_begins(tmp_path: Path) -> None:
    run(tmp_path, range(3), "first")
    assert events(tmp_path) == {0: [{"kind": "choice", **CHOICES[0]}]}
    other = [{"what": "join", "value": "progressive", "why": "operator was given"}]
    run(tmp_path, range(3, 6), "second", other)
    assert events(tmp_path) == {0: [{"kind": "choice", **CHOICES[0]}], 3: [{"kind": "choice", **other[0]}]}


def test_they_make_no_repeated_batch_another_one(tmp_path: Path) -> None:
    run(tmp_path, range(3), "first")
    run(tmp_path, range(2, 4), "second")  # the last batch of a run is repeated by the next one
    assert list(events(tmp_path)) == [0, 2]
    assert entries(tmp_path)[-1]["repeats"] == 0
