"""Measured costs: how they are timed, and the file in which they are kept.

The only place of the library, besides the drivers, where a clock is read. Costs are measured once, kept in a file, and
enter a join as plain numbers in its plan, so that what an operator decides by them can be replayed.

    {"key": "x86_64 / CPython 3.11 / numpy 2.5", "costs": {"window": {"probe": 101.3, ...}}}
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np

FILE = "costs.json"

_ELSEWHERE = np.zeros(1 << 18)  # two megabytes

# A kernel, given a number of rows, prepares its data and returns the work to be timed.
Kernel = Callable[[int], Callable[[], object]]


def default_path() -> Path:
    """Where costs are kept: WATERSMEET_COSTS, or `watersmeet/costs.json` in the user's cache directory."""
    named = os.environ.get("WATERSMEET_COSTS")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "watersmeet" / FILE


def machine() -> str:
    """What costs are valid for."""
    return f"{platform.node()} / {platform.machine()} / {platform.python_version()} / numpy {np.__version__}"


def nanoseconds(work: Callable[[], object], *, repeats: int = 5) -> float:
    """The median of several times that `work` takes, in processor time, when other work has been done in between, as
    in a join: what it finds in the processor's caches is part of what it costs."""
    times = []
    for _ in range(repeats):
        _ELSEWHERE[:] += 1
        started = process_time()
        work()
        times.append(process_time() - started)
    return median(times) * 1e9


def per_row(kernel: Kernel, *, small: int = 10_000, large: int = 110_000, repeats: int = 7) -> float:
    """Nanoseconds per row: the slope between two sizes, so that what one call costs is not in it."""
    low = nanoseconds(kernel(small), repeats=repeats)
    high = nanoseconds(kernel(large), repeats=repeats)
    return max(high - low, 0.0) / (large - small)


def calibrate(
    measurements: Mapping[str, Callable[[], Mapping[str, float]]], path: str | os.PathLike[str] | None = None
) -> dict[str, dict[str, float]]:
    """Measure the costs of each family and keep them in a file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = calibrate({"family": lambda: {"probe": 100.0}}, f"{folder}/costs.json")
    ...     kept = load("family", f"{folder}/costs.json")
    >>> kept
    {'probe': 100.0}
    """
    costs = {
        family: {name: round(cost, 3) for name, cost in measure().items()} for family, measure in measurements.items()
    }
    target = Path(path) if path is not None else default_path()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"key": machine(), "costs": costs}, indent=2) + "\n")
    os.replace(temporary, target)
    return costs


def load(family: str, path: str | os.PathLike[str] | None = None) -> dict[str, float] | None:
    """A family's costs; None if they have not been measured on this machine, or the file cannot be read as such."""
    target = Path(path) if path is not None else default_path()
    try:
        kept = json.loads(target.read_text())
        if kept["key"] != machine():
            return None
        return {str(name): float(cost) for name, cost in kept["costs"][family].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
