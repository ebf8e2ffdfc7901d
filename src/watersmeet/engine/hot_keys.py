"""Which keys are frequent, and how many results a key has: estimates for people, from samples.

Of one in `EVERY` batches with rows, and of the first few, at most `SAMPLE` rows of an input and of each table of
results are counted by key; that costs the join about two parts in a hundred. The most frequent keys are added to those
of the batches before, of which `KEEP` are kept: a key with a large share of the rows is among them, and its count is
too high by no more than the sampling. Nothing that the join does depends on this, so it stands beside what a version's
digest covers, like timings: the order of rows in a batch may show in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from watersmeet.columns.arrow import Indices, hashes_of, key_name, key_names, python_values
from watersmeet.join.operator import Batch
from watersmeet.plan import JoinPlan

EVERY, FIRST = 16, 4  # batches with rows
SAMPLE = 1 << 11  # rows
KEEP = 24  # keys
RARE = 400  # a key with less than one in so many rows of the sample is of no interest
FEW = 16  # rows, among which a key may be frequent that is there once
LONGEST = 60  # characters of a key that are kept
NULL = r"\N"  # in a key

Counts = npt.NDArray[np.int64]


class KeyWatch:
    """The frequent keys of one partition: `save` after a batch gives what the next one begins with."""

    def __init__(self, plan: JoinPlan, before: Mapping[str, Any], batch: Batch) -> None:
        self._before = before
        number = before.get("batches", 0)  # with rows, so far
        self._batches = number + (0 if batch.is_idle else 1)
        self.is_watching = not batch.is_idle and (number < FIRST or number % EVERY == 0)
        if not self.is_watching:
            return
        saved = before.get("rows", {})
        self._rows = {spec.name: Frequent(saved.get(spec.name, {})) for spec in plan.inputs}
        self._results = Frequent(before.get("results", {}))
        self._columns = _key_columns(plan)
        self._null_flags = plan.null_flags
        self._whole: list[pa.Table] = []  # keys of results, all of them, not counted yet
        self._fan_outs: list[Counts] = []
        self._shares: dict[str, float] = {}
        self._largest = 0.0
        for name, table in batch.rows.items():
            table = _with_keys(table)
            if table.num_rows and name in self._rows:
                self._rows[name].seen += table.num_rows
                self._count_rows(name, table)

    def _count_rows(self, name: str, table: pa.Table) -> None:
        stride = _stride(table.num_rows)
        hashes = hashes_of(table)[::stride]
        ordered = np.sort(hashes)
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        counts = np.diff(starts, append=len(ordered))
        self._shares[f"hottest_share.{name}"] = float(counts.max()) / len(ordered)
        top = _top(counts, len(ordered))
        if len(top):
            wanted = ordered[starts[top]]
            among = np.flatnonzero(np.isin(hashes, wanted))
            found, first = np.unique(hashes[among], return_index=True)
            at = among[first][np.searchsorted(found, wanted)] * stride
            keys = table.select(key_names(table.schema)).take(pa.array(at))
            self._rows[name].add(zip(key_texts(keys, self._null_flags), (counts[top] * stride).tolist(), strict=True))
        self._rows[name].trim()

    def emitted(self, table: pa.Table) -> None:
        """Count the results in a table."""
        if not self.is_watching:
            return
        self._results.seen += table.num_rows
        if not self._columns or not table.num_rows:
            return
        stride = _stride(table.num_rows)
        # Copies: a slice would keep the whole table in memory. Results of a key stand together, so the first ones show
        # how many a key has.
        first = _copied(table, self._columns, np.arange(min(table.num_rows, SAMPLE)))
        if stride > 1:
            self._count_results(_copied(table, self._columns, np.arange(0, table.num_rows, stride)), stride)
            self._fan_outs.append(self._count_results(first, 0))
            return
        self._whole.append(first)
        if sum(part.num_rows for part in self._whole) >= SAMPLE:
            self._count_whole()

    def _count_whole(self) -> None:
        if self._whole:
            keys, self._whole = pa.concat_tables(self._whole), []
            self._fan_outs.append(self._count_results(keys, 1))

    def _count_results(self, keys: pa.Table, weight: int) -> Counts:
        distinct, counts = _grouped(keys)
        self._largest = max(self._largest, float(counts.max()) * max(weight, 1))
        if weight:  # else they are in a sample as well
            top = _top(counts, keys.num_rows)
            texts = key_texts(distinct.take(pa.array(top)), {})
            self._results.add(zip(texts, (counts[top] * weight).tolist(), strict=True))
            self._results.trim()
        return counts

    def estimates(self) -> dict[str, float]:
        """What the batch showed, by the names in `plan/metrics.py`; nothing if it was not looked at."""
        if not self.is_watching:
            return {}
        self._count_whole()
        found = dict(self._shares)
        if self._fan_outs:
            counts = np.concatenate(self._fan_outs)
            p90, p99 = np.percentile(counts, (90, 99), method="lower").tolist()
            found |= {"fan_out_mean": float(counts.mean()), "fan_out_p90": float(p90), "fan_out_p99": float(p99)}
            found["fan_out_max"] = self._largest
        return found

    def save(self) -> dict[str, Any]:
        """The frequent keys so far, in JSON form."""
        if not self.is_watching:
            return {**self._before, "batches": self._batches}
        self._count_whole()
        rows = {name: keys.save() for name, keys in self._rows.items()}
        return {"batches": self._batches, "rows": rows, "results": self._results.save()}


class Frequent:
    """The most frequent keys among those seen, with estimates of how often."""

    def __init__(self, saved: Mapping[str, Any]) -> None:
        self.seen: int = saved.get("seen", 0)
        self.top: dict[str, int] = dict(saved.get("top", {}))

    def add(self, counted: Any) -> None:
        """Count keys."""
        for text, count in counted:
            self.top[text] = self.top.get(text, 0) + count

    def trim(self) -> None:
        """Forget the rarest, so that `KEEP` are left."""
        if len(self.top) > KEEP:
            self.top = dict(sorted(self.top.items(), key=lambda item: (-item[1], item[0]))[:KEEP])

    def save(self) -> dict[str, Any]:
        """The JSON form."""
        return {"seen": self.seen, "top": self.top}


def _with_keys(table: pa.Table) -> pa.Table:
    """Without rows that have a null in their key: they reach an operator only in process, with the hash of another."""
    for name in key_names(table.schema):
        if table.column(name).null_count:
            table = table.filter(table.column(name).is_valid())
    return table


def _stride(rows: int) -> int:
    return -(-rows // SAMPLE)


def _top(counts: Counts, rows: int) -> Indices:
    """The places of the highest counts, without those of rare keys, and of keys that are there once among many."""
    least = max(-(-rows // RARE), 1 if rows <= FEW else 2)
    frequent = np.flatnonzero(counts >= least)
    return frequent[np.argsort(-counts[frequent], kind="stable")[:KEEP]]


def _key_columns(plan: JoinPlan) -> list[int]:
    """Where the output has the key; empty if it has not all of it, or keys that are no plain values."""
    kinds = plan.inputs[0].keys
    places = []
    for number, kind in enumerate(kinds[: len(kinds) - len(plan.null_flags)]):  # the flags come after the keys
        found = [at for at, column in enumerate(plan.output) if column.column == key_name(number)]
        if not found or pa.types.is_nested(kind) or pa.types.is_nested(plan.output[found[0]].field.type):
            return []
        places.append(found[0])
    return places


def _copied(table: pa.Table, columns: Sequence[int], rows: Indices) -> pa.Table:
    wanted = pa.array(rows)
    return pa.table([table.column(at).take(wanted) for at in columns], [key_name(i) for i in range(len(columns))])


def _grouped(keys: pa.Table) -> tuple[pa.Table, Counts]:
    """The distinct keys, and how often each is there."""
    if keys.num_columns == 1:
        found = pc.value_counts(keys.column(0))
        values, counts = found.field(0), found.field(1)
        return pa.table([values], keys.schema.names), counts.to_numpy(zero_copy_only=False)
    grouped = keys.group_by(keys.schema.names, use_threads=False).aggregate([([], "count_all")])
    counts = grouped.column("count_all").to_numpy()
    return grouped.select(keys.schema.names), counts


def key_texts(keys: pa.Table, null_flags: Mapping[str, str]) -> list[str]:
    """Keys as people read them; those of which nulls match have the flags that say so (`JoinPlan.null_flags`).

    >>> key_texts(pa.table({"_k0": [7, 0], "_k1": [False, True]}), {"_k0": "_k1"})
    ['7', '\\\\N']
    """
    columns = []
    for name in keys.column_names:
        column = keys.column(name)
        if name in null_flags:
            column = pc.if_else(keys.column(null_flags[name]), pa.scalar(None, column.type), column)
        if name not in null_flags.values():
            columns.append(python_values(column))
    return [key_text(values) for values in zip(*columns, strict=True)]


def key_text(values: Sequence[object]) -> str:
    """A key as people read it; a long one is cut, and stays different from others that begin like it.

    >>> key_text((7, "a")), key_text((b"ab",)), key_text(("x" * 70,))[55:]
    ('7, a', '0x6162', 'xxxxx…0460f7fe')
    """
    text = ", ".join(map(_value_text, values))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…{xxhash.xxh32_hexdigest(text.encode())}"


def _value_text(value: object) -> str:
    if value is None:
        return NULL
    return "0x" + value.hex() if isinstance(value, bytes) else str(value)
