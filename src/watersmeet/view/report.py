"""The page as one file: the same assets and the documents inside it, for any browser, without a network.

The scripts are modules that import each other by name; in one file their imports are left out and they stand one after
the other. What may run is told to the browser by digests, so that nothing that the data says can.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from pathlib import Path

from watersmeet.view.assets import ASSETS, SCRIPTS, read_asset
from watersmeet.view.board import Board, as_json

_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export (?=(async )?(function|const|class) )", re.MULTILINE)


def write_report(board: Board, file: str | os.PathLike[str]) -> Path:
    """Write the page with all that is known of the joins now."""
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report(board), encoding="utf-8")
    return path


def report(board: Board) -> str:
    """The page as text."""
    style = "".join(read_asset(name) for name in ASSETS if name.endswith(".css"))
    library, program = read_asset("uPlot.js"), bundled()
    policy = (
        f"default-src 'none'; script-src {_digest(library)} {_digest(program)}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    # Inside a script element only "<" could end it.
    data = as_json(board.documents()).replace("<", "\\u003c")
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    scripts = (
        f'<script type="application/json" id="documents">{data}</script>\n'
        f'<script>{library}</script>\n<script type="module">{program}</script>'
    )
    page = re.sub(r"(?s)<!-- files -->.*?<!-- /files -->", lambda _: head, read_asset("index.html"))
    return re.sub(r"(?s)<!-- scripts -->.*?<!-- /scripts -->", lambda _: scripts, page)


def bundled() -> str:
    """The page's own scripts as one."""
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", read_asset(name))) for name in SCRIPTS)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
