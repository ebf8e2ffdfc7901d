"""Of the master table only the columns that are needed are cached."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.cases.conditions import OF_TABLE

from watersmeet.engine.registry import build
from watersmeet.join.operator import advance
from watersmeet.plan import JoinPlan
from watersmeet.semistream.semi_stream_join import SemiStreamJoin
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, batch_of
from watersmeet.testing.harness import rows_of
from watersmeet.testing.masters import semi_stream_plan, write_master

MASTER = [(key, 10 * key + i, "m" * 300) for key in range(1, 12) for i in range(1 + key % 3)]
BATCHES = 24


def ran(plan: JoinPlan) -> tuple[Counter[tuple[Any, ...]], int, set[str]]:
    """All results, each batch taken up from saved state; bytes and columns of the cached rows in the end."""
    space, answer = MemorySpace(), Counter[tuple[Any, ...]]()
    join = build(plan, space)
    for number in range(BATCHES):
        rows = [(key, 100 * number + i, "s" * 400) for key in (1, 2, 3, 4, 99) for i in range(6)]
        answer.update(rows_of(advance(join, batch_of(plan, number, Arrival({"stream": rows})))))
        fresh = build(plan, space)
        fresh.ended = dict(join.ended)
        fresh.restore(join.save())
        join = fresh
    assert isinstance(join, SemiStreamJoin)
    assert join.current is not None
    cached = join.current.cache.rows
    nbytes, columns = cached.nbytes, {name for part in cached.parts() for name in part.table.column_names}
    answer.update(rows_of(advance(join, batch_of(plan, BATCHES, Arrival(ended=frozenset({"stream"}))))))
    return answer, nbytes, columns


@pytest.mark.parametrize("policy", ["aligned", "ssbj"])
@pytest.mark.parametrize(("how", "condition"), [("inner", None), ("left", None), ("inner", OF_TABLE)])
def test_columns_that_nothing_needs_are_not_cached(
    tmp_path: Path, policy: str, how: str, condition: dict[str, Any] | None
) -> None:
    write_master(str(tmp_path), MASTER, chunk_rows=4, layout="hash" if policy == "aligned" else "arrival")
    tuning = {"max_delay": 3, "idle_chunks": 0, "memory": 1 << 30}
    whole = replace(semi_stream_plan(str(tmp_path), {"policy": policy}, tuning, how=how), condition=condition)
    narrow = replace(whole, output=whole.output[:-1])
    (everything, all_bytes, all_columns), (some, bytes_left, columns) = ran(whole), ran(narrow)
    expected: Counter[tuple[Any, ...]] = Counter()
    for row, count in everything.items():
        expected[row[:-1]] += count
    assert some == expected
    assert all_columns == {"_hash", "_k0", "_p0", "_p1"}
    if condition:  # which needs what no output has
        assert columns == all_columns
    else:
        assert columns == {"_hash", "_k0", "_p0"}
        assert 0 < bytes_left < 0.2 * all_bytes
