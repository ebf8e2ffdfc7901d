"""The edition of the code behind an experiment: what was made by other code is not taken up."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "watersmeet"


@cache
def edition(module: str) -> str:
    """A digest of a module and of all modules of the package that it imports, directly or not."""
    sources: dict[str, bytes] = {}
    ahead = [module]
    while ahead:
        name = ahead.pop()
        if name not in sources and (path := _source(name)) is not None:
            sources[name] = path.read_bytes()
            ahead += _imported(sources[name])
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(name.encode() + b"\0" + sources[name])
    return digest.hexdigest()[:16]


def _source(name: str) -> Path | None:
    """The file of a module; none for a name within one."""
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _imported(source: bytes) -> list[str]:
    """What a module imports from the package; a name that is imported from a module may be a module, too."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.split(".")[0] == PACKAGE]
