"""Two inputs of 20,000,000 rows, 20,000,000 different keys, 300 MB of memory, on two cores.

    python benchmarks/bounded_memory.py [--rows 20000000] [--memory "300 MB"] [--batches 50]

The question is not how fast but whether: the join must finish with the right count and checksum, and the Python
workers' memory (proportional set size, sampled every half second) must stay below a gigabyte in total.
"""

from __future__ import annotations

import argparse
import threading
import time

import harness as h
import psutil
from progressive import COLUMNS, measure
from pyspark.sql import functions as F

import watersmeet as wm

LIMIT = 1_000_000_000


class WorkerMemory(threading.Thread):
    """Samples the proportional set size of all Python workers below this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[int] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        """Until stopped."""
        while not self.stopped.wait(0.5):
            self.samples.append(sum(self._pss(process) for process in psutil.Process().children(recursive=True)))

    def _pss(self, process: psutil.Process) -> int:
        try:
            if "pyspark.daemon" not in process.cmdline():  # Spark's own process, or one that it is about to start
                return 0
            return int(process.memory_full_info().pss)
        except psutil.Error:  # it ended while we looked
            return 0


def main() -> None:
    """Run, check, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000_000, help="rows per input")
    parser.add_argument("--memory", default="300 MB")
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--policy", default="rpj")
    arguments = parser.parse_args()
    rows = arguments.rows
    spark = wm.local_session("bounded_memory", cores=2, partitions=2, config={"spark.driver.memory": "6g"})
    with h.scratch() as folder:
        for name, value, seed in (("left", "a", 1), ("right", "b", 2)):
            ids = F.col("id")
            frame = spark.range(rows).select(ids.alias("seq"), h.seeded("k", seed, rows), ids.alias(value))
            h.write_input(frame, folder / name, arguments.batches, span=rows)
        batch = [spark.read.parquet(str(folder / name)) for name in ("left", "right")]
        expected = h.batch_answer(batch[0].join(batch[1], "k"), COLUMNS)
        memory = WorkerMemory()
        memory.start()
        started = time.perf_counter()
        arrival, clean_up = measure(
            spark, folder, "bounded", memory=arguments.memory, policy=arguments.policy, idle_pages=0
        )
        seconds = time.perf_counter() - started
        memory.stopped.set()
        memory.join()
        history = wm.read_metrics(spark, folder / "state-bounded")
        peak = history.groupBy("batch").agg(F.sum("resident_bytes").alias("b")).agg(F.max("b")).first()[0]
        spilled = history.groupBy("batch").agg(F.sum("spilled_bytes").alias("b")).agg(F.max("b")).first()[0]
    h.check(h.Run("bounded", answer={k: arrival.answer[k] + clean_up.answer.get(k, 0) for k in expected}), expected)
    most = max(memory.samples)
    result = {
        "rows_per_input": rows,
        "memory": arguments.memory,
        "results": expected["count"],
        "seconds": round(seconds, 1),
        "arrival_rows_per_second": round(arrival.rows_per_second),
        "clean_up_seconds": round(sum(clean_up.seconds), 1),
        "share_of_results_before_clean_up": round(arrival.answer["count"] / expected["count"], 3),
        "peak_resident_bytes": int(peak),
        "peak_spilled_bytes": int(spilled),
        "peak_worker_pss_bytes": most,
        "policy": arguments.policy,
    }
    h.table("bounded memory", ["what", "value"], list(result.items()))
    if most > LIMIT:
        raise SystemExit(f"the workers took {most:,} bytes, more than {LIMIT:,}")
    if rows == 20_000_000:
        h.save("bounded_memory", result)


if __name__ == "__main__":
    main()
