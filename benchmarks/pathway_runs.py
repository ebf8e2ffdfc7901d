"""Runs of Pathway for the benchmarks: each in a process of its own, out of the environment of the rivals."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from flink import ENVIRONMENT

_WORKER = Path(__file__).with_name("pathway_worker.py")


def version() -> str | None:
    """The version of Pathway that is installed; None if there is none."""
    found = sorted(ENVIRONMENT.glob("lib/python*/site-packages/pathway-*.dist-info"))
    return found[0].name.split("-")[1].removesuffix(".dist") if found else None


def run(query: str, folder: Path, cores: int, persistence: Path | None = None) -> dict[str, Any]:
    """Run a query of `pathway_worker.py` on CSV files: its seconds, without the start of the process, and answer."""
    command = [str(ENVIRONMENT / "bin/python"), str(_WORKER), query, str(folder), str(persistence or "")]
    environment = {**os.environ, "PATHWAY_THREADS": str(cores), "PYTHONPATH": ""}
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"Pathway failed on {query}:\n{done.stderr[-4000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
