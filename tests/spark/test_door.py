"""`wm.join`: the join that is chosen gives the answer of Spark's batch join, costs no more, and explains itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feed import Feed, rows, run

import watersmeet as wm
from watersmeet.errors import ColumnError, NotStreamingError, OptionError, PlanError, StateMismatchError
from watersmeet.spark.explaining import stories
from watersmeet.spark.plans import is_classic

START = datetime(2026, 1, 1)


class Trial:
    """Two feeds and a state directory."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.state = spark, folder, folder / "state"
        self.left = Feed(spark, folder / "l", "k long, a long, at timestamp")
        self.right = Feed(spark, folder / "r", "k long, b string, bt timestamp, over boolean")
        for part in range(2):
            self.left.send(*({"k": 2 * i + part, "a": i, "at": START + timedelta(seconds=i)} for i in range(10)))
            self.right.send(
                *(
                    {"k": 3 * i + part, "b": f"b{i}", "bt": START + timedelta(seconds=i), "over": False}
                    for i in range(8)
                )
            )

    @property
    def inputs(self) -> tuple[DataFrame, DataFrame]:
        return self.left.stream, self.right.stream.drop("over")

    def answer(self, how: str = "inner", on: Any = "k") -> DataFrame:
        return self.left.batch.join(self.right.batch.drop("over"), on, how)

    def result(self, build: Callable[[], DataFrame], *ended: str) -> DataFrame:
        """All results of a run, and of a restart after inputs have ended."""
        joined = build()
        run(joined, self.folder)
        for name in ended:
            wm.end_input(self.state, name)
        if ended:
            run(build(), self.folder)
        return self.spark.read.schema(joined.schema).parquet(str(self.folder / "out"))


@pytest.fixture
def trial(spark: SparkSession, tmp_path: Path) -> Trial:
    return Trial(spark, tmp_path)


# What is said, the join that is chosen, and what its own function is told.
SAID: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "nothing": ({}, "progressive", {}),
    "memory": (
        {"memory": "256 KB", "page_rows": 16},
        "progressive",
        {"memory": "256 KB", "page_rows": 16, "flush": "classes"},
    ),
    "window": (
        {"within": ("-1 h", "1 h"), "time": ("at", "bt"), "memory": "64 MB"},
        "window",
        {"window": ("1 h", "1 h"), "time": ("at", "bt"), "memory": "64 MB"},
    ),
    "promises": (
        {"unique": "left", "on_violation": "raise"},
        "punctuated",
        {"constraints": [wm.OneToMany(one="left")]},
    ),
    "all": (
        {"within": "1 h", "time": ("at", "bt"), "unique": "left", "memory": "64 MB"},
        "window",
        {"window": "1 h", "time": ("at", "bt"), "constraints": [wm.OneToMany(one="left")], "memory": "64 MB"},
    ),
    "pinned": ({"operator": "punctuated"}, "punctuated", {}),
}


def told(joined: DataFrame) -> Any:
    ((story, _),) = stories(joined)
    return story


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("nothing", "inner"), ("nothing", "full"), ("memory", "left"), ("window", "right"), ("window", "left_semi"),
        ("promises", "left_anti"), ("all", "left"), ("pinned", "full"),
    ],
)  # fmt: skip
def test_the_join_that_is_chosen_gives_the_answer(trial: Trial, name: str, how: str) -> None:
    said, family, _ = SAID[name]

    def build() -> DataFrame:
        return wm.join(*trial.inputs, "k", how, state_dir=trial.state, **said)

    assert told(build()).family == family
    assert rows(trial.result(build, "left", "right")) == rows(trial.answer(how))


def plan_of(joined: DataFrame) -> str:
    """The analysed plan without what is new in every plan: numbers of columns and objects, the id of the join."""
    text = joined._jdf.queryExecution().analyzed().toString()
    return re.sub(r"watersmeet_\w+|@[0-9a-f]+|#\d+L?|state-\w+|\[id=.*?\]|file:\S+", "", text)


