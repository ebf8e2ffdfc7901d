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
    of = {
        "window": _window,
        "multiway": _multiway,
        "punctuated": _promises,
        "semi-stream": _table,
    }.get(story.family, _everything)
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


def _everything(story: Story, side: Side, rate: float | None) -> Bound:
    """Nothing but the end of the other input."""
    other = story.other(side)
    text, warning = _kept(story, side, rate), f"nothing bounds the rows held of {side.label}"
    if story.how == "left_semi" and side.name == "left":
        text = f"until they match: what never does {growth(side, rate)}"
    advice = (
        "say how long rows wait for each other (within), what the inputs promise (unique, clustered, ordered, ends)"
    )
    return Bound(side.label, _budgeted(story, text), warning=f"{warning}: {advice}, or end {other.label} (end_input)")


def _kept(story: Story, side: Side, rate: float | None) -> str:
    if story.how in ("left_semi", "left_anti"):
        return growth(side, rate) if side.name == "left" else growth(side, rate, "with its distinct keys")
    return growth(side, rate)


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
        return _everything(story, side, rate)
    length = int(window[place])
    other = story.other(side)
    bound = _for_a_while(story, side, rate, length, lateness, f"until the time of {other.label} is")
    sooner = sooner_by(story, side)
    return replace(bound, text=f"{bound.text}; sooner, {listed(sooner)}") if sooner else bound


def _multiway(story: Story, side: Side, rate: float | None) -> Bound:
    window = story.options.get("window")
    if window is not None:
        return _for_a_while(story, side, rate, int(window), story.options["lateness"], "until all other times are")
    warning = (
        f"nothing bounds the rows held of {side.label}: give within (and time), or end the other inputs (end_input)"
    )
    return Bound(side.label, _budgeted(story, growth(side, rate)), warning=warning)


def _for_a_while(story: Story, side: Side, rate: float | None, length: int, lateness: int, until: str) -> Bound:
    amount, rows = spans(max(length, 0) + lateness, side, rate)  # with a negative length it need not wait
    late = f", and {format_duration(lateness)} for late rows" if lateness else ""
    return Bound(side.label, _budgeted(story, f"{until} {format_duration(length)} past theirs{late}: {amount}"), rows)


def sooner_by(story: Story, side: Side) -> list[str]:
    """What the other input says about its keys, and so ends rows of this one."""
    other = story.other(side)
    tracked = {kind: [one["input"] for one in story.constraints(kind)] for kind in ("clustered", "ordered")}
    said = [
        text
        for text, holds in (
            ("its punctuations", other.punctuated),
            ("the end of each cluster", other.name in tracked["clustered"]),
            ("the order of its keys", other.name in tracked["ordered"]),
        )
        if holds
    ]
    once = any(one["one"] == other.name for one in story.constraints("one_to_many"))
    return [
        *([f"when they match, since a key is unique in {other.label}"] if once else []),
        *([f"when {other.label} promises to send no more of their key ({listed(said)})"] if said else []),
    ]


def _promises(story: Story, side: Side, rate: float | None) -> Bound:
    """Promises of the other input are all that ends the rows of this one."""
    other, ends = story.other(side), sooner_by(story, side)
    text = f"they leave {', or '.join(ends)}" if ends else growth(side, rate)
    if any("promises" in end for end in ends):
        return Bound(side.label, _budgeted(story, text))
    if ends:
        text += f"; what never does {growth(side, rate)}"
        missing, which = f"rows of {side.label} that match nothing stay", "clustered, ordered, ends"
    else:
        missing, which = f"no promise ends the rows held of {side.label}", "unique, clustered, ordered, ends"
    warning = f"{missing}: say what {other.label} promises ({which}), or end {other.label} (end_input)"
    return Bound(side.label, _budgeted(story, text), warning=warning)


def _table(story: Story, side: Side, rate: float | None) -> Bound:
    delay, memory = story.options["max_delay"], filesize.decimal(round(story.options["memory"]))
    if delay == 1:
        return Bound(side.label, f"no row waits; the cache of the table has {memory}")
    return Bound(
        side.label,
        f"no longer than {delay} micro-batches; rows that wait and the cache of the table share {memory}",
    )
