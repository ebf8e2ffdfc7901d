"""The semi-stream join in process, one chunk of the master table per step: memory, cache share and service rate.

A run feeds a constant number of stream rows per step with room for all of them, and measures the memory it settles at:
waiting rows and cache, in the bytes they really take, and the disk buffer (Eq. 1). The service rate at a memory is read
off between two such runs, never beyond them. A step takes the time of a disk of the paper's day: a seek, and the chunk
at 100 MB/s; stream rows cost CPU time at fixed prices, or as measured.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.columns.arrow import hash_keys, sort_by_hash
from watersmeet.engine.registry import build
from watersmeet.join.operator import Batch, advance
from watersmeet.lab import parts
from watersmeet.lab.experiment import NotReproducibleError, Scale
from watersmeet.lab.workloads import Ints, master_keys, weather_keys, zipf_keys
from watersmeet.plan import InputSpec, JoinPlan, OutputColumn
from watersmeet.semistream.master_table import Description, Layout, encode_schema
from watersmeet.semistream.master_writer import write_version
from watersmeet.state.space import MemorySpace

# "weather apart": the stream's hot longitudes are not those of the master table.
Kind = Literal["synthetic", "tpch", "weather", "weather apart"]
POLICIES = {"SSBJ": "ssbj", "MESHJOIN": "mesh", "aligned chunks": "aligned"}
STREAM = InputSpec("stream", (pa.int64(),), (pa.binary(),))
MASTER = InputSpec("master", (pa.int64(),), (pa.int64(), pa.binary()))
# Bytes of a row of the master table and of the stream (Table 2; section 4.1).
WIDTHS: dict[Kind, tuple[int, int]] = {
    "synthetic": (120, 20), "tpch": (223, 138), "weather": (128, 128), "weather apart": (128, 128),
}  # fmt: skip
SEEK, READ_BYTE, HIT, WAIT = 5e-3, 1e-8, 3e-7, 6e-7  # seconds
SIZES: dict[Scale, tuple[int, int, int]] = {  # master rows, chunks, cycles
    "tiny": (2000, 20, 3),
    "small": (60_000, 150, 3),
    "paper": (20_000_000, 200, 3),
}
# Figures of many tables or settings take a tenth of the paper's rows: at full size a point takes minutes.
TENTH: dict[Scale, float] = {"tiny": 1.0, "small": 1.0, "paper": 0.1}
TPCH_SCALE: dict[Scale, str] = {"tiny": "0.01", "small": "0.2", "paper": "10"}  # 150,000 customers per unit
# Stream rows per cycle are the master rows over these, as far as the memory stays below `MOST` of |R|.
RATE_DIVISORS = (300, 100, 30, 10, 4, 1.5, 0.6, 0.25, 0.1, 0.04)
MOST = 0.105


@dataclass(frozen=True)
class Table:
    """A master table and the stream that goes with it."""

    kind: Kind
    rows: int
    chunks: int

    @property
    def nbytes(self) -> int:
        """|R| in bytes."""
        return self.rows * WIDTHS[self.kind][0]


@dataclass(frozen=True)
class Steady:
    """What a run settles at."""

    rate: int  # rows per step
    memory: float
    hit_share: float
    disk_seconds: float  # of a step, virtual
    row_seconds: float  # of a step's rows, at fixed prices
    cpu_seconds: float  # of a step, measured

    @property
    def service_rate(self) -> float:
        """Rows per second."""
        return self.rate / (self.disk_seconds + self.row_seconds)

    @property
    def measured_rate(self) -> float:
        """Rows per second, with the processor time that the steps really took."""
        return self.rate / (self.disk_seconds + self.cpu_seconds)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="watersmeet-lab-")


@cache
def tpch(scale_factor: str) -> tuple[Ints, Ints]:
    """The customer keys of the table `customer` and of the orders, from tpchgen-cli."""
    beside = Path(sys.executable).parent / "tpchgen-cli"
    command = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if command is None:
        raise NotReproducibleError(
            "TPC-H needs the program tpchgen-cli, which is not installed. `make setup` installs it in a checkout, "
            "pip install 'watersmeet[lab]' elsewhere; then run this again."
        )
    out = f"{_folder().name}/tpch-{scale_factor}"
    tables = "--tables=customer,orders"
    subprocess.run(
        [command, "parquet", "-s", scale_factor, tables, f"--output-dir={out}"], check=True, capture_output=True
    )
    customers = pq.read_table(f"{out}/customer.parquet", columns=["c_custkey"]).column(0).to_numpy()
    orders = pq.read_table(f"{out}/orders.parquet", columns=["o_custkey"]).column(0).to_numpy()
    return customers.astype(np.int64), orders.astype(np.int64)


def table_for(kind: Kind, scale: Scale, factor: float = 1.0, chunks: int | None = None) -> Table:
    """The master table of a scale, `factor` times as large."""
    rows, usual, _ = SIZES[scale]
    if kind == "tpch":
        rows = len(tpch(TPCH_SCALE[scale])[0])
    return Table(kind, round(rows * factor), chunks or usual)


@cache
def _master(table: Table, layout: Layout, scale: Scale) -> str:
    if table.kind == "synthetic":
        values = master_keys(table.rows)
    elif table.kind in ("weather", "weather apart"):
        values = weather_keys(table.rows, seed=1)
    else:
        values = tpch(TPCH_SCALE[scale])[0]
    keys = pa.array(values)
    columns = [pa.array(hash_keys([keys])), keys, pa.array(np.arange(len(values)))]
    filled = pa.Table.from_arrays([*columns, _filling(len(values), WIDTHS[table.kind][0] - 28)], schema=MASTER.schema)
    about = Description("in-process", ["k"], ["number", "filling"], encode_schema(MASTER.schema), 1, "in-process")
    path = f"{_folder().name}/{table.kind}-{table.rows}-{table.chunks}-{layout}"
    write_version(path, about, [filled], chunk_rows=-(-table.rows // table.chunks), layout=layout)
    return path


def _filling(rows: int, width: int) -> pa.Array:
    return pa.array([b"x" * max(width, 0)], pa.binary()).take(pa.array(np.zeros(rows, np.int64)))


def _stream(table: Table, skew: float, rate: int, number: int, scale: Scale) -> Ints:
    if table.kind == "synthetic":
        return zipf_keys(np.random.default_rng([5, number]), skew, table.rows, rate)
    if table.kind in ("weather", "weather apart"):
        return weather_keys(rate, seed=1000 + number, places=0 if table.kind == "weather" else 1)
    orders = tpch(TPCH_SCALE[scale])[1]
    return np.take(orders, np.arange(number * rate, (number + 1) * rate), mode="wrap")


@dataclass(frozen=True)
class Cycle:
    """One cycle over the master table, after some others: memory and share of the cache, and every step's CPU time."""

    memory: float
    hit_share: float
    reads: float
    cpu_seconds: list[float]


