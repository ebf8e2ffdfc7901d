"""When a join emits rows that match nothing: as soon as that is certain, which its bounds decide."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.chooser.bounds import past, promises
from watersmeet.chooser.story import Side, Story
from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.plan.quantities import format_duration


def unmatched(story: Story) -> Iterator[str]:
    """A sentence for every input whose unmatched rows are results; for a semi join, when its rows come."""
    kind = JOIN_TYPES[story.how]
    if kind.semi:
        yield f"{story.inputs[0].label}: a row is emitted once, at its first match"
    labels = {side.name: side.label for side in story.inputs}
    for name in story.options.get("optional") or ():
        yield f"combinations without a row of {labels[name]}: {_when_absent(story)}"
    for side, wanted in zip(story.inputs, kind.unmatched, strict=False):
        if wanted:
            yield f"{side.label}: {_when(story, side)}"


def _when(story: Story, side: Side) -> str:
    if story.keeps_nothing:
        return "at once, in their own micro-batch"
    if story.family == "semi-stream":
        delay = story.options["max_delay"]
        return "in their own micro-batch" if delay == 1 else f"within {delay} micro-batches"
    other = story.other(side)
    ended = f"when {other.label} has ended (end_input)"
    if story.family == "window":
        place = story.inputs.index(side)
        length = story.options["window"][place]
        if length is None:  # the interval is open: no time is too late
            return ", or ".join([*_promise(story, other), ended])
        lateness = story.options["lateness"] if story.options.get("time") else 0
        timeout = story.options.get("idle_timeout")
        if not story.options.get("time"):
            silence = ""
        elif story.options.get("hot_votes"):  # all partitions go by one clock, which is that of an earlier batch
            return f"{_passed(other, int(length), lateness)}, two micro-batches later, or {ended}"
        elif timeout is None:
            silence = f"; while {other.label} is silent its time stands still (idle_timeout would let it go on)"
        else:
            silence = f"; once {other.label} is silent for {format_duration(timeout)}, its time follows {side.label}'s"
        return ", or ".join([_passed(other, int(length), lateness), *_promise(story, other), ended]) + silence
    if promise := _promise(story, other):
        return ", or ".join([*promise, ended])
    return f"only {ended}"


def _passed(other: Side, length: int, lateness: int) -> str:
    return f"when the time of {other.label} is {past(length, lateness)}"


def _when_absent(story: Story) -> str:
    """When a combination of a multiway join is certain to lack an optional input."""
    window = story.options.get("window")
    if window is None:
        return "only when that input has ended (end_input)"
    return f"when its time is {past(int(window), story.options['lateness'])}, or when it has ended (end_input)"


def _promise(story: Story, side: Side) -> list[str]:
    """What an input says: that it sends no more of a key, or that a key comes once."""
    judged = story.where or story.options.get("window") is not None  # equal keys alone are no match
    once = judged and story.unique(side)
    return [
        *([f"when the one row of their key has come from {side.label} and was no match"] if once else []),
        *([f"when {side.label} has promised to send no more of their key"] if promises(story, side) else []),
    ]
