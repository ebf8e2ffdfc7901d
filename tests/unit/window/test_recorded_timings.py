"""The estimated service rate through a state directory: every attempt of a batch sees the same recorded timings."""

from __future__ import annotations

from pathlib import Path

from watersmeet.state.directory import StateDir
from watersmeet.state.store import PartitionStore
from watersmeet.testing.arrivals import Arrival, make_plan
from watersmeet.testing.harness import run_stored


def test_a_repeated_batch_keeps_the_timings_of_the_first_attempt(tmp_path: Path) -> None:
    plan = make_plan("window", options={"window": [10, 10]}, tuning={"on_overload": "shed"})
    script = [Arrival({"left": [(1, i, "")], "right": [(1, i, "")]}, time=(i + 1) * 10**9) for i in range(3)]
    directory = StateDir(tmp_path)
    run_stored(plan, script[:2], directory)
    store = PartitionStore(directory, 0)
    before = store.manifest(1)
    again = StateDir(tmp_path)
    outcome = run_stored(plan, script, again, repeat=True)  # batches 0 and 1 are run again, twice
    assert store.manifest(1).history == before.history
    assert outcome.digests[1] == before.digest
    # What batch 2 learnt from batch 1 is what was recorded, rounded to microseconds.
    rows, seconds, _ = store.manifest(2).values["overload"]["seen"][-1]
    assert rows == 2
    assert seconds == round(sum(before.history[-1]["timings"].values()), 6)