def last_cycle(
    table: Table,
    policy: str,
    rate: int,
    scale: Scale,
    *,
    skew: float = 1.0,
    switching_factor: float = 1.0,
    bare: bool = False,
    narrow: bool = False,
) -> Cycle:
    """Run some cycles; what counts is the last one. The output has whole master rows, unless it is `narrow`."""
    output: tuple[OutputColumn, ...] = (OutputColumn(pa.field("number", pa.int64()), "master", "_p0"),)
    if not narrow:
        output += (OutputColumn(pa.field("filling", pa.binary()), "master", "_p1"),)
    layout: Layout = "hash" if policy == "aligned" else "arrival"
    tuning = {
        "path": _master(table, layout, scale),
        "memory": 1 << 40,
        "max_delay": table.chunks,
        "idle_chunks": 0,
        "switching_factor": switching_factor,
        "bare_inequality": bare,
    }
    plan = JoinPlan("semi_stream", (STREAM,), output, {"master": "in-process", "policy": policy}, tuning)
    operator = build(plan, MemorySpace())
    steps = SIZES[scale][2] * table.chunks
    filling = _filling(rate, WIDTHS[table.kind][1] - 20)
    memory, hits, spent, reads = [], [], [], 0.0
    for number in range(steps):
        keys = pa.array(_stream(table, skew, rate, number, scale))
        rows = sort_by_hash(pa.Table.from_arrays([pa.array(hash_keys([keys])), keys, filling], schema=STREAM.schema))
        begun = process_time()
        for _ in advance(operator, Batch(number, rows={"stream": rows})):
            pass
        if number >= steps - table.chunks:
            spent.append(process_time() - begun)
            counters = operator.metrics.counters
            memory.append(counters["memory_bytes"] + table.nbytes / table.chunks)  # with the disk buffer
            hits.append(counters.get("hit_share", 0.0))
            reads += counters.get("chunks_read", 0.0)
    return Cycle(float(np.mean(memory)), float(np.mean(hits)), reads, spent)


@cache
def steady(
    table: Table,
    policy: str,
    rate: int,
    scale: Scale,
    *,
    skew: float = 1.0,
    switching_factor: float = 1.0,
    bare: bool = False,
    narrow: bool = False,
) -> Steady:
    """What a run settles at, on the virtual clock."""
    settings = {"skew": skew, "switching_factor": switching_factor, "bare": bare, "narrow": narrow}
    key = (table, policy, rate, scale, *settings.items())
    return Steady(**parts.part(lambda: asdict(_steady(table, policy, rate, scale, **settings)), __name__, *key))


def _steady(table: Table, policy: str, rate: int, scale: Scale, **settings: Any) -> Steady:
    cycle = last_cycle(table, policy, rate, scale, **settings)
    hit, per_step = cycle.hit_share, cycle.reads / table.chunks
    disk = per_step * (SEEK + table.nbytes / table.chunks * READ_BYTE)
    rows = rate * (hit * HIT + (1 - hit) * WAIT)
    return Steady(rate, cycle.memory, hit, disk, rows, float(np.mean(cycle.cpu_seconds)))


def points(table: Table, policy: str, scale: Scale, **settings: float) -> list[Steady]:
    """Runs at several rates, slowest first."""
    found: list[Steady] = []
    for divisor in RATE_DIVISORS if scale == "paper" else RATE_DIVISORS[::2]:
        if not found or found[-1].memory < MOST * table.nbytes:
            rate = max(1, round(table.rows / table.chunks / divisor))
            found.append(steady(table, policy, rate, scale, **settings))
    return found


def at_memory(found: list[Steady], memory: float, value: str = "service_rate") -> float | None:
    """The service rate (or another value) at a memory, between two runs, on logarithmic scales; none beyond them."""
    memories = np.log([point.memory for point in found])
    values = np.log([max(float(getattr(point, value)), 1e-9) for point in found])
    order = np.argsort(memories, kind="stable")
    if not memories[order[0]] <= np.log(memory) <= memories[order[-1]]:
        return None
    return float(np.exp(np.interp(np.log(memory), memories[order], values[order])))
