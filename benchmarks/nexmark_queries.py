"""The join queries of Nexmark, for DataFrames and in SQL.

Every query for DataFrames is written once, for whichever engine joins (`nexmark.py` has two): `equi` without a bound,
`near` within a bound of event time, `table` with a table. Rows are projected before a join, which is what Spark's
optimizer does for its own joins.

Two queries are rewritten where an engine emits a result only when it is final (Spark in append mode), with the same
final answer: q4 and q9 are winners over an auction's bids, found in a group per auction that is emitted when the
watermark has passed it. q4's averages over categories are added up from what is observed in every micro-batch. Ties in
price and time (q9) go to the larger bidder, in all systems. q8 is a semi join: a person is new once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from nexmark_events import CATEGORIES, LONGEST_AUCTION, SIDE_ROWS
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

WINDOW = 10_000  # milliseconds, q8
Answer = dict[str, int]


class Engine(Protocol):
    """What joins."""

    def equi(self, left: DataFrame, right: DataFrame, on: tuple[str, str]) -> DataFrame:
        """All pairs of equal keys."""
        ...

    def near(
        self,
        left: DataFrame,
        right: DataFrame,
        on: list[tuple[str, str]],
        time: tuple[str, str],
        between: tuple[int, int],
        where: str | None = None,
        how: str = "inner",
    ) -> DataFrame:
        """Pairs of equal keys whose right time less left time is between two numbers of milliseconds."""
        ...

    def table(self, stream: DataFrame, table: DataFrame, on: str) -> DataFrame:
        """A stream with a table."""
        ...


Streams = Mapping[str, DataFrame]


def q3(engine: Engine, streams: Streams) -> DataFrame:
    """Who sells in category 10 in three states?"""
    sold = streams["auction"].filter("category = 10").select("a_id", "seller")
    persons = streams["person"].filter("state IN ('OR', 'ID', 'CA')").select("p_id", "name", "city", "state")
    return engine.equi(sold, persons, ("seller", "p_id")).select("name", "city", "state", "a_id")


def _bids_in_time(engine: Engine, auctions: DataFrame, bids: DataFrame) -> DataFrame:
    return engine.near(
        auctions, bids, [("a_id", "auction")], ("a_time", "b_time"), (0, LONGEST_AUCTION), "b_time <= expires"
    )


def q4(engine: Engine, streams: Streams) -> DataFrame:
    """The average winning price of each category: winners here, one column for each category."""
    auctions = streams["auction"].select("a_id", "category", "a_time", "expires")
    pairs = _bids_in_time(engine, auctions, streams["bid"].select("auction", "price", "b_time"))
    won = pairs.groupBy("a_id", "category", "a_time").agg(F.max("price").alias("final"))
    of = {category: F.col("category") == category for category in CATEGORIES}
    return won.select(
        *(F.when(of[category], F.col("final")).otherwise(0).alias(f"final_{category}") for category in CATEGORIES),
        *(F.when(of[category], 1).otherwise(0).alias(f"won_{category}") for category in CATEGORIES),
    )


def _averages(observed: Answer) -> Answer:
    """q4's answer out of the sums over winners."""
    means = {c: observed[f"sum_final_{c}"] // observed[f"sum_won_{c}"] for c in CATEGORIES if observed[f"sum_won_{c}"]}
    return {
        "n": len(means),
        "sum_category": sum(means),
        "sum_weighted": sum(category * mean for category, mean in means.items()),
    }


def q8(engine: Engine, streams: Streams) -> DataFrame:
    """Who has registered and opened an auction in the same 10 seconds?"""
    window = f"div(unix_millis({{}}), {WINDOW})"
    persons = streams["person"].select("p_id", "name", "p_time", F.expr(window.format("p_time")).alias("p_window"))
    auctions = streams["auction"].select("seller", "a_time", F.expr(window.format("a_time")).alias("a_window"))
    keys = [("p_id", "seller"), ("p_window", "a_window")]
    return engine.near(persons, auctions, keys, ("p_time", "a_time"), (-WINDOW, WINDOW), how="left_semi")


def q9(engine: Engine, streams: Streams) -> DataFrame:
    """The winning bid of each auction, with all there is to know of both."""
    bids = streams["bid"].select("auction", "bidder", "price", "b_time", "b_extra")
    pairs = _bids_in_time(engine, streams["auction"], bids)
    order = ["price", (-F.unix_millis("b_time")).alias("sooner"), "bidder"]
    payload = [
        "b_extra",
        "item_name",
        "description",
        "initial_bid",
        "reserve",
        "expires",
        "seller",
        "category",
        "a_extra",
    ]
    won = pairs.groupBy("a_id", "a_time").agg(F.max(F.struct(*order, *payload)).alias("won"))
    return won.select("a_id", "a_time", "won.*").withColumn("extra_size", F.length("a_extra") + F.length("b_extra"))


def q13(engine: Engine, streams: Streams) -> DataFrame:
    """Bids with a value out of a table."""
    bids = streams["bid"].select(
        "auction", "bidder", "price", "b_time", (F.col("auction") % SIDE_ROWS).alias("side_key")
    )
    return engine.table(bids.filter("auction >= 0"), streams["side"], "side_key")


def q20(engine: Engine, streams: Streams) -> DataFrame:
    """Bids with their auctions, of category 10."""
    auctions = streams["auction"].filter("category = 10")
    pairs = engine.equi(streams["bid"], auctions, ("auction", "a_id"))
    return pairs.withColumn("extra_size", F.length("a_extra") + F.length("b_extra"))


_Q4 = """SELECT category, AVG(final) AS final FROM (
  SELECT MAX(B.price) AS final, A.category FROM auction A, bid B
  WHERE A.a_id = B.auction AND B.b_time BETWEEN A.a_time AND A.expires GROUP BY A.a_id, A.category) Q
  GROUP BY category"""
_Q8 = """SELECT P.p_id, P.name, P.starts FROM (
  SELECT p_id, name, {p_start} AS starts FROM {person} GROUP BY p_id, name, {p_group}) P JOIN (
  SELECT seller, {a_start} AS starts FROM {auction} GROUP BY seller, {a_group}) A
  ON P.p_id = A.seller AND P.starts = A.starts"""
_TUMBLE = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR({}), INTERVAL '10' SECOND))"


