"""Which keys are hot, where their rows go, and what that rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import hashes_of
from watersmeet.columns.partitions import partition_of
from watersmeet.engine.heat import KEEP, Heat, KeyHeat
from watersmeet.engine.registry import build, operator_class
from watersmeet.engine.spreading import MOST_KEYS, decide
from watersmeet.join.operator import Batch, advance
from watersmeet.plan.hot_table import HotKey, HotTable, home_of
from watersmeet.state.space import MemorySpace
from watersmeet.testing import make_plan
from watersmeet.testing.arrivals import table_of

BOTH = ("left", "right")
PLAN = make_plan("symmetric")


def heats(
    base: Sequence[float], keys: Mapping[int, Mapping[str, float]], held: Sequence[int] | None = None
) -> list[Heat]:
    """Partitions with so much work beside that of some keys, whose rows are all at home."""
    found = [Heat(load, 0 if held is None else held[at]) for at, load in enumerate(base)]
    for number, rows in keys.items():
        home = found[home_of(number, len(base))]
        work = sum(rows.values())
        home.load += work
        home.keys[number] = KeyHeat(work, dict(rows), str(number))
    return found


def in_lines(number: int, split: str, partitions: Sequence[int], lines: Sequence[int], **more: Any) -> HotKey:
    """A key in one column."""
    ages = tuple(range(len(partitions))), (0,)
    return HotKey(number, split, tuple((one,) for one in partitions), ages, tuple(lines), **more)


def targets(key: HotKey) -> list[int]:
    """Where rows of the split input go."""
    return [key.grid[line][0] for line in key.lines]


def loads_after(table: HotTable, before: Sequence[Heat]) -> list[float]:
    """What partitions will do, if the keys go on as they did."""
    loads = [heat.load - sum(one.work for number, one in heat.keys.items() if number in table.keys) for heat in before]
    for number, key in table.keys.items():
        rows = before[home_of(number, len(before))].keys[number].rows
        for target in targets(key):
            loads[target] += rows[key.split] / len(key.lines)
        for holder in key.holders:
            loads[holder] += sum(amount for name, amount in rows.items() if name != key.split)
    return loads


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_one_hot_key_is_levelled(share: float) -> None:
    total = 80_000.0
    before = heats([total * (1 - share) / 8] * 8, {19: {"left": total * share, "right": 10.0}})
    table = decide(HotTable(), before, BOTH)
    assert [(key.split, key.text) for key in table.keys.values()] == [("left", "19")]
    loads = loads_after(table, before)
    assert max(loads) <= 1.15 * np.mean(loads)
    assert table.keys[19].share == pytest.approx(share, abs=0.01)
    assert home_of(19, 8) in table.keys[19].holders


def test_uniform_keys_are_left_alone() -> None:
    keys = {number: {"left": 20.0, "right": 20.0} for number in range(32)}
    assert decide(HotTable(), heats([1000.0] * 8, keys), BOTH).keys == {}


def test_little_work_is_not_worth_it() -> None:
    assert decide(HotTable(), heats([1.0] * 4, {3: {"left": 100.0}}), BOTH).keys == {}


def test_one_partition_has_nothing_to_spread() -> None:
    assert decide(HotTable(), heats([1000.0], {3: {"left": 10_000.0}}), BOTH).keys == {}


def test_the_larger_input_is_split_unless_it_must_not_be() -> None:
    before = heats([1000.0] * 4, {3: {"left": 200.0, "right": 10_000.0}})
    assert decide(HotTable(), before, BOTH).keys[3].split == "right"
    assert decide(HotTable(), before, ("left",)).keys == {}  # to copy the larger one is not worth it


def test_an_input_that_needs_a_witness_is_split_once_the_home_has_one() -> None:
    before = heats([1000.0] * 4, {3: {"left": 200.0, "right": 10_000.0}})
    assert decide(HotTable(), before, BOTH, witnessed=("right",)).keys == {}
    before[3].keys[3].witnesses = {"right": 99}
    before[2].keys[3] = KeyHeat(10.0, {"left": 10.0}, "", {"left": 77})  # not the home
    after = decide(HotTable(), before, BOTH, witnessed=("right",))
    assert (after.keys[3].split, after.keys[3].witness) == ("right", 99)
    assert decide(after, before, BOTH, witnessed=("right",)).keys[3].witness == 99
    assert decide(after, heats([1000.0] * 4, {}), BOTH, witnessed=("right",)).keys[3].witness == 99


def test_what_stored_rows_make_of_work_stays_with_them() -> None:
    """Right rows find most of what they find at home: new left rows, which the rest of the work is, go elsewhere."""
    before = heats([1000.0] * 4, {6: {"left": 4000.0, "right": 10.0}})
    assert 2 in targets(decide(HotTable(), before, BOTH).keys[6])
    before[2].load += 2000.0
    before[2].keys[6] = KeyHeat(6010.0, {"left": 4000.0, "right": 10.0}, "6", {}, {"right": 2000.0})
    key = decide(HotTable(), before, BOTH).keys[6]
    assert (key.split, {*targets(key)}, {*key.holders}) == ("left", {0, 1, 3}, {0, 1, 2, 3})


def test_copies_are_limited_by_what_they_cost() -> None:
    few = decide(HotTable(), heats([1000.0] * 8, {3: {"left": 7000.0, "right": 1500.0}}), BOTH).keys[3]
    many = decide(HotTable(), heats([1000.0] * 8, {3: {"left": 7000.0, "right": 50.0}}), BOTH).keys[3]
    assert len(few.holders) == 2
    assert len(many.holders) == 8


def test_a_key_cools_down_later_than_it_becomes_hot_and_keeps_its_holders() -> None:
    hot = decide(HotTable(), heats([1000.0] * 4, {6: {"left": 4000.0}}), BOTH)
    warm = decide(hot, heats([1000.0] * 4, {6: {"left": 150.0}}), BOTH)
    assert decide(HotTable(), heats([1000.0] * 4, {6: {"left": 150.0}}), BOTH).keys == {}
    assert warm.keys[6].is_spread
    silent = heats([1000.0] * 4, {})
    for heat in silent:
        heat.guests = frozenset({6})
    cold = decide(warm, silent, BOTH)
    assert targets(cold.keys[6]) == [home_of(6, 4)]
    assert cold.keys[6].grid == warm.keys[6].grid
    assert {*warm.keys[6].holders} >= {*hot.keys[6].holders}
    again = decide(cold, heats([1000.0] * 4, {6: {"right": 4000.0}}), BOTH)
    assert again.keys[6].split == "left"


def test_full_partitions_get_no_rows() -> None:
    before = heats([1000.0] * 4, {2: {"left": 4000.0}}, held=[10, 10, 100, 10])
    key = decide(HotTable(), before, BOTH).keys[2]
    assert home_of(2, 4) == 2
    assert 2 not in targets(key)
    assert 2 in key.holders


def test_a_former_holder_comes_back_when_its_copies_are_gone() -> None:
    home = home_of(6, 4)
    other = (home + 1) % 4

    def after(table: HotTable, *, guests: frozenset[int], idle: frozenset[int], rows: float = 0.0) -> HotTable:
        told = heats([1000.0] * 4, {6: {"left": rows}} if rows else {})
        told[other].guests, told[other].idle = guests, {"left": idle}
        return decide(table, told, BOTH)

    key, none = frozenset({6}), frozenset[int]()
    cold = HotTable.of([in_lines(6, "left", (home, other), (0,))])
    assert other in after(cold, guests=key, idle=none).keys[6].holders  # it has rows of the split input
    busy = HotTable.of([in_lines(6, "left", (home, other), (1,))])
    assert other in after(busy, guests=key, idle=key).keys[6].holders  # and may get some in this batch
    gone = after(cold, guests=key, idle=key)
    assert (gone.keys[6].holders, gone.keys[6].stale) == ((home,), (other,))
    again = after(gone, guests=key, idle=none, rows=9000.0).keys[6]
    assert other not in again.holders
    assert again.is_spread
    assert again.stale == (other,)
    assert after(gone, guests=none, idle=none).keys == {}
    assert other in after(gone, guests=none, idle=none, rows=9000.0).keys[6].holders


def test_the_table_is_bounded() -> None:
    full = HotTable.of(in_lines(number, "left", (0, 1), (0,)) for number in range(100, 100 + MOST_KEYS))
    assert 7 not in decide(full, heats([1000.0] * 4, {7: {"left": 9000.0}}), BOTH).keys


def joined(left: Sequence[int], right: Sequence[int], before: Heat | None = None) -> Heat:
    operator = build(PLAN, MemorySpace())
    tables = {
        name: [(key, at, "") for at, key in enumerate(keys)] for name, keys in zip(BOTH, (left, right), strict=True)
    }
    batch = Batch(0, rows={name: table_of(PLAN.input(name), rows) for name, rows in tables.items()})
    list(advance(operator, batch))
    return (before or Heat()).after(batch, operator)


def number_of(key: int) -> int:
    return int(hashes_of(table_of(PLAN.input("left"), [(key, 0, "")]))[0])


def test_heat_counts_rows_and_results() -> None:
    heat = joined([7] * 300 + list(range(1000, 1700)), [7, 7, 1000, 1001])
    assert (heat.load, heat.held) == (1004 + 602, 1004)
    hot = heat.keys[number_of(7)]
    assert (hot.rows, hot.text) == ({"left": 300, "right": 2}, "7")
    assert hot.work == pytest.approx(302 + 600, rel=0.01)
    assert max(heat.keys.values(), key=lambda one: one.work) is hot


def test_heat_fades_and_is_forgotten() -> None:
    heat = joined([7] * 1000, [])
    heat = joined(list(range(1000, 2000)), [], heat)
    assert heat.keys[number_of(7)].work == 500
    for _ in range(12):
        heat = joined(list(range(1000, 2000)), [], heat)
    assert number_of(7) not in heat.keys


def test_heat_does_not_depend_on_the_order_of_rows_and_is_bounded() -> None:
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 50, 4000)
    one, other = joined(keys.tolist(), []), joined(rng.permutation(keys).tolist(), [])
    assert one.to_json() == other.to_json()
    assert 0 < len(one.keys) <= KEEP
    assert Heat.from_json(one.to_json()) == one


def test_copies_are_work_and_no_rows_of_the_key() -> None:
    operator = build(PLAN, MemorySpace())
    rows = table_of(PLAN.input("left"), [(7, at, "") for at in range(100)])
    copies = table_of(PLAN.input("right"), [(7, at, "") for at in range(3)])
    batch = Batch(0, rows={"left": rows}, copies={"right": copies})
    results = pa.concat_tables(advance(operator, batch))
    assert results.num_rows == 300
    assert operator.metrics.rows_in == {"left": 100}
    assert (operator.accounts.came, operator.accounts.copied) == ({"left": 100}, {"right": 3})
    assert operator.accounts.held("right") == 3
    hot = Heat().after(batch, operator).keys[number_of(7)]
    assert (hot.rows, hot.work) == ({"left": 100}, pytest.approx(403, rel=0.05))


def test_a_partition_that_has_nothing_but_copies_of_a_key_knows_what_it_costs() -> None:
    operator = build(PLAN, MemorySpace())
    copies = {name: table_of(PLAN.input(name), [(7, at, "") for at in range(20)]) for name in BOTH}
    batch = Batch(0, rows={"left": table_of(PLAN.input("left"), [(8, 0, "")])}, copies=copies)
    list(advance(operator, batch))
    hot = Heat().after(batch, operator).keys[number_of(7)]
    assert (hot.rows, hot.work) == ({}, pytest.approx(440, rel=0.01))
    assert (hot.held, hot.found) == ({"left": 20, "right": 20}, {"left": 200, "right": 200})


def test_the_home_of_a_key_is_its_partition() -> None:
    numbers = [1, (1 << 63) + 5, (1 << 64) - 1]
    assert [home_of(one, 7) for one in numbers] == partition_of(np.array(numbers, np.uint64), 7).tolist()


TIMED = {"window": [10, 10], "lateness": 0, "time_columns": ["_p0", "_p0"]}


@pytest.mark.parametrize(
    ("options", "tuning", "split"),
    [
        (TIMED, {}, ("left", "right")),
        ({**TIMED, "time_columns": None}, {}, ()),
        ({**TIMED, "late": "drop"}, {}, ()),
        (TIMED, {"idle_timeout": 5}, ()),
    ],
    ids=["with times", "of arrival", "late rows dropped", "silence passes"],
)
def test_windows_are_split_where_taken_rows_may_come_late(
    options: dict[str, Any], tuning: dict[str, Any], split: tuple[str, ...]
) -> None:
    plan = make_plan("window", options=options, tuning=tuning)
    assert operator_class("window").splits(plan) == split


@pytest.mark.parametrize(
    ("options", "split"),
    [({}, ("a", "b", "c")), ({"optional": ["c"]}, ()), ({"window": 10, "lateness": 0, "late": "drop"}, ())],
    ids=str,
)
def test_inputs_of_a_multiway_join_are_split_where_all_are_required(
    options: dict[str, Any], split: tuple[str, ...]
) -> None:
    timed = {"time": dict.fromkeys("abc", "_p0")} if options.get("window") else {}
    plan = make_plan("mjoin", ("a", "b", "c"), options={**options, **timed})
    assert operator_class("mjoin").splits(plan) == split
