"""The theorems of the SSBJ paper, on the operator with the inequality as printed."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest

from watersmeet.columns.arrow import hash_keys, hashes_of
from watersmeet.engine.registry import build
from watersmeet.join.operator import advance
from watersmeet.semistream.row_sizes import fixed_bytes
from watersmeet.semistream.semi_stream_join import SemiStreamJoin
from watersmeet.semistream.ssbj import SsbjGeneration
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, batch_of
from watersmeet.testing.masters import semi_stream_plan, write_master

CHUNKS, CYCLES, KEYS = 4, 4, 5
Instance = tuple[dict[int, int], dict[int, int], str, str]  # master rows, stream rows per step, payload of both


def instance(seed: int) -> Instance:
    rng = random.Random(seed)
    master = {key: rng.randrange(6) for key in range(KEYS)}
    rates = {key: rng.randrange(1, 4) for key in range(KEYS)}
    return master, rates, "m" * rng.randrange(200), "s" * rng.randrange(200)


def cached_after(folder: Path, given: Instance) -> tuple[set[int], float, float]:
    """The keys that the operator has in its cache after some cycles of known frequencies, v_R and v_S."""
    master, rates, master_text, stream_text = given
    rows = [(key, 10 * key + i, master_text) for key, count in master.items() for i in range(count)]
    random.Random(1).shuffle(rows)
    filled = rows + [(1000 + i, i, master_text) for i in range(-len(rows) % CHUNKS + CHUNKS)]
    write_master(str(folder), filled, chunk_rows=-(-len(filled) // CHUNKS), layout="arrival")
    tuning = {"max_delay": CHUNKS, "idle_chunks": 0, "bare_inequality": True}
    plan = semi_stream_plan(str(folder), {"policy": "ssbj"}, tuning)
    operator = build(plan, MemorySpace())
    for number in range(CHUNKS * CYCLES):
        arrived = [(key, number, stream_text) for key, rate in rates.items() for _ in range(rate)]
        for _ in advance(operator, batch_of(plan, number, Arrival({"stream": arrived}))):
            pass
    assert isinstance(operator, SemiStreamJoin)
    generation = operator.current
    assert isinstance(generation, SsbjGeneration)
    assert generation.table.count == CHUNKS
    hashes = {
        int(one): key for key, one in zip(range(KEYS), hash_keys([pa.array(range(KEYS), pa.int64())]), strict=True)
    }
    found = {hashes[int(one)] for one in hashes_of(generation.cache.entries())}
    sizes = fixed_bytes(generation.master_schema) + len(master_text), fixed_bytes(generation.schema) + len(stream_text)
    return found, *sizes


def memory(cached: set[int], given: Instance, v_r: float, v_s: float) -> float:
    """What the join takes with these keys in the cache and the rows of the others waiting for a cycle."""
    master, rates, *_ = given
    return sum(master[key] * v_r if key in cached else CHUNKS * rates[key] * v_s for key in master)


@pytest.mark.parametrize("seed", range(6))
def test_theorem_1_no_other_set_of_cached_keys_takes_less_memory(seed: int, tmp_path: Path) -> None:
    given = instance(seed)
    found, v_r, v_s = cached_after(tmp_path, given)
    sets = [{key for key, chosen in enumerate(flags) if chosen} for flags in product((False, True), repeat=KEYS)]
    assert memory(found, given, v_r, v_s) == min(memory(one, given, v_r, v_s) for one in sets)


@pytest.mark.parametrize("seed", range(6, 10))
def test_theorem_2_a_key_is_cached_if_its_master_rows_take_less_than_its_stream_rows(seed: int, tmp_path: Path) -> None:
    given = instance(seed)
    found, v_r, v_s = cached_after(tmp_path, given)
    master, rates, *_ = given
    assert found == {key for key in master if master[key] * v_r < CHUNKS * rates[key] * v_s}


def test_the_instances_have_keys_on_both_sides(tmp_path: Path) -> None:
    sides = set()
    for seed in range(6, 10):
        master, rates, master_text, stream_text = instance(seed)
        v_r, v_s = 20 + len(master_text), 33 + len(stream_text)
        sides |= {master[key] * v_r < CHUNKS * rates[key] * v_s for key in master}
    assert sides == {True, False}
