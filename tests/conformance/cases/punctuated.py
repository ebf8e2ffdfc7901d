"""The metadata-aware join: every constraint, purge policy and scheduling, with punctuations made from the future."""

from collections.abc import Callable
from functools import partial
from typing import Any

from watersmeet.testing.arrivals import Script
from watersmeet.testing.cases import Case
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
    case("quota, value-oriented", quota=3, scheduling="value", purge="batch", purge_after=4),
    case("quota and spilling", quota=3, scheduling="value", **TINY, idle_pages=1),
]
