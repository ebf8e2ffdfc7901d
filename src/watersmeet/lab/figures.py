"""Figures as PNG and SVG, the same bytes for the same findings."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from watersmeet.lab.experiment import Findings, Panel

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "watersmeet",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "path.simplify": True,
}
MARKERS = "osv^Dx+*<>"
COLUMNS = 3
DPI, COLOURS = 80, 48
WIDTH, HEIGHT, LEGEND = 3.9, 2.9, 0.5
HANDLE, LETTER = 0.6, 0.062  # inches of a legend's line with its margins, and of a letter


def draw(findings: Findings, title: str, path: Path) -> None:
    """Write `path`.png and `path`.svg."""
    with mpl.rc_context(STYLE):
        panels = findings.panels
        columns = min(len(panels), 2 if len(panels) == 4 else COLUMNS)
        rows = -(-len(panels) // columns)
        figure = Figure(figsize=(max(WIDTH * columns, 5.2), HEIGHT * rows + LEGEND + 0.3), layout="constrained")
        for place, panel in enumerate(panels, 1):
            axes = figure.add_subplot(rows, columns, place, projection="3d" if panel.surface else None)
            _draw_surface(axes, panel) if panel.surface else _draw_panel(axes, panel)
        _legend(figure)
        figure.suptitle(fill(title, 62 * max(1, columns)), fontsize=10)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")  # laid out once is enough; it takes most of the time of drawing
        figure.savefig(pixels := BytesIO(), format="png", dpi=DPI)
    # Lines and letters need few colours: a third of the bytes.
    Image.open(pixels).convert("RGB").quantize(COLOURS).save(path.with_suffix(".png"), optimize=True)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    if panel.bars:
        width = 0.8 / len(panel.series)
        for place, (name, series) in enumerate(panel.series.items()):
            shift = (place - (len(panel.series) - 1) / 2) * width
            axes.bar([x + shift for x in series.x], series.y, width=width, label=name)
    else:
        for place, (name, series) in enumerate(panel.series.items()):
            marker = MARKERS[place % len(MARKERS)]
            every = max(1, len(series.x) // 8)
            axes.plot(series.x, series.y, label=name, marker=marker, markevery=every, markersize=4, linewidth=1.3)
    if panel.ticks is not None:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks, fontsize=7.5)
    if panel.log_y:
        axes.set_yscale("log")
    elif panel.series and all(min(series.y, default=0) >= 0 for series in panel.series.values()):
        axes.set_ylim(bottom=0)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_title(panel.title, fontsize=9)


def _draw_surface(axes: Any, panel: Panel) -> None:
    """Height over two axes: x, and the places of the series."""
    heights = np.array([series.y for series in panel.series.values()])
    across, along = np.meshgrid(next(iter(panel.series.values())).x, [float(name) for name in panel.series])
    axes.plot_surface(across, along, heights, cmap="viridis", edgecolor="white", linewidth=0.2)
    axes.set(xlabel=panel.x, ylabel=panel.surface, zlabel=panel.y)
    axes.tick_params(labelsize=7)
    axes.set_box_aspect(None, zoom=0.85)  # room for the labels


def _legend(figure: Any) -> None:
    """One legend for all panels if they show the same series, else one for each."""
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    if all(labels == found[0][1] for _, labels in found):
        if len(found[0][1]) > 1:
            entry = HANDLE + LETTER * max(map(len, found[0][1]))
            columns = max(1, int(figure.get_figwidth() / entry))
            figure.legend(*found[0], loc="outside lower center", ncols=min(columns, len(found[0][1])), fontsize=8)
        return
    for axes in figure.axes:
        axes.legend(fontsize=7)
