"""The HTML page at the end of the tour: one picture per operator, in a single file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Watersmeet: a tour</title>
<style>body {{ font-family: sans-serif; max-width: 60rem; margin: 2rem auto; }} svg {{ max-width: 100%; height: auto; }}
</style></head><body>
<h1>Watersmeet: a tour</h1>
<p>Rows and results so far, and the state held, by micro-batch.</p>
"""


def write(page: Path, pictures: Sequence[tuple[str, Path]]) -> Path:
    """Write the page with the pictures (SVG files) inside it."""
    parts = [HEAD.format()]
    for title, picture in pictures:
        drawing = picture.read_text(encoding="utf-8")
        parts.append(f"<h2>{escape(title)}</h2>\n{drawing[drawing.index('<svg') :]}\n")
    page.write_text("".join([*parts, "</body></html>\n"]), encoding="utf-8")
    return page
