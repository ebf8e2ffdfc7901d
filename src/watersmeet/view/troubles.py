"""What is wrong with a join, in words: found from its metrics, with the numbers and what to do.

Each rule is a function of the facts; a rule that finds nothing yields nothing. Thresholds are rules of thumb: what is
named here is worth a look, and what is not worth one is not named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.filesize import decimal

from watersmeet.view.sentences import number, percent, seconds

HOT_SHARE = 0.2  # of the rows of an input, or of the results
FEW_ROWS = 100  # shares of fewer say nothing
SILENT_SECONDS, SILENT_BATCHES = 10.0, 3
FAN_OUT = 1000  # results per row
LATE_SHARE = 0.01
ON_DISK = 0.5  # of the bytes held, under a budget
NULL_SHARE = 0.05
SKEW = 2.0  # the fullest partition over their mean
SOON = 7 * 86400.0  # seconds until the disk is full
SLOWER = 4.0  # the newest batches over the usual ones
SPREADING = ("progressive", "window", "multiway", "punctuated")  # have the option hot_keys
_GOES_ON = "Starting it again goes on where it stopped."

Level = Literal["bad", "warning", "note"]


@dataclass(frozen=True)
class Trouble:
    """One thing that is wrong. `view` is the part of the page that shows it."""

    id: str
    level: Level
    title: str
    sentence: str
    advice: str
    view: str


@dataclass(frozen=True)
class InputFacts:
    """What the rules ask of an input."""

    name: str
    rows: int = 0
    recent_rows: int = 0
    silent_seconds: float = 0.0
    silent_batches: int = 0  # in which others had rows
    ended: bool = False
    late: int = 0  # recent
    too_late: int = 0  # of those: without any use
    null_keys: int = 0
    shed: int = 0
    shrunk: int = 0
    held: int = 0
    top: tuple[tuple[str, float], ...] = ()  # keys and their shares


@dataclass(frozen=True)
class Facts:
    """What the rules ask of a join. `recent` batches are the newest fifty."""

    family: str
    running: bool
    inputs: tuple[InputFacts, ...] = ()
    recent_results: int = 0
    result_top: tuple[tuple[str, float, float], ...] = ()  # keys, shares of the results, results per row
    budget: int | None = None
    resident_bytes: int = 0
    spilled_bytes: int = 0
    flushing_share: float = 0.0  # of the recent batches with rows
    overloads: int = 0
    partition_rows: tuple[int, ...] = ()
    batch_seconds: float = 0.0
    usual_seconds: float = 0.0
    violations: dict[str, int] = field(default_factory=dict)
    repeats: int = 0
    unbounded: bool = False
    growth: float = 0.0  # bytes per second
    full_in: float | None = None  # seconds
    failure: str | None = None  # of the last run, if it has not gone on since
    hot_keys: str = "off"  # or auto: rows of such keys are spread

    @property
    def recent_rows(self) -> int:
        """Of all inputs."""
        return sum(one.recent_rows for one in self.inputs)


def _failed(facts: Facts) -> Iterator[Trouble]:
    if facts.failure is not None:
        yield Trouble(
            "failed",
            "bad",
            "The last run failed",
            facts.failure.removesuffix(_GOES_ON).rstrip(),
            _GOES_ON,
            "overview",
        )


def _hot_key(facts: Facts) -> Iterator[Trouble]:
    if facts.hot_keys == "auto":  # then it is the join's business
        return
    advice = (
        "Filter the key if it stands for nothing (an empty string, a default), or aggregate the input by key before "
        "the join. More partitions do not help: a key lives in one."
    )
    if facts.family in SPREADING:
        advice += ' `hot_keys="auto"` spreads it; that needs a new state directory.'
    for one in facts.inputs:
        if one.top and one.rows >= FEW_ROWS and one.top[0][1] >= HOT_SHARE:
            key, share = one.top[0]
            amount = "half" if 0.45 <= share <= 0.55 else percent(share)
            yield Trouble(
                f"hot-key-{one.name}",
                "bad" if share >= 0.4 else "warning",
                f"One key has {amount} of all rows of {one.name}",
                f"Key {key} has about {percent(share)} of the {number(one.rows)} rows of {one.name}. All of them go to "
                "one partition, which does that share of the work alone.",
                advice,
                "keys",
            )


def _fan_out(facts: Facts) -> Iterator[Trouble]:
    per_row = facts.recent_results / facts.recent_rows if facts.recent_rows else 0.0
    worst = max(facts.result_top, key=lambda item: item[2], default=None)
    if worst is not None and worst[2] >= FAN_OUT:
        key, share, each = worst
        yield Trouble(
            "fan-out",
            "bad",
            f"Fan-out of {number(_rounded(each))}: key {key} multiplies",
            f"Each row of key {key}, on the input that has fewest of them, gives about {number(_rounded(each))} "
            f"results; they are {percent(share)} of all results. A key that is frequent on both inputs multiplies.",
            "Filter the key, aggregate one input by key first, or bound the join with a window. multiway_join has "
            "max_results to stop before memory does.",
            "keys",
        )
    elif per_row >= FAN_OUT:
        yield Trouble(
            "fan-out",
            "bad",
            f"Fan-out of {number(_rounded(per_row))}: every row has very many results",
            f"{number(facts.recent_results)} results came of {number(facts.recent_rows)} rows in the newest batches.",
            "Check the key: a column is missing from `on`, or an input should be aggregated first.",
            "keys",
        )


def _silent(facts: Facts) -> Iterator[Trouble]:
    for one in facts.inputs:
        long = one.silent_seconds >= SILENT_SECONDS and one.silent_batches >= SILENT_BATCHES
        if facts.running and not one.ended and long:
            others = ", ".join(other.name for other in facts.inputs if other.name != one.name)
            what = "no row at all so far" if one.rows == 0 else f"no row for {seconds(one.silent_seconds)}"
            yield Trouble(
                f"silent-{one.name}",
                "warning",
                f"{one.name} is silent",
                f"{what[0].upper()}{what[1:]} on {one.name}, in {number(one.silent_batches)} batches in which {others} "
                "had rows. What these rows wait for does not come, and their clock does not go on.",
                "Look at the source of the input. If it is complete, say so with wm.end_input(state_dir, "
                "name); if it may be silent, idle_timeout lets the others go on.",
                "overview",
            )


def _late(facts: Facts) -> Iterator[Trouble]:
    for one in facts.inputs:
        late = max(one.late, one.too_late)
        if late >= 10 and late >= LATE_SHARE * one.recent_rows:
            lost = "All were joined with what is left."
            if one.too_late:
                lost = f"{'All' if one.too_late >= late else number(one.too_late)} of them found nothing left to match."
            yield Trouble(
                f"late-{one.name}",
                "bad" if one.too_late else "warning",
                f"Late rows on {one.name}",
                f"{number(late)} of the newest {number(one.recent_rows)} rows of {one.name} "
                f"({percent(late / max(one.recent_rows, 1))}) came behind the watermark. {lost}",
                "Raise `lateness` to what the source needs, at the price of more state.",
                "overview",
            )


def _budget(facts: Facts) -> Iterator[Trouble]:
    total = facts.resident_bytes + facts.spilled_bytes
    if facts.overloads:
        yield Trouble(
            "budget",
            "bad",
            "The budget is too small",
            f"{number(facts.overloads)} of the newest batches did not fit into {decimal(facts.budget or 0)}: the "
            "join reads more of the master table per batch to make room.",
            "Raise `memory`, or lower the rate of the stream (maxFilesPerTrigger, maxOffsetsPerTrigger).",
            "overview",
        )
    elif facts.budget and total and facts.spilled_bytes >= ON_DISK * total and facts.flushing_share >= 0.3:
        yield Trouble(
            "budget",
            "warning",
            "The budget is too small",
            f"{percent(facts.spilled_bytes / total)} of the {decimal(total)} held lie on disk, and "
            f"{percent(facts.flushing_share)} of the newest batches flush rows: the budget is "
            f"{decimal(facts.budget)}. Results of rows on disk come late, when no rows arrive or at the end.",
            f"Raise `memory`: about {decimal(_round_up(total * 1.2))} would hold everything. It may be changed at "
            "a restart.",
            "overview",
        )
    for one in facts.inputs:
        if one.shed or one.shrunk:
            how = "shed" if one.shed else "dropped with the part of the window that did not fit"
            yield Trouble(
                f"loss-{one.name}",
                "bad",
                f"Rows of {one.name} are lost to overload",
                f"{number(one.shed + one.shrunk)} rows of {one.name} were {how}. Their results are missing.",
                "Raise `memory` or `service_rate`, or choose on_overload='keep', which is exact and uses the disk.",
                "decisions",
            )


def _growth(facts: Facts) -> Iterator[Trouble]:
    if facts.running and facts.unbounded and facts.full_in is not None and facts.full_in < SOON:
        yield Trouble(
            "growth",
            "bad" if facts.full_in < SOON / 14 else "warning",
            "Nothing bounds the state",
            f"It grows by {decimal(int(facts.growth * 3600))} per hour; at this rate the disk is full in "
            f"{seconds(facts.full_in)}.",
            "Rows of an endless stream need an end: use window_join, promise what will not come (punctuated_join), or "
            "end the inputs.",
            "overview",
        )


def _skew(facts: Facts) -> Iterator[Trouble]:
    rows = facts.partition_rows
    if len(rows) > 1 and sum(rows) >= FEW_ROWS * len(rows):
        mean, most = sum(rows) / len(rows), max(rows)
        if most >= SKEW * mean:
            yield Trouble(
                "skew",
                "warning",
                f"Partition {rows.index(most)} has {most / mean:.1f} times the mean",
                f"{number(most)} of {number(sum(rows))} rows went to it. A batch takes as long as its fullest "
                "partition.",
                "Look at the hot keys. Without one, few distinct keys are the reason: more of them, or fewer "
                "partitions, even it out.",
                "flow",
            )


def _null_keys(facts: Facts) -> Iterator[Trouble]:
    for one in facts.inputs:
        if one.null_keys >= 10 and one.null_keys >= NULL_SHARE * one.rows:
            yield Trouble(
                f"null-keys-{one.name}",
                "note",
                f"{percent(one.null_keys / max(one.rows, 1))} of {one.name} have no key",
                f"{number(one.null_keys)} rows of {one.name} have a null in their key. They match nothing.",
                "Check the expression of the key; an outer join emits them, an inner join drops them.",
                "overview",
            )


def _slower(facts: Facts) -> Iterator[Trouble]:
    if facts.running and facts.batch_seconds >= 1 and facts.batch_seconds >= SLOWER * facts.usual_seconds > 0:
        yield Trouble(
            "slow",
            "warning",
            "Batches have become slower",
            f"The newest ones take {seconds(facts.batch_seconds)} in the join, the usual one "
            f"{seconds(facts.usual_seconds)}.",
            "Compare rows per batch, fan-out and the decisions of these batches.",
            "decisions",
        )


def _promises(facts: Facts) -> Iterator[Trouble]:
    for name, rows in facts.violations.items():
        yield Trouble(
            f"violation-{name}",
            "bad",
            f"{name} breaks its promises",
            f"{number(rows)} rows of {name} came although its source had promised not to send them.",
            "Mend the source, or the promise; on_violation says what happens to such rows.",
            "decisions",
        )
    if facts.repeats:
        yield Trouble(
            "repeats",
            "bad",
            "A source does not replay",
            f"{number(facts.repeats)} batches came out differently when Spark repeated them. Exactly once needs "
            "sources that give the same rows again.",
            "Read from files, tables or Kafka, not from a socket or a rate source.",
            "overview",
        )


RULES: tuple[Callable[[Facts], Iterator[Trouble]], ...] = (
    _failed, _fan_out, _hot_key, _silent, _late, _budget, _growth, _skew, _promises, _slower, _null_keys,
)  # fmt: skip
_ORDER = {"bad": 0, "warning": 1, "note": 2}


def troubles(facts: Facts) -> list[dict[str, Any]]:
    """All that is wrong, the worst first."""
    found = [trouble for rule in RULES for trouble in rule(facts)]
    return [asdict(trouble) for trouble in sorted(found, key=lambda trouble: _ORDER[trouble.level])]


def _rounded(value: float) -> float:
    """Two digits that count: estimates should not look exact."""
    return float(f"{value:.2g}")


def _round_up(size: float) -> int:
    digits = int(f"1{'0' * (len(str(int(size))) - 1)}")
    return int(-(-size // digits)) * digits
