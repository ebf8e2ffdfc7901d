"""Deaths while the state is divided anew, in a batch or in `rescale`: it is the old state or the new one."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.cases import CASES
from tests.conformance.test_divisions import NUMBERS, has_one_answer, script_of
from tests.faults.faulty_dir import Crash, Fate, RealFaultyDir
from watersmeet.engine.registry import OPERATORS
from watersmeet.engine.rescale import rescale
from watersmeet.engine.runtime import run_batch
from watersmeet.plan import JoinPlan
from watersmeet.state.description import Description, record_inputs
from watersmeet.state.directory import StateDir
from watersmeet.state.history import newest_manifests
from watersmeet.state.identity import read_join, register_join
from watersmeet.testing import Script
from watersmeet.testing.arrivals import Row
from watersmeet.testing.cases import Case
from watersmeet.testing.divisions import shares
from watersmeet.testing.harness import rows_of

DIVISIBLE = {name: [case for case in CASES if case.operator == name and has_one_answer(case)] for name in OPERATORS}


def begin(case: Case, folder: Path, partitions: int) -> tuple[StateDir, JoinPlan]:
    directory = StateDir(folder)
    directory.create()
    plan = replace(case.plan(), partitions=partitions)
    return directory, registered(directory, plan)


def registered(directory: StateDir, plan: JoinPlan) -> JoinPlan:
    """What happens when the join is built."""
    plan = register_join("test", directory, replace(plan, former=()))
    record_inputs(directory, replace(Description.plain(plan)))
    return plan


def whole_batch(plan: JoinPlan, script: Script, number: int, folder: Path) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for partition, batch in shares(plan, number, script[number]):
        found += rows_of(run_batch(plan, StateDir(folder), partition, batch, run_id=f"run-{number}"))
    return found


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("seed", range(4))
def test_deaths_in_any_batch_of_any_division(operator: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{operator} {seed}")
    case = rng.choice(DIVISIBLE[operator])
    script = script_of(case, seed, batches=8, batch_rows=5)
    directory, plan = begin(case, tmp_path, rng.choice(NUMBERS))
    total: Counter[Row] = Counter()
    deaths = 0
    for number in range(len(script)):
        if number and rng.random() < 0.5:
            plan = registered(directory, replace(plan, partitions=rng.choice(NUMBERS)))
        while True:
            found: Counter[Row] = Counter()
            for partition, batch in shares(plan, number, script[number]):
                for attempt in range(3):
                    dies = attempt < 2 and (not deaths or rng.random() < 0.4)
                    fate = Fate(rng.randrange(80 if deaths else 5)) if dies else Fate()
                    faulty = RealFaultyDir(str(tmp_path), fate)
                    try:
                        rows = rows_of(
                            run_batch(plan, faulty, partition, batch, run_id=f"run-{number}", attempt=f"{attempt}")
                        )
                    except Crash:
                        deaths += 1
                        continue
                    break
                found += rows
                if number and rng.random() < 0.05:  # the query dies, and is started with another number
                    break
            else:
                break
            plan = registered(directory, replace(plan, partitions=rng.choice(NUMBERS)))
        total += found
    assert total == case.expected(script)
    assert deaths


def steps_of(rng: random.Random, operator: str, steps: int) -> list[int]:
    """Where `rescale` dies: at some steps, and with one operator at all of them."""
    chosen = range(steps) if operator == "symmetric" else rng.sample(range(steps), 6)
    return sorted({*chosen, steps - 1, steps + 1})


@pytest.mark.parametrize("begun", [None, 4])
@pytest.mark.parametrize("operator", OPERATORS)
def test_rescale_dies_at_any_step(operator: str, begun: int | None, tmp_path: Path) -> None:
    """Also where the record names a division already that no batch has completed: its number is taken again."""
    rng = random.Random(f"{operator} {begun}" if begun else operator)
    case = DIVISIBLE[operator][-1]
    script = script_of(case, 3, batches=6, batch_rows=5)
    before, after = 2, 3
    directory, plan = begin(case, tmp_path / "start", before)
    first = sum((whole_batch(plan, script, number, tmp_path / "start") for number in range(4)), Counter())
    if begun:
        now = registered(directory, replace(plan, partitions=begun))
        partition, batch = next(shares(now, 4, script[4]))
        list(run_batch(now, directory, partition, batch, run_id="run-4"))
    fate = Fate()
    shutil.copytree(tmp_path / "start", tmp_path / "whole")
    done = rescale(RealFaultyDir(str(tmp_path / "whole"), fate), after)
    assert (done.before, done.partitions, done.version) == (before, after, 3)
    held = sum(store["rows"] for one in newest_manifests(directory) for store in one.stores if store["input"])
    assert done.rows == held
    seen = set()
    for death in steps_of(rng, operator, fate.steps):
        folder = tmp_path / f"{death}"
        shutil.copytree(tmp_path / "start", folder)
        with suppress(Crash):
            rescale(RealFaultyDir(str(folder), Fate(death, torn=0.5)), after)
        found = read_join(StateDir(folder))
        assert found is not None
        seen.add(found["partitions"])
        # Whatever it is, it can be looked at, and the query goes on.
        manifests = newest_manifests(StateDir(folder))
        assert held == sum(store["rows"] for one in manifests for store in one.stores if store["input"])
        now = registered(StateDir(folder), replace(plan, partitions=rng.choice([before, after, 4])))
        total = first + sum((whole_batch(now, script, number, folder) for number in (4, 5)), Counter())
        assert total == case.expected(script), death
    assert {before, after} <= seen <= {before, after, begun}
