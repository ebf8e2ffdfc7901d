"""The join queries of Nexmark: Watersmeet, Spark's own joins, Flink and Pathway on the same events and cores.

    make nexmark                                   # or, after `make rivals-setup`:
    python benchmarks/nexmark.py [--events 10000000] [--queries q3 q20] [--engines watersmeet flink_heap] [--resume]

`nexmark_events.py` says what the events are, `nexmark_queries.py` what is asked. All answers are checked against
DuckDB. Watersmeet, Flink and Pathway take turns, once to warm up and `--turns` times; the median counts. Spark's joins
are warmed up by a run that is cut off after 20 seconds, and measured for at most `--limit` seconds: the rate is that of
the micro-batches done by then. Pathway starts a process for each run, is timed inside, reads CSV (it has no reader for
parquet) and keeps no state on disk. Flink has checkpoints every 10 seconds, Spark and Watersmeet after every
micro-batch. The figure is input rows per second over the whole run. A query goes into the result file when it is done;
with `--resume` those that are there are left out, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import flink
import harness as h
import nexmark_events
import pathway_runs
from nexmark_queries import QUERIES, Answer, Query, answer_of
from pyspark.sql import functions as F

import watersmeet as wm

CORES, FULL = 2, 10_000_000
BATCH_ROWS = 400_000  # at least so many rows in a micro-batch: some queries read a small part of the events
RESULT = h.RESULTS / "nexmark.json"
SCHEMAS = {
    "person": "p_id long, name string, email string, credit_card string, city string, state string, p_time long, "
    "p_extra string",
    "auction": "a_id long, item_name string, description string, initial_bid long, reserve long, a_time long, "
    "expires long, seller long, category long, a_extra string",
    "bid": "auction long, bidder long, price long, channel string, url string, b_time long, b_extra string",
}
SPARK_ENGINES = ("spark_default", "spark_rocksdb_tuned")
ENGINES = ("watersmeet", *SPARK_ENGINES, *flink.BACKENDS, "pathway")


class Watersmeet:
    """Our joins, chosen by `wm.join`."""

    def __init__(self, state: Path) -> None:
        self.state = str(state)

    def equi(self, left: h.DataFrame, right: h.DataFrame, on: tuple[str, str]) -> h.DataFrame:
        return wm.join(left, right, on=[on], state_dir=self.state)

    def near(
        self,
        left: h.DataFrame,
        right: h.DataFrame,
        on: list[tuple[str, str]],
        time: tuple[str, str],
        between: tuple[int, int],
        where: str | None = None,
        how: str = "inner",
    ) -> h.DataFrame:
        within = wm.between(*(f"{bound} ms" for bound in between))
        more = {} if where is None else {"where": where}
        return wm.join(left, right, on=on, how=how, time=time, within=within, state_dir=self.state, **more)

    def table(self, stream: h.DataFrame, table: h.DataFrame, on: str) -> h.DataFrame:
        return wm.join(stream, table, on=on, state_dir=self.state)


class Spark:
    """Spark's own joins."""

    def equi(self, left: h.DataFrame, right: h.DataFrame, on: tuple[str, str]) -> h.DataFrame:
        return left.join(right, left[on[0]] == right[on[1]])

    def near(
        self,
        left: h.DataFrame,
        right: h.DataFrame,
        on: list[tuple[str, str]],
        time: tuple[str, str],
        between: tuple[int, int],
        where: str | None = None,
        how: str = "inner",
    ) -> h.DataFrame:
        bounds = [f"{time[0]} + INTERVAL '{bound / 1000}' SECOND" for bound in between]
        conditions = [f"{a} = {b}" for a, b in on] + [f"{time[1]} BETWEEN {bounds[0]} AND {bounds[1]}"]
        condition = F.expr(" AND ".join(conditions + ([where] if where else [])))
        delay = "10 seconds"  # what `lateness` of a window join is by default
        return left.withWatermark(time[0], delay).join(right.withWatermark(time[1], delay), condition, how)

    def table(self, stream: h.DataFrame, table: h.DataFrame, on: str) -> h.DataFrame:
        return stream.join(F.broadcast(table.cache()), on)


def streams(spark: h.SparkSession, folder: Path, files: int, *, to_the_end: bool = True) -> dict[str, h.DataFrame]:
    """The inputs as streams, so many files of each in a micro-batch, with timestamps; and the table. The last file ends
    event time with a row far ahead: where nothing waits for that it would be a micro-batch for nothing."""
    found = {"side": spark.read.parquet(str(folder / "side"))}
    for kind, schema in SCHEMAS.items():
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files)
        frame = reader.option("pathGlobFilter", "*.parquet" if to_the_end else "0*.parquet").parquet(str(folder / kind))
        times = [name for name in frame.columns if name.endswith("_time") or name == "expires"]
        found[kind] = frame.withColumns({name: F.timestamp_millis(name) for name in times})
    return found


