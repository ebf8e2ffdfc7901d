"""Events of the Nexmark benchmark, in columns: persons, auctions and bids of an online auction house.

The distributions are those of the published generators (Apache Beam's, from which Flink's derives) at their defaults:

- Of every 50 events 1 is a person, 3 are auctions and 46 are bids; 10,000 events a second, in order, times in
  milliseconds.
- A seller is a hot one in 3 of 4 auctions: the first of the last hundred persons. A bidder likewise, the second of the
  hundred. A bid is on the hot auction, the first of the last hundred, every second time. All others are drawn evenly
  from the last 1,000 persons (and 10 that are still to come) or the last 100 auctions (and 10).
- A price is 100 * 10^(6u), u even in [0, 1). An auction lasts 1 to 332 ms: on average as long as 100 auctions take to
  begin. Categories are 10 to 14, six states, ten cities, 4 hot channels for every second bid and 10,000 others.
- Rows are filled up with text to about 200 bytes (persons), 500 (auctions) and 100 (bids), give or take a fifth.

Every value is a function of the event's number and the field alone (the finalizer of splitmix64), so the events are the
same on every machine and with every version of NumPy, however they are cut into files. `VERSION` says which events
these are; a change of any value is a new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

VERSION = 1
FIRST_TIME = 1_700_000_000_000  # milliseconds
EVENTS_PER_SECOND = 10_000
FIRST_ID = 1_000  # of persons and of auctions
PERSONS, AUCTIONS, ALL = 1, 3, 50  # of every 50 events
ACTIVE_PERSONS, ACTIVE_AUCTIONS, AHEAD = 1_000, 100, 10
HOT = 100  # one of so many is the hot one
LONGEST_AUCTION = 2 * (ACTIVE_AUCTIONS * ALL // AUCTIONS * 1000 // EVENTS_PER_SECOND)  # milliseconds
_LONGEST_TEXT = 1_024
SIDE_ROWS = 10_000  # q13's table
CATEGORIES = range(10, 15)
LAST_FILE = 99_999  # with the rows far ahead
KINDS = ("person", "auction", "bid")

_STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
_CITIES = [
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
]
_FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
_LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
_HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
_CHANNELS = [*_HOT_CHANNELS, *(f"channel-{number}" for number in range(10_000))]

Numbers = np.ndarray


def mixed(values: Numbers) -> Numbers:
    """64 random bits for each number: the finalizer of splitmix64."""
    bits = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


class Draws:
    """Random numbers for events; every call draws for the next field."""

    def __init__(self, events: Numbers) -> None:
        self.seeds = mixed(events.astype(np.uint64) + np.uint64(1))
        self.field = 0

    def bits(self) -> Numbers:
        """64 random bits for each event."""
        self.field += 1
        return mixed(self.seeds + np.uint64(self.field))

    def below(self, limit: int | Numbers) -> Numbers:
        """A number from 0 to below `limit`."""
        return ((self.bits() >> np.uint64(1)) % np.asarray(limit, np.uint64)).astype(np.int64)

    def price(self) -> Numbers:
        """100 to 100,000,000, even in its logarithm."""
        unit = (self.bits() >> np.uint64(11)).astype(np.float64) / 2.0**53
        return np.round(np.power(10.0, unit * 6) * 100).astype(np.int64)

    def of(self, values: list[str]) -> pa.Array:
        """One of some texts."""
        return pa.array(values).take(pa.array(self.below(len(values))))

    def text(self, lengths: Numbers) -> pa.Array:
        """Text of given lengths: stretches of one long random text."""
        starts = self.below(len(_LETTERS) - _LONGEST_TEXT)
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(_LETTERS[places]))

    def filling(self, sizes: int | Numbers, wanted: int) -> pa.Array:
        """Text that fills rows of some bytes up to about so many, give or take a fifth of it."""
        missing = np.maximum(np.broadcast_to(wanted - np.asarray(sizes), self.seeds.shape), 0)
        spread = np.maximum(missing * 2 // 5, 1)
        return self.text(missing - missing // 5 + self.below(spread))


_LETTERS = (mixed(np.arange(1 << 20)) % np.uint64(26) + np.uint64(ord("a"))).astype(np.uint8)
_URLS = [
    f"https://www.nexmark.com/{bytes(_LETTERS[5 * n : 5 * n + 5]).decode()}/item.htm?query=1&channel_id={n}"
    for n in range(len(_CHANNELS))
]


def last_person(events: Numbers) -> Numbers:
    """The number of the newest person at an event, counted from 0."""
    return events // ALL


def last_auction(events: Numbers) -> Numbers:
    """The number of the newest auction at an event, counted from 0; -1 before the first."""
    return events // ALL * AUCTIONS + np.clip(events % ALL - PERSONS, -1, AUCTIONS - 1)


def _persons(draws: Draws, newest: Numbers, hot_place: int) -> Numbers:
    """A hot person in 3 of 4 cases, else one of the active ones."""
    active = np.minimum(newest + 1, ACTIVE_PERSONS)
    others = newest + 1 - active + draws.below(active + AHEAD)
    return FIRST_ID + np.where(draws.below(4) > 0, newest // HOT * HOT + hot_place, others)


def _times(events: Numbers) -> Numbers:
    return FIRST_TIME + events * 1000 // EVENTS_PER_SECOND


def persons(events: Numbers) -> pa.Table:
    """The persons among some events."""
    events = events[events % ALL < PERSONS]
    draws = Draws(events)
    first, last, city = draws.of(_FIRST_NAMES), draws.of(_LAST_NAMES), draws.of(_CITIES)
    columns = {
        "p_id": FIRST_ID + last_person(events),
        "name": pc.binary_join_element_wise(first, last, " "),
        "email": draws.text(np.full(len(events), 12)),
        "credit_card": draws.text(np.full(len(events), 19)),
        "city": city,
        "state": draws.of(_STATES),
        "p_time": _times(events),
        "p_extra": draws.filling(8 + 12 + 12 + 19 + 8 + 2, 200),
    }
    return pa.table(columns)


def auctions(events: Numbers) -> pa.Table:
    """The auctions among some events."""
    place = events % ALL
    events = events[(place >= PERSONS) & (place < PERSONS + AUCTIONS)]
    draws = Draws(events)
    times, first_bid = _times(events), draws.price()
    name, description = 3 + draws.below(17), 3 + draws.below(97)
    columns = {
        "a_id": FIRST_ID + last_auction(events),
        "item_name": draws.text(name),
        "description": draws.text(description),
        "initial_bid": first_bid,
        "reserve": first_bid + draws.price(),
        "a_time": times,
        "expires": times + 1 + draws.below(LONGEST_AUCTION),
        "seller": _persons(draws, last_person(events), 0),
        "category": CATEGORIES[0] + draws.below(len(CATEGORIES)),
        "a_extra": draws.filling(7 * 8 + name + description, 500),
    }
    return pa.table(columns)


def bids(events: Numbers) -> pa.Table:
    """The bids among some events."""
    events = events[events % ALL >= PERSONS + AUCTIONS]
    draws = Draws(events)
    newest = last_auction(events)
    oldest = np.maximum(newest - ACTIVE_AUCTIONS, 0)
    others = oldest + draws.below(newest - oldest + 1 + AHEAD)
    hot = draws.below(2) > 0
    channel = pa.array(np.where(hot, draws.below(len(_HOT_CHANNELS)), len(_HOT_CHANNELS) + draws.below(10_000)))
    columns = {
        "auction": FIRST_ID + np.where(draws.below(2) > 0, newest // HOT * HOT, others),
        "bidder": _persons(draws, last_person(events), 1),
        "price": draws.price(),
        "channel": pa.array(_CHANNELS).take(channel),
        "url": pa.array(_URLS).take(channel),
        "b_time": _times(events),
        "b_extra": draws.filling(32, 100),
    }
    return pa.table(columns)


def side_input() -> pa.Table:
    """q13's table: a value for each of 10,000 keys."""
    keys = np.arange(SIDE_ROWS)
    return pa.table({"side_key": keys, "side_value": (mixed(keys) % np.uint64(1_000_000)).astype(np.int64)})


