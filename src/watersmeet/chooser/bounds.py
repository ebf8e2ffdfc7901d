"""What bounds the rows that a join holds of each input, in words and in numbers.

A row is held until it is certain that it can match nothing any more. What makes that certain is the bound: a window, a
promise of the other input, the end of the other inputs. A memory budget bounds what is in memory, not what is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich import filesize

from watersmeet.chooser.decide import listed
from watersmeet.chooser.story import Side, Story
from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.plan.quantities import format_duration

DAY = 86_400
ASSUMED_RATE = 1_000.0  # rows per second, where nothing is known


@dataclass(frozen=True)
class Bound:
    """What bounds the rows held of an input. `rows` is how many that are, if it can be told; without a bound there is a
    warning that says what would be one."""

    input: str
    text: str
    rows: float | None = None
    warning: str | None = None


def bounds(story: Story, rates: Mapping[str, float]) -> list[Bound]:
    """The bound of each input, at the rates that are known (rows per second)."""
    kinds = {"window": _window, "multiway": _multiway, "semi-stream": _table, "broadcast": _nothing}
    of = kinds.get(story.family, _no_window)
    return [of(story, side, rates.get(side.name)) for side in story.inputs]


def growth(side: Side, rate: float | None, what: str = "with the input") -> str:
    """How fast rows that never leave add up.

    >>> growth(Side("left", 48), None)
    'grows with the input: about 48 bytes a row, 4.1 GB a day at 1,000 rows/s'
    """
    per_second = ASSUMED_RATE if rate is None else rate
    a_day = filesize.decimal(round(side.row_bytes * per_second * DAY))
    return f"grows {what}: about {side.row_bytes} bytes a row, {a_day} a day at {_rate(per_second)}"


def _rate(rate: float) -> str:
    """A rate in words.

    >>> _rate(1000.4), _rate(0.0123)
    ('1,000 rows/s', '0.012 rows/s')
    """
    return f"{rate:,.0f} rows/s" if rate >= 10 else f"{rate:.2g} rows/s"


def spans(length: int, side: Side, rate: float | None) -> tuple[str, float]:
    """How much a stretch of time holds, in words and in rows."""
    per_second = ASSUMED_RATE if rate is None else rate
    rows = per_second * length / 1e6
    size = filesize.decimal(round(rows * side.row_bytes))
    return f"about {rows:,.0f} rows, {size}, at {_rate(per_second)}", rows


def _budgeted(story: Story, text: str) -> str:
    """The same with a budget: it is about memory alone."""
    memory = story.options.get("memory")
    if memory is None:
        return text
    return f"{text}; in memory no more than {filesize.decimal(round(memory))} for all inputs, the rest on disk"


def _window(story: Story, side: Side, rate: float | None) -> Bound:
    place = story.inputs.index(side)
    window, lateness = story.options["window"], story.options["lateness"] if story.options.get("time") else 0
    if window[place] is None:  # the interval is open
        return _no_window(story, side, rate)
    length = int(window[place])
    until = f"until the time of {story.other(side).label} is"
    bound = _for_a_while(story, side, rate, length, lateness, until)
    sooner = exits(story, side)
    return replace(bound, text=f"{bound.text}; sooner, {' or '.join(sooner)}") if sooner else bound


def _multiway(story: Story, side: Side, rate: float | None) -> Bound:
    window, optional = story.options.get("window"), story.options.get("optional") or ()
    if window is not None:
        length, until = int(window), "until all other times are"
        if side.name in optional:  # what lacks its rows is told apart by them, for up to a window longer
            labels = [one.label for one in story.inputs if one.name in optional]
            until += f" {past(length, 0)}, and {'that' if len(labels) == 1 else 'those'} of {listed(labels)}"
            length *= 2
        return _for_a_while(story, side, rate, length, story.options["lateness"], until)
    warning = (
        f"nothing bounds the rows held of {side.label}: give within (and time), or end the other inputs (end_input)"
    )
    return Bound(side.label, _budgeted(story, growth(side, rate)), warning=warning)


def _for_a_while(story: Story, side: Side, rate: float | None, length: int, lateness: int, until: str) -> Bound:
    amount, rows = spans(max(length + lateness, 0), side, rate)  # with a negative length it need not wait
    return Bound(side.label, _budgeted(story, f"{until} {past(length, lateness)}: {amount}"), rows)


def past(length: int, lateness: int) -> str:
    """How far another input's time must be for a row to have no future.

    >>> past(30_000_000, 0), past(-30_000_000, 10_000_000)
    ('30 s past theirs', '30 s before theirs, and 10 s for late rows')
    """
    where = "past" if length >= 0 else "before"
    late = f", and {format_duration(lateness)} for late rows" if lateness else ""
    return f"{format_duration(abs(length))} {where} theirs{late}"


def exits(story: Story, side: Side) -> list[str]:
    """When rows of one of two inputs leave, windows apart: at a match that is their last one, or by what the other
    input says of its keys."""
    other = story.other(side)
    matched = []
    if JOIN_TYPES[story.how].exists and side == story.inputs[0]:
        matched = ["when they match"]
    elif story.unique(other):
        matched = [f"when they match, since a key is unique in {other.label}"]
    said = promises(story, other)
    promised = [f"when {other.label} promises to send no more of their key ({listed(said)})"] if said else []
    return matched + promised


def promises(story: Story, side: Side) -> list[str]:
    """By what an input says that it sends no more of a key."""
    tracked = {kind: [one["input"] for one in story.constraints(kind)] for kind in ("clustered", "ordered")}
    return [
        text
        for text, holds in (
            ("its punctuations", side.punctuated),
            ("the end of each cluster", side.name in tracked["clustered"]),
            ("the order of its keys", side.name in tracked["ordered"]),
        )
        if holds
    ]


# What else could end the rows of an input that nothing bounds, by family.
_ADVICE = {
    "progressive": "say how long rows wait for each other (within), what {other} promises",
    "window": "give the interval both ends (within), say what {other} promises",
    "punctuated": "say what {other} promises",
}


def _no_window(story: Story, side: Side, rate: float | None) -> Bound:
    """What the other input says, or its end, is all that ends the rows of this one."""
    other, leaving, grows = story.other(side), exits(story, side), growth(side, rate, _kept(story, side))
    text = f"they leave {', or '.join(leaving)}" if leaving else grows
    if promises(story, other):
        return Bound(side.label, _budgeted(story, text))
    missing, kinds = f"nothing bounds the rows held of {side.label}", "unique, clustered, ordered, ends"
    if leaving:
        text += f"; what never does {grows}"
        missing, kinds = f"rows of {side.label} that match nothing stay", "clustered, ordered, ends"
    advice = f"{_ADVICE[story.family].format(other=other.label)} ({kinds})"
    warning = f"{missing}: {advice}, or end {other.label} (end_input)"
    return Bound(side.label, _budgeted(story, text), warning=warning)


def _kept(story: Story, side: Side) -> str:
    """What the rows held of an input grow with: a semi or anti join keeps equal right rows once."""
    if not JOIN_TYPES[story.how].exists or side == story.inputs[0]:
        return "with the input"
    return f"with its distinct keys{' and columns of the condition' if story.where else ''}"


def _table(story: Story, side: Side, rate: float | None) -> Bound:
    delay, memory = story.options["max_delay"], filesize.decimal(round(story.options["memory"]))
    if delay == 1:
        return Bound(side.label, f"no row waits; the cache of the table has {memory}")
    return Bound(
        side.label,
        f"no longer than {delay} micro-batches; rows that wait and the cache of the table share {memory}",
    )


def _nothing(story: Story, side: Side, rate: float | None) -> Bound:
    return Bound(side.label, "none: every row is joined in its own micro-batch", 0)