def duckdb_answers(folder: Path, names: list[str]) -> tuple[str, dict[str, Answer]]:
    """DuckDB's version, and its answers."""
    job = {
        "tables": {kind: f"{folder}/{kind}/*.parquet" for kind in (*SCHEMAS, "side")},
        "queries": {name: QUERIES[name].checked(QUERIES[name].sql) for name in names},
    }
    command = [str(flink.ENVIRONMENT / "bin/python"), str(Path(__file__).with_name("duckdb_answers.py"))]
    done = json.loads(subprocess.run(command, input=json.dumps(job), text=True, capture_output=True, check=True).stdout)
    return done["version"], done["answers"]


def flink_tables(folder: Path) -> list[str]:
    """Tables of the inputs for Flink; times of persons and auctions are event times.

    Its readers take the files in any order, so that windows must not close before the end, and a row far ahead, which
    Spark needs there, would close them: that file is left out.
    """
    statements = []
    for kind, schema in SCHEMAS.items():
        columns = schema.replace(" long", " BIGINT").replace(" string", " STRING")
        if kind != "bid":
            at = f"{kind[0]}_at"
            columns += f", {at} AS TO_TIMESTAMP_LTZ({kind[0]}_time, 3), WATERMARK FOR {at} AS {at} - INTERVAL '1' DAY"
        source = f"'connector' = 'filesystem', 'path' = 'file://{folder}/{kind}', 'format' = 'parquet', "
        source += "'source.path.regex-pattern' = '.*/0[0-9]*[.]parquet'"
        statements.append(f"CREATE TABLE {kind} ({columns}) WITH ({source})")
    return statements


