"""Arrival scripts: which rows reach which input in which batch.

A row is a plain tuple, the key values first, then the payload values. Scripts are data: the same one can be run in
process, through a state directory with a restart after every batch, or through Spark.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.columns.arrow import HASH, hash_keys
from watersmeet.join.operator import Batch
from watersmeet.plan import InputSpec, JoinPlan, OutputColumn

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Arrival:
    """What arrives in one batch; `time` is the batch's clock in microseconds."""

    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    time: int = 0
    ended: frozenset[str] = frozenset()
    punctuations: Mapping[str, pa.Table] = field(default_factory=dict)
    signals: tuple[int, ...] = ()
    seen: Arrival | None = None  # as the operator gets it, where an oracle is given something simpler

    def permuted(self, seed: int) -> Arrival:
        """The same rows in another order."""
        shuffled = {name: random.Random(seed).sample(list(rows), len(rows)) for name, rows in self.rows.items()}
        return replace(self, rows=shuffled)


Script = Sequence[Arrival]

# Key and payload types of the conformance scripts: an id makes rows distinguishable, a string varies in width.
KEYS: tuple[pa.DataType, ...] = (pa.int64(),)
PAYLOAD: tuple[pa.DataType, ...] = (pa.int64(), pa.string())


def make_plan(
    operator: str,
    inputs: Sequence[str] = ("left", "right"),
    options: Mapping[str, Any] | None = None,
    *,
    keys: tuple[pa.DataType, ...] = KEYS,
    payload: tuple[pa.DataType, ...] = PAYLOAD,
    tuning: Mapping[str, Any] | None = None,
    how: str = "inner",
) -> JoinPlan:
    """A plan whose output is the key (from the first input that has it), then the payload of every input in order; of a
    semi or anti join, that of the first input."""
    required = [name for name in inputs if name not in (options or {}).get("optional", ())]
    first, last = required[0], required[-1]
    output = [OutputColumn(pa.field(f"k{i}", kind), first, f"_k{i}", last) for i, kind in enumerate(keys)]
    output += [
        OutputColumn(pa.field(f"{name}_{i}", kind), name, f"_p{i}")
        for name in (inputs[:1] if how in ("left_semi", "left_anti") else inputs)
        for i, kind in enumerate(payload)
    ]
    specs = tuple(InputSpec(name, keys, payload) for name in inputs)
    return JoinPlan(operator, specs, tuple(output), dict(options or {}), dict(tuning or {}), how=how)


def table_of(spec: InputSpec, rows: Sequence[Row], *, constant_hash: bool = False) -> pa.Table:
    """An operator's input table out of plain rows."""
    kinds = (*spec.keys, *spec.payload)
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    hashes = np.full(len(rows), 7, np.uint64) if constant_hash else hash_keys(columns[: len(spec.keys)])
    return pa.Table.from_arrays([pa.array(hashes, pa.uint64()), *columns], names=[HASH, *spec.schema.names[1:]])


def batch_of(plan: JoinPlan, number: int, arrival: Arrival, *, constant_hash: bool = False) -> Batch:
    """The batch that an operator gets for an arrival."""
    rows = {
        name: table_of(plan.input(name), list(rows), constant_hash=constant_hash) for name, rows in arrival.rows.items()
    }
    return Batch(number, arrival.time, rows, arrival.punctuations, arrival.ended, arrival.signals)


def random_script(
    seed: int,
    *,
    inputs: Sequence[str] = ("left", "right"),
    batches: int = 8,
    batch_rows: int = 7,
    keys: int = 10,
    idle_share: float = 0.2,
    null_share: float = 0.05,
    skew: float = 0.0,
    width: int = 10,
    end: bool = True,
    tick: int = 1_000_000,
) -> list[Arrival]:
    """A seeded script: bursts and silences, null and duplicate keys, `skew` of the rows on one key.

    With `end`, all inputs end in the last batch.
    """
    rng = random.Random(seed)
    script, ident = [], 0
    for number in range(batches):
        rows: dict[str, list[Row]] = {}
        if rng.random() >= idle_share:
            for name in inputs:
                rows[name] = []
                for _ in range(rng.randint(0, batch_rows)):
                    ident += 1
                    key = None if rng.random() < null_share else rng.randrange(keys)
                    key = 0 if key is not None and rng.random() < skew else key
                    rows[name].append((key, ident, "x" * rng.randint(0, width)))
                    if rng.random() < 0.1:
                        rows[name].append(rows[name][-1])  # an exact duplicate is a row of its own
        last = end and number == batches - 1
        script.append(Arrival(rows, time=number * tick, ended=frozenset(inputs if last else ())))
    return script


def ending_script(script: Script, inputs: Sequence[str], seed: int, *, silent: bool = False) -> list[Arrival]:
    """The script with inputs that end one after the other; with `silent`, no row comes in the batches of their ends."""
    rng = random.Random(seed)
    batches = sorted(rng.sample(range(len(script)), min(len(inputs), len(script))))
    ends = dict(zip(rng.sample(list(inputs), len(inputs)), batches, strict=False))
    made = []
    for number, arrival in enumerate(script):
        ended = frozenset(name for name, end in ends.items() if end == number)
        rows = {name: rows for name, rows in arrival.rows.items() if number <= ends.get(name, len(script))}
        made.append(replace(arrival, rows={} if silent and ended else rows, ended=ended))
    return made
