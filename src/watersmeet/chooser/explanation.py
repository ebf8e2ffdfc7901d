"""A join in words: what was chosen and why, what bounds its state, when unmatched rows come, what it costs.

Before it has run, from what is known when it is built; afterwards the same, beside what has happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich import filesize

from watersmeet.chooser.bounds import ASSUMED_RATE, Bound, bounds
from watersmeet.chooser.decide import Choice, listed
from watersmeet.chooser.matching import matching
from watersmeet.chooser.observed import Observed, observe
from watersmeet.chooser.scaling import Slots, advice
from watersmeet.chooser.story import Story
from watersmeet.chooser.unmatched import unmatched
from watersmeet.plan.hot_table import ENTER
from watersmeet.semistream.explain import explain_semi_stream_join
from watersmeet.state.directory import StateDir
from watersmeet.window.batch_costs import KernelCosts
from watersmeet.window.explain import explain_state


@dataclass(frozen=True)
class Explanation:
    """What to expect of a join, and what has come of it; `str` gives it in words."""

    story: Story
    rates: Mapping[str, float]  # rows per second of the inputs for which they are known
    origin: str  # of the rates
    observed: Observed | None = None
    costs: tuple[str, ...] = ()

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What was chosen, with the reasons."""
        return self.story.reasons

    @property
    def bounds(self) -> list[Bound]:
        """What bounds the rows held of each input."""
        return bounds(self.story, self.rates)

    @property
    def warnings(self) -> list[str]:
        """What grows without a bound, or comes never."""
        return [bound.warning for bound in self.bounds if bound.warning is not None]

    @property
    def unmatched(self) -> list[str]:
        """When rows that match nothing are emitted."""
        return list(unmatched(self.story))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        story = self.story
        names = listed([side.label for side in story.inputs] + (["a table"] if story.table else []))
        partitions = f", {story.partitions} partitions" if story.partitions else ""
        yield f"{story.family} join of {names} on {story.on}, how={story.how!r}{partitions}"
        yield from _section("chosen", (f"{one.what}: {one.value}, because {one.why}" for one in self.choices))
        yield from _section("rows match", matching(story))
        origin = f" ({self.origin})" if self.origin else ""
        yield from _section(f"rows are held{origin}", (f"{one.input}: {one.text}" for one in self.bounds))
        yield from (f"  warning: {text}" for text in self.warnings)
        yield from _section("unmatched rows are emitted", self.unmatched)
        yield from _section("the table", _BROADCAST if story.keeps_nothing else ())
        yield from _section("hot keys", self._hot_keys())
        yield from _section("cost", self.costs)
        yield from _section(self._so_far(), self._comparison())

    def _hot_keys(self) -> Iterator[str]:
        splits = self.story.options.get("hot_keys")
        if not splits:
            return
        labels = {side.name: side.label for side in self.story.inputs}
        either = " or ".join(labels[name] for name in splits)
        others = (
            "those of the table read where they are"
            if self.story.table
            else (f"those of the other input{'s' if len(labels) > 2 else ''} copied")
        )
        both = "; or both, where that is less to copy" if self.story.options.get("hot_grids") else ""
        yield (
            f"spread over partitions when they make more than {100 * ENTER:.0f} % of a partition's mean work: rows of "
            f"{either} are divided, {others}{both}"
        )
        if self.story.options.get("hot_votes"):
            yield "on copied rows that match nothing all partitions decide together, in a second exchange of results"
        found = self.observed.hot.keys.values() if self.observed is not None else ()
        for key in sorted(found, key=lambda one: (-one.share, one.text)):
            lines, columns = key.shape
            now = f"{labels[key.split]} divided among {lines} of"
            if columns > 1:
                other = next(label for name, label in labels.items() if name != key.split)
                now = f"{labels[key.split]} and {other} divided by {lines} x {columns} of"
            now = now if key.is_spread else "cooled down,"
            yield f"{key.text}: {100 * key.share:.1f} % of the work, {now} {len(key.holders)} partitions that have it"

    def _so_far(self) -> str:
        if self.observed is None:
            return "so far"
        batches = f"{self.observed.batches:,} micro-batch{'es' if self.observed.batches != 1 else ''}"
        return f"so far, {batches}{', finished' if self.observed.finished else ''}"

    def _comparison(self) -> Iterator[str]:
        seen = self.observed
        if seen is None:
            return
        labels = {side.name: side.label for side in self.story.inputs}
        for side, bound in zip(self.story.inputs, self.bounds, strict=True):
            came, held, real = seen.rows_in[side.name], seen.held(side.name), seen.row_bytes(side.name)
            expected = f", about {bound.rows:,.0f} expected" if bound.rows is not None and not seen.finished else ""
            each = f", {real:.0f} bytes each ({side.row_bytes} expected)" if real is not None else ""
            yield f"{side.label}: {came:,} rows came, {held:,} are held{expected}{each}"
        memory = self.story.options.get("memory")
        if memory is not None:
            resident = sum(value for name, value in seen.newest.items() if name.startswith("resident_bytes."))
            yield f"memory: {filesize.decimal(round(resident))} of {filesize.decimal(round(memory))}"
        if "hit_share" in seen.newest:
            yield f"cache: {100 * seen.newest['hit_share']:.1f} % of the rows of the newest micro-batch"
        yield f"results: {seen.rows_out:,}"
        for name, rows in seen.counted("unmatched").items():
            input, _, proof = name.partition(".")
            yield f"unmatched: {rows:,} rows of {labels.get(input, input)} ({proof})"
        for name, rows in seen.counted("late").items():
            dropped = self.story.options.get("late") == "drop"
            yield f"late: {rows:,} rows of {labels[name]}, {'dropped' if dropped else 'joined with what was held'}"
        rows = seen.rows_in.total()
        if rows:
            yield f"work: {seen.seconds:,.1f} s of tasks, {1e6 * seen.seconds / rows:,.1f} us a row"


