"""What is chosen inside a join: its policy, its algorithm, its delay. An option that was given is never chosen.

Most of these choices are made again and again while the join runs, by measured costs; what is said here is how. Those
of a semi-stream join are made when it is built, by the size and the layout of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from watersmeet.chooser.decide import Choice
from watersmeet.semistream.options import SemiStreamOptions

# A micro-batch reads about this many chunks in each partition, so that a small table delays no row and a large one
# does not hold up a batch (docs/semi_stream.md has what a chunk costs).
CHUNKS_PER_BATCH = 10
LONGEST_DELAY = int(SemiStreamOptions.model_fields["max_delay"].default)

_AT_RUN_TIME = {
    "progressive": (
        Choice(
            "policy",
            "rpj",
            "rows that are least likely to match, by the rates of both inputs, leave memory first",
        ),
        Choice(
            "flush",
            "classes",
            "among buckets that are about equally likely to be probed the largest leaves, whole: to tell them apart "
            "costs short runs on disk and gives no more results",
        ),
    ),
    "window": (
        Choice(
            "algorithm",
            "auto",
            "each window is kept by hash or scanned, whichever this machine was measured to do faster; decided again "
            "after every micro-batch",
        ),
        Choice(
            "policy",
            "soonest",
            "rows that expire soonest will be probed the fewest times, and leave memory first",
        ),
    ),
    "multiway": (
        Choice(
            "driver",
            "output_size",
            "the input that is expected to give the most results goes first, by the selectivities seen so far",
        ),
    ),
    "punctuated": (
        Choice(
            "policy",
            "largest",
            "the largest parts of both inputs leave memory first: few flushes, and few promises reach what is on disk",
        ),
    ),
}


def choices(
    family: str,
    given: Mapping[str, Any],
    *,
    table: Mapping[str, Any] | None = None,
    earlier: Mapping[str, Any] | None = None,
) -> Iterator[Choice]:
    """The choices inside a join of a family: for a semi-stream join by its prepared `table`, or as in an `earlier` run.

    >>> [one.value for one in choices("window", {})]
    ['auto']
    >>> [one.why for one in choices("window", {"algorithm": "HN"})]
    ['it was given']
    """
    if family == "semi-stream":
        yield from _semi_stream(given, table, earlier or {})
    for usual in _AT_RUN_TIME.get(family, ()):
        if _is_open(usual.what, given):
            is_given = usual.what in given
            yield Choice(usual.what, str(given[usual.what]), "it was given") if is_given else usual


def _is_open(what: str, given: Mapping[str, Any]) -> bool:
    """Without a budget no row leaves memory; rows with promises are looked up by key and those under a policy flushed
    by it, so that they are always kept by hash."""
    if what == "flush":  # a policy that was given has a way of its own
        return "memory" in given and ("flush" in given or "policy" not in given)
    if what == "algorithm":
        return not given.keys() & {"constraints", "punctuations"} and given.get("policy", "soonest") == "soonest"
    return what != "policy" or ("memory" in given and given.get("on_overload") != "shrink")


def as_options(made: Iterable[Choice], given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a join: what was chosen, and what was given, as it was given.

    >>> as_options([Choice("policy", "ssbj", ""), Choice("max_delay", "3", "")], {"policy": "mesh"})
    {'max_delay': 3, 'policy': 'mesh'}
    """
    chosen = [one for one in made if one.what not in given]
    return {one.what: int(one.value) if one.what == "max_delay" else one.value for one in chosen} | dict(given)


def _semi_stream(
    given: Mapping[str, Any], table: Mapping[str, Any] | None, earlier: Mapping[str, Any]
) -> Iterator[Choice]:
    yield _known("policy", given, earlier) or _policy(table)
    yield _known("max_delay", given, earlier) or _max_delay(table)


def _known(what: str, given: Mapping[str, Any], earlier: Mapping[str, Any]) -> Choice | None:
    if what in given:
        return Choice(what, str(given[what]), "it was given")
    return Choice(what, str(earlier[what]), "the join has run with it") if what in earlier else None


def _policy(table: Mapping[str, Any] | None) -> Choice:
    if table is None or table["layout"] == "hash":
        return Choice("policy", "aligned", "the table is in chunks by the hash of the key: a row waits for one chunk")
    return Choice(
        "policy",
        "mesh",
        f"the table has the layout {table['layout']!r}: a key may be in any chunk, so that all of them go by in any "
        "case, and to keep no cache costs least",
    )


def _max_delay(table: Mapping[str, Any] | None) -> Choice:
    """How many micro-batches a row may wait.

    >>> table = {"rows": 3_000_000, "chunk_rows": 100_000, "partitions": 1}
    >>> _max_delay(table).value, _max_delay({**table, "rows": 1_000}).value, _max_delay({**table, "rows": 10**9}).value
    ('3', '1', '10')
    """
    if table is None:
        return Choice("max_delay", str(LONGEST_DELAY), "the size of the table is known once it is prepared")
    chunks = -(-int(table["rows"]) // (int(table["chunk_rows"]) * int(table["partitions"]))) or 1
    delay = max(1, min(-(-chunks // CHUNKS_PER_BATCH), LONGEST_DELAY))
    of = f"the table has about {chunks:,} chunk{'s' if chunks > 1 else ''} in each partition"
    if delay == 1:
        return Choice("max_delay", "1", f"{of}: all of it can be read in a micro-batch, so that no row waits")
    return Choice("max_delay", str(delay), f"{of}: {-(-chunks // delay):,} of them are read in a micro-batch")
