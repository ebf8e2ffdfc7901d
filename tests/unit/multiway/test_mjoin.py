"""What the conformance suite does not see: metrics, limits, state that goes, times of all types."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import hash_keys
from watersmeet.columns.matching import BLOCK_ROWS
from watersmeet.columns.partitions import Partition
from watersmeet.engine.registry import build
from watersmeet.errors import FanOutError
from watersmeet.join.operator import Batch, Origin, advance
from watersmeet.lab.timeline import timed_batch
from watersmeet.multiway.mjoin import MJoin
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, batch_of, make_plan

ABC = ("a", "b", "c")


def mjoin(
    inputs: Sequence[str] = ABC,
    payload: tuple[pa.DataType, ...] = (pa.int64(),),
    window: int | None = None,
    **tuning: Any,
) -> MJoin:
    options: dict[str, Any] = {}
    if window is not None:
        options = {"window": window, "lateness": 0, "time": dict.fromkeys(inputs, "_p0")}
    operator = build(make_plan("mjoin", inputs, options, payload=payload, tuning=tuning), MemorySpace())
    assert isinstance(operator, MJoin)
    return operator


def rows(keys: Any, payload: Any, kind: pa.DataType | None = None) -> pa.Table:
    column = pa.array(keys, pa.int64())
    return pa.table({"_hash": hash_keys([column]), "_k0": column, "_p0": pa.array(payload, kind or pa.int64())})


def numbered(keys: Any) -> pa.Table:
    return rows(keys, np.arange(len(keys)))


def count(operator: MJoin, batch: Batch) -> int:
    return sum(table.num_rows for table in advance(operator, batch))


def test_a_key_frequent_in_all_inputs_is_refused_before_anything_is_built() -> None:
    operator = mjoin()
    hot = numbered(np.zeros(10_000, np.int64))
    started = time.perf_counter()
    with pytest.raises(FanOutError, match=r"max_results=1000000000 .* 1e\+12 more combinations"):
        count(operator, Batch(0, rows=dict.fromkeys(ABC, hot)))
    assert time.perf_counter() - started < 5


def test_a_large_answer_streams_out_in_bounded_blocks() -> None:
    operator = mjoin(max_results=10**13)
    hot = numbered(np.zeros(10_000, np.int64))
    results = advance(operator, Batch(0, rows=dict.fromkeys(ABC, hot)))
    before = pa.total_allocated_bytes()
    sizes = [next(results).num_rows for _ in range(3)]
    assert sizes == [BLOCK_ROWS] * 3
    assert pa.total_allocated_bytes() - before < 64 << 20
    events = [event for event in operator.metrics.events if event["kind"] == "fan_out"]
    assert events == [{"kind": "fan_out", "key": ["0"], "combinations": 1e12}]


def test_the_limit_counts_the_whole_batch() -> None:
    batch = Batch(0, rows={"a": numbered([1] * 10 + [2] * 10), "b": numbered([1] * 10 + [2] * 5)})
    assert count(mjoin(("a", "b"), max_results=150), batch) == 150
    with pytest.raises(FanOutError, match=r"the most rows of one key are \{'a': 10, 'b': 10\}"):
        count(mjoin(("a", "b"), max_results=149), batch)


def test_metrics_tell_the_order_and_the_estimates_behind_it() -> None:
    operator = mjoin()
    count(operator, Batch(0, rows={"a": numbered(range(10)), "b": numbered(range(40)), "c": numbered(range(20))}))
    found = count(operator, Batch(1, rows={"a": numbered(range(10)), "b": numbered(range(4)), "c": numbered([])}))
    steps = [event for event in operator.metrics.events if event["kind"] == "driver"]
    # |buffer| / |ht| is 10/10 for a and 4/40 for b: a has the larger outBuffer, though b comes close once a is drained
    assert [step["input"] for step in steps] == ["a", "b"]
    assert steps[0]["scores"]["a"] > steps[0]["scores"]["b"] > 0
    assert [step["rows"] for step in steps] == [10, 4]
    assert sum(step["results"] for step in steps) == found == 10 + 4 * 2
    assert operator.metrics.counters["driver_results.a"] == 10
    assert operator.metrics.counters["driver_results.b"] == 8
    assert operator.metrics.counters["lookups"] > 0
    assert {tuple(sorted(step["probe_order"])) for step in steps} == {("b", "c"), ("a", "c")}


def test_the_probe_order_follows_the_data() -> None:
    """First c knows almost none of a's keys, later b does: whoever stops most keys is asked first."""
    operator, orders = mjoin(), []
    for number in range(30):
        selective, other = ("c", "b") if number < 12 else ("b", "c")
        keys = np.arange(2000) + 2000 * number
        count(operator, Batch(2 * number, rows={selective: numbered(keys[::100]), other: numbered(keys)}))
        count(operator, Batch(2 * number + 1, rows={"a": numbered(keys)}))
        orders.append(operator.metrics.events[0]["probe_order"])
    assert orders[11] == ["c", "b"]
    assert orders[-1] == ["b", "c"]


