"""A long run without a pause: what a batch reads, writes and leaves behind does not grow with the batches before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from watersmeet.testing.long_run import LONG_RUNS, SECOND, Extent, long_run

# Budgets that are full after a few batches, so that 120 of them flush as often as many more; few buckets, because small
# pages cost most of the time; a window that is full of expired rows early.
SMALL = {"memory_rows": 200, "page_rows": 32, "buckets": 8}
SHORT = {**LONG_RUNS["window"].options, "window": (20 * SECOND, 20 * SECOND)}
CASES = {name: replace(LONG_RUNS[name], rows=20, tuning=SMALL) for name in ("rpj", "xjoin", "hmj")}
CASES |= {
    name: replace(LONG_RUNS[name], rows=20, tuning={"memory": 8000}) for name in ("punctuated", "window", "semi_stream")
}
CASES["punctuated"] = replace(CASES["punctuated"], options={"buckets": 8})
CASES["window"] = replace(CASES["window"], options=SHORT, tuning={"memory": 20_000})
CASES |= {name: replace(LONG_RUNS[name], rows=20) for name in ("symmetric", "mjoin")}
BATCHES = 120


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Extent]]:
    @cache
    def extents(name: str) -> list[Extent]:
        return list(long_run(CASES[name], str(tmp_path_factory.mktemp("run")), BATCHES))

    return extents


def total(extents: list[Extent], *counters: str) -> float:
    return sum(extent.counters.get(name, 0) for extent in extents for name in counters)


@pytest.mark.parametrize("name", CASES)
def test_files_runs_and_manifest_stay_small(name: str, run: Callable[[str], list[Extent]]) -> None:
    extents = run(name)
    assert max(extent.files for extent in extents) <= 90
    assert max(extent.runs for extent in extents) <= 60
    assert max(extent.manifest_bytes for extent in extents) <= 40_000
    early = max(extent.manifest_bytes for extent in extents[BATCHES // 4 : BATCHES // 2])
    late = max(extent.manifest_bytes for extent in extents[-BATCHES // 4 :])
    assert late <= 1.5 * early


@pytest.mark.parametrize("name", ["rpj", "xjoin", "hmj"])
def test_combining_spilled_runs_costs_a_few_pages_per_flush(name: str, run: Callable[[str], list[Extent]]) -> None:
    extents = run(name)
    flushed, combined = total(extents, "rows_flushed"), total(extents, "rows_rewritten")
    assert flushed > 0.9 * 40 * BATCHES - 200
    # Runs of up to 1024 rows are one level. Eight flushes of 20 rows are a small part of it, so that a row is written
    # 1024 / 160 / 2 times there, and once on the next level. Before it is flushed it is merged in memory, about twice.
    assert 0 < combined <= 7 * flushed
    early = total(extents[BATCHES // 4 : BATCHES // 2], "pages_read")
    late = total(extents[-BATCHES // 4 :], "pages_read")
    assert late <= 2 * early


def test_merging_generations_costs_a_few_pages_per_flush(run: Callable[[str], list[Extent]]) -> None:
    extents = run("punctuated")
    assert total(extents, "rows_flushed") > 0.9 * 40 * BATCHES - 400
    early = total(extents[BATCHES // 4 : BATCHES // 2], "pages_read")
    late = total(extents[-BATCHES // 4 :], "pages_read")
    assert 0 < late <= 2 * early
