"""Pictures of a join's state and history, in the style of the page (`watersmeet ui`): a lane for each curve, so that
none hides another. They need the extra `plots`, and nothing else imports this module."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from rich.filesize import decimal

from watersmeet.pipeline.history import BatchRecord
from watersmeet.pipeline.report import state_rows
from watersmeet.state.directory import StateDir

INPUTS = ("#1f6fb5", "#12907f", "#8156c4", "#b3446c", "#5d7a1f", "#55606b")
RESULTS, TIME, MEMORY, DISK = "#c9730a", "#6a5acd", "#2f7f9e", "#9bb9c9"
INK, QUIET, HAIR = "#14212b", "#5b6b78", "#e3e8ec"


def plot_metrics(records: list[BatchRecord], title: str) -> Figure:
    """A lane for the rows of each input, the results, the time of a batch and what is held, over the batches."""
    batches = [record.batch for record in records]
    names = sorted({name for record in records for name in record.rows_in})
    curves = [
        (name, [record.rows_in.get(name, 0) for record in records], INPUTS[at % len(INPUTS)])
        for at, name in enumerate(names)
    ]
    curves.append(("results", [record.rows_out for record in records], RESULTS))
    lanes = len(curves) + 2
    figure = Figure(figsize=(9, 1.35 * lanes + 0.8), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(lanes, 1, sharex=True, height_ratios=[*[1.0] * (lanes - 1), 1.5])
    for axis, (label, values, color) in zip(axes, curves, strict=False):
        _lane(axis, label, "rows per batch")
        axis.fill_between(batches, values, step="mid", color=color, alpha=0.17, linewidth=0)
        axis.step(batches, values, where="mid", color=color, linewidth=1.4)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _lane(axes[-2], "time in the join", "seconds per batch", whole=False)
    axes[-2].plot(batches, [record.seconds for record in records], color=TIME, linewidth=1.4)
    _lane(axes[-1], "state", "held after the batch")
    resident, spilled = ([getattr(record, name) for record in records] for name in ("resident_bytes", "spilled_bytes"))
    axes[-1].stackplot(batches, resident, spilled, labels=["in memory", "on disk"], colors=[MEMORY, DISK])
    axes[-1].yaxis.set_major_formatter(FuncFormatter(lambda value, _: decimal(int(value))))
    # Beside the title of the lane, where no curve is.
    axes[-1].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8, borderaxespad=0.1)
    axes[-1].set_xlabel("micro-batch", color=QUIET, fontsize=9)
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in axes:
        axis.set_ylim(bottom=0)
    figure.align_ylabels(axes)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    return figure


def plot_state(directory: StateDir) -> Figure:
    """Bytes held per partition, a bar for each input: solid in memory, hatched on disk."""
    rows = [row for row in state_rows(directory) if row["rows"]]
    partitions = sorted({row["partition"] for row in rows})
    names = sorted({row["input"] for row in rows})
    figure = Figure(figsize=(max(6.0, min(16.0, 1.5 + 0.8 * len(partitions))), 4), layout="constrained")
    axis = figure.subplots()
    _lane(axis, f"State in {directory.uri}", "bytes per partition")
    width = 0.8 / max(len(names), 1)
    for at, name in enumerate(names):
        bottom = dict.fromkeys(partitions, 0)
        for tier in ("resident", "spilled"):
            heights = dict.fromkeys(partitions, 0)
            for row in rows:
                if (row["input"], row["tier"]) == (name, tier):
                    heights[row["partition"]] = row["bytes"]
            if any(heights.values()):
                places = [number + (at - (len(names) - 1) / 2) * width for number in range(len(partitions))]
                axis.bar(
                    places, list(heights.values()), width * 0.92, bottom=list(bottom.values()),
                    label=f"{name} {'in memory' if tier == 'resident' else 'on disk'}",
                    color=INPUTS[at % len(INPUTS)], alpha=1 if tier == "resident" else 0.45,
                    hatch=None if tier == "resident" else "////", edgecolor="white", linewidth=0,
                )  # fmt: skip
            bottom = {number: bottom[number] + heights[number] for number in partitions}
    axis.set_xticks(range(len(partitions)), [str(number) for number in partitions])
    axis.set_xlabel("partition", color=QUIET, fontsize=9)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: decimal(int(value))))
    if rows:
        figure.legend(loc="outside lower center", ncols=min(4, 2 * len(names)), frameon=False, fontsize=9)
    return figure


def save(figure: Figure, file: str | os.PathLike[str]) -> Path:
    """Write a picture; its kind follows from the file's name (.png, .svg, .pdf)."""
    path = Path(file)
    figure.savefig(path, dpi=150)
    return path


def _lane(axis: Axes, title: str, unit: str, *, whole: bool = True) -> None:
    """The frame of a lane; amounts of something `whole` have no marks in between."""
    axis.set_title(title, loc="left", fontsize=9, fontweight="bold", color=INK, pad=3)
    axis.set_ylabel(unit, fontsize=7, color=QUIET)
    axis.tick_params(labelsize=8, colors=QUIET, length=0)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=whole, min_n_ticks=1))
    axis.grid(color=HAIR, linewidth=0.8)
    axis.set_axisbelow(True)
    for side in axis.spines.values():
        side.set_visible(False)
