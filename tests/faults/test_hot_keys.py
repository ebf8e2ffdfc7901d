"""Deaths while keys become hot and cold: no row is lost or doubled, and all attempts agree on where keys are."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tests.conformance.test_divisions import script_of
from tests.conformance.test_spreading import ALL, GRIDS, Whim, deciding, plan_of
from tests.faults.faulty_dir import Crash, Fate, RealFaultyDir
from watersmeet.engine.hot_tables import hot_table
from watersmeet.engine.registry import OPERATORS, operator_class
from watersmeet.engine.runtime import run_batch
from watersmeet.state.directory import StateDir
from watersmeet.state.store import PartitionStore
from watersmeet.testing.arrivals import Row, batch_of
from watersmeet.testing.cases import Case
from watersmeet.testing.harness import rows_of
from watersmeet.testing.spreading import decided, routed

VOTED = [case for case in ALL if operator_class(case.operator).votes(case.plan())]
SPREAD = {name: [case for case in ALL if case.operator == name] for name in OPERATORS}


@pytest.mark.parametrize("operator", sorted(name for name, cases in SPREAD.items() if cases))
@pytest.mark.parametrize("seed", range(3))
def test_deaths_in_any_batch(operator: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{operator} {seed}")
    dying(rng.choice(SPREAD[operator]), seed, rng, tmp_path)


@pytest.mark.parametrize("operator", sorted({case.operator for case in GRIDS}))
@pytest.mark.parametrize("seed", range(3, 5))
def test_deaths_while_both_inputs_are_divided(operator: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{operator} {seed}")
    whim = dying(rng.choice([case for case in GRIDS if case.operator == operator]), seed, rng, tmp_path)
    assert min(whim.grids, whim.grown)


@pytest.mark.parametrize("operator", sorted({case.operator for case in VOTED}))
@pytest.mark.parametrize("seed", range(5, 8))
def test_deaths_while_partitions_vote(operator: str, seed: int, tmp_path: Path) -> None:
    """All attempts of a batch vote alike, whichever of them counts."""
    rng = random.Random(f"{operator} {seed}")
    dying(rng.choice([case for case in VOTED if case.operator == operator]), seed, rng, tmp_path)


def dying(case: Case, seed: int, rng: random.Random, tmp_path: Path) -> Whim:
    """Run a case with deaths, and check its answer."""
    script, plan = script_of(case, seed, batches=8, batch_rows=6, keys=4), plan_of(case)
    directory, total, deaths = StateDir(tmp_path), Counter[Row](), 0
    with deciding(seed) as whim:
        for number, arrival in enumerate(script):
            run_id = f"run-{number}"
            while True:
                # Spark asks for the routes anew whenever it plans the batch.
                table = hot_table(plan, directory, number)
                shares = list(enumerate(routed(plan, batch_of(plan, number, arrival), table)))
                rng.shuffle(shares)  # tasks end in any order
                found = list[pa.Table]()
                for partition, batch in shares:
                    for attempt in range(3):
                        dies = attempt < 2 and (not deaths or rng.random() < 0.4)
                        fate = Fate(rng.randrange(80 if deaths else 5)) if dies else Fate()
                        faulty = RealFaultyDir(str(tmp_path), fate)
                        try:
                            tables = list(
                                run_batch(plan, faulty, partition, batch, run_id=run_id, attempt=f"{attempt}")
                            )
                        except Crash:
                            deaths += 1
                            continue
                        break
                    found += tables
                    if number and rng.random() < 0.05:  # the query dies, and repeats the batch
                        break
                else:
                    break
                run_id += "-again"
            total += rows_of(decided(plan, found))
    assert total == case.expected(script)
    assert deaths
    assert whim.spread
    for partition in range(plan.partitions):
        assert PartitionStore(directory, partition).manifest(len(script) - 1).repeats == 0
    return whim
