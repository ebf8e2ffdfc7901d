"""Pipelines on Spark: every starter against its SQL, wrong columns with their line, secrets, stops and kills."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pyarrow.parquet as pq
import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

import watersmeet as wm
from watersmeet.errors import WatersmeetError
from watersmeet.pipeline.config import load
from watersmeet.pipeline.display import make_display
from watersmeet.pipeline.explain import check, explain
from watersmeet.pipeline.problems import PipelineError
from watersmeet.pipeline.run import PIPELINE, RunFailedError, run
from watersmeet.pipeline.session import start_session
from watersmeet.pipeline.starter import STARTERS, init, write_part
from watersmeet.spark.control import declare_end
from watersmeet.spark.plans import is_classic

CANARY = "canary-5d41402abc4b"


def assert_right(spark: SparkSession, operator: str, folder: Path, out: str = "") -> None:
    """The sink has the rows of the starter's SQL over its sample data, no more and no fewer."""
    for source in (folder / f"{operator}-data").iterdir():
        spark.read.parquet(str(source)).createOrReplaceTempView(source.name)
    got, expected = spark.read.parquet(str(folder / (out or f"{operator}-out"))), spark.sql(STARTERS[operator].answer)
    assert got.columns == expected.columns
    assert rows_of(got) == rows_of(expected)


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.every_session
@pytest.mark.parametrize("operator", STARTERS)
def test_every_starter_gives_the_answer_of_its_sql(spark: SparkSession, tmp_path: Path, operator: str) -> None:
    loaded = load(init(operator, tmp_path, parts=2, rows=400))
    outcome = run(loaded, spark)
    assert (outcome.status, outcome.finished) == ("done", True)
    assert outcome.snapshot.results > 0
    assert_right(spark, operator, tmp_path)


def test_a_running_trigger_notices_that_the_sources_are_read(spark: SparkSession, tmp_path: Path) -> None:
    file = init("progressive", tmp_path, parts=2, rows=400)
    text = file.read_text().replace("available_now: true", "processing_time: 200 ms").replace("64 MB", "2 MB")
    file.write_text(text + "drained_after: 1 s\n")
    outcome = run(load(file), spark)
    assert (outcome.status, outcome.finished) == ("done", True)
    assert_right(spark, "progressive", tmp_path)
    again = run(load(file), spark)  # nothing is left to do, and nothing is done twice
    assert again.finished
    assert_right(spark, "progressive", tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  on: order_id", "  on: order", "expected one column 'order'"),
        ('schema: "order_id long, paid double"', 'schema: "order_id lng"', "lng"),
        ("    # where: ", "    where: paid > zero #", "zero"),
        ("sink:", "result: {with_columns: {x: paid + nothing}}\nsink:", "nothing"),
        ("  format: parquet                      # any sink", "  partition_by: [day] #", "day"),
        ("    format: parquet                    # any source", "    format: parkey #", "parkey"),
        ("  format: parquet                      # any sink", "  format: parkay #", "parkay"),
    ],
)
def test_check_lets_spark_find_the_line(spark: SparkSession, tmp_path: Path, old: str, new: str, words: str) -> None:
    file = init("progressive", tmp_path, parts=1, rows=10)
    text = file.read_text()
    assert old in text
    changed = text.replace(old, new, 1)
    if "partition_by" in new:
        changed = changed.replace("sink:", "sink:\n  format: parquet", 1)
    file.write_text(changed)
    line = next(i for i, part in enumerate(changed.splitlines(), 1) if new.splitlines()[0] in part)
    with pytest.raises(PipelineError) as caught:
        check(load(file), spark)
    problems = caught.value.problems
    assert len(problems) == (2 if "  on:" in new else 1)  # a key is looked for in both inputs
    assert all(words in problem.message.lower() for problem in problems)
    # A source that cannot be read is blamed on the line of its name.
    assert all(line - 1 <= problem.line <= line for problem in problems)
    assert not (tmp_path / "watersmeet-work").exists()


