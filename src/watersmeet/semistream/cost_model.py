"""The cost model of the semi-stream joins (Eq. 1 to 6 of the paper, corrected).

One loop reads a chunk of b master rows and takes in w stream rows, of which w_N = h w are answered by the cache and
w_S = (1 - h) w wait for k = R_t / b loops:

    memory      M      = (b + h_R f) v_R + h_R c_entry + w_S k (v_P + f v_S)                                     (Eq. 1)
    time        c_loop = c_F + c_C + c_IO b + L (c_R + c_H min(b, w_S k / L)) + w_N c_N + w_S c_W + u w_S c_M    (Eq. 2)
    rate        mu     = w / c_loop                                                                       (Eq. 3 to 5)

Of the stream rows Eq. 2 charges c_S + c_H + c_O for one that the cache answers and c_S + c_A + c_E + c_O for one that
waits. Here rows go through these steps together, so that only the sums can be timed: c_N and c_W.

Corrections: the failed probe of a row that goes on to wait costs c_H too (Eq. 2 leaves it out; it is in c_W); rows wait
in L runs (`waiting_runs`), each of which takes c_R a loop; a loop takes c_F even if it brings nothing, and c_C more
with a cache, for which hot keys are looked for in every loop (c_B w_B in print: moving rows into the cache is the rare
part); a row that finds nothing, of which the share is u, takes c_M more: its absence may be cached, too; a cache entry
has a price; the shorter of the chunk and each run is looked up in the longer (c_H b in print),
with aligned chunks those of all runs in one piece, which is in c_W; and Eq. 6, which sets tuples per second equal to
bytes per second, is replaced by solving Eq. 1 for w_S. Which keys are cached follows from the cache inequality: the key
of rank r keeps n = w k p_r rows waiting, so it is cached if n f v_S > v_R + c_entry. With aligned chunks a row waits
half a cycle on average, which halves its bytes in both places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import numpy as np

from watersmeet.semistream.cache import ENTRY_BYTES
from watersmeet.state.layouts import FANOUT, FewRuns

LARGEST = 1e12  # rows per loop
SHORT = FewRuns.short // FANOUT  # rows per loop up to which runs of waiting rows are merged as soon as there are four


@dataclass(frozen=True)
class Costs:
    """Seconds per row, and of a loop. The defaults are of a 2020s server core with the table in the page cache.

    `calibration.semi_stream.semi_stream_costs` times them on this machine; what a loop and its rows take depends on the
    policy.
    """

    read: float = 6e-9  # c_IO: one master row into memory
    look_up: float = 6e-8  # c_H: one row looked up in sorted rows
    hit: float = 3e-7  # c_N: one stream row that the cache answers
    wait: float = 4e-7  # c_W: one stream row that waits, from its coming to its results
    run: float = 1.5e-4  # c_R: one run of waiting rows, in a loop
    loop: float = 2e-3  # c_F: one loop, whatever it brings
    cache: float = 2e-3  # c_C: the same, more, with a cache
    miss: float = 1e-6  # c_M: one stream row that waits, more, if it finds nothing


@dataclass(frozen=True)
class Workload:
    """Table and stream: R_t, v_R, b, v_S, the number of keys and the Zipf exponent of the stream."""

    master_rows: int
    master_row_bytes: float
    stream_row_bytes: float
    skew: float = 1.0
    keys: int | None = None
    chunk_rows: int = 100_000
    waiting_overhead: float = 12.0  # v_P: what we keep beside a waiting row
    fudge: float = 1.0  # f: sorted arrays have no load factor
    unmatched: float = 0.0  # u: the share of stream rows whose keys the table does not have

    @property
    def chunks(self) -> int:
        """k."""
        return max(-(-self.master_rows // self.chunk_rows), 1)


@dataclass(frozen=True)
class Point:
    """A working point of the join."""

    rows_per_loop: float
    hit_share: float
    cached_keys: int
    cache_bytes: float
    waiting_bytes: float
    chunk_bytes: float
    loop_seconds: float
    delay_seconds: float  # the longest wait

    @property
    def memory(self) -> float:
        """Eq. 1: all of it, the chunk in memory included."""
        return self.cache_bytes + self.waiting_bytes + self.chunk_bytes

    @property
    def service_rate(self) -> float:
        """Eq. 3: rows per second."""
        return self.rows_per_loop / self.loop_seconds


class CostModel:
    """Memory and service rate of a policy for a workload."""

    def __init__(self, workload: Workload, policy: str = "aligned", costs: Costs | None = None) -> None:
        self.workload = workload
        self.policy = policy
        self.costs = costs or Costs()

    def at(self, rows_per_loop: float) -> Point:
        """The working point at w rows per loop."""
        load, cost = self.workload, self.costs
        stay = 0.5 if self.policy == "aligned" else 1.0
        waiting_row = stay * (load.waiting_overhead + load.fudge * load.stream_row_bytes)
        per_key = load.master_rows / (load.keys or load.master_rows) * load.fudge * load.master_row_bytes
        cached = 0 if self.policy == "mesh" else self._cached(rows_per_loop * waiting_row, per_key + ENTRY_BYTES)
        keys = load.keys or load.master_rows
        hit = 1.0 if cached == keys else harmonic(cached, load.skew) / harmonic(keys, load.skew)
        by_cache, waiting = hit * rows_per_loop, (1 - hit) * rows_per_loop
        reads = load.chunk_rows if waiting > 0 else 0  # all of R in the cache: no reads at all (Theorem 3)
        runs = waiting_runs(waiting, load.chunks)
        looked_up = 0.0 if self.policy == "aligned" else runs * min(reads, waiting * load.chunks / max(runs, 1.0))
        loop = (
            cost.loop
            + (cost.cache if cached else 0.0)
            + reads * cost.read
            + looked_up * cost.look_up
            + by_cache * cost.hit
            + waiting * (cost.wait + (0.0 if self.policy == "mesh" else load.unmatched * cost.miss))
            + runs * cost.run
        )
        return Point(
            rows_per_loop=rows_per_loop,
            hit_share=hit,
            cached_keys=cached,
            cache_bytes=cached * (per_key + ENTRY_BYTES),
            waiting_bytes=waiting * load.chunks * waiting_row,
            chunk_bytes=reads * load.master_row_bytes,
            loop_seconds=loop,
            delay_seconds=loop * load.chunks if waiting > 0 else 0.0,
        )

    def _cached(self, waiting_bytes: float, price: float) -> int:
        """The cache inequality: ranks whose rows would take more room waiting than their master rows do."""
        keys, skew = self.workload.keys or self.workload.master_rows, self.workload.skew
        share = waiting_bytes * self.workload.chunks / harmonic(keys, skew) / price
        if share <= 1:  # not even the first rank
            return 0
        if log(share) >= skew * log(keys):  # all of them; with little skew the last rank would be too large for a float
            return keys
        return int(share ** (1 / skew))

    def for_memory(self, memory: float) -> Point:
        """The fastest working point within a memory: Eq. 1 solved for w (what Eq. 6 is meant to be).

        Where the memory holds all of the table, w may be anything: the point is that at which a loop is long enough for
        99 % of the rate of endless ones.
        """
        if (endless := self.at(LARGEST)).memory < memory:
            return self.for_rate(0.99 * endless.service_rate)
        return self.at(_solve(lambda w: self.at(w).memory, memory))

    def for_rate(self, rate: float) -> Point:
        """The working point that keeps up with a stream of `rate` rows per second (Eq. 4 and 5)."""
        return self.at(_solve(lambda w: self.at(w).service_rate, rate))


def waiting_runs(rows: float, loops: int) -> float:
    """The runs that waiting rows are kept in, on average, if each of so many loops brought so many of them (`FewRuns`).

    Short ones are merged into runs of `FewRuns.short` rows, with two or three that are not merged yet. Longer ones are
    merged when they are more than `FewRuns.most`, to just over half of that.

    >>> waiting_runs(64, 32), waiting_runs(1024, 32), waiting_runs(5000, 32), waiting_runs(5000, 4), waiting_runs(0, 9)
    (2.75, 6.5, 12.5, 4.0, 0.0)
    """
    if rows <= 0:
        return 0.0
    most = (FewRuns.most + FewRuns.most // 2 + 1) / 2
    short = rows * loops / FewRuns.short + (FANOUT + 1) / 2
    return min(float(loops), most, short if rows <= SHORT else most)


def harmonic(n: int, exponent: float) -> float:
    """The sum of r ** -exponent for r = 1..n; beyond 1000 terms by the integral.

    >>> round(harmonic(3, 1.0), 4), harmonic(5, 0.0)
    (1.8333, 5.0)
    """
    if n <= 0:
        return 0.0
    head = min(n, 1000)
    total = float((np.arange(1, head + 1, dtype=np.float64) ** -exponent).sum())
    if n > head:
        low, high = head + 0.5, n + 0.5
        if exponent == 1.0:
            total += float(np.log(high / low))
        else:
            total += (high ** (1 - exponent) - low ** (1 - exponent)) / (1 - exponent)
    return total


def _solve(value: Callable[[float], float], target: float) -> float:
    """The largest w with value(w) <= target, for a value that grows with w; by bisection on a logarithmic scale."""
    low, high = 1e-3, LARGEST
    if value(high) < target:
        return high
    for _ in range(200):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if value(middle) <= target else (low, middle)
    return low
