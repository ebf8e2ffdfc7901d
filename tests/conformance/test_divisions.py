"""The number of partitions may change between any two batches: the answer stays the same, no row is lost or doubled."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.cases import CASES
from tests.conformance.sampling import LEADING, SOAK, examples, hard_types, variant
from watersmeet.columns.partitions import Partition
from watersmeet.engine.inheritance import bring_up
from watersmeet.engine.registry import build
from watersmeet.state.directory import StateDir
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore
from watersmeet.testing import Script, accounting
from watersmeet.testing.arrivals import Row
from watersmeet.testing.cases import Case
from watersmeet.testing.divisions import plans_of, run_divided
from watersmeet.testing.keys import Keys

NUMBERS = (1, 2, 3, 4, 6, 8)


def has_one_answer(case: Case) -> bool:
    """What is dropped under overload, or because it is late, is a matter of each partition: there is no answer that all
    divisions share."""
    return case.account is None and case.tuning.get("late") != "drop"


ALL = [case for case in CASES if has_one_answer(case)]


# Of each variant an inner and a full join get many scripts, and every leading case one.
DIVISIBLE = ALL if SOAK else list({variant(case): case for case in ALL if case.how in ("inner", "full")}.values())
ONCE = ALL if SOAK else [case for case in ALL if case in LEADING or case.how == "full"]


def script_of(case: Case, seed: int, **shape: int) -> Script:
    """Without rows that are late: each partition has a clock of its own, and what late rows find depends on it."""
    script = case.random_script(seed, **shape)
    if not case.options.get("time_columns"):
        return script
    newest: dict[str, Any] = {}
    made = []
    for arrival in script:
        rows = {
            name: [row for row in rows if not _is_late(case, newest, name, row)] for name, rows in arrival.rows.items()
        }
        for name, kept in rows.items():
            times = [row[-1] for row in kept if row[-1] is not None]
            newest[name] = max([*times, *([newest[name]] if name in newest else [])], default=None)
            if newest[name] is None:
                del newest[name]
        made.append(replace(arrival, rows=rows))
    return made


def _is_late(case: Case, newest: Mapping[str, Any], name: str, row: Row) -> bool:
    if name not in newest or row[-1] is None:
        return False
    lateness = case.options["lateness"]
    behind = newest[name] - row[-1]
    return bool(behind > (lateness if isinstance(behind, int) else timedelta(microseconds=lateness)))


def changing(seed: int, batches: int) -> list[int]:
    """Numbers of partitions, most of them for a few batches."""
    rng = random.Random(seed)
    found: list[int] = []
    while len(found) < batches:
        found += [rng.choice(NUMBERS)] * rng.choice([1, 1, 2, 3])
    return found[:batches]


@pytest.mark.parametrize("case", DIVISIBLE, ids=str)
@settings(max_examples=examples(2))
@given(seed=st.integers(0, 2**32), batch_rows=st.sampled_from([2, 7, 30]), keys=hard_types)
def test_the_answer_does_not_depend_on_the_division(
    case: Case, seed: int, batch_rows: int, keys: Keys, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case = case.with_keys(keys)
    script = script_of(case, seed, batch_rows=batch_rows, batches=10)
    directory = StateDir(tmp_path_factory.mktemp("divided"))
    found: Counter[Row] = sum(run_divided(case.plan(), script, directory, changing(seed, len(script))), Counter())
    assert found == case.expected(script)


@pytest.mark.parametrize("case", ONCE, ids=str)
def test_every_case_once_and_every_row_accounted_for(case: Case, tmp_path: Path) -> None:
    script = script_of(case, 11, batches=6, batch_rows=10, end=False)
    numbers = [2, 4, 4, 3, 1, 2][: len(script)]
    directory, plan = StateDir(tmp_path), case.plan()
    list(run_divided(plan, script, directory, numbers))
    # The last batch has been run in two partitions. Divide them once more, and look.
    last = plans_of(plan, [*numbers, 3])[-1]
    held: Counter[str] = Counter()
    for partition in range(3):
        space = MemorySpace()
        space.partition = partition
        operator = build(last, space)
        bring_up(operator, PartitionStore(directory, partition, last.division), len(script), "in-process", "x")
        for store in operator.row_stores():
            accounting.check_store(store)
            for part in store.parts() if store.resident else ():
                rows = part.hashes if part.living is None else part.hashes[part.living]
                assert Partition(partition, 3).owns(rows).all()
        for spec in plan.inputs:
            mine = sum(store.held for store in operator.row_stores() if store.input == spec.name)
            assert operator.accounts.held(spec.name) == mine
            held[spec.name] += operator.accounts.came.get(spec.name, 0)
    for spec in plan.inputs:
        assert held[spec.name] == accounting.came(script, len(script), spec.name)