@pytest.mark.classic("compares plans as the JVM writes them")
@pytest.mark.parametrize("name", SAID)
def test_it_is_the_very_plan_of_the_function(trial: Trial, name: str) -> None:
    """So that it costs nothing."""
    said, family, options = SAID[name]
    functions = {"progressive": wm.progressive_join, "window": wm.window_join, "punctuated": wm.punctuated_join}
    chosen = wm.join(*trial.inputs, "k", "left", state_dir=trial.folder / "state-a", **said)
    called = functions[family](*trial.inputs, "k", "left", state_dir=trial.folder / "state-b", **options)
    assert plan_of(chosen) == plan_of(called)
    ours, theirs = told(chosen), told(called)
    assert ours.options == theirs.options
    assert ours.choices
    assert not theirs.choices


def test_promises_of_every_sort(trial: Trial) -> None:
    left, right = trial.left.stream, trial.right.stream
    joined = wm.join(
        left,
        right,
        "k",
        "left",
        state_dir=trial.state,
        unique=["left", "right"],
        clustered=wm.Clustered("left", sequence="a"),
        ordered=["right"],
        ends={"right": wm.PunctuationRows("over")},
    )
    options = told(joined).options["constraints"]
    assert [(one["kind"], one.get("one") or one.get("input")) for one in options] == [
        ("one_to_many", "left"), ("one_to_many", "right"), ("clustered", "left"), ("ordered", "right"),
    ]  # fmt: skip
    assert [side.punctuated for side in told(joined).inputs] == [False, True]
    assert "over" not in joined.columns


def test_orders_and_their_payments(spark: SparkSession, tmp_path: Path) -> None:
    """A window, a constraint, punctuations and a budget in one join: a payment up to 30 minutes after its order."""
    orders = Feed(spark, tmp_path / "o", "order_id long, ordered_at timestamp")
    payments = Feed(spark, tmp_path / "p", "order_id long, paid_at timestamp, closed boolean")
    minutes = {1: 30, 2: 31, 3: -1, 4: 0, 6: 10}  # after the order; order 5 is closed, and order 7 has none
    orders.send(*({"order_id": number, "ordered_at": START} for number in range(1, 8)))
    paid = [{"order_id": n, "paid_at": START + timedelta(minutes=late), "closed": False} for n, late in minutes.items()]
    payments.send(*paid, {"order_id": 5, "closed": True})
    joined = wm.join(
        orders.stream,
        payments.stream,
        on="order_id",
        how="left",
        state_dir=tmp_path / "state",
        within=("0 s", "30 min"),
        time=("ordered_at", "paid_at"),
        unique="left",
        ends={"right": wm.PunctuationRows("closed")},
        memory="256 MB",
        partitions=1,
    )
    run(joined, tmp_path)
    found = spark.read.schema(joined.schema).parquet(str(tmp_path / "out"))
    near = {number for number, late in minutes.items() if 0 <= late <= 30}
    expected = {(n, START, START + timedelta(minutes=minutes[n])) for n in near}
    # The newest payment is more than 30 minutes and the lateness after all orders: nothing can come for them any more.
    assert set(rows(found)) == expected | {(n, START, None) for n in (2, 3, 5, 7)}
    assert "if the time of right less that of left is between 0 s and 30 min" in str(wm.explain(joined))
    events = [
        json.loads(event) for row in wm.read_metrics(spark, tmp_path / "state").collect() for event in row["events"]
    ]
    told = [(one["what"], one["value"]) for one in events if one["kind"] == "choice"]
    assert told == [("join", "window"), ("policy", "soonest")]
    assert [one["why"] for one in events if one["kind"] == "choice"] == [one.why for one in wm.explain(joined).choices]