def test_no_secret_is_ever_written(
    spark: SparkSession, where: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret.txt").write_text(f"{CANARY}\n")
    file = init("progressive", tmp_path, parts=1, rows=50)
    options = f"options: {{token: '${{file:secret.txt}}', url: 'http://me:{CANARY}-x@host', x.jaas.config: {CANARY}-y}}"
    text = file.read_text().replace("    options: {maxFilesPerTrigger: 1}", f"    {options}")
    file.write_text(text.replace("  path: progressive-out", f"  path: progressive-out\n  {options}"))
    loaded = load(file)
    # The session there is, with the settings of `watersmeet run`.
    start_session(loaded, **{where[0].strip("-"): where[1]})
    for style in ("plain", "json"):
        run(loaded, spark, display=make_display(style, loaded.secrets.redact))
    said = [explain(loaded, spark), repr(loaded.pipeline)]
    file.write_text(file.read_text().replace("name: progressive", "name: broken").replace("paid double", "paid string"))
    with pytest.raises(PipelineError, match="results of another query"):
        run(load(file), spark)
    file.write_text(file.read_text().replace("path: progressive-out", "path: broken-out"))
    broken = load(file)
    with pytest.raises(RunFailedError) as caught:
        run(broken, spark)
    said += [str(caught.value), caught.value.detail, repr(caught.value)]
    if is_classic(spark):
        spark.sparkContext.setLogLevel("ERROR")
    captured = capfd.readouterr()
    assert CANARY not in "".join([*said, captured.out, captured.err])
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path not in (file, tmp_path / "secret.txt")]
    assert len(written) > 10
    assert [path for path in written if CANARY.encode() in path.read_bytes()] == []


def test_a_wrong_expression_is_said_once(spark: SparkSession, where: list[str], tmp_path: Path) -> None:
    """PySpark would log it as well, with the whole trace of Java."""
    file = init("progressive", tmp_path, parts=1, rows=10)
    file.write_text(file.read_text().replace("  orders:\n", "  orders:\n    where: [nosuch > 1]\n"))
    loaded = load(file)
    start_session(loaded, **{where[0].strip("-"): where[1]})
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign]
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    logger.addHandler(handler)
    with pytest.raises(PipelineError, match="nosuch"):
        run(loaded, spark)
    logger.removeHandler(handler)
    if is_classic(spark):
        spark.sparkContext.setLogLevel("ERROR")
    assert logged == []


def test_a_second_run_at_the_same_time_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    from watersmeet.pipeline.lock import RunLock

    loaded = load(init("progressive", tmp_path, parts=1, rows=10))
    with RunLock(loaded.state_dir), pytest.raises(WatersmeetError, match="no other run"):
        run(loaded, spark)


@pytest.mark.long
def test_interrupted_and_killed_it_ends_with_the_same_output(
    spark: SparkSession, where: list[str], tmp_path: Path
) -> None:
    """Ctrl-C after the first batch, SIGKILL after some more, then to the end, each in a process of its own."""
    file = init("progressive", tmp_path, parts=8, rows=300)
    file.write_text(file.read_text().replace("64 MB", "2 MB"))

    first = start(file, where)
    wait_for_batch(first.stdout, 0)
    first.send_signal(signal.SIGINT)
    output, errors = first.communicate(timeout=240)
    assert first.returncode == 0, errors
    assert json.loads(output.splitlines()[-1])["status"] == "stopped"

    second = start(file, where)
    reached = wait_for_batch(second.stdout, 2)
    second.kill()
    second.communicate(timeout=240)
    assert reached < 7  # killed on the way, not at the end

    third = start(file, where)
    output, errors = third.communicate(timeout=480)
    assert (third.returncode, errors) == (0, "")  # none of Spark's own words at its start
    *events, end = map(json.loads, output.splitlines())
    assert (end["event"], end["status"]) == ("end", "done")
    shown = [event for event in events if event["event"] == "progress"]
    earlier = shown[0]["batch"]  # of the run before: its duration was known to that run alone
    assert shown[0]["batch_seconds"] is None
    assert {one["state"] for one in shown[0]["inputs"]} == {"waiting"}
    assert all(event["batch_seconds"] > 0 for event in shown if event["batch"] > earlier)
    assert_right(spark, "progressive", tmp_path)


