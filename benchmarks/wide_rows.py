"""Wide rows, text keys and nested payload: Watersmeet beside Spark's own stream-stream join and the echo.

    python benchmarks/wide_rows.py [--rows 500000] [--only wide] [--turns 3]

Three pairs of streams, 10 micro-batches each, as many rows per key as in `stream_stream.py`:

- wide: 20 columns and about 500 bytes a row, whole numbers, doubles, timestamps and texts;
- text keys: keys of 36 characters (the form of a UUID) and one number;
- nested: a struct, an array of whole numbers and a map beside the key, about 200 bytes.

Answers are checked against Spark's batch join, by numbers and by the lengths of the texts. Watersmeet, two echoes (in
workers as Spark has them, and in workers that are spared what ours are) and the shuffle alone take turns; Spark's join
is warmed up by a run that is cut off after 20 seconds. The shuffle alone is what any join costs that is not done where
the rows are read, and an echo gives back half of what a join of rows with one match each gives.
"""

from __future__ import annotations

import argparse
from typing import Any

import harness as h
from pyspark.sql import Column
from pyspark.sql import functions as F
from stream_stream import echo

import watersmeet as wm

BATCHES, FULL = 10, 500_000


def text(name: str, seed: int, length: int) -> Column:
    """A column of pseudo-random text."""
    digests = [F.sha2(F.concat(F.col("id"), F.lit(f"/{seed}/{part}")), 256) for part in range(-(-length // 64))]
    return F.substring(F.concat(*digests), 1, length).alias(name)


def wide(side: str) -> list[Column]:
    """19 columns beside the key: 8 whole numbers, 3 doubles, 2 timestamps, 6 texts of 64 characters."""
    numbers = [h.seeded(f"{side}n{place}", 10 + place, 1 << 40) for place in range(8)]
    doubles = [(h.seeded("x", 20 + place, 1 << 40) / 7).alias(f"{side}d{place}") for place in range(3)]
    times = [F.timestamp_micros(h.seeded("x", 30 + place, 1 << 50)).alias(f"{side}t{place}") for place in range(2)]
    texts = [text(f"{side}s{place}", place, 64) for place in range(6)]
    return numbers + doubles + times + texts


def number(side: str) -> list[Column]:
    """One number beside the key."""
    return [F.col("id").alias(f"{side}n0")]


def nested(side: str) -> list[Column]:
    """A struct with a text, an array and a map."""
    pairs = F.struct(h.seeded("a", 40, 1 << 30), text("b", 41, 40), F.array(h.seeded("x", 42, 100)).alias("c"))
    items = F.transform(F.sequence(F.lit(1), F.lit(8)), lambda x: x + F.col("id")).alias(f"{side}list")
    return [
        F.col("id").alias(f"{side}n0"),
        pairs.alias(f"{side}struct"),
        items,
        F.create_map(F.lit("a"), text("x", 43, 20), F.lit("b"), text("x", 44, 20)).alias(f"{side}map"),
    ]


def text_key(seed: int, keys: int) -> Column:
    """A key in the form of a UUID."""
    digest = F.md5(h.seeded("x", seed, keys).cast("string"))
    ends = [(1, 8), (9, 4), (13, 4), (17, 4), (21, 12)]
    return F.concat_ws("-", *(F.substring(digest, start, length) for start, length in ends)).alias("k")


# What is beside the key, whether the key is text, and what is compared
CASES: dict[str, tuple[Any, bool, list[str]]] = {
    "wide": (wide, False, ["ln0", "rn7", "length(ls5)", "length(rs0)"]),
    "text keys": (number, True, ["ln0", "rn0", "length(k)"]),
    "nested": (nested, False, ["ln0", "rlist[7]", "lstruct.a", "length(rmap['b'])"]),
}


def run_case(spark: h.SparkSession, name: str, rows: int, turns: int, engines: list[str]) -> dict[str, Any]:
    """One pair of streams with all engines."""
    payload, texts, compared = CASES[name]
    with h.scratch() as folder:
        for side, seed in (("l", 1), ("r", 2)):
            key = text_key(seed, rows // 2) if texts else h.seeded("k", seed, rows // 2)
            frame = spark.range(rows).select(F.col("id").alias("seq"), key, *payload(side))
            h.write_input(frame, folder / side, BATCHES, span=rows)
        tables = [spark.read.parquet(str(folder / side)) for side in "lr"]
        size = sum(file.stat().st_size for file in folder.glob("*/*.parquet"))
        sums = {f"c{place}": F.expr(expression) for place, expression in enumerate(compared)}
        expected = h.batch_answer(tables[0].join(tables[1], "k").withColumns(sums), list(sums))
        left, right = (
            spark.readStream.schema(t.schema).option("maxFilesPerTrigger", 1).parquet(str(folder / s))
            for t, s in zip(tables, "lr", strict=True)
        )

        def measure(engine: str, frame: h.DataFrame, limit: float | None = None, checked: bool = True) -> h.Run:
            columns = list(sums) if checked else ["size"]
            run = h.run_to_end(engine, frame, folder, columns, limit_seconds=limit)
            if checked and limit is None:
                h.check(run, expected)
            h.console.print(f"{name}, {engine}: {run.rows_per_second:,.0f} rows/s", highlight=False)
            return run

        def ours(turn: int) -> h.Run:
            joined = wm.join(left, right, on="k", state_dir=str(folder / f"state-{turn}"))
            return measure(f"watersmeet-{turn}", joined.withColumns(sums))

        rename = {column: f"l{column[1:]}" for column in right.columns if column != "k"}
        both = left.unionByName(right.withColumnsRenamed(rename)).repartition(2, "k")
        size_of_key = F.length(F.col("k").cast("string"))
        environment = spark.sparkContext.environment
        environment["ECHO"] = "1"  # an environment of its own: workers that Watersmeet has not touched
        echoed = both.mapInArrow(echo(), both.schema).withColumn("size", size_of_key)
        del environment["ECHO"]
        spared = both.mapInArrow(echo(spared=True), both.schema).withColumn("size", size_of_key)
        shuffled = both.withColumn("size", size_of_key)
        quick = {
            "watersmeet": ours,
            "echo": lambda turn: measure(f"echo-{turn}", echoed, checked=False),
            "echo_spared": lambda turn: measure(f"echo-spared-{turn}", spared, checked=False),
            "shuffle": lambda turn: measure(f"shuffle-{turn}", shuffled, checked=False),
        }
        runs = h.in_turns({engine: quick[engine] for engine in quick if engine in engines}, 1, turns)
        stores = [engine for engine in h.SPARK_STORES if engine in engines]
        theirs = left.join(right, "k").withColumns(sums)
        runs |= h.spark_rivals(spark, stores, lambda engine, limit: measure(engine, theirs, limit))
    ratios = h.compare(f"{name}: {2 * rows:,} rows, {expected['count']:,} results", runs)
    return {**ratios, "file_bytes_per_row": round(size / (2 * rows)), "runs": {n: r.as_dict() for n, r in runs.items()}}


def main() -> None:
    """Run all cases, check, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=FULL, help="rows per input")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--engines", nargs="*", default=["watersmeet", "echo", "echo_spared", "shuffle", "spark_default"]
    )
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    spark = wm.local_session("wide_rows", cores=2, partitions=2, config={"spark.driver.memory": "8g"})
    h.announce({"master": spark.sparkContext.master, "partitions": 2, "rows per input": arguments.rows})
    result = {
        name: run_case(spark, name, arguments.rows, arguments.turns, arguments.engines) for name in arguments.only
    }
    if arguments.rows == FULL and list(arguments.only) == list(CASES):
        h.save("wide_rows", result)


if __name__ == "__main__":
    main()
