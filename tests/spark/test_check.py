"""`watersmeet check` says everything at once: of the file, and of what only Spark can know."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from watersmeet.pipeline.config import draft, load
from watersmeet.pipeline.connectors import advice
from watersmeet.pipeline.explain import check
from watersmeet.pipeline.problems import PipelineError, dotted
from watersmeet.pipeline.run import RunFailedError, run
from watersmeet.spark.plans import is_classic

WRONG = """\
name: many mistakes
sources:
  clicks:
    format: json
    path: clicks
    schema: "ad long, at timestamp"
    with_columns: {twice: "nothing * 2", more: "twice + 1"}
    where: "upper(ad) > noting"
  views:
    format: json
    path: views
    schema: "ad long, seen timestamp"
  gone:
    format: json
    path: not/there
    schema: "a long"
  broken:
    format: json
    path: views
    schema: "a lng"
  topic:
    format: kafka
    options: {subscribe: x}
join:
  operator: window
  left: views
  right: gone
  on: adv
  time: [sen, at]
  window: 1 parsec
sink: {format: kafak, path: file/out}
"""


def found(file: Path, spark: SparkSession) -> dict[tuple[int, str], str]:
    with pytest.raises(PipelineError) as caught:
        check(draft(file), spark)
    assert [problem.line for problem in caught.value.problems] == sorted(p.line for p in caught.value.problems)
    return {(problem.line, dotted(problem.path)): problem.message for problem in caught.value.problems}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("clicks", "views"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_everything_that_is_wrong_is_said_at_once(spark: SparkSession, folder: Path) -> None:
    file = folder / "pipeline.yaml"
    file.write_text(WRONG)
    problems = found(file, spark)
    assert list(problems) == [
        (1, "name"),
        (3, "sources.clicks"),  # is not used
        (7, "sources.clicks.with_columns.twice"),  # and nothing about `more`, which only follows from it
        (8, "sources.clicks.where[0]"),
        (13, "sources.gone"),
        (17, "sources.broken"),
        (20, "sources.broken.schema"),
        (21, "sources.topic"),
        (22, "sources.topic.format"),
        (28, "join.on"),
        (30, "join.window"),
        (31, "sink.format"),
    ]
    assert "not/there" in problems[13, "sources.gone"]
    assert problems[28, "join.on"] == (
        "window_join: expected one column 'adv' in input 'views', found the columns ad, seen. Did you mean 'ad'?"
    )
    what_to_do = advice("kafka", spark.version, remote=not is_classic(spark))
    assert problems[22, "sources.topic.format"].endswith(str(what_to_do))
    assert "kafak" in problems[31, "sink.format"]
    assert sorted(path.name for path in folder.iterdir()) == ["clicks", "pipeline.yaml", "views"]


def test_all_columns_are_looked_for(spark: SparkSession, folder: Path) -> None:
    file = folder / "pipeline.yaml"
    text = WRONG[: WRONG.index("  gone:")] + WRONG[WRONG.index("join:") :]
    text = text[: text.index("    with_columns")] + text[text.index("  views:") :]
    text = text.replace("many mistakes", "m").replace("right: gone", "right: clicks").replace("1 parsec", "1 s")
    file.write_text(text.replace("kafak, path: file/out", "noop"))
    problems = found(file, spark)
    assert list(problems) == [(15, "join.on"), (16, "join.time[0]")]
    # One line for each input that lacks the key.
    with pytest.raises(PipelineError) as caught:
        check(draft(file), spark)
    assert [problem.message.split(", found")[0] for problem in caught.value.problems] == [
        "window_join: expected one column 'adv' in input 'views'",
        "window_join: expected one column 'adv' in input 'clicks'",
        "window_join: expected one column 'sen' in input 'views'",
    ]


def test_too_little_memory_has_its_line(spark: SparkSession, folder: Path) -> None:
    file = folder / "pipeline.yaml"
    text = WRONG[: WRONG.index("    with_columns")] + WRONG[WRONG.index("  views:") : WRONG.index("  gone:")]
    join = "join: {operator: progressive, left: views, right: clicks,\n  on: ad,\n  memory: 100 KB, partitions: 2}\n"
    file.write_text(text.replace("many mistakes", "m") + join + "sink: {format: noop}\n")
    ((place, message),) = found(file, spark).items()
    assert place == (13, "join.memory")
    assert message == (
        "progressive_join: expected memory of at least 448 KiB: a page of 8192 rows of at least 28 bytes in each of 2 "
        "partitions, found 100000 bytes. Raise memory, lower page_rows or use fewer partitions."
    )


def test_a_join_without_one_right_source_is_not_built(spark: SparkSession, folder: Path) -> None:
    file = folder / "pipeline.yaml"
    text = WRONG[: WRONG.index("    with_columns")] + WRONG[WRONG.index("  views:") : WRONG.index("  gone:")]
    join = "join: {operator: progressive, left: views, right: clicks, on: ad}\nsink: {format: noop}\n"
    file.write_text(text.replace("many mistakes", "m").replace("path:", "pth:") + join)
    unknown = "unknown key; did you mean 'path'?"
    assert found(file, spark) == {(5, "sources.clicks.pth"): unknown, (9, "sources.views.pth"): unknown}


def test_a_run_says_the_sentence_of_the_join_alone(spark: SparkSession, folder: Path) -> None:
    for name, column in (("clicks", "at"), ("views", "seen")):
        rows = [f'{{"ad": 1, "{column}": "2026-01-01T00:00:00Z"}}'] * 20
        (folder / name / "rows.json").write_text("\n".join(rows))
    file = folder / "pipeline.yaml"
    text = WRONG[: WRONG.index("    with_columns")] + WRONG[WRONG.index("  views:") : WRONG.index("  gone:")]
    join = "join: {operator: multiway, inputs: [views, clicks], on: ad, max_results: 100}\n"
    file.write_text(text.replace("many mistakes", "m") + join + "sink: {format: noop}\ntrigger: {once: true}\n")
    with pytest.raises(RunFailedError) as caught:
        run(load(file), spark)
    assert str(caught.value).startswith("multiway_join: expected ")
    assert "\n" not in str(caught.value)
    assert type(caught.value.__cause__).__name__ == "FanOutError"
    assert "watersmeet-error" not in caught.value.detail
    assert str(caught.value) in caught.value.detail
