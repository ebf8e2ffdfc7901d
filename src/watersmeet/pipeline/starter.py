"""`watersmeet init`: for every operator a commented pipeline file with sample data beside it, ready to run.

The samples are small, made by code with a fixed seed, and each comes with the SQL of its answer: the tests and the tour
(`make demo`) compare with it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.errors import StateDirError
from watersmeet.pipeline.auto import AUTO
from watersmeet.pipeline.families import FAMILIES
from watersmeet.pipeline.origins import sources_from

Tables = dict[str, list[pa.Table]]
START = 1_767_225_600_000_000  # 2026-01-01 in microseconds


@dataclass(frozen=True)
class Starter:
    """A sample: its tables (source to files, in order of arrival) and the SQL of the join's answer."""

    tables: Callable[[int, int], Tables]
    answer: str


def _times(seconds: np.ndarray) -> pa.Array:
    """Times in whole milliseconds: Spark writes no more of them as JSON."""
    return pa.array(START + (seconds * 1e3).astype(np.int64) * 1000, pa.timestamp("us", "UTC"))


def _progressive(parts: int, rows: int) -> Tables:
    """Orders and payments, in any order, some without a partner."""
    random = np.random.default_rng(1)
    keys = parts * rows // 2

    def table(column: str) -> pa.Table:
        return pa.table({"order_id": random.integers(0, keys, rows), column: random.random(rows).round(2)})

    return {"orders": [table("amount") for _ in range(parts)], "payments": [table("paid") for _ in range(parts)]}


def _window(parts: int, rows: int) -> Tables:
    """Ads shown and clicked over two hours, each file a stretch of time, rows up to half a minute out of order."""
    random = np.random.default_rng(2)
    stretch = 7200 / parts

    def table(part: int, time: str, column: str) -> pa.Table:
        seconds = np.sort(random.uniform(part, part + 1, rows)) * stretch + random.uniform(0, 30, rows)
        return pa.table(
            {"ad": random.integers(0, 500, rows), time: _times(seconds), column: random.integers(0, 100, rows)}
        )

    return {
        "impressions": [table(part, "shown_at", "page") for part in range(parts)],
        "clicks": [table(part, "clicked_at", "user") for part in range(parts)],
    }


def _multiway(parts: int, rows: int) -> Tables:
    """What users view, put in the basket and buy."""
    random = np.random.default_rng(3)
    users = parts * rows // 2

    def table(column: str) -> pa.Table:
        return pa.table({"user": random.integers(0, users, rows), column: random.integers(0, 1000, rows)})

    return {name: [table(column) for _ in range(parts)] for name, column in _STEPS.items()}


_STEPS = {"views": "page", "baskets": "item", "buys": "cents"}


def _punctuated(parts: int, rows: int) -> Tables:
    """News, and who reads them: every news item is read for a while, then a row says that it is over."""
    random = np.random.default_rng(4)
    items = max(rows // 20, 1)
    news, access = [], []
    for part in range(parts):
        numbers = np.arange(part * items, (part + 1) * items)
        news.append(pa.table({"sno": numbers, "title": [f"news {number}" for number in numbers]}))
        # readers of this stretch's items and, for the last of them, of the stretch before
        first = max(part - 1, 0) * items
        read = random.integers(first, (part + 1) * items, rows)
        over = np.arange(first, part * items) if part else np.empty(0, np.int64)
        access.append(
            pa.table(
                {
                    "sno": np.concatenate([read, over]),
                    "reader": np.concatenate([random.integers(0, 10_000, rows), np.zeros(len(over), np.int64)]),
                    "is_end": np.concatenate([np.zeros(rows, bool), np.ones(len(over), bool)]),
                }
            )
        )
    return {"news": news, "access": access}


def _semi_stream(parts: int, rows: int) -> Tables:
    """Sales, a few parts of which sell most, and the table of parts."""
    random = np.random.default_rng(5)
    count = parts * rows
    popularity = 1 / np.arange(1, count + 1)
    popularity /= popularity.sum()
    sales = [
        pa.table({"part_id": random.choice(count, rows, p=popularity), "quantity": random.integers(1, 9, rows)})
        for _ in range(parts)
    ]
    price = random.random(count).round(2)
    table = pa.table({"part_id": np.arange(count), "name": [f"part {i}" for i in range(count)], "price": price})
    return {"sales": sales, "parts": [table]}


STARTERS: dict[str, Starter] = {
    "progressive": Starter(_progressive, "SELECT * FROM orders JOIN payments USING (order_id)"),
    "window": Starter(
        _window,
        "SELECT * FROM impressions JOIN (SELECT ad AS click_ad, clicked_at, user FROM clicks) ON ad = click_ad AND "
        "clicked_at BETWEEN shown_at AND shown_at + INTERVAL 10 MINUTES",
    ),
    "multiway": Starter(_multiway, "SELECT * FROM views JOIN baskets USING (user) JOIN buys USING (user)"),
    "punctuated": Starter(
        _punctuated,
        "SELECT * FROM news JOIN (SELECT sno, reader FROM access WHERE NOT is_end) USING (sno)",
    ),
    "semi-stream": Starter(_semi_stream, "SELECT * FROM sales JOIN parts USING (part_id)"),
}
STARTERS = {AUTO: STARTERS["window"], **STARTERS}
assert STARTERS.keys() == {AUTO, *FAMILIES}


def init(
    operator: str, folder: Path, *, origin: str = "files", how: str = "inner", parts: int = 6, rows: int = 2_000
) -> Path:
    """Write the pipeline file and its sample data into a folder; returns the file. Nothing that is there is touched.

    The sample is files, whatever the origin of the pipeline's sources: they can be loaded into topics or tables.
    """
    file, data = folder / f"{operator}.yaml", folder / f"{operator}-data"
    for path in (file, data):
        if path.exists():
            raise StateDirError(
                f"init {operator}",
                expected=f"no {path.name} in {folder}",
                found="one",
                hint="Give another folder with --into, or move it away.",
            )
    for source, tables in STARTERS[operator].tables(parts, rows).items():
        (data / source).mkdir(parents=True)
        begun = time.time() - parts
        for number, table in enumerate(tables):
            written = write_part(table, data / source, number)
            # Spark reads files in the order of their times, which could be equal when they are written this fast.
            os.utime(written, (begun + number, begun + number))
    file.write_text(typed(how, sources_from(origin, template(operator))), encoding="utf-8")
    return file


def typed(how: str, text: str) -> str:
    """A pipeline file whose join is of another type: the line after its key, or the one that says so already."""
    if how == "inner":
        return text
    said = re.sub(r"(?m)^  how: \S+", f"  how: {how}", text)
    return said if said != text else re.sub(r"(?m)^(  on: .*)$", rf"\1\n  how: {how}", text, count=1)


def write_part(table: pa.Table, folder: Path, number: int) -> Path:
    """Add a file to a source's folder so that a reader sees it whole: Spark ignores names that begin with a dot."""
    hidden = folder / f".part-{number:03d}.parquet"
    pq.write_table(table, hidden)
    return hidden.rename(folder / f"part-{number:03d}.parquet")


def template(operator: str) -> str:
    """The commented pipeline file."""
    return (files("watersmeet.pipeline") / "templates" / f"{operator}.yaml").read_text(encoding="utf-8")
