"""Two thousand small batches without a pause, in process over a local state directory: does a batch stay as cheap?

    python benchmarks/long_run.py                      all operators, 2,000 batches of 100 rows per input
    python benchmarks/long_run.py --batches 400 rpj

Prints the CPU time per batch for every hundred batches, and how many files and how large a manifest there are at most.
`growth` compares the mean of the last quarter with that of as many batches after the first hundred: merges are rare and
dear, so that a hundred batches are too few to compare.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from watersmeet.testing.long_run import LONG_RUNS, LongRun, long_run

RESULTS = Path(__file__).parent / "results"
HUNDRED = 100


def measure(case: LongRun, batches: int) -> dict[str, Any]:
    """CPU milliseconds per batch by hundred, and the most files, runs and manifest bytes."""
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as folder:
        extents = list(long_run(case, folder, batches))
    seconds = [extent.seconds for extent in extents]
    quarter = max(1, batches // 4)
    early, late = seconds[HUNDRED:][:quarter] or seconds, seconds[-quarter:]
    by_hundred = [1000 * statistics.fmean(seconds[at : at + HUNDRED]) for at in range(0, batches, HUNDRED)]
    return {
        "cpu_ms_per_batch": [round(value, 2) for value in by_hundred],
        "growth": round(statistics.fmean(late) / statistics.fmean(early), 2),
        "dearest_batch_ms": round(1000 * max(seconds), 1),
        "files": max(extent.files for extent in extents),
        "runs": max(extent.runs for extent in extents),
        "manifest_bytes": max(extent.manifest_bytes for extent in extents),
    }


def main() -> None:
    """Measure, print, and keep the figures of a full run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("operators", nargs="*", choices=[[], *LONG_RUNS], default=[])
    arguments = parser.parse_args()
    found = {}
    for name in arguments.operators or LONG_RUNS:
        found[name] = figures = measure(LONG_RUNS[name], arguments.batches)
        print(f"{name:12}", " ".join(f"{value:6.1f}" for value in figures["cpu_ms_per_batch"]), "ms")
        rest = {key: value for key, value in figures.items() if key != "cpu_ms_per_batch"}
        print(" " * 12, ", ".join(f"{key} {value}" for key, value in rest.items()), flush=True)
    if not arguments.operators and arguments.batches == 2000:
        (RESULTS / "long_run.json").write_text(json.dumps({"batches": 2000, "operators": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
