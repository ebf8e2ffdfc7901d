"""All ratios of the result files in one table, beside the floors of `floors.json`. Fails if one is below its floor.

    python benchmarks/ratios.py

A ratio says how many times as fast as its rival Watersmeet is. A floor is not a goal: it is a little below what was
measured, so that a change that costs speed is noticed. A benchmark that has no result file yet is shown as such; a file
that lacks a ratio of the list fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
FLOORS = Path(__file__).with_name("floors.json")


def rows(floors: Mapping[str, Any], results: Path) -> list[tuple[str, float | None, float, str]]:
    """What, the ratio, its floor, and what is to be said of it: "", "no result yet", "below its floor", "missing"."""
    found = []
    for name, entry in floors.items():
        path, ratio, said = results / f"{entry['file']}.json", None, "no result yet"
        if path.exists():
            value: Any = json.loads(path.read_text())
            for key in entry["at"]:
                value = value.get(key) if isinstance(value, Mapping) else None
            ratio = None if value is None else float(value)
            said = "missing" if ratio is None else "" if ratio >= entry["floor"] else "below its floor"
        found.append((name, ratio, float(entry["floor"]), said))
    return found


def main() -> None:
    """Print the table; exit with 1 if a ratio is too low."""
    found = rows(json.loads(FLOORS.read_text()), RESULTS)
    width = max(len(name) for name, *_ in found)
    for name, ratio, floor, said in found:
        print(f"{name:{width}}  {'-' if ratio is None else f'{ratio:.2f}':>7}  floor {floor:5.2f}  {said}".rstrip())
    wrong = [name for name, _, _, said in found if said in ("below its floor", "missing")]
    if wrong:
        sys.exit(f"{len(wrong)} of {len(found)} ratios are below their floors or missing: {', '.join(wrong)}.")


if __name__ == "__main__":
    main()
