"""Which rows a join takes for a match, beside equal keys; and what becomes of rows that come late."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.chooser.decide import listed
from watersmeet.chooser.story import Story
from watersmeet.plan.quantities import format_duration


def matching(story: Story) -> Iterator[str]:
    """A sentence for each condition that was given."""
    if story.nulls_match:
        yield f"a null in {listed(list(story.nulls_match))} matches a null"
    if story.where:
        yield f"where {story.where}"
    window = story.options.get("window")
    if window is None:
        return
    if story.family == "window":
        yield _interval(story, window)
    else:
        yield f"if the first and the last of them are at most {format_duration(int(window))} apart"
    if story.options.get("time"):
        late = f"late rows, more than {format_duration(story.options['lateness'])} behind their input's newest time,"
        dropped = story.options.get("late") == "drop"
        yield f"{late} are {'dropped' if dropped else 'joined with what is still held'}, and counted"


def _interval(story: Story, window: list[int | None]) -> str:
    """The window as an interval: how much later than its left row a right row may be."""
    left, right = story.inputs
    what = f"if the time of {right.label} less that of {left.label}"
    low, high = (None if window[1] is None else -int(window[1])), (None if window[0] is None else int(window[0]))
    if low is None or high is None:  # an open interval has one end
        word, end = ("at least", low) if high is None else ("at most", high)
        return f"{what} is {word} {_signed(end or 0)}"
    return f"{what} is between {_signed(low)} and {_signed(high)}"


def _signed(length: int) -> str:
    return f"-{format_duration(-length)}" if length < 0 else format_duration(length)
