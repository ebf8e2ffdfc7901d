"""What a loop of the semi-stream join costs when it brings few rows: the join itself, timed on a small table."""

from __future__ import annotations

from statistics import median
from time import process_time

import numpy as np
import pyarrow as pa

from watersmeet.arrow import hash_keys, sort_by_hash
from watersmeet.operator import Batch, advance
from watersmeet.plan import InputSpec, JoinPlan, OutputColumn
from watersmeet.semistream.master_table import Description, encode_schema
from watersmeet.semistream.master_writer import write_version
from watersmeet.semistream.semi_stream_join import SemiStreamJoin
from watersmeet.state.space import MemorySpace

CHUNKS, CHUNK_ROWS, ROWS = 20, 50, 10
STREAM = InputSpec("stream", (pa.int64(),), ())
MASTER = InputSpec("master", (pa.int64(),), ())


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
