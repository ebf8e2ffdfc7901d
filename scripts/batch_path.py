"""Which modules of Watersmeet a micro-batch passes through, from the DataFrames to the results.

    python scripts/batch_path.py [--memory 64KiB] [--source ../other/src]

A `progressive_join` runs three micro-batches on a local Spark. A module counts if one of its functions runs: on the
driver while the join is built, or in a task while it joins. What runs when modules are loaded does not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = "watersmeet/"
TRACE = "WATERSMEET_TRACE"  # where a process of the run notes its modules


def trace(role: str) -> None:
    """Note every module of the package, once, when the first of its functions runs."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file not in seen and PACKAGE in file and _is_used(frame):
            seen.add(file)
            with open(os.environ[TRACE], "a", encoding="utf-8") as notes:
                notes.write(f"{role} {file}\n")

    sys.setprofile(note)


def _is_used(frame: FrameType | None) -> bool:
    """Whether a function runs (bodies of modules and classes are not optimized), and not because a module is loaded."""
    while frame is not None and PACKAGE in frame.f_code.co_filename:
        if not frame.f_code.co_flags & CO_OPTIMIZED:
            return False
        frame = frame.f_back
    return True


def run(memory: str | None) -> None:
    """The driver's side."""
    sys.setprofile(None)  # so far as a task
    import pyarrow as pa
    import pyarrow.parquet as pq

    import watersmeet as wm

    with tempfile.TemporaryDirectory(prefix="watersmeet-path-") as folder:
        for side in ("left", "right"):
            Path(folder, side).mkdir()
            for number in range(3):
                rows = {"id": range(number * 2000, number * 2000 + 4000), side: [f"row {i}" for i in range(4000)]}
                pq.write_table(pa.table(rows), f"{folder}/{side}/{number}.parquet")
        session = wm.local_session(cores=1, partitions=1)
        session.sparkContext.setLogLevel("OFF")
        reader = session.readStream.option("maxFilesPerTrigger", 1)
        left, right = (
            reader.schema(f"id bigint, {side} string").parquet(f"{folder}/{side}") for side in ("left", "right")
        )
        budget = {"memory": memory, "page_rows": 256} if memory else {}
        trace("driver")
        joined = wm.progressive_join(left, right, on="id", state_dir=f"{folder}/state", **budget)
        sys.setprofile(None)
        writer = joined.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        session.stop()


def show(notes: Iterable[str], source: Path) -> None:
    """The modules in the order in which they were reached first."""
    roles: dict[str, set[str]] = {}
    for line in notes:
        role, _, file = line.strip().partition(" ")
        roles.setdefault(file, set()).add(role)
    lines = 0
    for file, where in roles.items():
        length = len(Path(file).read_text(encoding="utf-8").splitlines())
        lines += length
        print(f"{', '.join(sorted(where)):13} {length:5}  {Path(file).relative_to(source)}")
    print(f"{len(roles)} modules, {lines:,} lines")


def main() -> None:
    """Run the join in a process whose workers note what they call."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", help="a budget, small enough for rows to be flushed: 64KiB")
    parser.add_argument("--source", type=Path, default=HERE.parent / "src", help="the src folder of another tree")
    given = parser.parse_args()
    source = given.source.resolve()
    if TRACE in os.environ:
        run(given.memory)
        return
    with tempfile.TemporaryDirectory(prefix="watersmeet-path-") as folder:
        start = f"import sys\nsys.path.append({str(HERE)!r})\nfrom batch_path import trace\ntrace('task')\n"
        Path(folder, "sitecustomize.py").write_text(start, encoding="utf-8")
        notes = Path(folder, "notes")
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{source}", TRACE: str(notes)}
        subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
        show(notes.read_text(encoding="utf-8").splitlines(), source)


if __name__ == "__main__":
    main()
