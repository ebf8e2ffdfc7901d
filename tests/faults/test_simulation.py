"""2,000 seeded schedules of deaths, zombies, repeats and restarts for every operator; `make soak` plays more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import store_simulation
from tests.faults.simulation import play, replay_command, simulated
from watersmeet.engine.registry import OPERATORS

SEEDS = 2000
STORE_SEEDS = 50
BLOCK = 250  # seeds per test: small enough for all cores to share the work


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    with simulated():
        yield


@pytest.mark.parametrize("start", range(0, SEEDS, BLOCK))
@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_every_schedule_gives_the_rows_and_files_of_a_quiet_run(operator: str, start: int) -> None:
    for seed in range(start, start + BLOCK):
        play(operator, seed)


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_every_schedule_on_an_object_store_gives_the_same(operator: str) -> None:
    with store_simulation.simulated_store():
        for seed in range(STORE_SEEDS):
            store_simulation.play(operator, seed)


def test_a_failing_seed_says_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.state.store.PartitionStore.collect", lambda self, newest: None)
    with pytest.raises(AssertionError) as error:
        play("symmetric", 7)
    text = str(error.value)
    assert ": left over: {" in text
    assert text.endswith(f"replay with: {replay_command('symmetric', 7)}")
