"""The join of `stream_stream.py` in other systems: Flink and Pathway, on the same rows and cores, in turns with ours.

    make rivals                                    # or, after `make rivals-setup`:
    python benchmarks/rivals.py [--rows 2000000] [--turns 3] [--only watersmeet pathway]

Flink: SQL, parquet, mini-batches, its state on the heap and in RocksDB, a checkpoint every 10 seconds (`flink.py`).
Pathway: CSV, for it has no reader for parquet, without persistence and with its input kept. Watersmeet makes
every micro-batch durable. Each runs once to warm up, and then takes turns, of which the median counts. Answers are
checked against Spark's batch join. The figure is rows per second over the whole run, without the start of a process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import flink
import harness as h
import pathway_runs
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from stream_stream import BATCHES, COLUMNS, expected_answer, streams, write_inputs

import watersmeet as wm

CORES, FULL = 2, 2_000_000
QUERY = "SELECT L.k, L.a, R.b FROM `left` L JOIN `right` R ON L.k = R.k"
ENGINES = ("watersmeet", *flink.BACKENDS, "pathway", "pathway_persistent")


def main() -> None:
    """Run all engines, check, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=FULL, help="rows per input")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=ENGINES, default=list(ENGINES))
    arguments = parser.parse_args()
    rows, columns = arguments.rows, COLUMNS
    spark = wm.local_session("rivals", cores=CORES, partitions=CORES, config={"spark.driver.memory": "6g"})
    settings = {
        "rows per input": rows,
        "cores": CORES,
        "batches": BATCHES,
        "flink": flink.version(),
        "pathway": pathway_runs.version(),
        "flink_settings": flink.settings("rocksdb", CORES, Path("...")),
    }
    h.announce(settings)
    with h.scratch() as folder, ExitStack() as stack:
        write_inputs(spark, folder, rows)
        for file in folder.glob("*/*.parquet"):
            target = folder / "csv" / file.parent.name / f"{file.stem}.csv"
            target.parent.mkdir(parents=True, exist_ok=True)
            pa_csv.write_csv(pq.read_table(file), target)
        expected = expected_answer(spark, folder)
        as_sql = {"n" if name == "count" else name: value for name, value in expected.items()}
        java = stack.enter_context(flink.started()) if set(arguments.only) & flink.BACKENDS.keys() else None
        tables = [
            f"CREATE TABLE `{name}` (k BIGINT, {value} BIGINT) WITH ('connector' = 'filesystem', "
            f"'path' = 'file://{folder}/{name}', 'format' = 'parquet')"
            for name, value in (("left", "a"), ("right", "b"))
        ]

        def watersmeet(turn: int) -> h.Run:
            joined = wm.join(*streams(spark, folder), on="k", state_dir=str(folder / f"state-{turn}"))
            run = h.run_to_end(f"watersmeet-{turn}", joined, folder, columns)
            h.check(run, expected)
            return run

        def on_flink(engine: str) -> Callable[[int], h.Run]:
            def run(turn: int) -> h.Run:
                assert java is not None
                environment = java.tables(flink.settings(flink.BACKENDS[engine], CORES, folder), tables)
                if turn == 0:
                    sums = ", ".join(f"SUM({column}) AS sum_{column}" for column in columns)
                    answer = java.last_row(environment, f"SELECT COUNT(*) AS n, {sums} FROM ({QUERY}) T")
                    h.check(h.Run(engine, answer=answer), as_sql)
                return h.Run(engine, [java.seconds(environment, QUERY)], [2 * rows], as_sql)

            return run

        def on_pathway(turn: int, persistent: bool = False) -> h.Run:
            kept = folder / f"pathway-{turn}" if persistent else None
            done = pathway_runs.run("stream_stream", folder / "csv", CORES, kept)
            run = h.Run("pathway", [done["seconds"]], [2 * rows], {key: int(v) for key, v in done["answer"].items()})
            h.check(run, as_sql)
            return run

        engines: dict[str, Callable[[int], h.Run]] = {
            "watersmeet": watersmeet,
            **{engine: on_flink(engine) for engine in flink.BACKENDS},
            "pathway": on_pathway,
            "pathway_persistent": lambda turn: on_pathway(turn, persistent=True),
        }
        chosen = {name: engines[name] for name in ENGINES if name in arguments.only}
        runs = h.in_turns(chosen, 1, arguments.turns, whole=True)
    result: dict[str, Any] = {"settings": settings, "runs": {name: run.as_dict() for name, run in runs.items()}}
    speeds = {name: run["rows_per_second"] for name, run in result["runs"].items()}
    ours = speeds.get("watersmeet", 0)
    result |= {f"ratio_vs_{name}": round(ours / speed, 2) for name, speed in speeds.items() if name != "watersmeet"}
    h.table(
        f"stream-stream join, {2 * rows:,} rows, {expected['count']:,} results",
        ["system", "rows/s", "Watersmeet over it"],
        [(name, speed, ours / speed) for name, speed in speeds.items()],
    )
    if rows == FULL and list(arguments.only) == list(ENGINES):
        h.save("rivals", result)


if __name__ == "__main__":
    main()
