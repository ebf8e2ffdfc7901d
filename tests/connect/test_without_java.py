"""A client that has neither Java nor py4j, as `pyspark-client` is, in a directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.feed import Feed, rows

from watersmeet.pipeline.starter import STARTERS, init

# What `pyspark-client` lacks of PySpark.
WITHOUT_JAVA = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("py4j", "pyspark.core"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
PROGRAM = """
import json
from pyspark.sql import SparkSession
import watersmeet as wm
server, folder = sys.argv[1:]
spark = SparkSession.builder.remote(server).getOrCreate()
left, right = (
    spark.readStream.schema(f"k long, {name} long").option("maxFilesPerTrigger", 1).json(f"{folder}/{name}")
    for name in ("a", "b")
)
table = spark.createDataFrame([(k, f"name of {k}") for k in range(3)], "k long, name string")
def run(joined, name):
    writer = joined.writeStream.format("parquet").option("path", f"{folder}/{name}")
    query = writer.option("checkpointLocation", f"{folder}/{name}-checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
state = f"{folder}/state"
for partitions in (2, 3):
    run(wm.join(left, right, "k", "left", state_dir=state, hot_keys="off", partitions=partitions), "out")
    if partitions == 2:
        held, sums = wm.read_rows(spark, state, key=1), wm.read_state(spark, state)
        found = [held.count(), sums.count(), wm.read_metrics(spark, state).count()]
        wm.end_input(state, "left")
        wm.end_input(state, "right")
wm.prepare_master(table, "k", f"{folder}/table")
run(wm.join(left, wm.master(f"{folder}/table"), "k", state_dir=f"{folder}/named-state", max_delay=1), "named")
print(json.dumps([*found, "py4j" in sys.modules]))
"""


def client(script: str, folder: Path, *arguments: str) -> str:
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    command = [sys.executable, "-c", WITHOUT_JAVA + script, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_joins_and_what_is_read_of_them(spark: SparkSession, server: str, tmp_path: Path) -> None:
    left, right = (Feed(spark, tmp_path / name, f"k long, {name} long") for name in ("a", "b"))
    left.send({"k": 1, "a": 1}, {"k": 2, "a": 2})
    right.send({"k": 1, "b": 3})
    left.send({"k": 1, "a": 4}, {"k": None, "a": 5})
    right.send({"k": 7, "b": 6})
    held, sums, metrics, has_java = json.loads(client(PROGRAM, tmp_path / "elsewhere", server, str(tmp_path)))
    assert (held, has_java) == (2, False)
    assert min(sums, metrics) > 0
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(left.batch.join(right.batch, "k", "left"))
    named = rows(spark.read.parquet(str(tmp_path / "named")))
    assert named == {(1, 1, "name of 1"): 1, (2, 2, "name of 2"): 1, (1, 4, "name of 1"): 1}


def test_the_command(spark: SparkSession, server: str, tmp_path: Path) -> None:
    file = init("progressive", tmp_path, parts=2, rows=50)
    command = ["run", str(file), "--remote", server, "--json"]
    said = client(f"from watersmeet.cli import app\napp({command!r})", tmp_path / "elsewhere")
    assert json.loads(said.splitlines()[-1])["status"] == "done"
    for source in (tmp_path / "progressive-data").iterdir():
        spark.read.parquet(str(source)).createOrReplaceTempView(source.name)
    found, expected = spark.read.parquet(str(tmp_path / "progressive-out")), spark.sql(STARTERS["progressive"].answer)
    assert rows(found) == rows(expected)
