"""Tables of a join's state and history, from its state directory alone."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

from rich import filesize
from rich.table import Table

from watersmeet.engine.rescale import Rescaled
from watersmeet.engine.rescale import rescale as divide
from watersmeet.engine.why import Reason, as_null
from watersmeet.engine.why import why as reasons_of
from watersmeet.errors import StateDirError
from watersmeet.pipeline.history import BatchRecord, History
from watersmeet.pipeline.lock import RunLock
from watersmeet.pipeline.names import NAMES_FILE, recorded_names
from watersmeet.state.description import recorded_inputs
from watersmeet.state.directory import JOIN_FILE, StateDir
from watersmeet.state.history import held_runs, newest_manifests
from watersmeet.state.identity import read_join, require_join


def find_state(where: str | os.PathLike[str]) -> StateDir:
    """The state directory meant: the one given, or the one in a pipeline's work directory."""
    text = os.fspath(where)
    for candidate in (text, f"{text.rstrip('/')}/state"):
        # Asking for it would create nothing, but a missing folder must not look like an empty join.
        directory = StateDir(candidate)
        if directory.size(JOIN_FILE) is not None:
            require_join(directory)  # which refuses a join that keeps none
            return directory
    raise StateDirError(
        f"directory {text}",
        expected="a join's state directory, or a pipeline's directory under work_dir",
        found="no join.json",
        hint="Give the state_dir of the join, or watersmeet-work/<name of the pipeline>.",
    )


def state_rows(directory: StateDir) -> list[dict[str, Any]]:
    """What the join holds: one row per partition, input and tier."""
    rows = []
    names = recorded_names(directory)
    for manifest in newest_manifests(directory):
        held: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for name, run, alive in held_runs(manifest):
            for i, amount in enumerate((1, alive, run.nbytes)):
                held[names[name], run.tier][i] += amount
        status = (
            "finished" if manifest.finished else ", ".join(f"{names[name]} ended" for name in manifest.ended) or "open"
        )
        for (shown, tier), amounts in sorted(held.items()) or [(("-", "-"), [0, 0, 0])]:
            where = {"partition": manifest.partition, "version": manifest.version, "status": status}
            counted = dict(zip(("runs", "rows", "bytes"), amounts, strict=True))
            rows.append({**where, "input": shown, "tier": tier, **counted})
    return rows


def state_table(directory: StateDir) -> Table:
    """`state_rows` for people."""
    found = read_join(directory) or {}
    identity = found.get("identity", {})
    table = Table(
        title=f"{identity.get('operator', 'join')}, {found.get('partitions', '?')} partitions: {directory.uri}"
    )
    for name in ("partition", "version", "status", "input", "tier", "runs", "rows", "bytes"):
        table.add_column(name, justify="left" if name in ("status", "input", "tier") else "right")
    for row in state_rows(directory):
        shown = {**row, "rows": f"{row['rows']:,}", "bytes": filesize.decimal(row["bytes"])}
        table.add_row(*(str(value) for value in shown.values()))
    return table


def why(directory: StateDir, key: Sequence[object], shown: str | None, limit: int) -> list[Reason]:
    """Why the join holds the rows of a key; inputs have the names of the pipeline's sources, if it is one."""
    names = recorded_names(directory)
    description = recorded_inputs(directory)
    key = as_null(list(key)) if description.plan.null_flags else list(key)
    inputs = {names[name]: name for name in description.columns}
    input = None if shown is None else inputs.get(shown, shown)
    return reasons_of(directory, key, input=input, limit=limit, named=names.__getitem__)


def rescale(directory: StateDir, partitions: int) -> Rescaled:
    """Divide the state anew; a pipeline that runs now is refused."""
    lock = RunLock(directory.place) if directory.size(NAMES_FILE) is not None else nullcontext()
    with lock:
        return divide(directory, partitions)


def history_of(directory: StateDir) -> list[BatchRecord]:
    """All batches, oldest first, with the names of the pipeline's sources."""
    history = History(directory)
    history.refresh()
    names = recorded_names(directory)
    for record in history.batches.values():
        record.rows_in = Counter({names[name]: rows for name, rows in record.rows_in.items()})
        record.counters = {names[name]: value for name, value in record.counters.items()}
    return [history.batches[number] for number in sorted(history.batches)]


def metrics_rows(directory: StateDir) -> list[dict[str, Any]]:
    """What the join did: one row per batch."""
    return [
        {
            "batch": record.batch,
            "time": datetime.fromtimestamp(record.time / 1e6, UTC).isoformat() if record.time else None,
            "rows_in": dict(record.rows_in),
            "results": record.rows_out,
            "state_rows": record.state_rows,
            "resident_bytes": record.resident_bytes,
            "spilled_bytes": record.spilled_bytes,
            "seconds": round(record.seconds, 4),
            "counters": dict(record.counters),
            "events": dict(record.events),
        }
        for record in history_of(directory)
    ]


def metrics_table(directory: StateDir, last: int | None = None) -> Table:
    """`metrics_rows` for people, the newest `last` of them."""
    rows = metrics_rows(directory)
    inputs = sorted({name for row in rows for name in row["rows_in"]})
    table = Table(title=f"{len(rows)} batches: {directory.uri}")
    for name in ("batch", "time (UTC)", *inputs, "results", "state rows", "resident", "spilled", "join s"):
        table.add_column(name, justify="right")
    table.add_column("decisions")
    for row in rows[-last:] if last else rows:
        table.add_row(
            str(row["batch"]),
            (row["time"] or "-")[:19].replace("T", " "),
            *(f"{row['rows_in'].get(name, 0):,}" for name in inputs),
            f"{row['results']:,}",
            f"{row['state_rows']:,}",
            filesize.decimal(row["resident_bytes"]),
            filesize.decimal(row["spilled_bytes"]),
            f"{row['seconds']:.3f}",
            ", ".join(f"{kind} x{count}" for kind, count in row["events"].items()) or "-",
        )
    return table
