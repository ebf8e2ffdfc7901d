"""What the benchmarks share: seeded inputs, timed streaming runs with a checked answer, tables and result files.

Every benchmark runs its rivals in the same process on the same files and compares ratios, because absolute times differ
from machine to machine and from hour to hour.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.errors import IllegalArgumentException, StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
_STORES = "org.apache.spark.sql.execution.streaming.state"
DEFAULT_STORE = f"{_STORES}.HDFSBackedStateStoreProvider"
ROCKSDB_STORE = f"{_STORES}.RocksDBStateStoreProvider"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"
# Spark's own joins, with the state stores it has. RocksDB as it is when switched on, with the changelog; and as Spark's
# documentation tunes it: the newest format of a join's state, a larger block cache, rows not counted.
SPARK_STORES: dict[str, dict[str, str]] = {
    "spark_default": {_PROVIDER: DEFAULT_STORE},
    "spark_rocksdb": {_PROVIDER: ROCKSDB_STORE, f"{_ROCKSDB}.changelogCheckpointing.enabled": "true"},
    "spark_rocksdb_tuned": {
        _PROVIDER: ROCKSDB_STORE,
        f"{_ROCKSDB}.changelogCheckpointing.enabled": "true",
        _FORMAT: "4",  # or 3, with a release that has no 4
        f"{_ROCKSDB}.blockCacheSizeMB": "256",
        f"{_ROCKSDB}.trackTotalNumberOfRows": "false",
    },
}
console = Console(width=110)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that goes away afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="watersmeet-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_input(frame: DataFrame, folder: Path, files: int, span: int | None = None) -> None:
    """Write a DataFrame as numbered parquet files in the order of `seq`, in which a file source reads them.

    With `span` every file has an equal stretch of 0 <= seq < span, so the files of two inputs belong together; without
    it they are of about equal size.
    """
    folder.mkdir(parents=True)
    if span is None:
        parts = frame.repartitionByRange(files, "seq")
    else:
        number = F.least(F.floor(F.greatest(F.col("seq"), F.lit(0)) * files / span), F.lit(files - 1))
        parts = frame.repartitionById(files, number.cast("int"))
    parts.sortWithinPartitions("seq").drop("seq").write.parquet(f"{folder}/all")
    for number, part in enumerate(sorted(Path(folder, "all").glob("part-*.parquet"))):
        target = part.rename(folder / f"{number:05d}.parquet")
        os.utime(target, (1_700_000_000 + number,) * 2)  # a file source reads files in the order of their times
    shutil.rmtree(folder / "all")


def seeded(name: str, seed: int, domain: int) -> Column:
    """A column of pseudo-random integers below `domain`, a function of the row number `id`."""
    return F.pmod(F.xxhash64("id", F.lit(seed)), F.lit(domain)).alias(name)


def stream(session: SparkSession, folder: Path, schema: str, files_per_batch: int = 1) -> DataFrame:
    """The files of a folder as a stream, so many per micro-batch."""
    reader = session.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch)
    return reader.parquet(str(folder))


@dataclass
class Run:
    """A finished streaming run: seconds and input rows of every micro-batch, and the answer's checksum."""

    name: str
    seconds: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    answer: dict[str, int] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    results: list[int] = field(default_factory=list)  # of every micro-batch

    @property
    def rows_per_second(self) -> float:
        """Over all micro-batches; 0 if none was finished in time."""
        return sum(self.rows) / sum(self.seconds) if self.seconds else 0.0

    def steady(self, first: int = 3) -> float:
        """Rows per second from micro-batch `first` (counted from 0) on."""
        return sum(self.rows[first:]) / sum(self.seconds[first:])

    def as_dict(self) -> dict[str, Any]:
        """The form kept in the result file."""
        return {
            "rows_per_second": round(self.rows_per_second),
            "steady_rows_per_second": round(self.steady()) if len(self.seconds) > 3 else None,
            "batch_seconds": [round(s, 3) for s in self.seconds],
            "batch_rows": self.rows,
            "batch_results": self.results,
            "answer": self.answer,
            **self.extra,
        }