@pytest.mark.parametrize("how", ["left", "left_semi"])
def test_a_condition_with_a_table(trial: Trial, how: str) -> None:
    table = trial.right.batch.select("k", "b", (F.col("k") * 2).alias("most"), F.lit(1).alias("c"))
    wm.prepare_master(table, "k", trial.folder / "master", partitions=2)
    condition = "stream.a <= master.most and master.b <> 'b1'"
    joined = wm.join(
        trial.left.stream.select("k", "a"), wm.master(trial.folder / "master"), "k", how, state_dir=trial.state,
        where=condition, max_delay=1,
    )  # fmt: skip
    run(joined, trial.folder)
    found = trial.spark.read.schema(joined.schema).parquet(str(trial.folder / "out"))
    left, right = trial.left.batch.select("k", "a").alias("stream"), table.alias("master")
    pairs = left.join(right, F.expr(f"stream.k = master.k and {condition}"), how)
    both = ["stream.k", "a", "b", "most", "c"] if how in ("inner", "left") else ["stream.k", "a"]
    assert rows(found) == rows(pairs.select(*both))
    assert f"where {condition}" in str(wm.explain(joined))


def test_a_condition_and_nulls_that_match_in_a_list_of_streams(trial: Trial) -> None:
    left = trial.left.stream.selectExpr("nullif(k, 3) as k", "a")
    right = trial.right.stream.selectExpr("nullif(k, 3) as k", "b")
    third = trial.left.stream.selectExpr("nullif(k, 3) as k", "a * 2 as c")
    joined = wm.join(
        {"one": left, "two": right, "three": third}, on="k", state_dir=trial.state, nulls_match=True,
        where="one.a < three.c and two.b <> 'b0'",
    )  # fmt: skip
    run(joined, trial.folder)
    found = trial.spark.read.schema(joined.schema).parquet(str(trial.folder / "out"))
    one, two = (feed.batch.selectExpr("nullif(k, 3) as k", *rest) for feed, *rest in (
        (trial.left, "a", "a * 2 as c"), (trial.right, "b"),
    ))  # fmt: skip
    wanted = (
        one.alias("one")
        .join(two.alias("two"), F.expr("one.k <=> two.k"))
        .join(one.alias("three"), F.expr("one.k <=> three.k and one.a < three.c and two.b <> 'b0'"))
        .select("one.k", "one.a", "two.b", "three.c")
    )
    assert rows(found) == rows(wanted)
    assert any(row[0] is None for row in rows(found))


def test_conditions_that_cannot_be(trial: Trial) -> None:
    left, right = trial.inputs
    with pytest.raises(OptionError, match="A master table is prepared without the rows that have a null key"):
        wm.join(left, trial.right.batch, "k", state_dir=trial.state, nulls_match=True, operator="semi-stream")
    with pytest.raises(OptionError, match="Which combinations lack an optional input would depend on the condition"):
        wm.join({"a": left, "b": right}, on="k", state_dir=trial.state, optional=["b"], where="a.a < 3")
    with pytest.raises(OptionError, match=r"several inputs have a column 'k'.*Write a\.name or b\.name"):
        wm.join({"a": left, "b": right, "c": right}, on="k", state_dir=trial.state, where="k < 3")


def test_a_table_as_right_input(trial: Trial) -> None:
    table = trial.right.batch.select("k", "b")
    wm.prepare_master(table, "k", trial.folder / "master", partitions=2)

    def build() -> DataFrame:
        return wm.join(trial.left.stream, wm.master(trial.folder / "master"), "k", "left", state_dir=trial.state)

    found = rows(trial.result(build, "stream"))
    assert found == rows(trial.left.batch.join(table, "k", "left"))
    story = told(build())
    assert {one.what: one.value for one in story.choices} == {
        "join": "semi-stream", "policy": "aligned", "max_delay": "1"
    }  # fmt: skip
    assert story.choices[2].why == "the join has run with it"
    assert story.table["rows"] == 16


def test_a_table_in_order_of_arrival_needs_another_policy(trial: Trial) -> None:
    wm.prepare_master(trial.right.batch.select("k", "b"), "k", trial.folder / "master", layout="arrival")
    joined = wm.join(trial.left.stream, wm.master(trial.folder / "master"), "k", state_dir=trial.state)
    assert told(joined).options["policy"] == "mesh"


