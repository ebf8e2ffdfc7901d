"""Draws docs/join-types.svg: when an unmatched row is emitted, here and by Spark's own join.

    python scripts/timeline.py > docs/join-types.svg

A micro-batch every two minutes, with a row of each input that has one; a left row of 12:00 that matches nothing. When
it is emitted follows from the rules below; tests compare them with the operator and with Spark.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WINDOW, LATENESS = 10, 1  # minutes
BATCHES = range(0, 22, 2)  # minutes after 12:00


@dataclass(frozen=True)
class Scene:
    """What the inputs do: the last minute at which each has a row, and when the right one is declared ended."""

    title: str
    left_until: int = BATCHES[-1]
    right_until: int = BATCHES[-1]
    right_ends: int | None = None
    idle_timeout: int | None = None

    def rows(self, side: str) -> list[int]:
        """The minutes at which an input has a row."""
        until = self.left_until if side == "left" else self.right_until
        return [minute for minute in BATCHES if minute <= until]

    def newest(self, side: str, batch: int) -> int:
        """The newest time of an input after a batch."""
        return max(minute for minute in self.rows(side) if minute <= batch)

    def emitted_here(self) -> int | None:
        """The right input alone decides: its time, its end, or the left one's time once it has been silent."""
        for batch in BATCHES:
            right = self.newest("right", batch)
            if self.idle_timeout is not None and batch - right >= self.idle_timeout:
                right = max(right, self.newest("left", batch))
            if self.right_ends == batch or right - LATENESS - WINDOW > 0:
                return batch
        return None

    def emitted_by_spark(self) -> int | None:
        """The watermark of the batch before decides, which is that of the slower input."""
        for before, batch in pairwise(BATCHES):
            watermark = min(self.newest(side, before) for side in ("left", "right")) - LATENESS
            if watermark - WINDOW > 0:
                return batch
        return None


SCENES = (
    Scene("Both inputs go on"),
    Scene("The left input falls silent after 12:04", left_until=4),
    Scene('The right input falls silent after 12:04; idle_timeout="4 min"', right_until=4, idle_timeout=4),
    Scene('The right input is complete: end_input(state_dir, "right") at 12:06', right_until=4, right_ends=6),
)

LABELS, COLUMN, LANE, HEAD, GAP = 118, 68, 24, 30, 16
WIDTH = LABELS + COLUMN * len(BATCHES) + 22
SCENE = HEAD + 4 * LANE + GAP
TOP = 84
DASHED = ' stroke-dasharray="3 3"'
INK, PALE, HERE, SPARK, ROW = "#24292f", "#d0d7de", "#0969da", "#bc4c00", "#cf222e"


def at(minute: float) -> float:
    """Where a minute is."""
    return LABELS + COLUMN * (minute / 2 + 0.5)


def clock(minute: int) -> str:
    """A minute as a time of day."""
    return f"12:{minute:02d}"


def text(
    x: float, y: float, content: str, *, size: int = 12, fill: str = INK, anchor: str = "start", bold: bool = False
) -> str:
    """A line of text."""
    # Edged in white, so that it can be read where it lies on a line.
    weight = ' font-weight="600" paint-order="stroke" stroke="#ffffff" stroke-width="3"' if bold else ""
    style = f'font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, more: str = "") -> str:
    """A straight line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}"{more}/>'


def held(y: float, until: int | None, colour: str, label: str) -> list[str]:
    """How long the row is held, and where it is emitted."""
    end = at(until) if until is not None else WIDTH - 14
    drawn = [line(at(0), y, end, y, colour, ' stroke-width="3"')]
    if until is None:
        drawn.append(f'<path d="M{end:g} {y:g} l-9 -5 v10 z" fill="{colour}"/>')
        return [*drawn, text(at(BATCHES[-1]) - 8, y - 6, label, size=11, fill=colour, anchor="end")]
    drawn.append(f'<path d="M{end:g} {y - 7:g} l7 7 -7 7 -7 -7 z" fill="{colour}"/>')
    return [*drawn, text(end + 12, y + 4, label, size=11, fill=colour, bold=True)]


def drawn_scene(scene: Scene, top: float) -> list[str]:
    """The lanes of a scene."""
    drawn = [text(14, top + 16, scene.title, size=13, bold=True)]
    lanes = {name: top + HEAD + LANE * (i + 0.5) for i, name in enumerate(("left", "right", "Watersmeet", "Spark"))}
    certain = at(WINDOW + LATENESS)
    drawn.append(line(certain, top + HEAD - 2, certain, top + HEAD + 4 * LANE, INK, DASHED))
    for name, y in lanes.items():
        label = f"{name} input" if name in ("left", "right") else name
        colour = {"Watersmeet": HERE, "Spark": SPARK}.get(name, INK)
        drawn.append(text(14, y + 4, label, fill=colour))
        drawn.append(line(LABELS, y, WIDTH - 14, y, PALE))
    for side in ("left", "right"):
        for minute in scene.rows(side):
            colour = ROW if (side, minute) == ("left", 0) else "#57606a"
            drawn.append(
                f'<circle cx="{at(minute):g}" cy="{lanes[side]:g}" r="{5 if colour == ROW else 4}" fill="{colour}"/>'
            )
    if scene.right_ends is not None:
        x, y = at(scene.right_ends), lanes["right"]
        drawn.append(f'<path d="M{x:g} {y - 8:g} v16" stroke="{INK}" stroke-width="3"/>')
        drawn.append(text(x + 8, y + 4, "end", size=11))
    for name, until, colour in (("Watersmeet", scene.emitted_here(), HERE), ("Spark", scene.emitted_by_spark(), SPARK)):
        label = "still held" if until is None else f"emitted in the batch of {clock(until)}"
        drawn += held(lanes[name], until, colour, label)
    return drawn


def picture() -> str:
    """The whole picture."""
    height = TOP + SCENE * len(SCENES)
    intro = (
        f"A left row of 12:00 without a match; window {WINDOW} minutes, lateness {LATENESS} minute; "
        "a micro-batch every two minutes"
    )
    certain = f"12:00 + window + lateness: once the right input is beyond {clock(WINDOW + LATENESS)}, nothing can match"
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" role="img">',
        "<title>When an unmatched row is emitted, here and by Spark</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<circle cx="20" cy="18" r="5" fill="{ROW}"/>',
        text(32, 22, intro, size=13),
        line(20, 30, 20, 46, INK, DASHED),
        text(32, 42, certain, size=12),
    ]
    for minute in BATCHES:
        drawn.append(text(at(minute), TOP - 18, clock(minute), size=11, fill="#57606a", anchor="middle"))
        drawn.append(line(at(minute), TOP - 12, at(minute), height - 8, "#eaeef2"))
    for number, scene in enumerate(SCENES):
        drawn += drawn_scene(scene, TOP + SCENE * number)
    return "\n".join([*drawn, "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(picture())
