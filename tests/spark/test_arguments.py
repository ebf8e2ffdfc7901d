"""Every parameter of every public function, given what it cannot be: always a `PlanError` that names it.

The functions and their parameters are found by themselves; a new one without a good call here fails the first test.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm
from watersmeet.errors import PlanError
from watersmeet.progressive.options import ProgressiveOptions

Calls = dict[str, dict[str, Any]]

# Where any text or any value is right.
FREE_TEXT = {"state_dir", "path", "app_name", "propagate", "table", "query_or_state_dir", "token"}
PATTERNS = {name: getattr(wm.patterns, name) for name in ("value", "at_most", "less_than", "at_least", "greater_than")}


def functions() -> dict[str, Callable[..., Any]]:
    """All public ones; `connector_settings` takes names alone, see the unit tests of connectors."""
    found = {name: value for name in wm.__all__ if isinstance(value := getattr(wm, name), FunctionType)}
    return {name: value for name, value in found.items() if name != "connector_settings"}


@pytest.fixture(scope="module")
def good(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Calls:
    """A call of each function that is right."""
    folder = tmp_path_factory.mktemp("arguments")
    spark.range(0, 40, numPartitions=1).write.parquet(str(folder / "data"))

    def read(*columns: str) -> DataFrame:
        return spark.readStream.schema("id long").parquet(str(folder / "data")).selectExpr(*columns)

    left, right = (read("id as k", "timestamp_micros(id) as t", f"id as {name}") for name in "xy")
    right = right.withColumnRenamed("t", "u")
    table = spark.range(10).selectExpr("id as k", "id as z")
    wm.prepare_master(table, "k", folder / "master")
    pair = {"left": left, "right": right, "on": "k"}
    wm.join(**pair, state_dir=folder / "j")  # what others look at must be there, whichever test comes first
    wm.progressive_join(**pair, state_dir=folder / "p")
    return {
        "join": {**pair, "state_dir": folder / "j"},
        "explain": {"join": folder / "j"},
        "between": {"low": "1 s", "high": "2 s"},
        "master": {"table": folder / "master"},
        "progressive_join": {**pair, "state_dir": folder / "p"},
        "window_join": {**pair, "state_dir": folder / "w", "window": "1 min", "time": ("t", "u")},
        "multiway_join": {"inputs": [left, right], "on": "k", "state_dir": folder / "m"},
        "punctuated_join": {**pair, "state_dir": folder / "u"},
        "semi_stream_join": {"stream": left, "master": folder / "master", "on": "k", "state_dir": folder / "s"},
        "prepare_master": {"df": table, "on": "k", "path": folder / "master 2"},
        "refresh_master": {"df": table, "path": folder / "master"},
        "read_rows": {"spark": spark, "state_dir": folder / "p"},
        "ui": {"query_or_state_dir": folder / "p"},
        "end_input": {"state_dir": folder / "p", "name": "left"},
        "read_state": {"spark": spark, "state_dir": folder / "p"},
        "read_metrics": {"spark": spark, "state_dir": folder / "p"},
        "explain_window_join": {"window": "60 s", "rates": (10, 100), "distinct_keys": (10, 10)},
        "explain_semi_stream_join": {"master_rows": 9, "master_row_bytes": 9, "stream_row_bytes": 9, "memory": "1 MB"},
        "local_session": {},
        "error": {"failed": ValueError("not ours")},
    }


def test_the_good_calls_are_good_and_complete(good: Calls) -> None:
    assert set(good) == set(functions())
    for name, arguments in good.items():
        if name != "local_session":  # there is one already
            made = functions()[name](**arguments)
            if name == "ui":
                with made:
                    pass


def parameters(name: str) -> list[str]:
    found = inspect.signature(functions()[name]).parameters.values()
    named = [parameter.name for parameter in found if parameter.kind is not parameter.VAR_KEYWORD]
    return named if name != "progressive_join" else [*{*named, *ProgressiveOptions.model_fields} - {"under_budget"}]


def wrong_values(parameter: str) -> Iterator[object]:
    yield from (
        object(),
        F.lit(1),
        F.lit(1) == F.lit(1),
        [object()],
        {"x": object()},
        {1: 2},
        b"bytes",
        -1,
        [],
        float("nan"),
    )
    if parameter == "partitions":
        yield 10**9
    yield "" if parameter in FREE_TEXT else "nonsense"


# What is not wrong, or is wrong for Python alone.
RIGHT: dict[tuple[str, str], Callable[[object], bool]] = {
    **{(name, "constraints"): lambda value: value == [] for name in ("punctuated_join", "window_join")},
    **{
        (name, "nulls_match"): lambda value: value == []
        for name in ("progressive_join", "punctuated_join", "window_join", "multiway_join", "semi_stream_join")
    },
    ("multiway_join", "optional"): lambda value: value == [],
    ("semi_stream_join", "master_columns"): lambda value: value == [],
    ("read_rows", "key"): lambda value: value == -1,
    ("punctuated_join", "propagate"): lambda value: False,
}


@pytest.mark.parametrize("name", sorted(functions()))
def test_wrong_values_of_every_parameter(good: Calls, name: str) -> None:
    leaks = []
    for parameter in parameters(name):
        for value in wrong_values(parameter):
            is_right = RIGHT.get((name, parameter))
            if type(value) in (list, int) and is_right is not None and is_right(value):
                continue
            try:
                functions()[name](**{**good[name], parameter: value})
            except PlanError as error:
                said = (
                    error.option == parameter
                    or error.column == "nonsense"
                    or re.search(rf"\b{parameter}\b", str(error))
                )
                if not said:
                    leaks.append(f"{parameter}={value!r}: not named: {error}")
            except Exception as error:
                leaks.append(f"{parameter}={value!r}: {type(error).__name__}: {str(error)[:150]}")
            else:
                leaks.append(f"{parameter}={value!r}: accepted")
    assert not leaks, "\n".join(leaks)


@pytest.mark.parametrize("wrong", [object(), {"x": object()}])
def test_wrong_values_of_patterns(spark: SparkSession, wrong: object) -> None:
    calls = [*((pattern, (wrong,)) for pattern in PATTERNS.values()), (wm.patterns.one_of, (3, wrong))]
    calls += [
        (wm.patterns.between, (wrong, 3)),
        (wm.patterns.between, (3, wrong)),
        (wm.patterns.between, (3, 4, wrong)),
    ]
    for pattern, arguments in calls:
        with pytest.raises(PlanError, match=r"expected (value|values|low|high|closed) "):
            pattern(*arguments)


@pytest.mark.parametrize("wrong", [object(), 3, None, F, "middle"])
def test_wrong_values_of_constraints(good: Calls, wrong: Any) -> None:
    constraints = [
        wm.OneToMany(one=wrong), wm.Clustered(wrong), wm.Clustered("left", sequence=wrong), wm.Ordered(wrong),
        wm.Ordered("left", wrong), wm.Ordered("left", sequence=wrong), wm.Ordered("left", key=wrong),
    ]  # fmt: skip
    optional = {id(constraints[2]), id(constraints[5]), id(constraints[6])} if wrong is None else set()
    for constraint in constraints:
        if id(constraint) not in optional:
            with pytest.raises(PlanError, match=r"constraints|'middle'"):
                wm.punctuated_join(**good["punctuated_join"], constraints=[constraint])
    if wrong is not None:
        with pytest.raises(PlanError):
            wm.punctuated_join(**good["punctuated_join"], punctuations={"left": wm.PunctuationRows(wrong)})


def test_names_with_every_character(spark: SparkSession, good: Calls, tmp_path: Path) -> None:
    """A dot and a backtick are characters like any other, also in Spark's own syntax."""
    odd = "a.b`c d"
    left, right = (good["punctuated_join"][side].withColumnRenamed("k", "k`.") for side in ("left", "right"))
    joined = wm.punctuated_join(
        left.withColumn("e`nd", F.lit(False)),
        right,
        "k`.",
        state_dir=tmp_path,
        propagate=odd,
        punctuations={
            "left": wm.PunctuationRows("e`nd"),
            "right": right.select("k`.".join("``").replace("k`.", "k``.")),
        },
    )
    assert joined.columns == ["k`.", "t", "x", "u", "y", odd]
    query = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query.trigger(availableNow=True).start().awaitTermination()


def test_the_least_memory_is_one_number(good: Calls) -> None:
    """The same, whatever was given, in a unit that people write; and it is enough."""
    call = {**good["progressive_join"], "state_dir": good["progressive_join"]["state_dir"] / "least"}
    for memory in (1, 1000, "128 KiB", "511 KiB"):
        with pytest.raises(PlanError) as caught:
            wm.progressive_join(**call, memory=memory, partitions=2)
        assert re.search(
            r"expected memory of at least 576 KiB: a page of 8192 rows of at least 36 bytes in each of 2 partitions, ",
            str(caught.value),
        ), str(caught.value)
    wm.progressive_join(**call, memory="576 KiB", partitions=2)
