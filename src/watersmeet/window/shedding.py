"""Too many rows for the service rate: which ones to drop (section 4.2), and an account of it.

With lambda_a' + lambda_b' = mu the output rate sigma lambda_a' lambda_b' (T_a + T_b) (Eq. 10) is largest for equal
rates (Eq. 11), whatever windows and selectivities are; an input slower than half of mu is left alone and the other
gets the rest. A row is dropped by a hash of its content and of the batch: a repeated batch drops the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import HASH, hash_keys

# The share that "left" and "right" give to their input: a join that stops the other altogether has no results.
MOST = 0.95


def share_of_left(strategy: str, left: float, right: float, windows: tuple[float, float]) -> float:
    """The left input's share of the service rate: the strategies of Fig. 8, and the extremes of Fig. 10."""
    match strategy:
        case "rate":
            return left / (left + right)
        case "inverse_rate":
            return right / (left + right)
        case "window" | "inverse_window":
            total = windows[0] + windows[1]
            proportional = windows[0] / total if total else 0.5
            return proportional if strategy == "window" else 1 - proportional
        case "left":
            return MOST
        case "right":
            return 1 - MOST
        case _:
            return 0.5


def regulated(left: float, right: float, service_rate: float, share: float) -> tuple[float, float]:
    """The rates lambda' that the inputs are let in at; what one input does not need goes to the other.

    >>> regulated(80, 20, 10, 0.5), regulated(100, 5, 50, 0.5), regulated(3, 4, 10, 0.5)
    ((5.0, 5.0), (45.0, 5.0), (3.0, 4.0))
    """
    if left + right <= service_rate:
        return float(left), float(right)
    slow_left = min(left, service_rate * share)
    slow_right = min(right, service_rate - slow_left)
    return float(min(left, service_rate - slow_right)), float(slow_right)


def expected_loss(rates: tuple[float, float], regulated_rates: tuple[float, float]) -> float:
    """The share of all results that is lost: 1 - r' / r with Eq. 9 and 10, in which windows and sigma cancel out."""
    full = rates[0] * rates[1]
    return 1 - regulated_rates[0] * regulated_rates[1] / full if full else 0.0


def kept(table: pa.Table, batch: int, share: float) -> npt.NDArray[np.bool_]:
    """Which rows stay, when `share` of them may: a function of each row's content and the batch, not of its place."""
    columns = [table.column(name) for name in table.column_names if name != HASH]
    columns = [column for column in columns if _is_hashable(column.type)]
    content = hash_keys(columns)
    mixed = hash_keys([pa.array(content), pa.array(np.full(len(content), batch, dtype=np.int64))])
    return mixed < np.uint64(min(int(share * 2**64), 2**64 - 1))


def _is_hashable(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_null(kind) or pa.types.is_dictionary(kind))


@dataclass
class ServiceRate:
    """How many rows a second one partition can take: given, or what earlier batches were seen to do.

    Timings come from the versions of earlier batches, so that a repeated batch sees the same ones. A batch counts only
    if it kept the join busy for at least half of the time until the next one: a few rows taken at leisure say
    nothing about how many could have been.
    """

    given: float | None = None
    parallel: float = 1.0  # the share of the time in which a task of this partition can run
    seen: list[tuple[int, float, float]] = field(default_factory=list)  # rows, seconds of work, seconds until the next

    KEPT: ClassVar[int] = 8
    BUSY: ClassVar[float] = 0.5

    def learn(self, history: Sequence[Mapping[str, Any]], interval: float) -> None:
        """Take in what the last batch's entry in the history says; `interval` is the time since then, in seconds."""
        if self.given is not None or not history:
            return
        last = history[-1]
        shed = sum(last["counters"].get(f"left.{name}.shed", 0) for name in last["rows_in"])
        rows = sum(last["rows_in"].values()) - int(shed)
        if rows:
            self.seen = [*self.seen, (rows, round(sum(last["timings"].values()), 6), interval)][-self.KEPT :]

    def rate(self) -> float | None:
        """Rows per second; None if it is not known."""
        if self.given is not None:
            return self.given
        least = self.BUSY * self.parallel
        busy = [(rows, seconds) for rows, seconds, interval in self.seen if seconds >= least * interval]
        seconds = sum(part for _, part in busy)
        return sum(rows for rows, _ in busy) / seconds * self.parallel if seconds else None
