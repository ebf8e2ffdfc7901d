"""`explain_semi_stream_join`: memory and service rate of a semi-stream join before it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, Field, InstanceOf

from watersmeet.errors import OptionError
from watersmeet.plan.options import Options, Size, known_names
from watersmeet.semistream.cost_model import CostModel, Costs, Point, Workload

WHO = "explain_semi_stream_join"


@dataclass(frozen=True)
class Explanation:
    """What to expect of a semi-stream join; `str` gives it in words."""

    policy: str
    workload: Workload
    point: Point
    sustained: bool  # whether the asked rate is reached at all

    @property
    def memory(self) -> int:
        """Bytes for waiting rows and cache: what to give as `memory`."""
        return round(self.point.cache_bytes + self.point.waiting_bytes)

    @property
    def service_rate(self) -> float:
        """Rows per second."""
        return self.point.service_rate

    @property
    def hit_share(self) -> float:
        """The share of stream rows answered by the cache."""
        return self.point.hit_share

    def __str__(self) -> str:
        point = self.point
        lines = [
            f"policy {self.policy}: {self.workload.master_rows:,} master rows in {self.workload.chunks:,} chunks",
            f"  service rate    {point.service_rate:,.0f} rows/s"
            + ("" if self.sustained else " (the rate is too high)"),
            f"  memory          {self.memory:,} bytes: {point.waiting_bytes:,.0f} for waiting rows, "
            f"{point.cache_bytes:,.0f} for {point.cached_keys:,} cached keys",
            f"  from the cache  {100 * point.hit_share:.1f} % of the rows",
            f"  longest wait    {point.delay_seconds:,.2f} s",
        ]
        return "\n".join(lines)


class _Asked(Options):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    master_rows: int = Field(gt=0)
    master_row_bytes: float = Field(gt=0, allow_inf_nan=False)
    stream_row_bytes: float = Field(gt=0, allow_inf_nan=False)
    rate: float | None = Field(gt=0, allow_inf_nan=False)
    memory: Size | None = Field(gt=0)
    skew: float = Field(ge=0, allow_inf_nan=False)
    keys: int | None = Field(gt=0)
    policy: Literal["aligned", "ssbj", "mesh"]
    chunk_rows: int = Field(gt=0)
    unmatched: float = Field(ge=0, le=1)
    costs: InstanceOf[Costs] | None


@known_names
def explain_semi_stream_join(
    *,
    master_rows: int,
    master_row_bytes: float,
    stream_row_bytes: float,
    rate: float | None = None,
    memory: int | str | None = None,
    skew: float = 1.0,
    keys: int | None = None,
    policy: Literal["aligned", "ssbj", "mesh"] = "aligned",
    chunk_rows: int = 100_000,
    unmatched: float = 0.0,
    costs: Costs | None = None,
) -> Explanation:
    """What a semi-stream join needs and does, by the cost model, for a `rate` (rows per second) or a `memory`.

    With `rate` the answer is the memory that keeps up with it, with `memory` the rate that it serves. `skew` is the
    Zipf exponent of the stream's keys, `keys` the number of distinct keys (by default one per master row), `unmatched`
    the share of stream rows whose keys the table does not have. `costs` are seconds per row;
    `watersmeet.calibration.semi_stream.semi_stream_costs(policy)` times them on this machine.

    >>> found = explain_semi_stream_join(
    ...     master_rows=10_000_000, master_row_bytes=120, stream_row_bytes=20, rate=100_000
    ... )
    >>> found.sustained, found.hit_share > 0.2
    (True, True)
    """
    if (rate is None) == (memory is None):
        raise OptionError(
            WHO,
            expected="either rate or memory",
            found=f"rate={rate!r}, memory={memory!r}",
            hint="Give the one you know; the other is the answer.",
        )
    asked = _Asked.checked(
        WHO,
        master_rows=master_rows,
        master_row_bytes=master_row_bytes,
        stream_row_bytes=stream_row_bytes,
        rate=rate,
        memory=memory,
        skew=skew,
        keys=keys,
        policy=policy,
        chunk_rows=chunk_rows,
        unmatched=unmatched,
        costs=costs,
    )
    load = Workload(
        asked.master_rows,
        asked.master_row_bytes,
        asked.stream_row_bytes,
        asked.skew,
        asked.keys,
        min(asked.chunk_rows, asked.master_rows),
        unmatched=asked.unmatched,
    )
    model = CostModel(load, asked.policy, asked.costs)
    if asked.rate is not None:
        point = model.for_rate(asked.rate)
        return Explanation(asked.policy, load, point, point.service_rate >= 0.99 * asked.rate)
    assert asked.memory is not None
    # The chunk in memory is beside the budget: it is a memory map.
    point = model.for_memory(asked.memory + load.chunk_rows * asked.master_row_bytes)
    return Explanation(asked.policy, load, point, True)
