"""Sorted arrays of key codes: 64-bit integers in NumPy, strings and binary as bytes in Arrow.

Bytes are compared as unsigned bytes, a prefix before what it is a prefix of: the order of Spark's strings and binary
values, whatever their length and whichever bytes they hold. All of it runs in Arrow's kernels; no value becomes a
Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


class Bytes:
    """An immutable array of byte strings with the few operations of a NumPy array that codes need.

    A comparison is element by element; an array of one is compared with all elements of the other.

    >>> names = Bytes(pa.array([b"b", b"a\\x00", b"a"]))
    >>> (names < names[:1]).tolist(), argsort(names).tolist(), len(names[names < names[:1]])
    ([False, True, True], [2, 1, 0], 2)
    """

    __slots__ = ("array",)

    def __init__(self, array: pa.Array) -> None:
        # 64-bit offsets: a selection may repeat values, and must not stop at 2 GiB.
        self.array = array if array.type == pa.large_binary() else array.cast(pa.large_binary())

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, chosen: Any) -> Bytes:
        if isinstance(chosen, slice):
            first, last, _ = chosen.indices(len(self.array))
            return Bytes(self.array.slice(first, max(last - first, 0)))
        if np.asarray(chosen).dtype == np.bool_:
            return Bytes(self.array.filter(pa.array(chosen)))
        return Bytes(pc.take(self.array, pa.array(np.atleast_1d(chosen))))

    def __lt__(self, other: Bytes) -> Mask:
        return self._compared(pc.less, other)

    def __le__(self, other: Bytes) -> Mask:
        return self._compared(pc.less_equal, other)

    def __ge__(self, other: Bytes) -> Mask:
        return self._compared(pc.greater_equal, other)

    def _compared(self, compare: Callable[[Any, Any], pa.Array], other: Bytes) -> Mask:
        right = other.array[0] if len(other) == 1 else other.array
        return np.asarray(compare(self.array, right).to_numpy(zero_copy_only=False), np.bool_)

    def followed_by(self, tail: bytes) -> Bytes:
        """Every value with more bytes at its end."""
        kind = pa.large_binary()
        return Bytes(pc.binary_join_element_wise(self.array, pa.scalar(tail, kind), pa.scalar(b"", kind)))


class Codes(Protocol):
    """What an array of integers and `Bytes` have in common."""

    def __len__(self) -> int: ...

    def __getitem__(self, chosen: Any, /) -> Any: ...

    def __lt__(self, other: Any, /) -> Any: ...

    def __le__(self, other: Any, /) -> Any: ...

    def __ge__(self, other: Any, /) -> Any: ...


def concatenated(parts: Sequence[Codes]) -> Any:
    """Several arrays one after the other."""
    if isinstance(parts[0], Bytes):
        return Bytes(pa.concat_arrays([part.array for part in parts if isinstance(part, Bytes)]))
    return np.concatenate(cast(Sequence[Numbers], parts))


def either(condition: Mask, yes: Codes, no: Codes) -> Codes:
    """For every position the code of one array or of the other."""
    if isinstance(yes, Bytes) and isinstance(no, Bytes):
        return Bytes(pc.if_else(pa.array(condition), yes.array, no.array))
    return np.where(condition, cast(Numbers, yes), cast(Numbers, no))


def argsort(codes: Codes) -> Numbers:
    """The positions in the order of their codes; equal ones keep theirs."""
    if isinstance(codes, Bytes):
        return np.asarray(pc.sort_indices(codes.array)).astype(np.int64)
    return np.argsort(cast(Numbers, codes), kind="stable")


def ranked(codes: Codes) -> tuple[Codes, Numbers]:
    """The distinct codes in their order, and for every position the number of its code among them."""
    if not isinstance(codes, Bytes):
        values, ranks = np.unique(cast(Numbers, codes), return_inverse=True)
        return values, ranks.astype(np.int64)
    encoded = codes.array.dictionary_encode()
    order = argsort(Bytes(encoded.dictionary))
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return Bytes(encoded.dictionary)[order], places[np.asarray(encoded.indices)]


def search(ascending: Codes, wanted: Codes, *, after_equal: bool = False) -> Numbers:
    """For every wanted code how many of the ascending ones come before it; with `after_equal`, before or at it."""
    if isinstance(ascending, Bytes) and isinstance(wanted, Bytes):
        if after_equal:
            return bisect(len(wanted), len(ascending), lambda at: ~(wanted < ascending[at]))
        return bisect(len(wanted), len(ascending), lambda at: ascending[at] < wanted)
    side: Literal["left", "right"] = "right" if after_equal else "left"
    return np.searchsorted(cast(Numbers, ascending), cast(Numbers, wanted), side=side)


def bisect(wanted: int, count: int, is_before: Callable[[Numbers], Mask]) -> Numbers:
    """For every wanted code how many of `count` ordered ones come before it. All are searched at once, a step at a
    time: `is_before` compares an ordered code with each of them."""
    low, high = np.zeros(wanted, np.int64), np.full(wanted, count, np.int64)
    while True:
        unsure = low < high
        if not unsure.any():
            return low
        middle = (low + high) // 2
        before = is_before(np.minimum(middle, count - 1))
        low = np.where(unsure & before, middle + 1, low)
        high = np.where(unsure & ~before, middle, high)