def test_keys_that_one_input_lacks_are_not_looked_up_in_the_next() -> None:
    operator = mjoin(driver="output_rate")
    count(operator, Batch(0, rows={"b": numbered(range(1000)), "c": numbered(range(10))}))
    count(operator, Batch(1, rows={"a": numbered(range(1000))}))
    assert operator.metrics.counters["lookups"] == 1000 + 10  # all in the smaller c, what is left in b


def test_an_input_is_not_kept_once_all_others_have_ended() -> None:
    operator = mjoin()
    everything = {name: numbered(range(50)) for name in ABC}
    count(operator, Batch(0, rows=everything, ended=frozenset({"a"})))
    assert {run.label for run in operator.save().runs} == set(ABC)
    count(operator, Batch(1, rows={"b": numbered(range(50))}, ended=frozenset({"b"})))
    assert {run.label for run in operator.save().runs} == {"a", "b"}
    assert count(operator, Batch(2, rows={"c": numbered(range(50))}, ended=frozenset({"c"}))) == 100
    assert operator.save().runs == []


def test_state_is_the_rows_of_the_inputs_and_nothing_else() -> None:
    operator = mjoin()
    for number in range(5):
        count(operator, Batch(number, rows={name: numbered(np.arange(100) % 7) for name in ABC}))
    assert sum(run.rows for run in operator.save().runs) == 5 * 3 * 100


def test_a_window_holds_its_span_and_no_more() -> None:
    operator, held = mjoin(window=100), []
    for number in range(100):
        now = 10 * number
        count(operator, Batch(number, rows={name: rows(np.arange(10), [now + i for i in range(10)]) for name in ABC}))
        held.append(sum(run.rows for run in operator.save().runs))
    live = 3 * (100 + 10)  # a row per input and time unit
    assert max(held[20:]) <= live * 1.25 + 30
    assert min(held[20:]) >= live * 0.9
    assert max(len(table.store.runs) for table in operator.tables) <= 10


def test_late_rows_meet_what_is_held_and_are_counted() -> None:
    operator = mjoin(("a", "b"), window=10)
    count(operator, Batch(0, rows={"a": rows([1], [100]), "b": rows([1], [100])}))
    assert count(operator, Batch(1, rows={"a": rows([1, 1], [95, None])})) == 1
    assert operator.metrics.counters["late.a"] == 1
    assert operator.metrics.counters["left.a.null_time"] == 1