def explained(
    story: Story,
    directory: StateDir | None,
    rates: Mapping[str, float] | None = None,
    like: StateDir | None = None,
    slots: Slots | None = None,
) -> Explanation:
    """A story with what its state says; rates are given, of this join so far, of another one, or unknown. `slots` are
    those that Spark has, where that is known."""
    if story.keeps_nothing:
        return Explanation(story, dict(rates or {}), "", None, tuple(_costs(story, None)))
    seen = observe(directory) if directory is not None else None
    known, origins = dict(rates or {}), ["at the rates given"] if rates else []
    for source, origin in (
        (seen, "at the rates so far"),
        (observe(like) if like else None, "at the rates of an earlier run"),
    ):
        more = rates_of(story, source) if source is not None and len(known) < len(story.inputs) else {}
        if not more.keys() <= known.keys():
            known, origins = {**more, **known}, [*origins, origin]
    unknown = [side.label for side in story.inputs if side.name not in known]
    if unknown:
        whose = f"none of {listed(unknown)} is" if known else "no rates are"
        origins.append(f"at {ASSUMED_RATE:,.0f} rows/s, since {whose} known yet")
    costs = [*_costs(story, directory if seen else None), *_partitions(story, directory, seen, slots)]
    return Explanation(story, known, "; ".join(origins), seen, tuple(costs))


def rates_of(story: Story, seen: Observed) -> dict[str, float]:
    """The rates that fill a window are those of the rows' own times, where they have any. Of an input that holds none
    it is told by how many rows came of it and of another one, since both have gone through the same time."""
    names = [side.name for side in story.inputs]
    found = dict(seen.rates)
    if story.options.get("window") is not None and story.options.get("time") and seen.density:
        other = max(seen.density, key=seen.rows_in.__getitem__)
        per_row = seen.density[other] / max(seen.rows_in[other], 1)
        found = {name: seen.density.get(name, per_row * seen.rows_in[name]) for name in names}
    return {name: found[name] for name in names if name in found}


# What becomes of a table that changes, where Spark joins it.
_BROADCAST = (
    "is read by the first micro-batch and kept in Spark's cache; what other programs change in it is read at the next "
    "start, when the join is built again",
    "what this Spark session itself writes to its files, Spark notices: the next micro-batch has it",
    "to change it while the query runs: wm.prepare_master, wm.master(path) as right input, and wm.refresh_master",
)


def _costs(story: Story, directory: StateDir | None) -> Iterator[str]:
    if story.keeps_nothing:
        yield "of a micro-batch: grows with its rows, and with the table, which Spark broadcasts anew"
    elif story.family == "semi-stream" and story.table:
        rows = max(int(story.table["rows"]), 1)
        yield "by the cost model, for keys with Zipf exponent 1:"
        yield from str(
            explain_semi_stream_join(
                master_rows=rows,
                master_row_bytes=max(int(story.table["nbytes"]) / rows, 1),
                stream_row_bytes=story.inputs[0].row_bytes,
                memory=story.options["memory"],
                policy=story.options["policy"],
                chunk_rows=int(story.table["chunk_rows"]),
            )
        ).splitlines()
    elif story.operator == "window" and directory is not None:
        costs = story.options.get("costs")
        found = explain_state(directory, KernelCosts(**costs) if costs else KernelCosts())
        labels = {side.name: side.label for side in story.inputs}
        text = re.sub(r"\b(left|right)(?= window)", lambda side: labels[side[0]], str(found or ""))
        yield from text.splitlines()
    elif story.operator == "window":
        yield "known once it has run; wm.explain_window_join(rates=...) tells it for rates you expect"
    else:
        yield "of a micro-batch: grows with its rows and their results, not with the rows held"


def _partitions(story: Story, directory: StateDir | None, seen: Observed | None, slots: Slots | None) -> Iterator[str]:
    """Whether another number of partitions would be faster, by the rows of a micro-batch so far."""
    if seen is None or directory is None or slots is None or not seen.rows_in.total():
        return
    yield from advice(
        seen.rows_in.total() / seen.batches, story.partitions, slots, object_store=not directory.is_local
    )  # fmt: skip


def _section(title: str, lines: Iterator[str] | list[str] | tuple[str, ...]) -> Iterator[str]:
    """A title and what is below it; nothing if there is nothing."""
    for number, line in enumerate(lines):
        if not number:
            yield title
        yield f"  {line}"
