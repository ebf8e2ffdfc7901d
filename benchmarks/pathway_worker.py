"""A query in Pathway, in the environment of the rivals: `pathway_worker.py QUERY FOLDER [PERSISTENCE]`.

Reads `FOLDER/<input>/*.csv` (columns that the query needs), adds the answer up, and prints seconds and answer as JSON.
With PERSISTENCE, a folder, the input is kept there, with a snapshot every second: from it Pathway computes its state
again after a restart. (Keeping the state of operators needs a licence key.)
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pathway as pw

WINDOW, SIDE_ROWS = 10_000, 10_000


def read(kind: str, /, **columns: type) -> pw.Table:
    """An input."""
    schema = pw.schema_from_types(**columns)
    return pw.io.csv.read(f"{sys.argv[2]}/{kind}", schema=schema, mode="static", name=kind)


def summed(table: pw.Table, *columns: str) -> pw.Table:
    """The number of rows and the sums of some columns."""
    return table.reduce(
        n=pw.reducers.count(), **{f"sum_{column}": pw.reducers.sum(table[column]) for column in columns}
    )


def stream_stream() -> pw.Table:
    left, right = read("left", k=int, a=int), read("right", k=int, b=int)
    return summed(left.join(right, left.k == right.k).select(left.k, left.a, right.b), "k", "a", "b")


def q3() -> pw.Table:
    auctions = read("auction", a_id=int, seller=int, category=int).filter(pw.this.category == 10)
    persons = read("person", p_id=int, name=str, city=str, state=str)
    persons = persons.filter((pw.this.state == "OR") | (pw.this.state == "ID") | (pw.this.state == "CA"))
    pairs = auctions.join(persons, auctions.seller == persons.p_id)
    return summed(pairs.select(persons.name, persons.city, persons.state, auctions.a_id), "a_id")


def q4() -> pw.Table:
    auctions = read("auction", a_id=int, category=int, a_time=int, expires=int)
    bids = read("bid", auction=int, price=int, b_time=int)
    pairs = auctions.join(bids, auctions.a_id == bids.auction).select(
        auctions.a_id, auctions.category, auctions.a_time, auctions.expires, bids.price, bids.b_time
    )
    in_time = pairs.filter((pw.this.b_time >= pw.this.a_time) & (pw.this.b_time <= pw.this.expires))
    won = in_time.groupby(pw.this.a_id, pw.this.category).reduce(pw.this.category, final=pw.reducers.max(pw.this.price))
    means = won.groupby(pw.this.category).reduce(
        pw.this.category, final=pw.reducers.sum(pw.this.final) // pw.reducers.count()
    )
    return summed(means.select(pw.this.category, weighted=pw.this.category * pw.this.final), "category", "weighted")


def q8() -> pw.Table:
    persons = read("person", p_id=int, name=str, p_time=int).select(
        pw.this.p_id, pw.this.name, p_window=pw.this.p_time // WINDOW
    )
    auctions = read("auction", seller=int, a_time=int).select(pw.this.seller, a_window=pw.this.a_time // WINDOW)
    sellers = auctions.groupby(pw.this.seller, pw.this.a_window).reduce(pw.this.seller, pw.this.a_window)
    new = persons.join(sellers, persons.p_id == sellers.seller, persons.p_window == sellers.a_window)
    return summed(new.select(persons.p_id, persons.name, starts=persons.p_window), "p_id")


def q9() -> pw.Table:
    texts = {"item_name": str, "description": str, "a_extra": str}
    numbers = dict.fromkeys(("a_id", "initial_bid", "reserve", "a_time", "expires", "seller", "category"), int)
    auctions = read("auction", **numbers, **texts)
    bids = read("bid", auction=int, bidder=int, price=int, b_time=int, b_extra=str)
    pairs = auctions.join(bids, auctions.a_id == bids.auction).select(
        *(auctions[name] for name in (*numbers, *texts)), bids.bidder, bids.price, bids.b_time, bids.b_extra
    )
    in_time = pairs.filter((pw.this.b_time >= pw.this.a_time) & (pw.this.b_time <= pw.this.expires))
    order = pw.make_tuple(pw.this.price, -pw.this.b_time, pw.this.bidder)
    best = in_time.groupby(pw.this.a_id).reduce(row=pw.reducers.argmax(order))
    won = in_time.ix(best.row, context=best)
    return summed(
        won.select(*pw.this, extra_size=pw.this.a_extra.str.len() + pw.this.b_extra.str.len()),
        *("a_id", "price", "bidder", "extra_size"),
    )


def q13() -> pw.Table:
    bids = read("bid", auction=int, bidder=int, price=int, b_time=int).filter(pw.this.auction >= 0)
    bids = bids.select(*pw.this, side_key=pw.this.auction % SIDE_ROWS)
    side = read("side", side_key=int, side_value=int)
    found = bids.asof_now_join(side, bids.side_key == side.side_key).select(*bids, side.side_value)
    return summed(found, "price", "side_value")


def q20() -> pw.Table:
    texts = {"item_name": str, "description": str, "a_extra": str}
    numbers = dict.fromkeys(("a_id", "initial_bid", "reserve", "a_time", "expires", "seller", "category"), int)
    auctions = read("auction", **numbers, **texts).filter(pw.this.category == 10)
    bids = read("bid", auction=int, bidder=int, price=int, channel=str, url=str, b_time=int, b_extra=str)
    size = auctions.a_extra.str.len() + bids.b_extra.str.len()
    pairs = bids.join(auctions, bids.auction == auctions.a_id).select(*bids, *auctions, extra_size=size)
    return summed(pairs, "auction", "price", "extra_size")


QUERIES: dict[str, Callable[[], pw.Table]] = {
    query.__name__: query for query in (stream_stream, q3, q4, q8, q9, q13, q20)
}


def main() -> None:
    """Build, run, print."""
    answer: dict[str, Any] = {}

    def keep(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            answer.update(row)

    result = QUERIES[sys.argv[1]]()
    pw.io.subscribe(result, keep)
    more: dict[str, Any] = {}
    if len(sys.argv) > 3 and sys.argv[3]:
        backend = pw.persistence.Backend.filesystem(sys.argv[3])
        more["persistence_config"] = pw.persistence.Config(backend, snapshot_interval_ms=1000)
    start = time.perf_counter()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, **more)
    print(json.dumps({"seconds": time.perf_counter() - start, "answer": answer}))


main()
