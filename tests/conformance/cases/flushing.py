"""A budget with a policy of the progressive joins, together with windows and promises: the product of the facts, with
join types taken in turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice, product

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
    # One case of each kind of join gets every check of the suite.
    leading = how == "inner" and (policy, flush) in {("rpj", "optimal"), ("hmj", "adaptive")}
    return replace(case, variation=not leading)


def cases() -> Iterator[Case]:
    """Every way of every policy with windows alone, and with two of the other combinations in turns."""
    types = cycle(JOIN_TYPES)
    others = cycle(product((True, False), [name for name in PROMISES if name != "none"]))
    for policy, flushes in FLUSHES.items():
        for flush in flushes:
            yield made(True, "none", policy, flush, next(types))
            for windowed, promises in islice(others, 2):
                yield made(windowed, promises, policy, flush, next(types))
    yield made(True, "punctuations", "rpj", "optimal", "inner")
    yield made(False, "punctuations", "hmj", "adaptive", "inner")


CASES = list(cases())