def test_a_batch_data_frame_is_a_table(trial: Trial) -> None:
    table = trial.right.batch.select("k", "b")
    small = wm.join(trial.left.stream, table, "k", state_dir=trial.folder / "small")
    assert told(small).family == "broadcast"
    joined = wm.join(trial.left.stream, table, "k", state_dir=trial.state, operator="semi-stream")
    assert told(joined).family == "semi-stream"
    assert told(joined).options["max_delay"] == 1, "it is prepared first, so that its size is known"
    assert "about 1 chunk in each partition: all of it can be read in a micro-batch" in str(wm.explain(joined))
    other = wm.join(trial.left.stream, table, "k", state_dir=trial.folder / "given", max_delay=2)
    assert told(other).options["max_delay"] == 2
    with pytest.raises(ColumnError, match="one column 'nothing' in input 'left'"):
        wm.join(trial.left.stream, table, [("nothing", "k")], state_dir=trial.folder / "wrong")
    assert not (trial.folder / "wrong").exists(), "no table is prepared for a join that cannot be"


@pytest.mark.parametrize("named", [False, True])
def test_a_list_of_streams(trial: Trial, named: bool) -> None:
    third = trial.right.stream.select("k", F.col("b").alias("c"))
    a, b = trial.left.stream.select("k", "a"), trial.right.stream.select("k", "b")
    inputs: Any = {"a": a, "b": b, "c": third} if named else [a, b, third]

    def build() -> DataFrame:
        return wm.join(inputs, on="k", state_dir=trial.state)

    batch = trial.right.batch
    answer = trial.left.batch.select("k", "a").join(batch.select("k", "b"), "k")
    assert rows(trial.result(build)) == rows(answer.join(batch.select("k", F.col("b").alias("c")), "k"))
    assert [side.name for side in told(build()).inputs] == (
        ["a", "b", "c"] if named else ["input_1", "input_2", "input_3"]
    )


def message(kind: type[PlanError], build: Callable[[], object]) -> tuple[str, str | None]:
    with pytest.raises(kind) as caught:
        build()
    return str(caught.value), caught.value.option


def test_what_does_not_fit_together(trial: Trial) -> None:
    left, right = trial.inputs

    def joined(*inputs: Any, **options: Any) -> Callable[[], DataFrame]:
        return lambda: wm.join(*inputs, on="k", state_dir=trial.state, **options)

    text, option = message(PlanError, joined([left, right], within="1 h", unique="left"))
    assert text.startswith("join: expected with a list of streams with how='inner' no more than within and memory")
    assert option == "unique"
    text, option = message(PlanError, joined(left, wm.master("x"), within="1 h"))
    assert option == "within"
    text, option = message(OptionError, joined(left, right, lateness="1 s"))
    assert text == (
        "join: expected options of the progressive join, which fits these inputs, found lateness, an option of the "
        "window and multiway join. Leave it out, or say what makes the other join the right one (docs/which-join.md)."
    )
    text, option = message(OptionError, joined(left, right, time="at"))
    assert "found time, an option of the window and multiway join" in text
    text, option = message(OptionError, joined(left, right, within="soon"))
    assert text.startswith("join, window_join: expected a valid value for window")
    assert text.endswith("(window_join calls it window, here it is within.)")
    assert option == "within"
    text, option = message(OptionError, joined(left, right, within=("30 min", "0 s")))
    assert text == (
        "join: expected within = (low, high), the least and the greatest right time less left time, found ('30 min', "
        "'0 s'): the interval ends before it begins. Write ('0 s', '30 min') for right rows up to 30 minutes after "
        "their left rows, '30 min' for either way, or wm.between(...) for any interval."
    )
    text, option = message(OptionError, joined(left, right, unique="middle"))
    assert text == (
        "join: expected unique = 'left', 'right' or both in a list, found 'middle'. Name the input, not the DataFrame."
    )
    text, option = message(OptionError, joined(left, trial.right.batch, max_delay="soon"))
    assert text.startswith("join, semi_stream_join: expected a valid value for max_delay, found 'soon'")
    text, option = message(OptionError, joined(left, right, window="1 h"))
    assert text.endswith("found parameter 'window'. Did you mean 'within'?")
    text, option = message(OptionError, joined([left, right], right))
    assert text.startswith(
        "join: expected all inputs in one list as left, and no right input, found left = a list of 2 and right="
    )
    text, option = message(PlanError, joined(wm.master("x"), right))
    assert text.startswith("join: expected the stream as left input, and the table as right one, found a table as left")
    text, option = message(OptionError, joined(left))
    assert text.startswith("join: expected right = a DataFrame, found None")
    text, option = message(NotStreamingError, joined(trial.left.batch, right))
    assert text.startswith(
        "join: expected the stream as left input, and the table as right one, found a batch DataFrame"
    )
    text, option = message(NotStreamingError, joined(trial.left.batch, trial.right.batch))
    assert text.startswith("join: expected a streaming DataFrame as input 'left'")
    text, option = message(OptionError, lambda: wm.join(left, right, "k", str(trial.state)))
    assert text.endswith("in the place of how. Give state_dir by name.")
    text, option = message(OptionError, lambda: wm.join(left, right, "k"))
    assert text == "join: expected state_dir=..., found no state_dir. Give state_dir by name."