def test_verbose_shows_what_spark_prints(tmp_path: Path) -> None:
    file = init("progressive", tmp_path, parts=1, rows=10)
    command = [sys.executable, "-m", "watersmeet", "explain", str(file), "--verbose"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "log level" in ended.stderr
    assert "inputs: orders (left), payments (right)" in ended.stdout


GROWS = "grows with the input: about 24 bytes a row, 2.1 GB a day at 1,000 rows/s"
WAIT = "say how long rows wait for each other (within), what"
KINDS = "promises (unique, clustered, ordered, ends)"
WARNINGS = [
    f"warning: nothing bounds the rows held of orders: {WAIT} payments {KINDS}, or end payments (end_input)",
    f"warning: nothing bounds the rows held of payments: {WAIT} orders {KINDS}, or end orders (end_input)",
    "cost",
    "of a micro-batch: grows with its rows and their results, not with the rows held",
]


def explained(spark: SparkSession, file: Path, operator: str) -> list[str]:
    """The lines about the join."""
    lines = explain(load(file), spark).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"join: {operator}"))
    return [line.strip() for line in lines[first + 1 : lines.index("result") - 1]]


def test_explain_says_what_applies_in_units_and_with_the_sources_names(spark: SparkSession, tmp_path: Path) -> None:
    file = init("progressive", tmp_path, parts=1, rows=10)
    assert explained(spark, file, "progressive") == [
        "inputs: orders (left), payments (right)",
        "partitions: 2, by the hash of the key order_id",
        "memory: 64.0 MB in all, 32.0 MB for each partition",
        "would hold about 2,666,666 rows of orders alone, at about 24 bytes each",
        "would hold about 2,666,666 rows of payments alone, at about 24 bytes each",
        "policy: rpj (given, fixed once it has run)",
        "flush: optimal (default)",
        "buckets: 20 (default, fixed once it has run)",
        "page_rows: 8192 (default)",
        "flush_share: 0.05 (default)",
        "decay: 0.5 (default)",
        "rate_unit: 1 s (default, fixed once it has run)",
        "idle_after: 1 s (default)",
        "idle_pages: 256 (default)",
        "fan_in: 8 (default)",
        "combine_runs: 8 (default)",
        "random_page_cost: 10.0 (default)",
        "sequential_page_cost: 1.0 (default)",
        "hot_keys: off (default, fixed once it has run)",
        "chosen",
        "join: progressive, because operator was given",
        "rows are held (at 1,000 rows/s, since no rates are known yet)",
        f"orders: {GROWS}; in memory no more than 64.0 MB for all inputs, the rest on disk",
        f"payments: {GROWS}; in memory no more than 64.0 MB for all inputs, the rest on disk",
        *WARNINGS,
    ]
    file.write_text(re.sub("  memory: .*\n", "", file.read_text()))
    assert explained(spark, file, "progressive") == [
        "inputs: orders (left), payments (right)",
        "partitions: 2, by the hash of the key order_id",
        "memory: unlimited (give memory to set a budget)",
        "policy: rpj (given, without effect here)",
        "hot_keys: off (default, fixed once it has run)",
        "chosen",
        "join: progressive, because operator was given",
        "rows are held (at 1,000 rows/s, since no rates are known yet)",
        f"orders: {GROWS}",
        f"payments: {GROWS}",
        *WARNINGS,
    ]


def test_explain_of_a_window_join_that_has_run(spark: SparkSession, tmp_path: Path) -> None:
    file = init("window", tmp_path, parts=1, rows=50)
    run(load(file), spark)
    lines = explained(spark, file, "window")
    assert lines[0] == "inputs: impressions (left), clicks (right)"
    assert "window: 10 min, 0 s (given, fixed once it has run)" in lines
    assert not [line for line in lines if line.startswith(("shedding", "memory_split", "service_rate"))]
    assert [line.partition(":")[0] for line in lines if " distinct keys" in line] == [
        "impressions window",
        "clicks window",
    ]


