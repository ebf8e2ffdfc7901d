"""Windows together with promises: every join type with each of the facts, exact by batch where the oracle knows them.

Clusters and orders promise what the oracle does not follow; there all rows together must be right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from tests.conformance.cases import window
from tests.conformance.cases.punctuated import CLUSTERED, ONE_LEFT, ONE_RIGHT, ORDERED, SEQUENCE, covers
from tests.conformance.cases.window import SECOND, WindowOracle, plan_with_times
from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.testing.arrivals import Arrival, Row, Script
from watersmeet.testing.cases import Case
from watersmeet.testing.oracle import Held
from watersmeet.testing.punctuations import truthful_script


class PromisedWindowOracle(WindowOracle):
    """Certain is also a row whose key the other input has promised away, or of whose key it has sent its only row."""

    def __init__(self, how: str, lengths: tuple[int, int], lateness: int, ones: Sequence[str], **clock: Any) -> None:
        super().__init__(how, lengths, lateness, False, **clock)
        self.ones = ones
        self.promises: dict[str, list[dict[str, Any]]] = {side: [] for side in self.sides}
        self.partners: dict[str, set[Any]] = {}

    def learn(self, number: int, arrival: Arrival, new: Mapping[str, Sequence[Held]]) -> None:
        super().learn(number, arrival, new)
        assert arrival.seen is not None
        for side, table in arrival.seen.punctuations.items():
            self.promises[side] += table.to_pylist()
        self.partners = {side: {one.row[0] for one in [*self.held[side], *new[side]]} for side in self.ones}

    def certain(self, side: str, row: Held) -> bool:
        other = self.other(side)
        return (
            super().certain(side, row)
            or row.row[0] in self.partners.get(other, ())
            or any(covers(one, row.key) for one in self.promises[other])
        )


def script(seed: int, *, unique: Sequence[str] = (), arrange: Mapping[str, str] | None = None, **shape: Any) -> Script:
    """Rows with times whose promises hold."""
    return window.timed(truthful_script(seed, unique=unique, arrange=arrange, **shape), seed)


def case(
    name: str,
    how: str,
    *constraints: dict[str, Any],
    lengths: tuple[float, float] = (4, 2),
    lateness: float = 2,
    script: Callable[..., Script] = script,
    exact: bool = True,
    **tuning: Any,
) -> Case:
    """A case whose script keeps what the constraints promise."""
    spans = (round(lengths[0] * SECOND), round(lengths[1] * SECOND))
    late = round(lateness * SECOND)
    options = {
        "window": list(spans),
        "lateness": late,
        "time_columns": ["_p2", "_p2"],
        "constraints": list(constraints),
    }
    ones = [one["one"] for one in constraints if one["kind"] == "one_to_many"]
    timeout = tuning.get("idle_timeout")

    def by_batch(rows: Script) -> list[Counter[Row]]:
        return PromisedWindowOracle(how, spans, late, ones, timeout=timeout).answer(rows)

    def whole(rows: Script) -> Counter[Row]:
        return sum(WindowOracle(how, spans, late, False).answer(rows), Counter())

    owed: dict[str, Any] = {"by_batch": by_batch} if exact else {"oracle": whole}
    owed["variation"] = how != "inner" or name not in ("punctuations", "disk, many-to-one")
    title = f"promised window, {how}, {name}"
    return Case(title, "promised_window", options, tuning, script=script, make_plan=plan_with_times, how=how, **owed)


one_to_many = partial(script, unique=["left"])
many_to_one = partial(script, unique=["right"])
ascending = partial(script, arrange={"right": "ascending"})
clusters = partial(script, unique=["left"], arrange={"right": "clustered"})


def cases() -> Iterator[Case]:
    for how in JOIN_TYPES:
        yield case("punctuations", how)
        yield case("one-to-many", how, ONE_LEFT, script=one_to_many)
        yield case("many-to-one", how, ONE_RIGHT, script=many_to_one, lengths=(30, 30))
        yield case("disk", how, lengths=(6, 5), memory=600)
        yield case("disk, many-to-one", how, ONE_RIGHT, script=many_to_one, lengths=(20, 20), memory=600)
        yield case("clustered", how, ONE_LEFT, {**CLUSTERED, **SEQUENCE}, script=clusters, exact=False)
        yield case("ascending", how, ORDERED, script=ascending, lengths=(20, 20), exact=False)
    yield case("long", "full", lengths=(1000, 1000))
    yield case("one-to-one", "full", ONE_LEFT, ONE_RIGHT, script=partial(script, unique=["left", "right"]))
    yield case("zero-length", "full", lengths=(0, 0), lateness=0)


CASES = list(cases())
