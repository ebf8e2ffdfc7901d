"""SSBJ's worked example (Fig. 3): which of two parts goes into the cache, decided by the operator."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import hash_keys
from watersmeet.engine.registry import build
from watersmeet.join.operator import Batch, advance
from watersmeet.lab.experiment import Check, Experiment, Findings, Numbers, Progress, Scale
from watersmeet.plan import InputSpec, JoinPlan, OutputColumn
from watersmeet.semistream.master_table import Description, encode_schema
from watersmeet.semistream.master_writer import write_version
from watersmeet.semistream.semi_stream_join import SemiStreamJoin
from watersmeet.state.space import MemorySpace

# Suppliers and waiting requests per part, as in the figure. The inequality is the printed one: the operator's own
# discounts what may be luck, and three requests may be.
SUPPLIERS, REQUESTS = {10: 4, 30: 2}, 3
CHUNKS, CYCLES = 4, 6
MASTER = InputSpec("master", (pa.int64(),), (pa.binary(),))
STREAM = InputSpec("stream", (pa.int64(),), (pa.binary(),))


# Rows of one size on both sides: a waiting row has a few bytes of its own, which a master row gets as filling.
FILLING = {"stream": 400, "master": 420}


def _rows(spec: InputSpec, keys: list[int]) -> pa.Table:
    column = pa.array(keys, pa.int64())
    filling = pa.array([b"x" * FILLING[spec.name]] * len(keys), pa.binary())
    return pa.Table.from_arrays([pa.array(hash_keys([column])), column, filling], schema=spec.schema)


def cached_rows(part: int, folder: str) -> float:
    """Master rows of a part in the cache after some cycles."""
    keys = [part] * SUPPLIERS[part] + list(range(1000, 1000 + 36))
    table = _rows(MASTER, [keys[i] for i in np.random.default_rng(0).permutation(len(keys))])
    about = Description("in-process", ["k"], ["filling"], encode_schema(MASTER.schema), 1, "in-process")
    write_version(folder, about, [table], chunk_rows=-(-len(keys) // CHUNKS), layout="arrival")
    output = (
        OutputColumn(pa.field("k", pa.int64()), "stream", "_k0"),
        OutputColumn(pa.field("filling", pa.binary()), "master", "_p0"),
    )
    tuning = {
        "path": folder, "memory": 1 << 40, "max_delay": CHUNKS, "idle_chunks": 0, "bare_inequality": True,
    }  # fmt: skip
    operator = build(
        JoinPlan("semi_stream", (STREAM,), output, {"master": "in-process", "policy": "ssbj"}, tuning), MemorySpace()
    )
    for number in range(CHUNKS * CYCLES):
        # Three requests in a cycle of four steps.
        rows = _rows(STREAM, [part] if number % CHUNKS < REQUESTS else [])
        for _ in advance(operator, Batch(number, rows={"stream": rows})):
            pass
    assert isinstance(operator, SemiStreamJoin)
    assert operator.current is not None
    return float(operator.current.cache.rows.held)


def fig3(scale: Scale, progress: Progress) -> Findings:
    """Both parts, each on its own."""
    values = {}
    for part in SUPPLIERS:
        with tempfile.TemporaryDirectory() as folder:
            values[f"partID {part}"] = cached_rows(part, f"{folder}/master")
    return Findings(
        [],
        {"master rows in the cache": values},
        [
            "the bare inequality of Theorem 2, without a price of an entry or a discount for chance (an option of the "
            "lab)"
        ],
    )


def judge(numbers: Numbers) -> list[Check]:
    """Part 10 is not cached, part 30 is with both its rows."""
    values = numbers["master rows in the cache"]
    return [
        Check(values["partID 10"] == 0, f"partID 10: {values['partID 10']:g} of 4 rows are cached for 3 requests"),
        Check(values["partID 30"] == 2, f"partID 30: {values['partID 30']:g} of 2 rows are cached for 3 requests"),
    ]


EXPERIMENTS = [
    Experiment(
        id="ssbj/fig3",
        title="Fig. 3: which part goes into the cache",
        claim="With three requests each, the part with four suppliers stays on disk, the one with two goes into "
        "the cache.",
        rule="No row of partID 10 is cached, both rows of partID 30 are.",
        takeaway="A key is cached if its master rows take less room than its waiting rows would.",
        clock="exact",
        run=fig3,
        judge=judge,
        figure=lambda numbers: (
            "rows in the cache: "
            + ", ".join(f"{rows:g} of {part}" for part, rows in numbers["master rows in the cache"].items())
        ),
        printed="0 of partID 10, 2 of partID 30",
        paper={"master rows in the cache": {"partID 10": 0.0, "partID 30": 2.0}},
    ),
]
