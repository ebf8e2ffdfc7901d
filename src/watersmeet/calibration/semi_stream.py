"""The costs of the semi-stream joins on this machine: its operations, and a loop that brings few rows.

For the loop the join itself is timed, on a small table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from statistics import median
from time import process_time

import numpy as np
import pyarrow as pa

from watersmeet.calibration.kept_costs import nanoseconds
from watersmeet.columns.arrow import hash_keys, sort_by_hash, take
from watersmeet.columns.matching import matches
from watersmeet.join.operator import Batch, advance
from watersmeet.plan import InputSpec, JoinPlan, OutputColumn
from watersmeet.semistream.cost_model import Costs
from watersmeet.semistream.master_table import Description, encode_schema
from watersmeet.semistream.master_writer import write_version
from watersmeet.semistream.semi_stream_join import SemiStreamJoin
from watersmeet.state.directory import StateDir
from watersmeet.state.space import MemorySpace

CHUNKS, CHUNK_ROWS, ROWS = 20, 50, 10
STREAM = InputSpec("stream", (pa.int64(),), ())
MASTER = InputSpec("master", (pa.int64(),), ())


def semi_stream_costs(rows: int = 100_000) -> Costs:
    """Time the operations themselves: takes about a second."""
    keys = pa.array(np.arange(rows, dtype=np.int64))
    columns = [pa.array(hash_keys([keys])), keys, keys, keys]
    table = sort_by_hash(pa.Table.from_arrays(columns, names=["_hash", "_k0", "_p0", "_p1"]))
    order = np.random.default_rng(0).permutation(rows)
    few = take(table, np.sort(order[: rows // 10]))
    with tempfile.TemporaryDirectory() as folder:
        loop = measured_loop(folder)
        directory = StateDir(folder)

        def write() -> None:
            directory.write_arrow("run.arrow", table.schema, table.to_batches(), None)

        write()
        written = _seconds(write, rows)
        read = _seconds(lambda: _touch(directory), rows)
    return Costs(
        read=read,
        look_up=_seconds(lambda: list(matches(few, table)), few.num_rows),
        output=_seconds(lambda: take(table, order), rows),
        append=_seconds(lambda: sort_by_hash(take(table, order)), rows) + written,
        remove=_seconds(lambda: take(table, np.sort(order)), rows),
        receive=_seconds(lambda: table.slice(1).combine_chunks(), rows),
        loop=loop,
    )


def measured_loop(folder: str) -> float:
    """Seconds of processor time: the median loop of the third cycle, when as many rows have come as go."""
    about = Description("loop", ["k"], [], encode_schema(MASTER.schema), 1, "loop")
    keys = CHUNKS * CHUNK_ROWS
    write_version(f"{folder}/master", about, [_rows(np.arange(keys), MASTER)], chunk_rows=CHUNK_ROWS, layout="hash")
    output = (OutputColumn(pa.field("k", pa.int64()), "stream", "_k0"),)
    tuning = {"path": f"{folder}/master", "memory": 1 << 30, "max_delay": CHUNKS, "idle_chunks": 0}
    plan = JoinPlan("semi_stream", (STREAM,), output, {"master": "loop", "policy": "mesh"}, tuning)
    join = SemiStreamJoin(plan, MemorySpace())
    seconds = []
    for number in range(3 * CHUNKS):
        batch = Batch(number, rows={"stream": _rows((np.arange(ROWS) * 7 + number) % keys, STREAM)})
        started = process_time()
        for _ in advance(join, batch):
            pass
        seconds.append(process_time() - started)
    return median(seconds[-CHUNKS:])


def _rows(values: np.ndarray[tuple[int], np.dtype[np.int64]], spec: InputSpec) -> pa.Table:
    keys = pa.array(values)
    return sort_by_hash(pa.Table.from_arrays([pa.array(hash_keys([keys])), keys], schema=spec.schema))


def _seconds(action: Callable[[], object], rows: int) -> float:
    """Seconds of processor time per row, the best of three."""
    return nanoseconds(action, repeats=3) / 1e9 / rows


def _touch(directory: StateDir) -> int:
    table = pa.ipc.open_file(directory.open("run.arrow")).read_all()
    return sum(int(column.to_numpy()[::64].sum()) for column in table.columns)
