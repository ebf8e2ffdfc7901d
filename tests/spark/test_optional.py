"""Optional inputs of `multiway_join` through Structured Streaming, beside PySpark's chain of left joins."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from tests.spark.feed import Feed, rows, run

import watersmeet as wm
from watersmeet.errors import OptionError, StateMismatchError

START = datetime(2026, 1, 1)
KEYS = ["k", "j"]
COLUMNS = {"orders": "o", "payments": "p", "returns": "r"}


class Streams:
    """Orders, some of which are paid and some returned: null, composite and duplicate keys, in several files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.feeds = {
            name: Feed(spark, folder / name, f"k long, j string, {column} long, {column}_at timestamp")
            for name, column in COLUMNS.items()
        }

    def send(self, part: int) -> None:
        for step, (name, column) in enumerate(COLUMNS.items(), 2):
            self.feeds[name].send(
                *(self._row(step * i + part, 8 * step, column, 100 * part + i) for i in range(40 // step))
            )

    @staticmethod
    def _row(number: int, first: int, column: str, ident: int) -> dict[str, Any]:
        key = {
            "k": None if number % 11 == 0 else first + number % 30,
            "j": None if number % 13 == 0 else "xyz"[number % 2],
        }
        return {**key, column: ident, f"{column}_at": START + timedelta(seconds=ident)}

    def frames(self, kind: str) -> dict[str, DataFrame]:
        """Streams or tables; one column is never null."""
        return {
            name: getattr(feed, kind).withColumn(COLUMNS[name], F.coalesce(COLUMNS[name], F.lit(0)))
            for name, feed in self.feeds.items()
        }

    def joined(self, *optional: str, **options: Any) -> DataFrame:
        where = self.folder / "state"
        return wm.multiway_join(self.frames("stream"), on=KEYS, optional=optional, state_dir=where, **options)

    def expected(self, *optional: str) -> DataFrame:
        """PySpark's joins: the required ones first, then the optional ones in the order given."""
        tables = self.frames("batch")
        required = [name for name in tables if name not in optional]
        answer = tables[required[0]]
        for name in required[1:]:
            answer = answer.join(tables[name], KEYS)
        for name in optional:
            answer = answer.join(tables[name], KEYS, "left")
        return answer.select(*KEYS, *(c for name in tables for c in tables[name].columns if c not in KEYS))

    def end(self, *names: str) -> None:
        for name in names:
            wm.end_input(self.folder / "state", name)

    def found(self, schema: T.StructType) -> DataFrame:
        return self.spark.read.schema(schema).parquet(str(self.folder / "out"))


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Streams:
    made = Streams(spark, tmp_path)
    for part in range(3):
        made.send(part)
    return made


def shape(frame: DataFrame) -> list[tuple[str, T.DataType, bool]]:
    return [(field.name, field.dataType, field.nullable) for field in frame.schema]


SMALL = {"memory": "2 kB", "page_rows": 16, "buckets": 3}


@pytest.mark.parametrize(
    ("optional", "budget"),
    [(("returns",), {}), (("orders",), SMALL), (("returns", "payments"), {}), (("returns", "payments"), SMALL)],
    ids=str,
)
def test_the_answer_and_the_schema_of_left_joins(
    tmp_path: Path, streams: Streams, optional: tuple[str, ...], budget: dict[str, Any]
) -> None:
    joined = streams.joined(*optional, **budget)
    assert shape(joined) == shape(streams.expected(*optional))
    run(joined, tmp_path)
    before = rows(streams.found(joined.schema))
    assert before <= rows(streams.expected(*optional))

    streams.send(3)  # the query goes on from its checkpoint; one optional input is complete with it
    run(streams.joined(*optional, **budget), tmp_path)
    streams.end(optional[0])
    run(streams.joined(*optional, **budget), tmp_path)
    streams.end(*(name for name in COLUMNS if name != optional[0]))
    run(streams.joined(*optional, **budget), tmp_path)

    expected = rows(streams.expected(*optional))
    assert rows(streams.found(joined.schema)) == expected
    assert any(None in row[2:] for row in expected)
    counters = Counter[str]()
    for metrics in wm.read_metrics(streams.spark, tmp_path / "state").collect():
        counters.update({name: int(n) for name, n in metrics.counters.items() if name.split(".")[0] in LACKING})
    first = next(name for name in COLUMNS if name not in optional)
    lacks = {name: sum(n for row, n in expected.items() if row[PLACES[name]] is None) for name in optional}
    assert {name: counters[f"absent.{name}"] for name in optional} == lacks
    unmatched = sum(n for row, n in expected.items() if any(row[PLACES[name]] is None for name in optional))
    assert sum(n for name, n in counters.items() if name.startswith(f"unmatched.{first}.")) == unmatched
    assert not wm.read_state(streams.spark, tmp_path / "state").count()


LACKING = ("absent", "unmatched")
PLACES = {name: 2 + 2 * place for place, name in enumerate(COLUMNS)}


def test_rows_without_a_key_come_at_once_if_one_input_is_required(tmp_path: Path, streams: Streams) -> None:
    joined = streams.joined("payments", "returns")
    run(joined, tmp_path)
    found = rows(streams.found(joined.schema))
    without_key = {row: n for row, n in found.items() if None in row[:2]}
    wanted = streams.frames("batch")["orders"].where("k is null or j is null").count()
    assert sum(without_key.values()) == wanted > 0
    assert all(row[PLACES["payments"]] is row[PLACES["returns"]] is None for row in without_key)
    assert not any(None in (row[PLACES["payments"]], row[PLACES["returns"]]) for row in found if row not in without_key)


def test_a_window_takes_the_optional_inputs_in_the_order_given(tmp_path: Path, streams: Streams) -> None:
    times = {name: f"{column}_at" for name, column in COLUMNS.items()}
    options = {"time": times, "window": "2 min", "lateness": "30 s"}

    def near(*columns: str) -> Any:
        return F.greatest(*columns) <= F.least(*columns) + F.expr("interval 2 minutes")

    for optional in (("payments", "returns"), ("returns", "payments")):
        folder = tmp_path / f"first {optional[0]}"
        folder.mkdir()
        state = folder / "state"
        frames = streams.frames("stream")
        joined = wm.multiway_join(frames, on=KEYS, optional=optional, state_dir=state, **options)
        run(joined, folder)
        before = rows(streams.spark.read.schema(joined.schema).parquet(str(folder / "out")))
        for name in COLUMNS:
            wm.end_input(state, name)
        run(wm.multiway_join(frames, on=KEYS, optional=optional, state_dir=state, **options), folder)

        answer, seen = streams.frames("batch")["orders"], ["o_at"]
        for name in optional:
            other = streams.frames("batch")[name]
            seen = [*seen, times[name]]
            other = other.withColumnsRenamed({key: f"{name}_{key}" for key in KEYS})
            same = [answer[key] == other[f"{name}_{key}"] for key in KEYS]
            answer = answer.join(other, [*same, near(*seen)], "left").drop(*(f"{name}_{key}" for key in KEYS))
        answer = answer.select(*joined.columns)
        found = rows(streams.spark.read.schema(joined.schema).parquet(str(folder / "out")))
        assert found == rows(answer)
        assert before < found
        assert any(None in row and None not in row[:2] for row in before)  # a window has passed


def test_keys_of_different_names(spark: SparkSession, tmp_path: Path) -> None:
    orders = Feed(spark, tmp_path / "orders", "id int, note string")
    returns = Feed(spark, tmp_path / "returns", "order long, note string")
    orders.send({"id": 1, "note": "x"}, {"id": 2, "note": "y"}, {"note": "lost"})
    returns.send({"order": 2, "note": "torn"}, {"order": 2, "note": "late"}, {"note": "lost"})
    inputs = {"returns": returns.stream, "orders": orders.stream}
    joined = wm.multiway_join(
        inputs, on={"orders": "id", "returns": "order"}, optional=["returns"], state_dir=tmp_path / "state"
    )
    run(joined, tmp_path)
    for name in inputs:
        wm.end_input(tmp_path / "state", name)
    run(joined, tmp_path)
    assert rows(spark.read.schema(joined.schema).parquet(str(tmp_path / "out"))) == Counter(
        [(2, "torn", 2, "y"), (2, "late", 2, "y"), (None, None, 1, "x"), (None, None, None, "lost")]
    )


@pytest.mark.classic("the example starts a session of its own")
def test_the_example_of_the_page(spark: SparkSession) -> None:
    page = (Path(__file__).parents[2] / "docs" / "multiway.md").read_text(encoding="utf-8")
    code, output = re.findall(r"```python\n(import tempfile.*?)```\n\n((?:    [^\n]*\n)+)", page, re.DOTALL)[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "multiway.md", "exec"), {})
    assert printed.getvalue() == textwrap.dedent(output)


def test_bad_names(tmp_path: Path, streams: Streams) -> None:
    with pytest.raises(OptionError, match=r"and not all of them.*Leave one out") as caught:
        streams.joined("orders", "payments", "returns")
    assert caught.value.option == "optional"
    with pytest.raises(OptionError, match=r"found optional=\['retruns'\].*Did you mean 'returns'\?"):
        streams.joined("retruns")
    with pytest.raises(OptionError, match="There is no input 'zebra'"):
        streams.joined("zebra")
    with pytest.raises(OptionError, match="optional names an input twice"):
        streams.joined("returns", "returns")
    with pytest.raises(OptionError, match="optional"):
        wm.multiway_join(streams.frames("stream"), on=KEYS, optional=7, state_dir=tmp_path / "state")  # type: ignore[arg-type]


def test_one_name_need_not_be_a_list(tmp_path: Path, streams: Streams) -> None:
    joined = wm.multiway_join(streams.frames("stream"), on=KEYS, optional="returns", state_dir=tmp_path / "state")
    assert shape(joined) == shape(streams.expected("returns"))


def test_a_window_with_a_budget_is_refused_with_the_reason(streams: Streams) -> None:
    times = {name: f"{column}_at" for name, column in COLUMNS.items()}
    with pytest.raises(OptionError, match="optional inputs, a window and memory do not go together"):
        streams.joined("returns", time=times, window="2 min", memory="1 GB")


def test_optional_inputs_cannot_change_at_a_restart(tmp_path: Path, streams: Streams) -> None:
    run(streams.joined("returns"), tmp_path)
    with pytest.raises(StateMismatchError, match=r"options.optional.*was .*returns"):
        streams.joined()
    with pytest.raises(StateMismatchError, match=r"options.optional.*was .*returns.*, is .*payments"):
        streams.joined("payments")
    run(streams.joined("returns"), tmp_path)
