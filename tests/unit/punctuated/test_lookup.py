"""Rows that a range covers: found by the order of a run's values as by looking at every row, dead ones never."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import sort_by_hash
from watersmeet.plan.metrics import Metrics
from watersmeet.punctuated import lookup
from watersmeet.punctuated.promises.intervals import Intervals
from watersmeet.punctuated.promises.ordering import Ordering
from watersmeet.state.accounts import Accounts
from watersmeet.state.layouts import SizeTiers
from watersmeet.state.parts import Rows
from watersmeet.state.rows import RowStore
from watersmeet.state.space import MemorySpace
from watersmeet.testing.arrivals import make_plan, table_of

VALUES = {
    pa.int64(): [*range(-40, 60), -(2**63), 2**63 - 1, 7, 7],
    pa.float64(): [*np.linspace(-3, 3, 60).tolist(), float("inf"), float("-inf"), 0.0, -0.0],
    pa.string(): [*(f"{i:02d}" for i in range(80)), "", "é", "\0", "9" * 300],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_an_order_finds_what_a_look_at_every_row_finds(kind: pa.DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan("punctuated", keys=(kind,))
    values, spec = VALUES[kind], plan.input("left")
    store = RowStore("left", spec.schema, SizeTiers(1), MemorySpace(), Accounts(Metrics()))
    for batch in range(3):
        rows = [(value, number, "") for number, value in enumerate(values[batch:])]
        store.add(sort_by_hash(table_of(spec, rows)).combine_chunks(), batch)
        part = list(store.parts())[-1]
        store.remove(Rows(part, np.arange(0, part.table.num_rows, 3)), "punctuation")
    ordering = Ordering(kind)
    ends = ordering.codes(pa.array(values, kind))
    order = np.argsort([str(value) for value in values]) if kind == pa.string() else np.argsort(np.asarray(ends))
    low, high = ends[order[[2, 11, 30]]], ends[order[[5, 20, 40]]]
    for endless in ([False] * 3, [False, False, True]):
        pieces = Intervals.promised(low, high, np.array(endless), source=1, batch=0)
        found = {}
        for longest in (0, 1 << 20):
            monkeypatch.setattr(lookup, "SCAN_ROWS", longest)
            monkeypatch.setattr(lookup, "SCAN_TEXTS", longest)
            hits = lookup.within(store, 0, pieces)
            found[longest] = sorted((part.run.id, number) for part, rows in hits for number in rows.tolist())
            for part, rows in hits:
                codes = ordering.codes(part.table.column("_k0").take(pa.array(rows)))
                assert (pieces.find(codes) >= 0).all()
                assert part.alive(rows) is not None
        assert found[0] == found[1 << 20]
        assert len(found[0]) > 20
    assert store.has_side(store.resident[0], "order0")