@dataclass(frozen=True)
class Query:
    """A query, the inputs it reads, and the columns that are added up to compare answers."""

    frame: Callable[[Engine, Streams], DataFrame]
    inputs: tuple[str, ...]
    sql: str
    flink: str | None  # None: Flink looks tables up in external systems only (q13)
    observed: tuple[str, ...]
    answer: str  # sums in SQL over the query's result
    finish: Callable[[Answer], Answer] | None = None
    has_windows: bool = False  # whether something is emitted when event time has passed it

    def checked(self, sql: str) -> str:
        """The answer to compare, in SQL."""
        return f"SELECT COUNT(*) AS n, {self.answer} FROM ({sql}) T"


def _sums(*columns: str) -> str:
    return ", ".join(f"SUM({column}) AS sum_{column}" for column in columns)


_Q3 = """SELECT P.name, P.city, P.state, A.a_id FROM auction A JOIN person P ON A.seller = P.p_id
  WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')"""
_Q9 = """SELECT * FROM (SELECT A.*, B.bidder, B.price, B.b_time, B.b_extra,
    CHAR_LENGTH(A.a_extra) + CHAR_LENGTH(B.b_extra) AS extra_size,
    ROW_NUMBER() OVER (PARTITION BY A.a_id ORDER BY B.price DESC, B.b_time, B.bidder DESC) AS place
  FROM auction A, bid B WHERE A.a_id = B.auction AND B.b_time BETWEEN A.a_time AND A.expires) R WHERE place = 1"""
_Q13 = """SELECT B.auction, B.bidder, B.price, B.b_time, S.side_value
  FROM bid B JOIN side S ON MOD(B.auction, 10000) = S.side_key WHERE B.auction >= 0"""
_Q20 = """SELECT B.*, A.*, CHAR_LENGTH(A.a_extra) + CHAR_LENGTH(B.b_extra) AS extra_size
  FROM bid B JOIN auction A ON B.auction = A.a_id WHERE A.category = 10"""

QUERIES: dict[str, Query] = {
    "q3": Query(q3, ("auction", "person"), _Q3, _Q3, ("a_id",), _sums("a_id")),
    "q4": Query(
        q4,
        ("auction", "bid"),
        _Q4.replace("AVG(final)", "CAST(FLOOR(AVG(final)) AS BIGINT)"),
        _Q4,
        (*(f"final_{c}" for c in CATEGORIES), *(f"won_{c}" for c in CATEGORIES)),
        f"{_sums('category')}, SUM(category * final) AS sum_weighted",
        _averages,
        has_windows=True,
    ),
    "q8": Query(
        q8,
        ("person", "auction"),
        _Q8.format(
            person="person",
            auction="auction",
            **{f"{kind}_{part}": f"{kind}_time // {WINDOW}" for kind in "pa" for part in ("start", "group")},
        ),
        _Q8.format(
            person=_TUMBLE.format("person", "p_at"),
            auction=_TUMBLE.format("auction", "a_at"),
            **{f"{kind}_start": "window_start" for kind in "pa"},
            **{f"{kind}_group": "window_start, window_end" for kind in "pa"},
        ),
        ("p_id",),
        _sums("p_id"),
        has_windows=True,
    ),
    "q9": Query(
        q9,
        ("auction", "bid"),
        _Q9,
        _Q9,
        ("a_id", "price", "bidder", "extra_size"),
        _sums("a_id", "price", "bidder", "extra_size"),
        has_windows=True,
    ),
    "q13": Query(
        q13,
        ("bid",),
        _Q13,
        None,
        ("price", "side_value"),
        _sums("price", "side_value"),
    ),
    "q20": Query(
        q20,
        ("bid", "auction"),
        _Q20,
        _Q20,
        ("auction", "price", "extra_size"),
        _sums("auction", "price", "extra_size"),
    ),
}


def answer_of(query: Query, observed: Mapping[str, Any]) -> Answer:
    """What a run observed, as SQL gives it."""
    values = {name: int(value) for name, value in observed.items()}
    if query.finish is not None:
        return query.finish(values)
    return {"n" if name == "count" else name: value for name, value in values.items()}