def test_what_is_wrong_is_said_in_our_words(trial: Trial) -> None:
    """Neither Python's nor pydantic's nor the SQL parser's."""
    left, right = trial.inputs
    table = trial.right.batch

    def found(kind: type[PlanError], *inputs: Any, on: Any = "k", **options: Any) -> str:
        return message(kind, lambda: wm.join(*inputs, on=on, state_dir=trial.state, **options))[0]

    windowed: dict[str, Any] = {"within": "1 h"}
    for time in (("at", "bt", "bt"), 5, {"left": "at"}, ("at", None)):
        text = found(OptionError, left, right, time=time, **windowed)
        assert "(a time column for each of the two inputs, such as ('ordered_at', 'paid_at'))" in text
    for within in (("0 s", "1 h"), wm.between("0 s", "1 h")):
        text = found(OptionError, [left, right], within=within)
        assert text.startswith("join: expected within = one duration with a list of streams, found ")
    text = found(OptionError, left, "masters/users")
    assert text.endswith("Write wm.master('masters/users') for a table that prepare_master has written.")
    for inputs in ([left, table], [left, wm.master(table)]):
        text = found(NotStreamingError, inputs)
        assert text.endswith("Join the streams first, and their result with the table: wm.join(joined, table, ...).")
    text = found(PlanError, [left, right], how="left")
    assert text.endswith("Name the inputs that may be missing from a combination: optional=[...] (docs/multiway.md).")
    text = found(OptionError, left, right, on=["k", "k"])
    assert text == "join, progressive_join: expected each key once, found 'k' twice in on. Leave one out."
    text = found(OptionError, left, right, memory=True)
    assert "found True (True is not a size such as '256 MB' or '64 MiB')" in text
    text = found(OptionError, left, right, memory="64 MB", policy="hmj", flush="long-run")
    assert text == (
        "join, progressive_join: expected options that go together, found some that do not: policy 'hmj' has no flush "
        "'long-run', only adaptive, all, largest, smallest. Change one of them; the reference says what each may be."
    )
    text = found(OptionError, left, right, where="left.a <")
    assert "'left.a <' (a part is missing. Line 1, Col: 8.)" in text
    text = found(OptionError, left, right, where="now() > left.at")
    assert "conditions have no function now." in text
    text, _ = message(OptionError, lambda: wm.explain(3))  # type: ignore[arg-type]
    assert text.startswith("explain: expected join = the DataFrame of a join, or its state directory, found 3")


def test_facts_that_say_nothing_choose_nothing(trial: Trial) -> None:
    left, right = trial.inputs
    assert told(wm.join(left, right, "k", state_dir=trial.state, ends={})).family == "progressive"
    joined = wm.join(
        left, right, "k", state_dir=trial.folder / "named", within="1 h", time={"right": "bt", "left": "at"}
    )
    assert told(joined).options["time"] == ["at", "bt"] or told(joined).options["time"] == ("at", "bt")