def checksum(columns: Iterable[str]) -> list[Column]:
    """The number of rows and the sum of each column: cheap enough not to disturb what is measured."""
    return [F.count(F.lit(1)).alias("count"), *(F.sum(c).cast("long").alias(f"sum_{c}") for c in columns)]


def batch_answer(frame: DataFrame, columns: Sequence[str]) -> dict[str, int]:
    """The checksum of a batch DataFrame."""
    return {k: int(v) for k, v in frame.agg(*checksum(columns)).first().asDict().items()}


def run_to_end(
    name: str, frame: DataFrame, folder: Path, columns: Sequence[str], *, limit_seconds: float | None = None
) -> Run:
    """Run a streaming DataFrame over all its files into the noop sink.

    The answer's checksum is observed on the way, at the same price for every engine. With `limit_seconds` the run is
    stopped after that time and has only the micro-batches finished by then; one that fails before, because its state
    does not fit into memory, has got as far.
    """
    observed = frame.observe("answer", *checksum(columns))
    query = (
        observed.writeStream.format("noop")
        .option("checkpointLocation", str(folder / f"checkpoint-{name}"))
        .trigger(availableNow=True)
        .start()
    )
    run = Run(name)
    try:
        done = query.awaitTermination(limit_seconds) if limit_seconds else (query.awaitTermination() or True)
    except StreamingQueryException as error:
        if not limit_seconds:
            raise
        done, run.extra["failed"] = False, str(error).splitlines()[0][:200]
    if not done:
        query.stop()
    phases = run.extra.setdefault("phases_ms", {})
    for progress in query.recentProgress:
        row = progress["observedMetrics"].get("answer")
        values = row.asDict() if row is not None and hasattr(row, "asDict") else dict(row or {})
        for key, value in values.items():  # also of a batch without rows, in which Spark evicts and emits what is left
            run.answer[key] = run.answer.get(key, 0) + int(value or 0)
        seconds = progress["durationMs"]["triggerExecution"] / 1000
        if not progress["numInputRows"]:
            run.extra["seconds_without_rows"] = round(run.extra.get("seconds_without_rows", 0) + seconds, 3)
            continue
        run.seconds.append(seconds)
        run.rows.append(int(progress["numInputRows"]))
        run.results.append(int(values.get("count") or 0))
        for phase, took in progress["durationMs"].items():  # in milliseconds, of all micro-batches: where the time went
            phases[phase] = phases.get(phase, 0) + int(took)
        if progress["stateOperators"]:  # Spark's own stateful operators, after the newest micro-batch
            run.extra["state"] = [json.loads(operator.json) for operator in progress["stateOperators"]]
            held = sum(int(operator["numRowsTotal"]) for operator in run.extra["state"])
            run.extra.setdefault("state_rows", []).append(held)
    run.extra["finished"] = bool(done)
    return run


