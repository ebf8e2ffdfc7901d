"""The metadata-aware join: every constraint, purge policy and scheduling, with punctuations made from the future."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.testing.arrivals import Arrival, Row, Script
from watersmeet.testing.cases import Case
from watersmeet.testing.oracle import BinaryOracle, Held
from watersmeet.testing.punctuations import truthful_script

ONE_LEFT = {"kind": "one_to_many", "one": "left"}
ONE_RIGHT = {"kind": "one_to_many", "one": "right"}
CLUSTERED = {"kind": "clustered", "input": "right"}
ORDERED = {"kind": "ordered", "input": "right"}
SEQUENCE = {"sequence": "_p0"}
TINY = {"memory": 900}  # bytes: a handful of rows


def case(
    name: str, *constraints: dict[str, Any], script: Callable[..., Script] = truthful_script, **tuning: Any
) -> Case:
    """A case whose script keeps what the constraints promise."""
    options = {"constraints": list(constraints), "buckets": 4}
    return Case(f"punctuated, {name}", "punctuated", options, tuning, script=script)


one_to_many = partial(truthful_script, unique=["left"])
many_to_one = partial(truthful_script, unique=["right"])
ascending = partial(truthful_script, arrange={"right": "ascending"})
clusters = partial(truthful_script, unique=["left"], arrange={"right": "clustered"})

CASES = [
    case("many-to-many"),
    case("one-to-many", ONE_LEFT, script=one_to_many),
    case("one-to-one", ONE_LEFT, ONE_RIGHT, script=partial(truthful_script, unique=["left", "right"])),
    case("clustered", ONE_LEFT, CLUSTERED, script=clusters),
    case("clustered by a sequence", ONE_LEFT, {**CLUSTERED, **SEQUENCE}, script=clusters),
    case("ascending", ORDERED, script=partial(truthful_script, arrange={"right": "ascending"})),
    case(
        "descending by a sequence",
        {**ORDERED, **SEQUENCE, "direction": "descending"},
        script=partial(truthful_script, arrange={"right": "descending"}),
    ),
    case("left only, batch purge", script=partial(truthful_script, punctuate=["left"]), purge="batch", purge_after=5),
    case("spilling", **TINY, idle_pages=2),
    case("spilling, one-to-many, batch purge", ONE_LEFT, script=one_to_many, memory=250, purge="batch", purge_after=3),
    case("quota, priority, one-to-many", ONE_LEFT, script=one_to_many, quota=4, scheduling="priority"),
    case("quota, priority and value", ONE_LEFT, script=one_to_many, quota=4, scheduling="priority_value"),
    case("quota, value-oriented", quota=3, scheduling="value", purge="batch", purge_after=4),
    case("quota and spilling", quota=3, scheduling="value", **TINY, idle_pages=1),
]


class PromiseOracle(BinaryOracle):
    """A row whose key the other input has promised away is certain."""

    def __init__(self, how: str, **more: Any) -> None:
        super().__init__(how, **more)
        self.promises: dict[str, list[dict[str, Any]]] = {side: [] for side in self.sides}

    def learn(self, number: int, arrival: Arrival, new: Mapping[str, Sequence[Held]]) -> None:
        assert arrival.seen is not None
        for side, table in arrival.seen.punctuations.items():
            self.promises[side] += table.to_pylist()

    def certain(self, side: str, row: Held) -> bool:
        return super().certain(side, row) or any(covers(one, row.key) for one in self.promises[self.other(side)])


def covers(promise: dict[str, Any], key: Row) -> bool:
    """Whether a promise is about a key: each of its columns a value, a range, or anything."""
    for column in range(sum(name.startswith("_low_closed") for name in promise)):
        value, at = promise[f"_k{column}"], ordered(key[column])
        low, high = promise[f"_low{column}"], promise[f"_high{column}"]
        if value is not None:
            if ordered(value) != at:
                return False
            continue
        if low is not None and (at < ordered(low) or (at == ordered(low) and promise[f"_low_closed{column}"] is False)):
            return False
        if high is not None and (
            at > ordered(high) or (at == ordered(high) and promise[f"_high_closed{column}"] is False)
        ):
            return False
    return True


def ordered(value: Any) -> tuple[bool, Any]:
    """A value as Spark orders it: NaN is the largest, -0.0 is 0.0."""
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value + 0.0)
    return (False, value)


def typed(how: str) -> list[Case]:
    """One join type: exact by batch where nothing is owed, and in all where flushed or waiting rows must come first."""

    def exact(script: Script) -> list[Counter[Row]]:
        return PromiseOracle(how).answer(script)

    def whole(script: Script) -> Counter[Row]:
        return sum(BinaryOracle(how).answer(script), Counter())

    return [
        replace(case(how), how=how, by_batch=exact),
        replace(case(f"{how}, batch purge", purge="batch", purge_after=5), how=how, by_batch=exact),
        replace(case(f"{how}, one-to-many", ONE_LEFT, script=one_to_many), how=how, by_batch=exact),
        replace(case(f"{how}, many-to-one", ONE_RIGHT, script=many_to_one), how=how, by_batch=exact),
        replace(case(f"{how}, clustered", ONE_LEFT, CLUSTERED, script=clusters), how=how, oracle=whole),
        replace(case(f"{how}, ascending", ORDERED, script=ascending), how=how, oracle=whole),
        replace(case(f"{how}, spilling", **TINY, idle_pages=2), how=how, oracle=whole),
        replace(case(f"{how}, spilling, one-to-many", ONE_LEFT, script=one_to_many, memory=250), how=how, oracle=whole),
        replace(case(f"{how}, quota and spilling", quota=3, scheduling="value", **TINY), how=how, oracle=whole),
    ]


CASES += typed("inner")[:1]
CASES += [one for how in JOIN_TYPES if how != "inner" for one in typed(how)]
