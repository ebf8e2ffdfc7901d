"""Pipelines on Spark: every starter against its SQL, wrong columns with their line, secrets, stops and kills."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from pyspark.sql import DataFrame, SparkSession

from watersmeet.errors import WatersmeetError
from watersmeet.pipeline.config import load
from watersmeet.pipeline.display import make_display
from watersmeet.pipeline.explain import check, explain
from watersmeet.pipeline.problems import PipelineError
from watersmeet.pipeline.run import RunFailedError, run
from watersmeet.pipeline.session import start_session
from watersmeet.pipeline.starter import STARTERS, init

CANARY = "canary-5d41402abc4b"


def assert_right(spark: SparkSession, operator: str, folder: Path) -> None:
    """The sink has the rows of the starter's SQL over its sample data, no more and no fewer."""
    for source in (folder / f"{operator}-data").iterdir():
        spark.read.parquet(str(source)).createOrReplaceTempView(source.name)
    got, expected = spark.read.parquet(str(folder / f"{operator}-out")), spark.sql(STARTERS[operator].answer)
    assert got.columns == expected.columns
    assert rows_of(got) == rows_of(expected)


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


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
    (problem,) = caught.value.problems
    assert words in problem.message.lower()
    assert line - 1 <= problem.line <= line  # a source that cannot be read is blamed on the line of its name
    assert not (tmp_path / "watersmeet-work").exists()


def test_no_secret_is_ever_written(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secret.txt").write_text(f"{CANARY}\n")
    file = init("progressive", tmp_path, parts=1, rows=50)
    options = f"options: {{token: '${{file:secret.txt}}', url: 'http://me:{CANARY}-x@host', x.jaas.config: {CANARY}-y}}"
    text = file.read_text().replace("    options: {maxFilesPerTrigger: 1}", f"    {options}")
    file.write_text(text.replace("  path: progressive-out", f"  path: progressive-out\n  {options}"))
    loaded = load(file)
    start_session(loaded, master="local[2]")  # the session there is, with the settings of `watersmeet run`
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
    spark.sparkContext.setLogLevel("ERROR")
    captured = capfd.readouterr()
    assert CANARY not in "".join([*said, captured.out, captured.err])
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path not in (file, tmp_path / "secret.txt")]
    assert len(written) > 10
    assert [path for path in written if CANARY.encode() in path.read_bytes()] == []


def test_a_second_run_at_the_same_time_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    from watersmeet.pipeline.lock import RunLock

    loaded = load(init("progressive", tmp_path, parts=1, rows=10))
    with RunLock(loaded.state_dir), pytest.raises(WatersmeetError, match="no other run"):
        run(loaded, spark)


def test_interrupted_and_killed_it_ends_with_the_same_output(spark: SparkSession, tmp_path: Path) -> None:
    """Ctrl-C after the first batch, SIGKILL after some more, then to the end, each in a process of its own."""
    file = init("progressive", tmp_path, parts=8, rows=300)
    file.write_text(file.read_text().replace("64 MB", "2 MB"))

    first = start(file)
    wait_for_batch(first.stdout, 0)
    first.send_signal(signal.SIGINT)
    output, errors = first.communicate(timeout=240)
    assert first.returncode == 0, errors
    assert json.loads(output.splitlines()[-1])["status"] == "stopped"

    second = start(file)
    reached = wait_for_batch(second.stdout, 2)
    second.kill()
    second.communicate(timeout=240)
    assert reached < 7  # killed on the way, not at the end

    third = start(file)
    output, errors = third.communicate(timeout=480)
    assert third.returncode == 0, errors
    end = json.loads(output.splitlines()[-1])
    assert (end["event"], end["status"]) == ("end", "done")
    assert_right(spark, "progressive", tmp_path)


def start(file: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "watersmeet", "run", str(file), "--master", "local[2]", "--json"]
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