def in_turns(
    engines: Mapping[str, Callable[[int], Run]], warm_ups: int, repeats: int, whole: bool = False
) -> dict[str, Run]:
    """Run every engine once per turn, in every second one the last first: a JVM that still compiles favours who comes
    later. The first turns are for that; of the others the run with the median of the steady speeds counts, or of the
    speeds over the whole run."""

    def speed(run: Run) -> float:
        return run.rows_per_second if whole else run.steady()

    turns: dict[str, list[Run]] = {name: [] for name in engines}
    for turn in range(warm_ups + repeats):
        for name in list(engines)[:: -1 if turn % 2 else 1]:
            turns[name].append(engines[name](turn))
            if whole:
                console.print(f"{name}: {speed(turns[name][-1]):,.0f} rows/s", highlight=False)
    chosen = {}
    for name, some in turns.items():
        chosen[name] = sorted(some[warm_ups:], key=speed)[repeats // 2]
        kept = "rows_per_second_of_all_turns" if whole else "steady_of_all_turns"
        chosen[name].extra[kept] = [round(speed(run)) for run in some]
        chosen[name].extra["counted_turns"] = repeats
    return chosen


def over_in_pairs(run: Run, other: Run) -> float:
    """How many times as fast one run is as another that took turns with it: the median over the pairs of the turns that
    count. What slows the machine down for a while slows both of a pair."""
    counted = run.extra["counted_turns"]
    turns = zip(*(one.extra["steady_of_all_turns"][-counted:] for one in (run, other)), strict=True)
    return statistics.median(ours / theirs for ours, theirs in turns)


def compare(title: str, runs: Mapping[str, Run]) -> dict[str, float]:
    """Print a table of runs; returns how many times as fast as each other run the first one is, when steady."""
    ours = next(iter(runs.values()))
    table(
        title,
        ["engine", "rows/s", "steady rows/s", "ours over it", "first batch s", "last batch s"],
        [
            (name, round(r.rows_per_second), round(r.steady()), ours.steady() / r.steady(), r.seconds[0], r.seconds[-1])
            for name, r in runs.items()
        ],
    )
    return {
        f"ratio_vs_{name.removeprefix('spark_')}": round(ours.steady() / run.steady(), 2)
        for name, run in runs.items()
        if run is not ours
    }


def use_store(session: SparkSession, name: str) -> dict[str, str]:
    """Which of `SPARK_STORES` Spark's own joins use from now on, with no setting left of another; returns them."""
    for settings in SPARK_STORES.values():
        for setting in settings:
            session.conf.unset(setting)
    for setting, value in SPARK_STORES[name].items():
        try:
            session.conf.set(setting, value)
        except IllegalArgumentException:
            if setting != _FORMAT:
                raise
            session.conf.set(setting, "3")
    return {setting: session.conf.get(setting) for setting in SPARK_STORES[name]}


def spark_rivals(
    session: SparkSession, names: Iterable[str], run: Callable[[str, float | None], Run], warm_up_seconds: float = 20
) -> dict[str, Run]:
    """Spark's own join with each of the stores: cut off after some seconds to warm up, then in full."""
    runs = {}
    for name in names:
        settings = use_store(session, name)
        run(f"{name}-warm-up", warm_up_seconds)
        runs[name] = run(name, None)
        runs[name].extra["settings"] = {key.removeprefix("spark.sql.streaming."): v for key, v in settings.items()}
    return runs


def check(run: Run, expected: dict[str, int]) -> None:
    """Stop the benchmark if an answer is wrong."""
    if run.answer != expected:
        console.print(f"[red]{run.name} gave a wrong answer[/red]: {run.answer}, expected {expected}")
        sys.exit(1)


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table."""
    shown = Table(title=title, title_justify="left")
    for name in header:
        shown.add_column(name, justify="left" if name == header[0] else "right")
    for row in rows:
        shown.add_row(
            *(
                f"{cell:,.2f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else str(cell)
                for cell in row
            )
        )
    console.print(shown)


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores, memory and versions."""
    processor, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.exists():
        named = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        processor = named.group(1) if named else processor
    versions = {name: version(name) for name in ("watersmeet", "pyspark", "pyarrow", "numpy")}
    java = subprocess.run([java_binary(), "-version"], capture_output=True, text=True).stderr
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        "java": found.group(1) if (found := re.search(r'version "([^"]+)"', java)) else None,
        **versions,
    }


def java_binary() -> str:
    """The Java that Spark uses."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def announce(settings: Mapping[str, Any] | None = None) -> None:
    """Print where this runs, and the settings that matter."""
    for title, facts in (("machine", machine()), ("settings", settings or {})):
        if facts:
            console.print(f"{title}: " + ", ".join(f"{key} {value}" for key, value in facts.items()), highlight=False)


def save(name: str, result: dict[str, Any]) -> None:
    """Write `results/<name>.json`, with the machine."""
    RESULTS.mkdir(exist_ok=True)
    result = {**result, "machine": machine()}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"written to {path.relative_to(RESULTS.parent.parent)}")


def flatness(seconds: Sequence[float]) -> float:
    """How much slower the last three micro-batches are than the 4th to 6th."""
    return statistics.mean(seconds[-3:]) / statistics.mean(seconds[3:6])
