"""The semi-stream joins: every policy, tiny chunks, budgets that force cache moves, overload and refreshes."""

import functools
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from watersmeet.plan import JoinPlan
from watersmeet.semistream.master_table import Layout
from watersmeet.testing.arrivals import Row, Script, random_script
from watersmeet.testing.cases import Case
from watersmeet.testing.keys import ALL_KEYS, Keys
from watersmeet.testing.masters import semi_stream_join, semi_stream_plan, write_master

HOW = ("inner", "left", "left_semi", "left_anti")
_FOLDER = tempfile.TemporaryDirectory(prefix="watersmeet-masters-")


@functools.cache
def master_rows() -> list[Row]:
    """Keys with no, one and many rows; a few that no stream ever asks for; null keys, which match nothing."""
    rng = random.Random(7)
    rows: list[Row] = [(None, -1, "null")]
    for key in [*range(12), *rng.sample(range(12, 1000), 6), 5000]:
        if key % 4 != 3:
            rows += [(key, 1000 * key + i, "m" * rng.randint(0, 8)) for i in range(rng.choice([1, 1, 2, 5]))]
    rng.shuffle(rows)
    return rows


@functools.cache
def master(layout: Layout, keys: Keys, partitions: int, *, constant_hash: bool) -> str:
    """Three versions with the same rows, cut differently: which one a row meets makes no difference to the answer."""
    path = f"{_FOLDER.name}/{keys}-{layout}-{partitions}-{constant_hash}"
    rows = [keys.row(row) for row in master_rows()]
    for chunk_rows in (3, 1, 2):
        cut: dict[str, Any] = {"chunk_rows": chunk_rows, "layout": layout, "partitions": partitions}
        write_master(path, rows, constant_hash=constant_hash, keys=keys.kinds, **cut)
    return path


def make_plan(
    layout: Layout,
    partitions: int,
    constant_hash: bool,
    operator: str,
    inputs: Sequence[str],
    options: Mapping[str, Any],
    *,
    tuning: Mapping[str, Any],
    keys: tuple[pa.DataType, ...],
    how: str = "inner",
) -> JoinPlan:
    of_type = next(each for each in ALL_KEYS if each.kinds == keys)
    path = master(layout, of_type, partitions, constant_hash=constant_hash)
    return semi_stream_plan(path, options, tuning, keys=keys, how=how)


def refreshed(seed: int, **shape: Any) -> Script:
    """A script in which new versions of the master table become available."""
    script = list(random_script(seed, **shape))
    rng = random.Random(seed)
    for version in (2, 3):
        at = rng.randrange(len(script))
        script[at] = replace(script[at], signals=(*script[at].signals, version))
    return script


def case(
    policy: str,
    name: str,
    *,
    layout: Layout | None = None,
    refresh: bool = False,
    how: str = "inner",
    partitions: int = 1,  # of the table; those of the join are another matter
    **tuning: Any,
) -> Case:
    layout = layout or ("hash" if policy == "aligned" else "arrival")
    return Case(
        f"semi_stream-{policy}-{how}, {name}",
        "semi_stream",
        {"policy": policy},
        tuning,
        inputs=("stream",),
        oracle=lambda script: semi_stream_join(script, master_rows(), how),
        how=how,
        script=refreshed if refresh else random_script,
        make_plan=functools.partial(make_plan, layout, partitions, False),
        make_colliding_plan=functools.partial(make_plan, layout, partitions, True),
    )


def with_table_of(case: Case, partitions: int) -> Case:
    """The same case over a table with another number of partitions."""
    assert isinstance(case.make_plan, functools.partial)
    layout, _, collides = case.make_plan.args
    return replace(case, make_plan=functools.partial(make_plan, layout, partitions, collides))


def at_once(policy: str, how: str) -> Case:
    """The whole table can be read in a batch, so every row is answered in its own."""

    def by_batch(script: Script) -> list[Counter[Row]]:
        return [semi_stream_join([arrival], master_rows(), how) for arrival in script]

    return replace(case(policy, "at once", how=how, max_delay=1, refresh=True), by_batch=by_batch)


REFRESH: dict[str, Any] = {"refresh": True, "max_delay": 4, "switching_factor": 0.05, "memory": 3000, "idle_chunks": 0}
MOVES: dict[str, Any] = {"partitions": 3, "max_delay": 2, "switching_factor": 0.05, "memory": 1500, "idle_chunks": 1}
RANGES: dict[str, Any] = {"partitions": 3, "layout": "hash", "max_delay": 3, "switching_factor": 0.3}
CASES = [
    made
    for policy in ("aligned", "ssbj", "mesh")
    for how in HOW
    for made in (
        at_once(policy, how),
        case(policy, "overload", how=how, memory=250, max_delay=4, idle_chunks=0, version=2),
        case(policy, "refresh", how=how, partitions=3, **REFRESH),
    )
] + [
    *(case(policy, "moves", how=how, **MOVES) for policy in ("aligned", "ssbj") for how in HOW),
    *(case("ssbj", "over aligned chunks", how=how, **RANGES) for how in HOW),
]
