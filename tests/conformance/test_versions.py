"""A master table whose versions have different rows: a stream row meets one of them, whole, whatever moves meanwhile.

The versions are announced while rows wait, the number of partitions changes between batches, and all state is read
anew in each. Which version a row meets is a matter of its partition; that it had been announced is not.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.cases.semistream import HOW
from tests.conformance.sampling import examples
from watersmeet.semistream.master_table import Layout
from watersmeet.state.directory import StateDir
from watersmeet.testing import Arrival
from watersmeet.testing.arrivals import Row
from watersmeet.testing.divisions import run_divided
from watersmeet.testing.masters import STREAM, semi_stream_join, semi_stream_plan, write_master

KEYS, BATCHES = 20, 9

Versions = dict[int, list[Row]]  # the rows of each, by its number


def write_versions(path: str, rng: random.Random, **cut: Any) -> Versions:
    """Each version has other rows, and other keys, cut into chunks of its own."""
    versions: Versions = {}
    for number in (1, 2, 3):
        rows: list[Row] = [
            (key, number, f"{number}-{key}-{i}") for key in range(KEYS) for i in range(rng.choice([0, 0, 1, 2, 4]))
        ]
        versions[number] = rows or [(0, number, "alone")]
        write_master(path, versions[number], chunk_rows=rng.choice([1, 1, 3]), **cut)
    return versions


def stream(rng: random.Random) -> list[Arrival]:
    """Skewed keys, some of which no version has; in two of the batches, or in one, a version is announced."""
    announced = [rng.randrange(BATCHES - 2) for _ in range(2)]
    script, ident = [], 0
    for number in range(BATCHES):
        rows: list[Row] = []
        for _ in range(rng.choice([0, 8, 16, 24])):
            ident += 1
            rows.append((rng.choice([0, 1, 2, rng.randrange(KEYS + 2), None]), ident, "s"))
        signals = tuple(version for version, batch in enumerate(announced, start=2) if batch == number)
        ended = frozenset([STREAM] if number == BATCHES - 1 else [])
        script.append(Arrival({STREAM: rows}, time=number, ended=ended, signals=signals))
    return script


def divisions(rng: random.Random) -> list[int]:
    """Numbers of partitions of the join."""
    found: list[int] = []
    while len(found) < BATCHES:
        found += [rng.choice([1, 2, 3, 4])] * rng.choice([1, 1, 2])
    return found[:BATCHES]


def check(script: Sequence[Arrival], versions: Versions, how: str, found: Counter[Row]) -> None:
    """The results of each row, by its number, are all those of a version announced by the batch it came in."""
    results: dict[int, Counter[Row]] = defaultdict(Counter)
    for row, count in found.items():
        results[row[1]][row] = count
    known = {1}
    for arrival in script:
        known |= set(arrival.signals)
        for row in arrival.rows[STREAM]:
            alone = [Arrival({STREAM: [row]})]
            answers = [semi_stream_join(alone, versions[version], how) for version in sorted(known)]
            assert results.pop(row[1], Counter()) in answers, f"{row} met no version of {sorted(known)}, or several"
    assert not results


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("policy", ["aligned", "ssbj", "mesh"])
@settings(max_examples=examples(3))
@given(seed=st.integers(0, 2**32), partitions=st.integers(1, 3))
def test_every_row_meets_one_version_whole(
    policy: str, how: str, seed: int, partitions: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)
    folder: Path = tmp_path_factory.mktemp("versions")
    layouts: list[Layout] = ["hash"] if policy == "aligned" else ["hash", "arrival"]
    versions = write_versions(str(folder / "table"), rng, layout=rng.choice(layouts), partitions=partitions)
    tuning = {
        "max_delay": rng.choice([1, 4, 8, 8]),
        "switching_factor": rng.choice([0.05, 0.3]),
        "memory": rng.choice([1500, 4000, 10**6]),
        "idle_chunks": rng.choice([0, 1]),
    }
    plan = semi_stream_plan(str(folder / "table"), {"policy": policy}, tuning, how=how)
    script = stream(rng)
    found = sum(run_divided(plan, script, StateDir(folder / "state"), divisions(rng)), Counter[Row]())
    check(script, versions, how, found)