class Bench:
    """One data set, and what runs on it."""

    def __init__(self, spark: h.SparkSession, folder: Path, java: flink.Flink | None, limit: float) -> None:
        self.spark, self.folder, self.java, self.limit = spark, folder, java, limit
        self.runs = 0
        self.counts = {kind: spark.read.parquet(str(folder / kind)).count() for kind in SCHEMAS}

    def rows(self, query: Query) -> int:
        """The rows that a query reads."""
        return sum(self.counts[kind] for kind in query.inputs)

    def files_per_batch(self, query: Query) -> int:
        """So many that a micro-batch has `BATCH_ROWS` rows: smaller ones cost as much, in Spark's joins and in ours."""
        files = len(list((self.folder / query.inputs[0]).glob("0*.parquet")))
        return min(files, -(-BATCH_ROWS * files // self.rows(query)))

    def on_spark(self, query: Query, engine: str, answer: Answer, limit: float | None = None) -> h.Run:
        """A run of ours, or of Spark's own join."""
        self.runs += 1
        name = f"{engine}-{self.runs}"
        joins = Watersmeet(self.folder / f"state-{name}") if engine == "watersmeet" else Spark()
        inputs = streams(self.spark, self.folder, self.files_per_batch(query), to_the_end=query.has_windows)
        frame = query.frame(joins, inputs)
        run = h.run_to_end(name, frame, self.folder, query.observed, limit_seconds=limit)
        if run.seconds:  # the last groups of a window are emitted in a batch without rows, which counts as well
            run.seconds[-1] += run.extra.pop("seconds_without_rows", 0.0)
        if run.extra["finished"]:
            run.answer = answer_of(query, run.answer)
            h.check(run, answer)
        return run

    def spark_rival(self, query: Query, engine: str, answer: Answer) -> h.Run:
        """Spark's own join, warmed up, as far as it gets."""
        settings = h.use_store(self.spark, engine)
        self.on_spark(query, engine, answer, 20)
        run = self.on_spark(query, engine, answer, self.limit)
        h.use_store(self.spark, "spark_default")
        run.extra["settings"] = settings
        return run

    def on_flink(self, query: Query, engine: str, answer: Answer, rows: int, check: bool) -> h.Run:
        """A job of Flink's; the first time its answer is checked before."""
        assert self.java is not None
        assert query.flink is not None
        options = flink.settings(flink.BACKENDS[engine], CORES, self.folder)
        tables = self.java.tables(options, flink_tables(self.folder))
        if check:
            h.check(h.Run(engine, answer=self.java.last_row(tables, query.checked(query.flink))), answer)
        run = h.Run(engine, [self.java.seconds(tables, query.flink)], [rows], answer)
        run.extra["finished"] = True
        return run

    def on_pathway(self, name: str, answer: Answer, rows: int) -> h.Run:
        """A process of Pathway's."""
        done = pathway_runs.run(name, self.folder / "csv", CORES)
        run = h.Run("pathway", [done["seconds"]], [rows], {key: int(value) for key, value in done["answer"].items()})
        run.extra["finished"] = True
        h.check(run, answer)
        return run

    def query(self, name: str, engines: list[str], turns: int, answer: Answer) -> dict[str, h.Run]:
        """All engines on one query."""
        query = QUERIES[name]
        rows = self.rows(query)
        quick: dict[str, Callable[[int], h.Run]] = {}
        if "watersmeet" in engines:
            quick["watersmeet"] = lambda turn: self.on_spark(query, "watersmeet", answer)
        for engine in flink.BACKENDS:
            if engine in engines and query.flink is not None:
                quick[engine] = lambda turn, e=engine: self.on_flink(query, e, answer, rows, check=turn == 0)
        if "pathway" in engines:
            quick["pathway"] = lambda turn: self.on_pathway(name, answer, rows)
        h.console.print(f"{name}, {rows:,} rows", highlight=False)
        chosen = h.in_turns(quick, 1, turns, whole=True)
        for engine in SPARK_ENGINES:
            if engine in engines:
                chosen[engine] = self.spark_rival(query, engine, answer)
                h.console.print(f"{engine}: {chosen[engine].rows_per_second:,.0f} rows/s", highlight=False)
        return {engine: chosen[engine] for engine in ENGINES if engine in chosen}


def ratios(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """How many times as fast as each other engine ours is, by query."""
    speeds = {name: {engine: run["rows_per_second"] for engine, run in runs.items()} for name, runs in result.items()}
    return {
        name: {engine: round(some["watersmeet"] / speed, 2) for engine, speed in some.items() if speed}
        for name, some in speeds.items()
    }


def summary(result: dict[str, Any]) -> None:
    """One table of all queries."""
    engines = [engine for engine in ENGINES if any(engine in runs for runs in result.values())]
    rows = []
    for name, runs in result.items():
        speeds = {engine: runs[engine]["rows_per_second"] for engine in engines if engine in runs}
        ours = speeds.get("watersmeet")
        cells = [
            f"{s:,} ({ours / s:.1f}x)" if ours and e != "watersmeet" and s else f"{s:,}" for e, s in speeds.items()
        ]
        by_engine = dict(zip(speeds, cells, strict=True))
        rows.append((name, *(by_engine.get(engine, "-") for engine in engines)))
    h.table("Nexmark: input rows/s (Watersmeet over it)", ["query", *engines], rows)


def picture(result: dict[str, Any], path: Path) -> None:
    """Bars of all engines, for each query."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    engines = [engine for engine in ENGINES if any(engine in runs for runs in result.values())]
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    width = 0.8 / len(engines)
    for place, engine in enumerate(engines):
        here = [
            (number, runs[engine]["rows_per_second"]) for number, runs in enumerate(result.values()) if engine in runs
        ]
        axes.bar(
            [n + (place - len(engines) / 2 + 0.5) * width for n, _ in here], [s for _, s in here], width, label=engine
        )
    axes.set_yscale("log")
    axes.set_ylabel("input rows per second")
    axes.set_xticks(range(len(result)), list(result))
    axes.legend(ncols=3, fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Generate, answer, run, check, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", "--rows", type=int, default=FULL)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--queries", nargs="*", default=list(QUERIES), choices=QUERIES)
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120, help="seconds for each of Spark's own joins")
    parser.add_argument("--resume", action="store_true", help="leave out queries that the result file has")
    arguments = parser.parse_args()
    whole = arguments.events == FULL and list(arguments.engines) == list(ENGINES)
    kept = RESULT.exists() and (arguments.resume or list(arguments.queries) != list(QUERIES))
    result: dict[str, Any] = json.loads(RESULT.read_text())["queries"] if whole and kept else {}
    queries = [name for name in arguments.queries if not (arguments.resume and name in result)]
    spark = wm.local_session("nexmark", cores=CORES, partitions=CORES, config={"spark.driver.memory": "6g"})
    settings = {
        "events": arguments.events,
        "files": arguments.batches,
        "batch_rows": BATCH_ROWS,
        "cores": CORES,
        "flink": flink.version(),
    }
    with h.scratch() as folder, ExitStack() as stack:
        nexmark_events.write(folder, arguments.events, arguments.batches, csv="pathway" in arguments.engines)
        settings["duckdb"], answers = duckdb_answers(folder, queries)
        settings["pathway"] = pathway_runs.version()
        settings["spark"] = {name: h.SPARK_STORES[name] for name in SPARK_ENGINES}
        settings["flink_settings"] = flink.settings("rocksdb", CORES, Path("..."))
        h.announce(settings)
        java = None
        if set(arguments.engines) & flink.BACKENDS.keys():
            java = stack.enter_context(flink.started())
        bench = Bench(spark, folder, java, arguments.limit)
        for name in queries:
            runs = bench.query(name, arguments.engines, arguments.turns, answers[name])
            result[name] = {engine: run.as_dict() for engine, run in runs.items()}
            result = {known: result[known] for known in QUERIES if known in result}
            if whole:
                picture(result, RESULT.with_suffix(".png"))
                h.save("nexmark", {"settings": settings, "ratios": ratios(result), "queries": result})
            for state in [*folder.glob("state-*"), *folder.glob("checkpoint*")]:
                h.shutil.rmtree(state, ignore_errors=True)
    summary(result)


if __name__ == "__main__":
    main()
