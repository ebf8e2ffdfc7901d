"""The files of the page, and which of them may be asked for. uPlot is by Leon Sorokin (MIT, see its licence here)."""

from __future__ import annotations

from importlib.resources import files

# Those that import others come after them.
SCRIPTS = ("dom.js", "format.js", "charts.js", "overview.js", "flow.js", "decisions.js", "keys.js", "app.js")
ASSETS = {
    "uPlot.css": "text/css",
    "style.css": "text/css",
    "uPlot.js": "text/javascript",
    **dict.fromkeys(SCRIPTS, "text/javascript"),
}


def read_asset(name: str) -> str:
    """A file of the page."""
    return (files(__name__) / name).read_text(encoding="utf-8")
