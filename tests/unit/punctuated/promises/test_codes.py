"""The order of strings and binary against Python's own bytes: any length, any byte."""

from __future__ import annotations

import bisect as reference
import random

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import key_name
from watersmeet.punctuated.promises.codes import (
    Bytes,
    Mask,
    Numbers,
    argsort,
    bisect,
    concatenated,
    either,
    ranked,
    search,
)
from watersmeet.punctuated.promises.constraints import Ordered, OrderTracker
from watersmeet.punctuated.promises.ordering import Ordering
from watersmeet.punctuated.promises.patterns import Pattern, punctuation_table
from watersmeet.punctuated.promises.punctuation import PunctuatedRange
from watersmeet.testing.keys import PREFIX, STRINGS


def some_bytes(rng: random.Random) -> bytes:
    """0 to 64 bytes out of few, so that equal values, prefixes and zeros are common."""
    start = PREFIX.encode() if rng.random() < 0.5 else b""
    return start + bytes(rng.choice(b"\0\0a\x7f\x80\xff") for _ in range(rng.choice([0, 1, 2, 3, 44])))


def list_of(codes: Bytes) -> list[bytes]:
    return list(codes.array.to_pylist())


@pytest.mark.parametrize("seed", range(40))
def test_bytes_have_the_order_of_bytes(seed: int) -> None:
    rng = random.Random(seed)
    values, others = ([some_bytes(rng) for _ in range(rng.choice([1, 2, 60]))] for _ in range(2))
    codes, wanted = Bytes(pa.array(values)), Bytes(pa.array(others))
    assert list_of(codes[argsort(codes)]) == sorted(values)
    distinct, ranks = ranked(codes)
    assert isinstance(distinct, Bytes)
    assert list_of(distinct) == sorted(set(values))
    assert list_of(distinct[ranks]) == values
    ascending = codes[argsort(codes)]
    assert search(ascending, wanted).tolist() == [reference.bisect_left(sorted(values), other) for other in others]
    after = search(ascending, wanted, after_equal=True).tolist()
    assert after == [reference.bisect_right(sorted(values), other) for other in others]
    both = list(zip(values, others, strict=False))
    mine, theirs = codes[: len(both)], wanted[: len(both)]
    assert (mine < theirs).tolist() == [a < b for a, b in both]
    assert (mine <= theirs).tolist() == [a <= b for a, b in both]
    assert (mine >= theirs).tolist() == [a >= b for a, b in both]
    chosen = np.array([rng.random() < 0.5 for _ in both])
    assert list_of(mine[chosen]) == [a for (a, _), keep in zip(both, chosen, strict=True) if keep]
    mixed = either(chosen, mine, theirs)
    assert isinstance(mixed, Bytes)
    assert list_of(mixed) == [a if first else b for (a, b), first in zip(both, chosen, strict=True)]
    assert list_of(concatenated([mine, theirs])) == values[: len(both)] + others[: len(both)]


def test_strings_are_ordered_by_utf8_and_not_by_utf16() -> None:
    kind = pa.string()
    values = [STRINGS.value(number)[0] for number in range(40)]
    order = argsort(Ordering(kind).codes(pa.array(values[::-1], kind)))
    assert order.tolist() == list(range(39, -1, -1))


def test_a_string_of_any_bytes_goes_through_state() -> None:
    """Spark does not check what it casts to a string."""
    ordering = Ordering(pa.string())
    odd = pa.array([b"\xff\xfe", b"\xc3"]).view(pa.string())
    stored = ordering.to_arrow(ordering.codes(odd))
    assert stored.type == pa.string()
    codes = ordering.from_arrow(pa.chunked_array([stored]))
    assert ordering.describe(codes[1:], codes[:1], endless=False) == r"from '\\xc3' below '\\xff\\xfe'"


def test_a_promise_that_grows_stays_one_interval() -> None:
    promises = PunctuatedRange("left", [pa.string()])
    for batch in range(300):
        end = f"{PREFIX}{batch:05d}{'x' * 40}"
        promises.add_punctuations(
            punctuation_table([pa.string()], [[Pattern.between(None, end, closed="left")]]), batch
        )
    assert len(promises) == 1
    keys = pa.array([f"{PREFIX}{i:05d}{'x' * 40}" for i in (0, 298, 299, 300)])
    rows = pa.table({"_hash": pa.array(np.arange(4, dtype=np.uint64)), "_k0": keys})
    assert promises.find(rows).tolist() == [1, 1, 0, 0]
    assert promises.explain(rows.slice(1, 1)).startswith(f"punctuation below '{PREFIX}00299")


@pytest.mark.parametrize("direction", ["ascending", "descending"])
def test_rows_out_of_order_are_found_among_long_strings(direction: str) -> None:
    constraint = Ordered("left", direction, sequence="_p0")  # type: ignore[arg-type]
    tracker = OrderTracker(constraint, 0, (pa.string(),))
    keys = [f"{PREFIX}{i:02d}\0{i}" for i in (1, 2, 9, 4, 9)]
    table = pa.table({key_name(0): keys if direction == "ascending" else keys[::-1], "_p0": [1, 2, 3, 4, 5]})
    wrong = [False, False, False, True, False] if direction == "ascending" else [False, False, True, False, False]
    assert tracker.violations(table).tolist() == wrong
    end = tracker.close(table).column("_high0" if direction == "ascending" else "_low0").to_pylist()
    assert end == [max(keys) if direction == "ascending" else min(keys)]


def test_a_search_takes_a_step_for_every_doubling_of_the_promises() -> None:
    looked_at = []

    def is_before(at: Numbers) -> Mask:
        looked_at.append(len(at))
        return np.array([100, 200_000, 255_999]) > at

    assert bisect(3, 256_000, is_before).tolist() == [100, 200_000, 255_999]
    assert set(looked_at) == {3}
    assert len(looked_at) <= 18
