"""A budget with a policy of the progressive joins, together with windows and promises: the product of the facts, with
join types taken in turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, product

from tests.conformance.cases import combined, punctuated, window
from watersmeet.join.flush_policies import FLUSHES
from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.testing.arrivals import Row, Script
from watersmeet.testing.cases import Case
from watersmeet.testing.oracle import BinaryOracle

# (constraints, the script that keeps them, their name)
PROMISES = {
    "none": None,
    "punctuations": ((), combined.script, punctuated.truthful_script),
    "one-to-many": ((punctuated.ONE_LEFT,), combined.one_to_many, punctuated.one_to_many),
    "ordered": ((punctuated.ORDERED,), combined.ascending, punctuated.ascending),
}


def whole(script: Script, how: str) -> Counter[Row]:
    return sum(BinaryOracle(how).answer(script), Counter())


def made(windowed: bool, promises: str, policy: str, flush: str, how: str) -> Case:
    said, name = PROMISES[promises], f"{promises}, {policy} {flush}"
    tuning = {"memory": 700, "policy": policy, "flush": flush}
    if said is None:
        case = window.case(f"{how}, {name}", (6, 5), 2, how=how, **tuning)
    elif windowed:
        exact = promises != "ordered"
        case = combined.case(name, how, *said[0], script=said[1], lengths=(6, 5), exact=exact, **tuning)
    else:
        case = punctuated.case(f"{how}, {name}", *said[0], script=said[2], **tuning)
        case = replace(case, how=how, oracle=lambda script: whole(script, how))
    # One case of each kind gets every check of the suite.
    leading = (policy, flush, promises) in {("rpj", "optimal", "none"), ("hmj", "adaptive", "punctuations")}
    return replace(case, variation=not leading)


def cases() -> Iterator[Case]:
    types = cycle(JOIN_TYPES)
    ways = [(policy, flush) for policy, flushes in FLUSHES.items() for flush in flushes]
    for (policy, flush), promises in product(ways, PROMISES):
        for windowed in (True, False) if promises != "none" else (True,):
            yield made(windowed, promises, policy, flush, next(types))


CASES = list(cases())
