"""Manifests: one JSON document per partition and batch that says which runs are alive and what was counted.

A version exists when its manifest does. The digest covers what is determined by the batch; file names and timings stand
beside it. Nothing in it grows with the number of batches: of the metrics it carries those of the last few (see
`segments`), of a spilled run how many pages and rows each bucket has.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import xxhash

from watersmeet.errors import CorruptStateError, StateFormatError
from watersmeet.state.directory import plain_json, seal, stretch, unseal
from watersmeet.state.operator_state import OperatorState
from watersmeet.state.run import Run, RunData, Share

FORMAT = 2
MOST_ROWS_PER_BYTE = 8 * 255  # one bit each, compressed as well as LZ4 can


@dataclass(frozen=True)
class RunEntry:
    """A run as a manifest lists it."""

    file: str
    length: int
    checksum: str
    label: str
    tier: str
    rows: int
    nbytes: int
    oldest: int
    newest: int
    hash_sum: int
    shares: list[list[int]]  # bucket, pages, rows
    live: list[list[int]] | None
    facts: dict[str, Any]  # those that are not what they are by default
    stored_rows: int
    verified: str  # the run of the query that wrote the file or has checked every byte of it

    @classmethod
    def of(cls, run: Run, file: str, length: int, checksum: str, verified: str) -> RunEntry:
        """The entry of a run stored in `file`."""
        return cls(
            file, length, checksum, run.label, run.tier, run.rows, run.nbytes, run.oldest, run.newest, run.hash_sum,
            [[share.bucket, share.pages, share.rows] for share in run.shares],
            None if run.live is None else [list(bounds) for bounds in run.live], run.facts(), run.stored_rows,
            verified,
        )  # fmt: skip

    def adds_up(self) -> bool:
        """Whether the numbers can be true of one file: a row takes some room, and pages and live ranges are rows."""
        live = [[0, self.stored_rows]] if self.live is None else self.live
        bounds = [0, *(at for pair in live for at in pair), self.stored_rows]
        return (
            0 <= self.stored_rows <= MOST_ROWS_PER_BYTE * self.length
            and bounds == sorted(bounds)
            and self.rows == sum(stop - start for start, stop in live)
            and (self.tier != "spilled" or self.stored_rows == sum(rows for _, _, rows in self.shares))
        )

    def run(self, data: RunData) -> Run:
        """The run, with its rows at `data`."""
        return Run(
            label=self.label,
            data=data,
            rows=self.rows,
            nbytes=self.nbytes,
            oldest=self.oldest,
            newest=self.newest,
            hash_sum=self.hash_sum,
            tier="spilled" if self.tier == "spilled" else "resident",
            shares=tuple(Share(*share) for share in self.shares),
            live=None if self.live is None else tuple((start, stop) for start, stop in self.live),
            **self.facts,
        )


@dataclass(frozen=True)
class TableEntry:
    """A side table as a manifest lists it; `store` is empty for one of the operator's own."""

    store: str
    name: str
    file: str
    length: int
    checksum: str
    rows: int
    nbytes: int
    content: int
    verified: str


@dataclass
class Manifest:
    """One version of one partition's state."""

    version: int
    partition: int
    query: str  # Spark's id of the query, the same over restarts
    run_id: str  # Spark's id of this run of the query, new at every restart
    join: str = ""  # id of the join, new each time it is built; empty in process
    attempt: str = ""  # the task attempt that wrote the version
    runs: list[RunEntry] = field(default_factory=list)
    tables: list[TableEntry] = field(default_factory=list)
    stores: list[dict[str, Any]] = field(default_factory=list)  # name, input, rows and values of each
    values: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    finished: bool = False
    accounts: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    repeats: int = 0  # batches whose second attempt differed from the first
    keys: dict[str, Any] = field(default_factory=dict)  # the most frequent ones, estimated: outside the digest
    digest: str = ""
    format: int = FORMAT
    division: int = 0  # how often the state had been divided anew
    partitions: int = 0  # into how many; 0 if that is not known
    hot: dict[str, Any] = field(default_factory=dict)  # which keys are hot, and whose rows are here as guests

    def files(self) -> list[str]:
        """The files that the version names; those of other folders with the folder."""
        named = [run.file for run in self.runs] + [table.file for table in self.tables]
        return [stretch(file)[0] for file in named]

    def to_bytes(self) -> bytes:
        """The sealed document."""
        listed = {name: [entry.__dict__ for entry in getattr(self, name)] for name in ("runs", "tables")}
        return seal({**self.__dict__, **listed})

    @classmethod
    def from_bytes(cls, content: bytes, name: str) -> Manifest:
        """The manifest in `content`; `name` is for the error message."""
        body = unseal(content, name)
        check_format(body, name)
        try:
            runs = [RunEntry(**entry) for entry in body.pop("runs")]
            tables = [TableEntry(**entry) for entry in body.pop("tables")]
            return cls(runs=runs, tables=tables, **body)
        except (TypeError, KeyError, AttributeError) as error:
            raise CorruptStateError(
                f"state file {name}", expected="a manifest", found=str(error), hint="Restore it from a copy."
            ) from error


def digest_of(state: OperatorState, metrics: dict[str, Any]) -> str:
    """A digest of everything that a repeated batch must reproduce."""
    content = {**state.digest(), "metrics": metrics}
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, default=plain_json).encode())


def check_format(body: dict[str, Any], name: str) -> None:
    """Refuse state of another format than this release's."""
    found = body.get("format")
    if found != FORMAT:
        older = isinstance(found, int) and found < FORMAT
        raise StateFormatError(
            f"state file {name}",
            expected=f"state format {FORMAT}",
            found=f"format {found}",
            hint="The state was written by an older release of Watersmeet, and this one does not convert it: let the "
            "query run to its end with that release, or start over with a new state directory and a new checkpoint."
            if older
            else "The state was written by another release of Watersmeet: use that one, or a newer one.",
        )
