"""Pictures of a join's state and history. They need the extra `plots`, and nothing else imports this module."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure

from watersmeet.pipeline.history import BatchRecord
from watersmeet.pipeline.report import state_rows
from watersmeet.state.directory import StateDir


def plot_metrics(records: list[BatchRecord], title: str) -> Figure:
    """Rows in and results over the batches, and below them what is held."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    batches = [record.batch for record in records]
    for name in sorted({name for record in records for name in record.rows_in}):
        above.plot(batches, _running([record.rows_in.get(name, 0) for record in records]), label=f"{name} rows")
    above.plot(batches, _running([record.rows_out for record in records]), label="results", linewidth=2.5)
    above.set_ylabel("so far")
    above.legend()
    above.set_title(title)
    below.stackplot(
        batches,
        [record.resident_bytes / 1e6 for record in records],
        [record.spilled_bytes / 1e6 for record in records],
        labels=["resident", "spilled"],
    )
    below.set_ylabel("state, MB")
    below.set_xlabel("micro-batch")
    below.legend()
    return figure


def plot_state(directory: StateDir) -> Figure:
    """Bytes held per partition, by input and tier."""
    rows = [row for row in state_rows(directory) if row["rows"]]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    partitions = sorted({row["partition"] for row in rows})
    bottom = dict.fromkeys(partitions, 0.0)
    for label in sorted({(row["input"], row["tier"]) for row in rows}):
        heights = dict.fromkeys(partitions, 0.0)
        for row in rows:
            if (row["input"], row["tier"]) == label:
                heights[row["partition"]] = row["bytes"] / 1e6
        names = [str(partition) for partition in partitions]
        axes.bar(names, list(heights.values()), bottom=list(bottom.values()), label=" ".join(label))
        bottom = {partition: bottom[partition] + heights[partition] for partition in partitions}
    if rows:
        axes.legend()
    axes.set_xlabel("partition")
    axes.set_ylabel("MB")
    axes.set_title(f"State in {directory.uri}")
    return figure


def save(figure: Figure, file: str | os.PathLike[str]) -> Path:
    """Write a picture; its kind follows from the file's name (.png, .svg, .pdf)."""
    path = Path(file)
    figure.savefig(path)
    return path


def _running(values: list[int]) -> list[int]:
    total, result = 0, []
    for value in values:
        total += value
        result.append(total)
    return result