@pytest.mark.parametrize(
    ("kind", "moments"),
    [
        (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1, 0, minute) for minute in (0, 5, 11)]),
        (pa.timestamp("us"), [datetime(2026, 1, 1, 0, minute) for minute in (0, 5, 11)]),
        (pa.timestamp("ms"), [datetime(2026, 1, 1, 0, minute) for minute in (0, 5, 11)]),
        (pa.date32(), [date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 4)]),
    ],
)
def test_times_of_any_type(kind: pa.DataType, moments: list[Any]) -> None:
    window = 2 * 86_400_000_000 if pa.types.is_date(kind) else 600_000_000
    operator = mjoin(("a", "b"), (kind,), window=window)
    batch = {"a": rows([1], moments[:1], kind), "b": rows([1, 1], moments[1:], kind)}
    tables = list(advance(operator, Batch(0, rows=batch)))
    assert [table.column("b_0").to_pylist() for table in tables] == [[pa.scalar(moments[1], kind).as_py()]]


def test_results_over_time_within_a_batch() -> None:
    operator = mjoin(driver="round_robin", slices=4)
    ticks = iter(range(1000))
    batch = Batch(0, rows={name: numbered(np.arange(100) % 10) for name in ABC})
    timeline = timed_batch(operator, batch, clock=lambda: float(next(ticks)))
    assert timeline.results[0] == 0
    assert timeline.results[-1] == 10 * 10**3
    assert timeline.results == sorted(timeline.results)
    assert len(timeline.results) > 4
    assert timeline.seconds == [float(i) for i in range(len(timeline.seconds))]
    assert timeline.share_at(timeline.total) == 1.0
    assert 0 < timeline.share_at(timeline.total / 2) < 1


def test_inputs_that_have_nothing_but_their_key() -> None:
    operator = mjoin(payload=())
    keys = pa.array([1, 1, 2])
    table = pa.table({"_hash": hash_keys([keys]), "_k0": keys})
    found = [count(operator, Batch(number, rows=dict.fromkeys(ABC, table))) for number in range(3)]
    assert np.cumsum(found).tolist() == [2**3 + 1, 4**3 + 2**3, 6**3 + 3**3]


def test_composite_keys_with_the_equality_of_spark() -> None:
    plan = make_plan("mjoin", ABC, keys=(pa.string(), pa.float64()), payload=(pa.int64(),))
    operator = build(plan, MemorySpace())

    def table(numbers: list[float | None]) -> pa.Table:
        keys = [pa.array(["x"] * len(numbers)), pa.array(numbers, pa.float64())]
        return pa.table({"_hash": hash_keys(keys), "_k0": keys[0], "_k1": keys[1], "_p0": np.arange(len(numbers))})

    batch = {"a": table([0.0, np.nan, None]), "b": table([-0.0, np.nan, None]), "c": table([0.0, np.nan, 1.0])}
    found = pa.concat_tables(advance(operator, Batch(0, rows=batch)))
    assert sorted(found.column("a_0").to_pylist()) == [0, 1]


@pytest.mark.parametrize(
    ("optional", "newest", "clocks"), [((), 50, 0), (("b",), 100, 2)], ids=["required", "optional"]
)
def test_an_heir_takes_the_clock_that_nothing_is_lost_by(optional: tuple[str, ...], newest: int, clocks: int) -> None:
    """The one furthest behind, so that nothing expires too soon; with optional inputs the newest, because what lacks
    them has been reported up to there."""
    options = {"window": 10, "lateness": 0, "time": {"a": "_p0", "b": "_p0"}, "optional": list(optional)}
    plan = make_plan("mjoin", ("a", "b"), options=options)
    origins = []
    for number, moment in enumerate((50, 100)):
        former = build(plan, MemorySpace())
        arrived = Arrival({name: [(number, moment, "")] for name in ("a", "b")})
        list(advance(former, batch_of(plan, 0, arrived)))
        origins.append(Origin(Partition(number, 2), former))
    heir = build(plan, MemorySpace())
    assert isinstance(heir, MJoin)
    heir.inherit(Partition(0, 1), origins, 0)
    assert heir.clock.newest == {"a": newest, "b": newest}
    assert len(heir.former) == clocks
