"""docs/connectors.md: its commands and its code run in order, in an empty folder, and its table is that of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.connectors.broker import Broker
from watersmeet.pipeline.connectors import CONNECTORS, release
from watersmeet.pipeline.starter import STARTERS

PAGE = (Path(__file__).parents[2] / "docs" / "connectors.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_code() -> None:
    header, *lines = (
        [cell.strip() for cell in line.strip("| ").split("|")] for line in PAGE.splitlines() if line.startswith("|")
    )
    releases = [cell.removeprefix("Spark ") for cell in header if cell]
    table = {
        line[0].strip("`"): dict(zip(releases, line[1:], strict=True)) for line in lines if line[0].startswith("`")
    }
    assert table.keys() == CONNECTORS.keys()
    for name, known in CONNECTORS.items():
        for spark, cell in table[name].items():
            jar = known.get(spark)
            assert cell == (" ".join(jar[0].split(":")[1:]) if jar else "none"), (name, spark)
    assert release(pyspark.__version__) in releases


def test_the_page_runs(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA", broker.address)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    names: dict[str, object] = {}
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 8
    for language, text in blocks:
        if language == "sh":
            done = subprocess.run(["bash", "-euc", text], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        else:
            exec(compile(_local(text, tmp_path), "docs/connectors.md", "exec"), names)

    for source in ("impressions", "clicks"):
        spark.read.parquet(str(tmp_path / "window-data" / source)).createOrReplaceTempView(source)
    window, whole = spark.sql(STARTERS["window"].answer), spark.table("impressions").join(spark.table("clicks"), "ad")
    assert spark.read.parquet(str(tmp_path / "window-out")).count() == window.count() > 0
    pairs = whole.count()
    assert spark.read.format("delta").load(str(tmp_path / "tables" / "clicked")).count() == pairs > 0
    assert spark.table("clicked").count() == pairs
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": "results"}
    assert spark.read.format("kafka").options(**options).load().select("key").distinct().count() == pairs
    named = spark.read.format("delta").load(str(tmp_path / "tables" / "named"))
    assert named.filter("campaign = concat('campaign ', ad)").count() == spark.table("clicks").count() == named.count()
    spark.sql("DROP TABLE clicked")


def _local(text: str, folder: Path) -> str:
    """The page's relative paths in the folder: the JVM of the tests has a working directory of its own."""
    return re.sub(r'(?<=["`f])((?:tables|checkpoints|state|masters|window-data)/)', rf"{folder}/\1", text)
