"""126 seeded schedules of deaths, zombies, repeats and restarts for every operator; `make soak` plays more."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from tests.conformance.cases import CASES
from tests.faults import store_simulation
from tests.faults.memory_dir import MemoryDir
from tests.faults.simulation import SCRIPTS, play, replay_command, simulated, undisturbed, variants
from watersmeet.engine.registry import OPERATORS
from watersmeet.join.join_type import JOIN_TYPES, MATCHED
from watersmeet.plan.metrics import FAMILIES
from watersmeet.state.store import PartitionStore

SEEDS = 126  # more than any operator has cases
STORE_SEEDS = 30
BLOCK = 63  # seeds per test: small enough for all cores to share the work


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


OFFERED = {"multiway": {"inner"}, "semi_stream": {"inner", "left", "left_semi", "left_anti"}}


@pytest.mark.parametrize("family", FAMILIES)
def test_schedules_of_every_join_type_have_what_it_leaves_behind(family: str) -> None:
    """Unmatched rows are emitted in the batches that are disturbed, and marks of rows that have matched lie in the
    files: a schedule that lost either would be noticed."""
    played: dict[str, list[int]] = {}
    for operator in FAMILIES[family]:
        for index in variants(operator)[:STORE_SEEDS]:
            played.setdefault(CASES[index].how, []).append(index)
    assert set(played) == OFFERED.get(family, set(JOIN_TYPES))
    for how, cases in played.items():
        unmatched = marks = 0
        for index, script in product(cases[:6], range(SCRIPTS)):
            base = undisturbed(index, script)
            for number, files in enumerate(base.files):
                manifest = PartitionStore(MemoryDir(dict(files)), 0).manifest(number)
                counters = manifest.history[-1]["counters"]
                unmatched += sum(int(rows) for name, rows in counters.items() if name.startswith("unmatched."))
                marks += sum(table.name.startswith(f"{MATCHED}.") for table in manifest.tables)
        kind = JOIN_TYPES[how]
        assert (unmatched > 0) == any(kind.unmatched), how
        assert marks > 0 or not (kind.pairs and any(kind.unmatched)), how


def test_a_failing_seed_says_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.state.store.PartitionStore.collect", lambda self, newest: None)
    with pytest.raises(AssertionError) as error:
        play("symmetric", 7)
    text = str(error.value)
    assert ": left over: {" in text
    assert text.endswith(f"replay with: {replay_command('symmetric', 7)}")
