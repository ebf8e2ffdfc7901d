"""Which versions of a master table must stay: the oldest that any partition of any join may still read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from watersmeet.engine.runtime import run_batch
from watersmeet.semistream.master_registry import Registration, lowest_needed
from watersmeet.state.directory import StateDir
from watersmeet.state.identity import register_join
from watersmeet.testing import Arrival, batch_of
from watersmeet.testing.divisions import shares
from watersmeet.testing.masters import semi_stream_plan, write_master


def test_the_oldest_version_that_rows_wait_for_is_needed(tmp_path: Path) -> None:
    master, state = str(tmp_path / "master"), StateDir(tmp_path / "state")
    for version in (1, 2, 3):
        assert write_master(master, [(key, version, "") for key in range(6)], chunk_rows=1) == version
    plan = semi_stream_plan(master, {}, {"max_delay": 4, "idle_chunks": 0, "version": 2})
    state.create()
    register_join("semi_stream_join", state, plan)
    registration = Registration(str(state.root), 2)
    assert lowest_needed(registration) == 2  # it has not started: it begins with that version
    rows = {"stream": [(key, 0, "") for key in range(6)]}
    list(run_batch(plan, state, 0, batch_of(plan, 0, Arrival(rows)), attempt="0"))
    list(run_batch(plan, state, 0, batch_of(plan, 1, Arrival(rows, signals=(3,))), attempt="0"))
    assert lowest_needed(registration) == 2
    for number in range(2, 9):
        list(run_batch(plan, state, 0, batch_of(plan, number, Arrival(rows)), attempt="0"))
    assert lowest_needed(registration) == 3


def test_rows_that_wait_in_a_former_division_need_their_version(tmp_path: Path) -> None:
    master, state = str(tmp_path / "master"), StateDir(tmp_path / "state")
    for version in (1, 2):
        write_master(master, [(key, version, "") for key in range(60)], chunk_rows=1)
    state.create()
    plan = semi_stream_plan(master, {}, {"max_delay": 6, "idle_chunks": 0, "version": 1})
    plan = register_join("semi_stream_join", state, replace(plan, partitions=2))
    registration = Registration(str(state.root), 2)  # as if it had been built again since
    rows = {"stream": [(key, 0, "") for key in range(60)]}

    def batch(number: int, arrival: Arrival) -> None:
        for partition, share in shares(plan, number, arrival):
            list(run_batch(plan, state, partition, share, run_id=f"{number}"))

    batch(0, Arrival(rows))
    plan = register_join("semi_stream_join", state, replace(plan, partitions=3, former=()))
    assert lowest_needed(registration) == 1  # of the new division there is nothing yet
    batch(1, Arrival(rows, signals=(2,)))
    assert lowest_needed(registration) == 1
    for number in range(2, 12):
        batch(number, Arrival(rows))
    assert lowest_needed(registration) == 2