def _far_ahead(table: pa.Table, number: int) -> pa.Table:
    """A row days after all others, of a person or auction that does not exist: the watermark passes all others."""
    row = table.slice(0, 1)
    for place, name in enumerate(table.column_names):
        if name in ("p_id", "a_id", "seller", "auction", "bidder", "category"):
            row = row.set_column(place, name, pa.array([-number], pa.int64()))
        elif name.endswith("_time") or name == "expires":
            row = row.set_column(place, name, pc.add(row[name], 10 * 86_400_000))
    return row


def batches(events: int, files: int) -> Iterator[dict[str, pa.Table]]:
    """The events in so many stretches, and rows far ahead at the end."""
    made = {"person": persons, "auction": auctions, "bid": bids}
    edges = np.linspace(0, events, files + 1).astype(np.int64)
    for start, end in pairwise(edges):
        numbers = np.arange(start, end)
        tables = {kind: make(numbers) for kind, make in made.items()}
        yield tables
    yield {kind: _far_ahead(table, number) for number, (kind, table) in enumerate(tables.items(), 1)}


def write(folder: Path, events: int, files: int, csv: bool = False) -> None:
    """Write `<folder>/<kind>/<number>.parquet`, and the side input; with `csv` the same under `<folder>/csv`."""
    for kind in (*KINDS, "side"):
        for home in (folder, folder / "csv"):
            (home / kind).mkdir(parents=True, exist_ok=True)

    def put(kind: str, number: int, table: pa.Table) -> None:
        target = folder / kind / f"{number:05d}.parquet"
        pq.write_table(table, target, compression="snappy")
        os.utime(target, (1_700_000_000 + number,) * 2)  # a file source reads files in the order of their times
        if csv:
            pa_csv.write_csv(table, folder / "csv" / kind / f"{number:05d}.csv")

    put("side", 0, side_input())
    for number, tables in enumerate(batches(events, files)):
        for kind, table in tables.items():
            put(kind, LAST_FILE if number == files else number, table)
