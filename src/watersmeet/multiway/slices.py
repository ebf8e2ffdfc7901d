"""Cutting a buffer into the slices that drive one after the other.

A slice is a set of rows of a buffer, named by their numbers in hash order. Which rows it holds depends on their values
alone (a time, or the hash where no time is known), never on their order in the batch, and rows of equal value are never
parted; so the steps of a batch are the same whenever it is repeated.

    whole       one slice: the buffer
    clock       ranges of one clock for all inputs: slice s of every input covers the same stretch of time, and the
                slices hold about equally many rows of all inputs together
    share       equal shares of each buffer, oldest rows first

Where an input has no time, its rows count as arriving in the order of their hashes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from watersmeet.columns.arrow import Indices

Order = npt.NDArray[np.int64]  # per row of a buffer, when it arrived


@dataclass(frozen=True)
class Slice:
    """Rows of a buffer (ascending, so in hash order), and the number of the slice."""

    rows: Indices
    number: int


Slices = deque[Slice]
Slicing = Literal["whole", "clock", "share"]


def cut(orders: Sequence[Order], slicing: Slicing, slices: int) -> list[Slices]:
    """The slices of every buffer, in the order in which they drive."""
    if slicing == "whole":
        return [deque([Slice(np.arange(len(order)), 0)] if len(order) else []) for order in orders]
    if slicing == "clock":
        bounds = _bounds(np.concatenate(orders), slices)
        return [_cut(order, bounds) for order in orders]
    return [_cut(order, _bounds(order, slices)) for order in orders]


def _bounds(order: Order, slices: int) -> Order:
    """The values at which slices 1, 2, ... begin, so that each holds about equally many rows."""
    at = np.arange(1, slices, dtype=np.int64) * len(order) // slices
    return np.unique(np.sort(order)[at]) if len(order) else order


def _cut(order: Order, bounds: Order) -> Slices:
    numbers = np.searchsorted(bounds, order, side="right")
    by_number = np.argsort(numbers, kind="stable")  # stable: rows stay in hash order within a slice
    starts = np.searchsorted(numbers[by_number], np.arange(len(bounds) + 2))
    pieces = ((by_number[low:high], s) for s, (low, high) in enumerate(pairwise(starts)))
    return deque(Slice(rows, number) for rows, number in pieces if len(rows))
