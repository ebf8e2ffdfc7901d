"""Every operator with a budget of one page, or of nothing at all, under the inputs that are hardest on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cases import CASES
from watersmeet.engine.registry import OPERATORS
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.state.directory import StateDir
from watersmeet.state.manifest import Manifest
from watersmeet.state.store import KEEP, PartitionStore
from watersmeet.testing import run_in_memory, run_stored
from watersmeet.testing.cases import Case

PAGE = 4  # rows
PAGE_BYTES = 200  # about as many rows of the scripts
SHAPES: dict[str, dict[str, Any]] = {
    "half of all rows have one key": {"keys": 20, "skew": 0.5, "batches": 5},
    "all rows have one key": {"keys": 1, "batches": 4},
    "a batch of ten times the budget": {"batch_rows": 10 * PAGE, "keys": 40, "batches": 3, "idle_share": 0.0},
    "10 MB in a row": {"width": 10_000_000, "batches": 3, "batch_rows": 2, "keys": 2, "idle_share": 0.0},
}


def named(name: str, **tuning: Any) -> Case:
    """A conformance case with other tuning."""
    found = next(case for case in CASES if case.name == name)
    return replace(found, name=f"{found.operator}: {name}", tuning={**found.tuning, **tuning})


def progressive(policy: str) -> Case:
    options = ProgressiveOptions(policy=policy, memory_rows=PAGE, page_rows=PAGE, buckets=3, fan_in=2, idle_pages=2)
    return Case(policy, options.operator, options.identity(), options.tuning())


SQUEEZED = [
    *(progressive(policy) for policy in ("rpj", "rpj-md", "rpj-dd", "xjoin", "hmj")),
    named("window-disk", memory=PAGE_BYTES),
    named("promised window, inner, disk", memory=PAGE_BYTES),
    named("punctuated, spilling", memory=PAGE_BYTES),
    named("punctuated, quota and spilling", memory=PAGE_BYTES),
    *(named(f"semi_stream-{policy}-inner, overload", memory=PAGE_BYTES) for policy in ("aligned", "ssbj", "mesh")),
    named("symmetric"),
    named("mjoin output_size 3"),
]
every_case = pytest.mark.parametrize("case", SQUEEZED, ids=str)


def test_every_operator_is_squeezed() -> None:
    assert {case.operator for case in SQUEEZED} == set(OPERATORS)


@every_case
@pytest.mark.parametrize("shape", SHAPES)
def test_the_answer_under_a_budget_of_one_page(case: Case, shape: str, tmp_path: Path) -> None:
    script = case.random_script(1, **SHAPES[shape])
    outcome = run_stored(case.plan(), script, StateDir(tmp_path))
    # Asked for in this form because the difference of two rows of 10 MB is not worth printing.
    assert (outcome.rows == case.expected(script)) is True
    for manifest in manifests(tmp_path):
        resident = [run for run in manifest.runs if run.tier == "resident"]
        counters = manifest.history[-1]["counters"]
        if case.operator == "semi_stream":  # beside what waits and what is cached it keeps notes on the chunks
            assert counters["memory_bytes"] <= PAGE_BYTES
        elif case.tuning.get("memory_rows") is not None:
            assert sum(run.rows for run in resident) <= PAGE
        elif case.tuning.get("memory") is not None:
            assert sum(run.nbytes for run in resident) <= PAGE_BYTES


def manifests(folder: Path) -> list[Manifest]:
    store = PartitionStore(StateDir(folder), 0)
    found = [store.manifest(version) for version in store.versions()]
    assert len(found) == KEEP
    return [manifest for manifest in found if not manifest.finished]


@every_case
def test_the_answer_when_every_hash_is_equal(case: Case) -> None:
    script = case.random_script(2, batches=5, batch_rows=9)
    found: Counter[Any] = run_in_memory(case.colliding_plan(), script, constant_hash=True).rows
    assert found == case.expected(script)
