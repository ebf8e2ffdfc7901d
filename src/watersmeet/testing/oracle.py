"""The answer, recomputed from scratch with dictionaries and loops. Shares no code with the operators."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from watersmeet.testing.arrivals import Row, Script


def comparable(value: Any) -> Any:
    """A value as the join's equality sees it: all NaNs are one, -0.0 is 0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def inner_join(script: Script, inputs: Sequence[str] = ("left", "right"), keys: int = 1) -> Counter[Row]:
    """The multiset of output rows (key, then the payload of every input) of the plain join of all rows."""
    by_key: list[dict[Row, list[Row]]] = []
    for name in inputs:
        groups = defaultdict(list)
        for arrival in script:
            for row in arrival.rows.get(name, ()):
                if not any(value is None for value in row[:keys]):
                    groups[tuple(comparable(value) for value in row[:keys])].append(row)
        by_key.append(groups)
    answer: Counter[Row] = Counter()
    for key, first in by_key[0].items():
        for rows in itertools.product(first, *(groups.get(key, []) for groups in by_key[1:])):
            answer[(*rows[0][:keys], *itertools.chain.from_iterable(row[keys:] for row in rows))] += 1
    return answer
