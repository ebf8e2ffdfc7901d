"""Small master tables for semi-stream joins that run in process."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from watersmeet.columns.arrow import hashes_of
from watersmeet.columns.partitions import Partition
from watersmeet.plan import InputSpec, JoinPlan, OutputColumn
from watersmeet.semistream.master_table import Description, Layout, encode_schema
from watersmeet.semistream.master_writer import write_version
from watersmeet.testing.arrivals import KEYS, PAYLOAD, Row, Script, table_of

STREAM, MASTER = "stream", "master"


def write_master(
    path: str,
    rows: Sequence[Row],
    *,
    chunk_rows: int = 2,
    layout: Layout = "hash",
    constant_hash: bool = False,
    keys: tuple[pa.DataType, ...] = KEYS,
    payload: tuple[pa.DataType, ...] = PAYLOAD,
    partitions: int = 1,
) -> int:
    """Write plain rows (key values first) as the next version of a master table."""
    spec = InputSpec(MASTER, keys, payload)
    description = Description(
        id="in-process",
        keys=[f"k{i}" for i in range(len(keys))],
        columns=[f"{MASTER}_{i}" for i in range(len(payload))],
        schema=encode_schema(spec.schema),
        partitions=partitions,
        hash="in-process",
    )
    table = table_of(spec, rows, constant_hash=constant_hash)
    shares = [Partition(number, partitions).owns(hashes_of(table)) for number in range(partitions)]
    tables = [table.filter(pa.array(share)) for share in shares]
    return write_version(path, description, tables, chunk_rows=chunk_rows, layout=layout)


def semi_stream_plan(
    path: str,
    options: Mapping[str, Any] | None = None,
    tuning: Mapping[str, Any] | None = None,
    *,
    keys: tuple[pa.DataType, ...] = KEYS,
    payload: tuple[pa.DataType, ...] = PAYLOAD,
    how: str = "inner",
) -> JoinPlan:
    """A join of the input "stream" with the table at `path`: key and payload of the stream, then that of the table; of
    a semi or anti join, those of the stream."""
    output = [OutputColumn(pa.field(f"k{i}", kind), STREAM, f"_k{i}") for i, kind in enumerate(keys)]
    output += [
        OutputColumn(pa.field(f"{name}_{i}", kind), name, f"_p{i}")
        for name in ((STREAM,) if how in ("left_semi", "left_anti") else (STREAM, MASTER))
        for i, kind in enumerate(payload)
    ]
    return JoinPlan(
        "semi_stream",
        (InputSpec(STREAM, keys, payload),),
        tuple(output),
        {"master": "in-process", **(options or {})},
        {"path": path, **(tuning or {})},
        how=how,
    )


def semi_stream_join(
    script: Script,
    master: Sequence[Row],
    how: str = "inner",
    where: Callable[[Row, Row], bool] = lambda stream, master: True,
) -> Counter[Row]:
    """The multiset of rows of a stream joined with a table, with dictionaries and loops."""
    partners = defaultdict(list)
    for one in master:
        partners[one[0]].append(one)
    answer: Counter[Row] = Counter()
    for arrival in script:
        for row in arrival.rows.get(STREAM, ()):
            found = [one[1:] for one in partners.get(row[0], ()) if row[0] is not None and where(row, one)]
            answer.update(_owed(row, found, how, width=len(master[0]) - 1))
    return answer


def _owed(row: Row, found: Sequence[Row], how: str, width: int) -> list[Row]:
    """The results of a stream row, given the payloads of the rows that match it."""
    if how in ("left_semi", "left_anti"):
        return [row] if bool(found) == (how == "left_semi") else []
    if how == "left" and not found:
        return [(*row, *(None,) * width)]
    return [(*row, *partner) for partner in found]