def test_state_of_another_choice_is_refused(trial: Trial) -> None:
    run(wm.join(*trial.inputs, "k", state_dir=trial.state), trial.folder)
    with pytest.raises(StateMismatchError, match="operator was 'symmetric', is 'window'"):
        wm.join(*trial.inputs, "k", state_dir=trial.state, within="1 h")
    joined = wm.join(*trial.inputs, "k", state_dir=trial.state, memory="64 MB")  # a budget may come later
    assert told(joined).operator == "rpj"


def test_explain_before_it_starts_and_after_it_has_run(trial: Trial) -> None:
    joined = wm.join(
        *trial.inputs, "k", "left", state_dir=trial.state, within=("0 s", "10 min"), time=("at", "bt"), lateness="0 s"
    )
    before = wm.explain(joined, rates={"left": 2, "right": 1})
    assert before.observed is None
    assert "rows are held (at the rates given)" in str(before)
    assert "left: until the time of right is 10 min past theirs: about 1,200 rows" in str(before)
    run(joined, trial.folder)
    after = wm.explain(joined)
    assert after.observed is not None
    assert after.observed.batches >= 2
    assert re.search(
        r"left: 20 rows came, 20 are held, about [\d,]+ expected, \d+ bytes each \(\d+ expected\)", str(after)
    )
    assert "so far, " in str(after)
    assert "costs of this implementation, ms per micro-batch" in str(after)
    assert str(wm.explain(trial.state)) == str(after), "the state directory tells the same"
    said = re.search(
        r"partitions: 2 take about [\d.]+ s for the [\d,]+ rows of a micro-batch on 2 cores; .*", str(after)
    )
    assert (said is not None) == is_classic(trial.inputs[0].sparkSession)
    assert "of a micro-batch on" not in str(before), "nothing is known of its micro-batches"


def test_explain_finds_the_join_in_what_is_made_of_it(trial: Trial) -> None:
    joined = wm.join(*trial.inputs, "k", state_dir=trial.state)
    made = joined.select("k", F.upper("b").alias("c")).where("k > 1").withColumn("d", F.lit(1))
    assert str(wm.explain(made)) == str(wm.explain(joined))
    other = trial.right.stream.select("k", F.col("b").alias("e"))
    twice = wm.join(made, other, "k", state_dir=trial.folder / "second", memory="64 MB")
    assert [story.operator for story, _ in stories(twice)] == ["symmetric", "rpj"]
    assert "policy: rpj, because" in str(wm.explain(twice))


def test_explain_takes_the_rates_of_another_run(trial: Trial) -> None:
    run(wm.join(*trial.inputs, "k", state_dir=trial.state), trial.folder)
    fresh = wm.join(*trial.inputs, "k", state_dir=trial.folder / "fresh")
    explanation = wm.explain(fresh, like=trial.state)
    assert explanation.origin == "at the rates of an earlier run"
    assert set(explanation.rates) == {"left", "right"}
    assert wm.explain(fresh).origin.startswith("at 1,000 rows/s")


def test_explain_says_what_it_cannot_explain(trial: Trial) -> None:
    text, option = message(OptionError, lambda: wm.explain(trial.left.stream))
    assert text.startswith("explain: expected the DataFrame of a join, or one made from it, found a DataFrame without")
    assert option == "join"
    joined = wm.join(*trial.inputs, "k", state_dir=trial.state)
    text, option = message(OptionError, lambda: wm.explain(joined, rates={"middle": 3}))
    assert text.startswith("explain: expected rates = rows per second by input (left, right), found {'middle': 3}")
    (trial.state / "explain.json").unlink()
    text, option = message(OptionError, lambda: wm.explain(trial.state))
    assert "found none of its reasons in" in text
    text, option = message(PlanError, lambda: wm.explain(trial.folder))
    assert "no join.json" in text
