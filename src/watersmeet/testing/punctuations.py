"""Arrival scripts whose sources keep promises: punctuations are made from the future of the script itself."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from watersmeet.punctuated.promises.patterns import Pattern, punctuation_table
from watersmeet.testing.arrivals import KEYS, Arrival, Row, Script, random_script

LARGE = 10_000


def future_keys(script: Script, name: str, after: int) -> set[Any]:
    """The keys that still come on an input after a batch."""
    return {row[0] for arrival in script[after + 1 :] for row in arrival.rows.get(name, ()) if row[0] is not None}


def truthful_patterns(rng: random.Random, seen: set[Any], future: set[Any]) -> list[Pattern]:
    """Promises that the rest of the script keeps: values, ranges with open and closed ends, now and then everything."""
    if not future and rng.random() < 0.3:
        return [Pattern.anything()]
    made = []
    for key in sorted(seen - future):
        if rng.random() < 0.4:
            made.append(Pattern.value(key))
    if seen and rng.random() < 0.4:
        # A range between two keys that still come: its ends are open there.
        at = rng.choice(sorted(seen))
        below = max((key for key in future if key < at), default=None)
        above = min((key for key in future if key > at), default=None)
        if at not in future:
            made.append(Pattern.between(below, above, closed="neither"))
    if rng.random() < 0.1:
        made.append(Pattern.between(LARGE, LARGE + rng.randint(0, 5), closed="left"))  # keys that never come
    return made


def punctuated(script: Script, seed: int, inputs: Sequence[str] = ("left", "right")) -> list[Arrival]:
    """The script with truthful punctuations on some of its inputs."""
    rng = random.Random(seed)
    result = []
    seen: dict[str, set[Any]] = {name: set() for name in inputs}
    for number, arrival in enumerate(script):
        tables: dict[str, pa.Table] = {}
        for name in inputs:
            seen[name] |= {row[0] for row in arrival.rows.get(name, ()) if row[0] is not None}
            patterns = truthful_patterns(rng, seen[name], future_keys(script, name, number))
            if patterns and rng.random() < 0.7:
                tables[name] = punctuation_table(KEYS, [[pattern] for pattern in patterns])
        result.append(replace(arrival, punctuations=tables))
    return result


def unique_keys(script: Script, name: str) -> list[Arrival]:
    """The script with only the first row of every key on one input."""
    seen: set[Any] = set()
    result = []
    for arrival in script:
        kept = []
        for row in arrival.rows.get(name, ()):
            if row[0] is None or row[0] not in seen:
                kept.append(row)
                seen.add(row[0])
        result.append(replace(arrival, rows=_with(arrival, name, kept)))
    return result


def rearranged(script: Script, name: str, seed: int, order: str) -> list[Arrival]:
    """The script with one input's keys handed out anew: "clustered", "ascending" or "descending"."""
    keys = [row[0] for arrival in script for row in arrival.rows.get(name, ()) if row[0] is not None]
    place = {key: i for i, key in enumerate(random.Random(seed).sample(sorted(set(keys)), len(set(keys))))}
    if order == "clustered":
        keys.sort(key=lambda key: place[key])
    else:
        keys.sort(reverse=order == "descending")
    following = iter(keys)
    ident = 0
    result = []
    for arrival in script:
        rows = []
        for row in arrival.rows.get(name, ()):
            ident += 1  # the first payload column is the sequence
            rows.append((next(following) if row[0] is not None else None, ident, *row[2:]))
        result.append(replace(arrival, rows=_with(arrival, name, rows)))
    return result


def truthful_script(
    seed: int,
    *,
    punctuate: Sequence[str] = ("left", "right"),
    unique: Sequence[str] = (),
    arrange: Mapping[str, str] | None = None,
    **shape: Any,
) -> Script:
    """A random script whose promises hold: punctuations on some inputs, unique or arranged keys on others."""
    script: Script = random_script(seed, **shape)
    for name in unique:
        script = unique_keys(script, name)
    for name, order in (arrange or {}).items():
        script = rearranged(script, name, seed, order)
    return punctuated(script, seed, punctuate)


def _with(arrival: Arrival, name: str, rows: list[Row]) -> dict[str, Sequence[Row]]:
    return {**arrival.rows, name: rows} if name in arrival.rows else dict(arrival.rows)