def test_a_pipeline_whose_join_is_chosen(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = init("auto", tmp_path, parts=2, rows=50)
    before = explained(spark, file, "window")
    assert "join: window, because within says how long the rows of each stream wait for each other" in before
    assert any(line.startswith("impressions: until the time of clicks is 10 min past theirs") for line in before)
    run(load(file), spark, display=make_display("plain", str))
    printed = capsys.readouterr().out
    assert "join: window, because within says how long" in printed
    assert "algorithm: auto, because" in printed
    after = explained(spark, file, "window")
    assert any(line.startswith("impressions: 100 rows came, 0 are held") for line in after)
    assert any(line.startswith("so far, ") and line.endswith("finished") for line in after)
    state = load(file).state_dir
    told = [line.strip() for line in str(wm.explain(state)).splitlines()]
    assert told[0] == "window join of impressions and clicks on ad = click_ad, how='inner', 2 partitions"
    assert after[after.index("chosen") :] == told[1:], "the same by the state directory"
    file.write_text(re.sub("  operator: auto .*\n", "  partitions: 3\n", file.read_text()))
    assert "partitions: 3, by the hash of the key ad = click_ad" in explained(spark, file, "window"), (
        "auto is the default"
    )


def add_files(folder: Path, source: str, *numbers: int) -> list[Path]:
    """More files like the first one of a source."""
    first = pq.read_table(folder / "progressive-data" / source / "part-000.parquet")
    return [write_part(first, folder / "progressive-data" / source, number) for number in numbers]


def test_a_pipeline_that_has_ended_its_join_says_so_and_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    file = init("progressive", tmp_path, parts=1, rows=50)
    assert run(load(file), spark).finished
    (new,) = add_files(tmp_path, "orders", 7)
    text = file.read_text()
    for finish in ("when_drained", "never"):
        file.write_text(text.replace("finish: when_drained", f"finish: {finish}"))
        with pytest.raises(PipelineError) as caught:
            run(load(file), spark)
        (problem,) = caught.value.problems
        assert file.read_text().splitlines()[problem.line - 1] == f"finish: {finish}"
        assert problem.message == (
            "`when_drained` has ended this join in batch 1 of an earlier run, and there are new files: 1 in 'orders'. "
            "That end is final: the join holds no rows any more with which new ones could be joined. Start over with a "
            "new state, checkpoint and sink: another `name` and sink path, or delete "
            f"{tmp_path}/watersmeet-work/progressive/state, {tmp_path}/watersmeet-work/progressive/checkpoint and the "
            "output. With `finish: never` every run then goes on with new data."
        )
    new.unlink()
    with pytest.raises(PipelineError, match=r"of an earlier run\. That end is final"):
        run(load(file), spark)  # `never`: whatever comes could not be joined
    file.write_text(text)
    assert run(load(file), spark).finished  # nothing was begun that would stand in the way
    assert_right(spark, "progressive", tmp_path)

    add_files(tmp_path, "orders", 7)  # and what the message says works
    renamed = text.replace("name: progressive", "name: again").replace("finish: when_drained", "finish: never")
    file.write_text(renamed.replace("path: progressive-out", "path: again-out"))
    run(load(file), spark)
    add_files(tmp_path, "payments", 8)
    run(load(file), spark)
    assert_right(spark, "progressive", tmp_path, "again-out")


@pytest.mark.parametrize("by_pipeline", [True, False])
def test_rows_after_an_end_are_blamed_on_who_declared_it(
    spark: SparkSession, tmp_path: Path, by_pipeline: bool
) -> None:
    """Two files come, one per batch: the end takes effect with the first of them."""
    file = init("progressive", tmp_path, parts=1, rows=50)
    finish = "when_drained" if by_pipeline else "never"
    file.write_text(file.read_text().replace("finish: when_drained", "finish: never"))
    run(load(file), spark)
    loaded = load(file)
    for name in ("left", "right"):
        declare_end(loaded.state_dir, name, **(PIPELINE if by_pipeline else {}))
    add_files(tmp_path, "orders", 7, 8)
    file.write_text(file.read_text().replace("finish: never", f"finish: {finish}"))
    with pytest.raises(RunFailedError) as caught:
        run(load(file), spark)
    message = str(caught.value)
    assert "input 'orders': expected no rows after its end in batch 1" in message
    assert ("Call end_input only when the source is complete" in message) is not by_pipeline
    assert ("That end is final" in message and "another `name`" in message) is by_pipeline
    assert ("this batch is not committed" in message) is not by_pipeline
    assert "Starting it again" not in message  # the same rows would fail again


def start(file: Path, where: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "watersmeet", "run", str(file), *where, "--json"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )


def wait_for_batch(stream: IO[str] | None, batch: int) -> int:
    """Read JSON lines until a batch of at least that number is reported."""
    assert stream is not None
    for line in stream:
        reached = json.loads(line).get("batch")
        if reached is not None and reached >= batch:
            return int(reached)
    raise AssertionError("the run ended before")
