"""Two stalling sources, joined while their rows are still coming: `make demo`.

A thread plays two slow sources: it drops parquet files into two folders and falls silent now and then. Meanwhile a Spark
streaming query joins them with `wm.progressive_join` and the terminal shows what it does. When both sources are complete
they are declared ended, the join finishes, and the answer is compared with Spark's own batch join.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import watersmeet as wm
from watersmeet.pipeline.display import make_display
from watersmeet.pipeline.progress import ProgressTracker

FILES, ROWS_PER_FILE, KEYS = 12, 20_000, 100_000
# Seconds before each file of either source: both stall, together in the middle.
PAUSES = {"orders": [0, 1, 1, 4, 1, 0, 3, 0, 1, 1, 0, 1], "payments": [1, 0, 0, 1, 1, 4, 3, 1, 0, 0, 1, 0]}


def write_slowly(folder: Path, column: str, pauses: list[int], seed: int) -> None:
    """Play a source: a file, a pause, a file, ..."""
    random = np.random.default_rng(seed)
    for number, pause in enumerate(pauses):
        time.sleep(pause)
        rows = pa.table({"order_id": random.integers(0, KEYS, ROWS_PER_FILE), column: random.random(ROWS_PER_FILE)})
        hidden = folder / f".part-{number:03d}.parquet"  # Spark reads no file whose name begins with a dot
        pq.write_table(rows, hidden)
        hidden.rename(folder / f"part-{number:03d}.parquet")


def main() -> int:
    """Run the demo; 0 if the answer was right."""
    home = Path(tempfile.mkdtemp(prefix="watersmeet-demo-"))
    for folder in ("orders", "payments"):
        (home / folder).mkdir()
    print("Starting Spark ...", flush=True)
    spark = wm.local_session("watersmeet-demo")
    orders = spark.readStream.schema("order_id long, amount double").parquet(str(home / "orders"))
    payments = spark.readStream.schema("order_id long, paid double").parquet(str(home / "payments"))
    state = str(home / "state")
    joined = wm.progressive_join(orders, payments, on="order_id", state_dir=state)

    sources = [
        threading.Thread(target=write_slowly, args=(home / name, column, PAUSES[name], seed), daemon=True)
        for seed, (name, column) in enumerate({"orders": "amount", "payments": "paid"}.items())
    ]
    tracker = ProgressTracker("orders with payments", state, {"left": "orders", "right": "payments"})
    query = (
        joined.writeStream.format("parquet")
        .option("path", str(home / "joined"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    first_result, written = None, False
    with make_display("auto", str) as display:
        for source in sources:
            source.start()
        tracker.phase = "reading"
        while query.isActive:
            progress = query.lastProgress
            snapshot = tracker.update([progress] if progress else [])
            display.show(snapshot)
            if snapshot.results and first_result is None:
                first_result = (snapshot.elapsed, sum(one.rows for one in snapshot.inputs))
            if not written and not any(source.is_alive() for source in sources):
                written = sum(one.rows for one in snapshot.inputs) == 2 * FILES * ROWS_PER_FILE
                if written:
                    display.say("Both sources are complete: declaring their end")
                    tracker.phase = "finishing"
                    for name in ("left", "right"):
                        wm.end_input(state, name)
            if tracker.history.finished:
                query.processAllAvailable()
                query.stop()
            time.sleep(0.25)
        if query.exception() is None:
            tracker.phase = "done"
            display.show(tracker.update())
    if (failure := query.exception()) is not None:
        print(failure)
        return 1

    print("Checking against Spark's batch join ...", flush=True)
    got = spark.read.parquet(str(home / "joined"))
    expected = spark.read.parquet(str(home / "orders")).join(spark.read.parquet(str(home / "payments")), "order_id")
    right = got.exceptAll(expected).isEmpty() and expected.exceptAll(got).isEmpty()
    count = got.count()
    total = 2 * FILES * ROWS_PER_FILE
    print(
        f"{count:,} results from {total:,} rows: {'the same rows as' if right else 'NOT the rows of'} the batch join."
    )
    if first_result:
        print(f"The first results were there after {first_result[1]:,} rows, {first_result[0]:.1f} s into the run.")
    print(f"Everything it wrote is in {home}")
    spark.stop()
    return 0 if right and count else 1


if __name__ == "__main__":
    raise SystemExit(main())
