"""State in Google Cloud Storage."""

from __future__ import annotations

from pathlib import Path

from tests.object_store.google import google
from watersmeet.engine.runtime import run_batch
from watersmeet.state.directory import StateDir
from watersmeet.storage.access import remember
from watersmeet.testing import batch_of, make_plan, random_script, run_stored
from watersmeet.testing.harness import rows_of

PLAN = make_plan("symmetric")
SCRIPT = random_script(3, batches=20, idle_share=0.0, null_share=0.0, end=False)


def test_a_restart_repeats_a_batch_that_an_earlier_run_has_written(tmp_path: Path) -> None:
    expected = run_stored(PLAN, SCRIPT, StateDir(tmp_path / "local")).per_batch
    with google() as options:
        remember("gs://lake/state", options=options, cache_dir=str(tmp_path / "cache"))
        directory = StateDir("gs://lake/state")
        directory.create()
        for number, answer in enumerate(expected):
            batch = batch_of(PLAN, number, SCRIPT[number])
            for run in ("first", "second") if number == 9 else ("second" if number > 9 else "first",):
                assert rows_of(run_batch(PLAN, directory, 0, batch, run_id=run, attempt="0")) == answer
        assert "v-000000000019.json" in directory.list("part-00000")
        assert "v-000000000002.json" not in directory.list("part-00000"), "what is old is collected"
