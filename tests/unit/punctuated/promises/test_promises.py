"""Punctuated ranges against brute force: all types, all shapes of pattern, open and closed ends."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.punctuated.test_minimal_state import covers

from watersmeet.columns.arrow import hash_keys, key_name, sort_by_hash
from watersmeet.errors import OptionError
from watersmeet.punctuated.promises import keyed_patterns
from watersmeet.punctuated.promises.intervals import Intervals, IntervalSet
from watersmeet.punctuated.promises.ordering import Ordering, is_ordered
from watersmeet.punctuated.promises.patterns import Pattern, Shaped, punctuation_table, shapes
from watersmeet.punctuated.promises.punctuation import SOURCES, PunctuatedRange, by_reason
from watersmeet.testing.keys import BINARY, STRINGS

MAKE: dict[pa.DataType, Any] = {
    pa.int64(): lambda x: x - 2,
    pa.int32(): lambda x: x,
    pa.string(): lambda x: STRINGS.value(3 * x % 10)[0],  # not in their order
    pa.float64(): lambda x: x / 2 - 1.5,
    pa.date32(): lambda x: date.fromordinal(700_000 + x),
    pa.decimal128(10, 2): lambda x: Decimal(x) / 4,
    pa.binary(): lambda x: BINARY.value(3 * x % 10)[0],
}


def table_of(kinds: list[pa.DataType], keys: list[tuple[Any, ...]]) -> pa.Table:
    columns = [pa.array([key[i] for key in keys], kind) for i, kind in enumerate(kinds)]
    names = ["_hash", *(key_name(i) for i in range(len(kinds)))]
    return sort_by_hash(pa.Table.from_arrays([pa.array(hash_keys(columns)), *columns], names=names))


def some_pattern(rng: random.Random, kind: pa.DataType) -> Pattern:
    make, choice = MAKE[kind], rng.random()
    if choice < 0.45:
        return Pattern.value(make(rng.randrange(6)))
    if choice < 0.8:
        ends = (make(rng.randrange(6)) if rng.random() < 0.7 else None for _ in range(2))
        return Pattern.between(*ends, closed=rng.choice(["both", "left", "right", "neither"]))
    return Pattern.anything()


@pytest.mark.parametrize("seed", range(120))
def test_lookup_and_what_is_new(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [rng.choice(list(MAKE)) for _ in range(rng.randint(1, 3))]
    table = table_of(kinds, [tuple(MAKE[kind](rng.randrange(6)) for kind in kinds) for _ in range(50)])
    keys = list(zip(*(table.column(key_name(i)).to_pylist() for i in range(len(kinds))), strict=True))
    promises, said = PunctuatedRange("left", kinds), []
    for batch in range(4):
        rows = [[some_pattern(rng, kind) for kind in kinds] for _ in range(rng.randint(1, 4))]
        before = promises.find(table) > 0
        delta = promises.add_punctuations(punctuation_table(kinds, rows), batch)
        said += rows
        expected = [any(all(map(covers, row, key)) for row in said) for key in keys]
        after = promises.find(table) > 0
        assert after.tolist() == expected
        found = np.full(len(keys), delta.everything)
        if delta.points is not None:
            points = set(zip(*(delta.points.column(key_name(i)).to_pylist() for i in range(len(kinds))), strict=True))
            found |= np.array([key in points for key in keys])
        for column, pieces in delta.ranges.items():
            found |= pieces.find(Ordering(kinds[column]).codes(table.column(key_name(column)))) >= 0
        assert not (after & ~before & ~found).any(), "what is new must be purged"
    runs, everything = promises.save()
    restored = PunctuatedRange("left", kinds)
    restored.restore(runs, everything)
    assert (restored.find(table) == promises.find(table)).all()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 2.5),
        (pa.int64(), Decimal("2.5")),
        (pa.int64(), "abc"),
        (pa.int32(), 2**32 + 2),
        (pa.int8(), 128),
        (pa.float32(), 0.1),
        (pa.decimal128(4, 1), Decimal("2.25")),
        (pa.date32(), datetime(2024, 2, 29, 10)),
        (pa.string(), 2),
    ],
    ids=str,
)
def test_a_pattern_holds_exact_values_or_is_an_error(kind: pa.DataType, value: Any) -> None:
    for pattern in (Pattern.value(value), Pattern.between(value, None)):
        with pytest.raises(OptionError) as raised:
            punctuation_table([kind], [[Pattern.anything()], [pattern]])
        found = f"punctuations: expected values of type {kind}, found {value!r}. Correct the pattern, or convert"
        assert str(raised.value).startswith(found)
    assert punctuation_table([pa.int64()], [[Pattern.value(2.0)]]).column("_k0").to_pylist() == [2]


def test_a_wildcard_forgets_smaller_promises() -> None:
    promises = PunctuatedRange("left", [pa.string()])
    promises.add_punctuations(punctuation_table([pa.string()], [[Pattern.value(str(i))] for i in range(50)]), 0)
    promises.add_punctuations(punctuation_table([pa.string()], [[Pattern.anything()]]), 1)
    assert len(promises) == 1
    assert not promises.save()[0]


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_a_million_single_values_do_not_slow_lookups_down(kind: pa.DataType) -> None:
    numbers = np.random.default_rng(1).permutation(4_000_000)[:1_000_000]
    keys = pa.array(numbers).cast(kind)
    promises = PunctuatedRange("left", [kind])
    for batch, start in enumerate(range(0, 1_000_000, 250_000)):
        part = keys.slice(start, 250_000)
        promises.add_punctuations(pa.table({"_hash": hash_keys([part]), "_k0": part}), batch)
    assert len(promises.save()[0]) <= 3
    table = sort_by_hash(pa.table({"_hash": hash_keys([keys.slice(0, 1000)]), "_k0": keys.slice(0, 1000)}))
    few = PunctuatedRange("left", [kind])
    few.add_punctuations(table.slice(0, 10), 0)
    few.find(table), promises.find(table)  # once, to warm up
    started = process_time()
    for _ in range(20):
        few.find(table)
    ten = process_time() - started
    started = process_time()
    for _ in range(20):
        assert (promises.find(table) > 0).all()
    million = process_time() - started
    assert million < 30 * ten + 0.2  # a list of predicates would be 100,000 times slower
    assert promises.find(table).all()


def test_codes_of_a_slice_are_those_of_its_values() -> None:
    values = pa.array([Decimal(number) for number in (5, -3, 8, 0, 7)], pa.decimal128(12, 2))
    codes = Ordering(values.type).codes(values)
    assert codes.tolist() == [500, -300, 800, 0, 700]
    assert Ordering(values.type).codes(values.slice(2)).tolist() == [800, 0, 700]
    assert Ordering(values.type).codes(values.slice(1, 3)).tolist() == [-300, 800, 0]


def test_promised_intervals_are_merged_with_those_of_their_size() -> None:
    held, never = IntervalSet(Ordering(pa.int64())), np.array([False])
    sizes = []
    for batch, values in enumerate([range(0, 200, 2), [301], [401], range(500, 600, 2), [701]]):
        points = np.array(values)
        new = held.add(Intervals.promised(points, points + 1, never.repeat(len(points)), source=1, batch=batch))
        assert len(new) == len(points)
        sizes.append([len(part) for part in held.parts])
    assert sizes == [[100], [100, 1], [100, 2], [152], [152, 1]]


@pytest.mark.parametrize(
    ("kind", "ordered"),
    [(pa.decimal128(18, 2), True), (pa.decimal128(19, 2), False), (pa.decimal256(18, 2), False), (pa.int64(), True)],
    ids=str,
)
def test_ranges_are_for_keys_of_64_bits_and_texts(kind: pa.DataType, ordered: bool) -> None:
    assert is_ordered(kind) == ordered


def test_two_ranges_that_touch_are_kept_as_one() -> None:
    promises = PunctuatedRange("left", [pa.int64(), pa.int64()])
    for first, last in ((0, 5), (6, 9), (20, 30)):
        table = punctuation_table(promises.kinds, [[Pattern.value(1), Pattern.between(first, last)]])
        promises.add_punctuations(table, 0)
        assert len(promises) == (2 if first == 20 else 1)


def test_a_row_leaves_by_the_first_of_its_reasons() -> None:
    sources = np.arange(16, dtype=np.uint8)  # every set of bits
    found = {reason: np.flatnonzero(mask).tolist() for reason, mask in by_reason(sources).items()}
    first = {bits: next(name for name, bit in SOURCES.items() if bits & bit) for bits in range(1, 16)}
    assert found == {name: [bits for bits in range(1, 16) if first[bits] == name] for name in SOURCES}
    assert by_reason(np.array([0, 4], np.uint8)).keys() == {"ordered"}


SERIES: dict[str, Callable[[int], list[Pattern]]] = {
    "the same ranges": lambda n: [Pattern.between(0, 10), Pattern.between(None, 5)],
    "one range grows": lambda n: [Pattern.between(0, 10), Pattern.between(None, n)],
    "both ranges grow": lambda n: [Pattern.between(0, n + 1), Pattern.between(None, n)],
    "ranges shrink": lambda n: [Pattern.between(n, 1000), Pattern.between(n, None)],
    "a value and a range": lambda n: [Pattern.value(7), Pattern.between(None, 5)],
}


@pytest.mark.parametrize("others", [0, 40])
@pytest.mark.parametrize("name", SERIES)
def test_promises_on_two_columns_that_another_one_covers_are_forgotten(name: str, others: int) -> None:
    series, kinds = SERIES[name], [pa.int64(), pa.int64()]
    promises = PunctuatedRange("left", kinds)
    apart = [[Pattern.between(-10 * i, 1 - 10 * i), Pattern.between(2000, 3000)] for i in range(10, 10 + others)]
    if apart:
        promises.add_punctuations(punctuation_table(kinds, apart), 0)
    news = [promises.add_punctuations(punctuation_table(kinds, [series(n)]), n).count for n in range(200)]
    assert len(promises) == others + 1
    assert set(news[1:]) == ({1} if "grow" in name else {0})
    again = punctuation_table(kinds, [series(199), *apart])
    assert promises.add_punctuations(again, 200).is_empty


@pytest.mark.parametrize(("comparisons", "held"), [(99, 10), (100, 1)])
def test_ranges_are_compared_with_each_other_as_long_as_that_stalls_no_batch(
    comparisons: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_patterns, "COMPARISONS", comparisons)
    promises = PunctuatedRange("left", [pa.int64(), pa.int64()])
    rows = [[Pattern.between(0, 1 + n), Pattern.between(None, n)] for n in range(10)]
    promises.add_punctuations(punctuation_table(promises.kinds, rows), 0)
    assert len(promises) == held


def test_a_pattern_on_a_text_covers_those_that_say_more() -> None:
    kinds = [pa.string(), pa.int64()]
    promises = PunctuatedRange("left", kinds)
    promises.add_punctuations(punctuation_table(kinds, [[Pattern.value("a"), Pattern.anything()]]), 0)
    more = [[Pattern.value(text), Pattern.between(None, 3)] for text in "ab"]
    assert promises.add_punctuations(punctuation_table(kinds, more), 1).count == 1
    assert len(promises) == 2


@pytest.mark.parametrize("seed", range(100))
def test_a_covered_pattern_is_promised_and_one_that_is_promised_as_a_whole_is_covered(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [rng.choice(list(MAKE)) for _ in range(rng.randint(1, 3))]
    keys = table_of(kinds, list(itertools.product(*([MAKE[kind](x) for x in range(6)] for kind in kinds))))

    def some_patterns(count: int) -> Iterator[tuple[Shaped, set[int]]]:
        """Patterns of many keys, one by one, and the keys that each is about."""
        rows = [[some_pattern(rng, kind) for kind in kinds] for _ in range(count)]
        for shaped in shapes(punctuation_table(kinds, rows), kinds):
            for at in range(shaped.table.num_rows if len(shaped.values) < len(kinds) else 0):
                alone = PunctuatedRange("left", kinds)
                alone.add_punctuations(shaped.table.slice(at, 1), 0)
                yield replace(shaped, table=shaped.table.slice(at, 1)), about(alone)

    def about(promises: PunctuatedRange) -> set[int]:
        return set(np.flatnonzero(promises.find(keys)).tolist())

    promises = PunctuatedRange("left", kinds)
    for batch in range(12):
        for shaped, mine in some_patterns(1):
            promises.add_punctuations(shaped.table, batch)
            assert promises.covers(shaped).all() or not mine
    for shaped, mine in some_patterns(20):
        if promises.covers(shaped)[0]:
            assert mine <= about(promises)
    promises.void(keys.slice(0, 1), 9)
    assert not any(promises.covers(shaped).any() for shaped, _ in some_patterns(5))
