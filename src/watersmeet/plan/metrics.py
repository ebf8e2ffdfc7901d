"""The metrics of one batch: counters, gauges, and the decisions behind them; and the list of all there are.

A counter says how much happened in the batch: amounts add up over batches and partitions, and a counter of which
nothing happened is left out. A gauge says how things stand after the batch. Every name begins with a word of `METRICS`;
after it come, with dots, the labels that the list gives (`left.<input>.<reason>`). Operators do not check names when
they count: the test of this module runs all of them and compares. It also compares `docs/metrics.md`, which
`make reference` writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# A decision is a small dict; a batch keeps at most this many, and counts the rest.
MAX_EVENTS = 200


@dataclass
class Metrics:
    """What an operator did in one batch. All of it is deterministic: timings are kept apart, by the driver."""

    rows_in: dict[str, int] = field(default_factory=dict)
    rows_out: int = 0
    counters: dict[str, float] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def reset(self) -> None:
        """Forget the last batch."""
        self.rows_in, self.rows_out, self.counters, self.events = {}, 0, {}, []

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        if amount:
            self.counters[name] = self.counters.get(name, 0) + amount

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge."""
        self.counters[name] = value

    def event(self, kind: str, **details: Any) -> None:
        """Record a decision (a flush, a purge, a cache move) with the numbers behind it."""
        if len(self.events) < MAX_EVENTS:
            self.events.append({"kind": kind, **details})
        else:
            self.count("events_not_recorded")

    def as_dict(self) -> dict[str, Any]:
        """The JSON form kept in a manifest."""
        return {
            "rows_in": dict(self.rows_in),
            "rows_out": self.rows_out,
            "counters": dict(self.counters),
            "events": list(self.events),
        }


# Why a row leaves.
REASONS = {
    "null_key": "a key column is null: it equals nothing",
    "null_time": "it has no time, and the join has a window",
    "violation": "its source had promised not to send it, and on_violation is 'drop'",
    "shed": "rows came faster than the service rate",
    "shrunk": "the window was shortened to fit into memory",
    "late": 'it came behind the horizon, or was late and is dropped (`late="drop"`)',
    "expired": "every row still to come is too late for it",
    "punctuation": "the other input has promised to send no more rows of its key",
    "clustered": "the other input's cluster of its key is over",
    "ordered": "the other input's order has passed its key",
    "one_to_many": "it has been compared with the only row it can match",
    "matched": "it has matched, which is all that a semi or anti join asks of it",
    "redundant": "other rows of its key are held, and a semi or anti join needs no more",
    "ended": "the other inputs have ended",
    "answered": "it has been joined with the master table",
    "evicted": "a cached master row takes more room than the stream rows that would wait for it",
}

# The operators of each family.
FAMILIES = {
    "progressive": ("symmetric", "rpj", "xjoin", "hmj"),
    "window": ("window", "promised_window"),
    "multiway": ("mjoin",),
    "punctuated": ("punctuated",),
    "semi_stream": ("semi_stream",),
}
ALL = tuple(FAMILIES)
STAGES = ("arrival", "md", "dd", "clean_up")

Together = Literal["sum", "max", "min"]


@dataclass(frozen=True)
class Metric:
    """One entry of the list. `together` says how values of several partitions become one."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    meaning: str
    families: tuple[str, ...] = ALL
    labels: tuple[str, ...] = ()
    together: Together = "sum"

    @property
    def pattern(self) -> str:
        """The name with its labels."""
        return ".".join([self.name, *(f"<{label}>" for label in self.labels)])


def _counter(name: str, unit: str, meaning: str, *families: str) -> Metric:
    head, *labels = name.split(".")
    return Metric(head, "counter", unit, meaning, families or ALL, tuple(labels))


def _gauge(name: str, unit: str, meaning: str, *families: str, together: Together = "sum") -> Metric:
    head, *labels = name.split(".")
    return Metric(head, "gauge", unit, meaning, families or ALL, tuple(labels), together)


P, W, M, U, S = ALL

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        # What is held: reported by `operator.advance` from the stores of every operator.
        _gauge("held_rows.input", "rows", "stored: in memory and on disk"),
        _gauge("resident_rows.input", "rows", "stored in memory"),
        _gauge(
            "resident_bytes.input", "bytes",
            "stored in memory, with marks and with dead rows that are not rewritten yet",
        ),
        _gauge("spilled_rows.input", "rows", "stored on disk"),
        _gauge("spilled_bytes.input", "bytes", "stored on disk, before compression"),
        _gauge("runs.input", "runs", "in which the rows are stored, in memory and on disk"),
        _gauge("waiting_rows.input", "rows", "of those held, rows that are not joined yet", U, S),
        # Where rows go.
        _counter("left.input.reason", "rows", "not held any more, or never stored; see the reasons below"),
        _counter(
            "unmatched.input.reason", "rows",
            "emitted because they never matched and can match nothing any more, by the proof; of a multiway join its "
            "results without a row of some optional input, under the first required input",
        ),
        _counter("absent.input", "results", "without a row of an optional input", M),
        _counter(
            "late.input", "rows",
            "late when they came; they are joined with what is left (not those of an optional input), or dropped",
            W, M,
        ),
        _counter("runs_expired.input", "runs", "dropped whole and unread, because all of their rows expired", W, M),
        # Hot keys.
        _counter("rows_copied.input", "rows", "of hot keys that came here, though others have them", P, W, M, U),
        _counter("bytes_copied.input", "bytes", "of these rows", P, W, M, U),
        _counter(
            "candidates.input", "rows",
            "of hot keys that left unmatched where they belong, and are emitted unless they have matched elsewhere: "
            "neither in `rows_out` nor in `unmatched`", P, W,
        ),
        _counter("vetoes.input", "rows", "of hot keys that left, here or as copies, and have matched here", P, W),
        _gauge("hot_keys", "keys", "spread over several partitions; partition 0 has it", P, W, M, U, S),
        _gauge("hot_share", "share", "of all work that these keys make, estimated", P, W, M, U, S),
        _gauge("hot_partitions", "partitions", "over which the widest of these keys is spread", P, W, M, U, S),
        # Work on rows and pages.
        _counter("runs_probed", "runs", "stored runs that rows of the batch were matched with", P, W, U),
        _counter("rows_probed", "rows", "stored rows in the probed range of time and keys", W),
        _counter(
            "pairs_rejected", "pairs",
            "of rows with equal keys for which the condition does not hold; of a multiway join, combinations",
        ),
        _counter("rows_rewritten", "rows", "written again: runs were merged, or dead rows removed"),
        _counter("rows_flushed", "rows", "moved from memory to disk", P, W, M, U),
        _counter("runs_flushed", "runs", "written to disk by flushes", P, W, M, U),
        _counter("pages_written", "pages", "written to disk: by flushes and by merging what is there", P, W, M, U),
        _counter("pages_read", "pages", "read from disk: to be probed or merged", P, W, M, U),
        _counter("buckets_merged", "buckets", "of which all rows on disk were joined and merged", M, U),
        _counter("events_not_recorded", "events", f"beyond the {MAX_EVENTS} that a batch records"),
        # Progressive joins.
        _counter("stage_results.stage", "rows", f"results by the stage that found them: {', '.join(STAGES)}", P),
        # Window joins.
        _gauge("keys.input", "keys", "distinct keys in the window, estimated", W),
        _gauge(
            "uses_hash.input", "0 or 1", "1 if the window is probed by hash, 0 if by nested loops", W, together="max",
        ),
        _gauge("cost_ns.input.method", "ns", "expected cost of a batch with `hash` or `loop`; algorithm 'auto'", W),
        _gauge("shed_share.input", "share", "of the batch's rows that were shed", W, together="max"),
        _gauge(
            "effective_window_us.input", "microseconds", "length of the window that fits into memory", W,
            together="min",
        ),
        _gauge(
            "expected_loss_share.reason", "share",
            "of the batch's results that are lost to rows `shed` or to windows `shrunk`, estimated", W, together="max",
        ),
        _counter("expected_results_lost", "rows", "results of the batch that were lost to shed rows, estimated", W),
        # Multiway joins.
        _counter("driver_steps", "steps", "in each of which one input drove: its rows probed the other inputs", M),
        _counter("driver_results.input", "rows", "results found while this input drove", M),
        _counter("lookups", "keys", "looked up in hash tables", M),
        _counter("intermediate_rows", "rows", "combinations of the inputs visited before the last one", M),
        _gauge("largest_fan_out", "rows", "results of the most frequent key in the batch", M, together="max"),
        # Punctuated joins.
        _counter("punctuations_in.input", "punctuations", "received", W, U),
        _counter("punctuations_out", "punctuations", "propagated to the output", U),
        _gauge("punctuations_held.input", "punctuations", "still needed: to purge, or to check rows against", W, U),
        _gauge("punctuations_pending", "punctuations", "to be propagated once the rows they cover have left", U),
        _counter("purges", "purges", "searches for rows that new promises have made useless", W, U),
        _counter("violations.input.promise", "rows", "that broke the promise of their input", W, U),
        # Semi-stream joins.
        _counter("cache_hits", "rows", "of the stream, answered by the cache when they came", S),
        _gauge("hit_share", "share", "of the batch's rows that the cache answered", S, together="min"),
        _gauge("cached_keys", "keys", "in the cache, present or known to be absent from the master table", S),
        _gauge("cache_bytes", "bytes", "of the cache: rows, keys and counts of hits", S),
        _gauge("memory_bytes", "bytes", "of all that counts against the option `memory`", S),
        _counter("keys_admitted", "keys", "taken into the cache", S),
        _counter("keys_evicted", "keys", "dropped from the cache", S),
        _counter("keys_given_up", "keys", "of which the rows were being collected for the cache, in vain", S),
        _counter("overloads", "batches", "that would have taken more than the memory", S),
        _counter("chunks_read", "chunks", "of the master table", S),
        _counter("master_rows_read", "rows", "in these chunks", S),
        _gauge(
            "cycles", "cycles", "how often the master table has been read since its version took over", S,
            together="max",
        ),
        _gauge("version", "version", "of the master table that rows are joined with now", S, together="min"),
        _gauge(
            "generations", "versions", "in use: current, being warmed up, or with rows that wait for them", S,
            together="max",
        ),
        _gauge("delay_p50", "batches", "half of the rows answered in the batch waited no longer", S, together="max"),
        _gauge("delay_p95", "batches", "95 % of the rows answered in the batch waited no longer", S, together="max"),
        _gauge("delay_p99", "batches", "99 % of the rows answered in the batch waited no longer", S, together="max"),
        _gauge("delay_max", "batches", "the longest wait of a row answered in the batch", S, together="max"),
    )
}  # fmt: skip

# Estimated from samples by whoever runs an operator (`engine/hot_keys.py`): not part of what a repeated batch must
# reproduce, and recorded apart from the counters.
ESTIMATES: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _gauge("hottest_share.input", "share", "of the batch's rows that have its most frequent key", together="max"),
        _gauge("fan_out_mean", "rows", "results per key, over the keys with results in the batch", together="max"),
        _gauge("fan_out_p90", "rows", "90 % of these keys have no more results", together="max"),
        _gauge("fan_out_p99", "rows", "99 % of these keys have no more results", together="max"),
        _gauge("fan_out_max", "rows", "results of the key that has most of them", together="max"),
    )
}


@dataclass(frozen=True)
class EventKind:
    """A kind of decision; every event has all of the `fields`, and may have the `optional` ones."""

    kind: str
    meaning: str
    fields: tuple[str, ...]
    families: tuple[str, ...]
    optional: tuple[str, ...] = ()


EVENTS: dict[str, EventKind] = {
    event.kind: event
    for event in (
        EventKind(
            "choice", "what `wm.join` has chosen, and why; in the first batch of every run, in partition 0",
            ("what", "value", "why"), ALL,
        ),
        EventKind(
            "flush", "rows moved to disk: of one bucket of an input, or of several buckets of all", ("rows",),
            (P, W, M, U), ("input", "bucket", "rows_left", "probability", "buckets"),
        ),
        EventKind(
            "md_task", "a bucket in memory was joined with the other input's on disk",
            ("input", "bucket", "expected", "cost", "pages", "results"), (P,),
        ),
        EventKind(
            "dd_task", "a bucket's runs on disk were joined and merged",
            ("input", "bucket", "expected", "cost", "pages", "results"), (P,),
        ),
        EventKind(
            "hot_key", "a key is spread over several partitions from the next batch on; with several columns the other "
            "input is divided, too",
            ("key", "input", "share", "partitions", "columns"), (P, W, M, U, S),
        ),
        EventKind(
            "cooled_key", "new rows of a key that was spread go to its own partition again",
            ("key", "input", "share", "partitions", "columns"), (P, W, M, U, S),
        ),
        EventKind("merge", "a bucket's generations were joined and merged", ("bucket", "rows_spilled_again"), (M, U)),
        EventKind(
            "shed", "rows were shed",
            ("service_rate", "rates", "regulated", "strategy", "expected_results_lost"), (W,),
        ),
        EventKind(
            "shrink", "a window was shortened, until its rows fit into their part of the memory",
            ("input", "rows", "bytes", "budget"), (W,),
        ),
        EventKind(
            "algorithm", "a window changed to another algorithm",
            ("input", "method", "hash", "loop", "inserted", "probes", "probing", "rows", "keys", "runs"), (W,),
        ),
        EventKind(
            "index", "a run was sorted after it had been scanned often enough", ("input", "rows", "spent_ns"), (W,),
        ),
        EventKind(
            "driver", "an input drove",
            ("input", "rows", "scores", "selectivity", "probe_order", "intermediate", "results"), (M,),
        ),
        EventKind("fan_out", "a key has very many combinations", ("key", "combinations"), (M,)),
        EventKind("purge", "stored rows were purged", ("input", "rows", "promises"), (W, U)),
        EventKind("violation", "rows broke a promise", ("input", "reason", "rows", "mode"), (W, U)),
        EventKind("quota_lifted", "memory was full, so rows that waited were processed", ("rows",), (U,)),
        EventKind("admit", "keys moved into the cache", ("version", "keys", "rows", "bytes"), (S,)),
        EventKind("evict", "keys were dropped from the cache", ("version", "keys", "stay"), (S,)),
        EventKind("overload", "the memory was full", ("bytes", "memory", "rows", "rows_that_fit"), (S,)),
        EventKind("refresh", "a new version of the master table is being warmed up", ("version", "keys_to_warm"), (S,)),
        EventKind("swap", "a new version of the master table took over", ("before", "version"), (S,)),
    )
}  # fmt: skip


def metric_of(name: str) -> Metric:
    """The entry of the list that a name belongs to; a `KeyError` if there is none.

    >>> metric_of("left.orders.expired").kind, metric_of("held_rows.orders").kind
    ('counter', 'gauge')
    """
    return METRICS[name.partition(".")[0]]


def add_up(total: dict[str, float], partition: Mapping[str, float]) -> None:
    """Add the counters and gauges of another partition of the same batch.

    >>> total = {"runs_probed": 3, "delay_max": 2}
    >>> add_up(total, {"runs_probed": 1, "delay_max": 5, "purges": 1})
    >>> total
    {'runs_probed': 4, 'delay_max': 5, 'purges': 1}
    """
    for name, value in partition.items():
        known = METRICS.get(head := name.partition(".")[0]) or ESTIMATES.get(head)
        together = known.together if known else "sum"
        if name not in total:
            total[name] = value
        elif together == "sum":
            total[name] += value
        else:
            total[name] = max(total[name], value) if together == "max" else min(total[name], value)


# -- the page

_INTRODUCTION = """\
# Metrics

<!-- Written by `make reference` from the list in `watersmeet/metrics.py`: change that. -->

`wm.read_metrics(spark, state_dir)` has a row per batch and partition. Its column `counters` maps the names below to
numbers; its column `events` lists the decisions of the batch. All joins use the same names.

- A **counter** says how much happened in this batch. Add it up over batches and partitions. A counter of which
  nothing happened is left out.
- A **gauge** says how things stand after the batch. Do not add it up over batches. The column *partitions* says how to
  combine the partitions of a batch; the displays and reports of pipelines do the same.
- `<input>` is the name of an input: `left` and `right`, `stream` and `master`, or a name given to `multiway_join`.
  Reports of a pipeline show the names of its sources.

For every input and after every batch, the rows that came so far are `held_rows.<input>` plus all that was ever counted
as `left.<input>.<reason>`, less what was counted as `rows_copied.<input>`. For the input `master` these are rows taken
into the cache, or collected for it.

`rows_out` is what the partition emits itself. In a full join that divides hot keys by a [vote](hot-keys.md#full-joins)
the rows that are decided between partitions come on top of it, after the partition's metrics are written: at most as
many as `candidates.<input>`.
"""

_ESTIMATES = """\
## Estimates

The column `estimates` has gauges for people who look for trouble. They come from samples of at most 2,048 rows of an
input or results, in the first four batches with rows and in one of sixteen after them; other batches have none. A
repeated batch may give others. The newest version of each partition also keeps its most frequent keys, of the rows of
each input and of the results; the [page](ui.md) shows them.
"""


def page() -> str:
    """The page about metrics, `docs/metrics.md`."""
    metrics = (
        (f"`{one.pattern}`", one.kind, one.unit, one.meaning, _names(one.families), one.together)
        for one in METRICS.values()
    )
    estimates = (
        (f"`{one.pattern}`", one.unit, one.meaning, _names(one.families), one.together) for one in ESTIMATES.values()
    )
    events = (
        (
            f"`{one.kind}`",
            one.meaning,
            ", ".join([*(f"`{name}`" for name in one.fields), *(f"[`{name}`]" for name in one.optional)]),
            _names(one.families),
        )
        for one in EVENTS.values()
    )
    parts = [
        _INTRODUCTION,
        _table("name | type | unit | meaning | joins | partitions", metrics),
        _ESTIMATES,
        _table("name | unit | meaning | joins | partitions", estimates),
        "## Why rows leave\n",
        _table("reason | a row leaves because", ((f"`{name}`", why) for name, why in REASONS.items())),
        "## Events\n",
        "Each event is a JSON document with its `kind` and these fields; those in brackets are not always there.\n",
        _table("kind | meaning | fields | joins", events),
    ]
    return "\n".join(parts)


def _names(families: tuple[str, ...]) -> str:
    return "all" if families == ALL else ", ".join(families)


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {head} |", "|" + "---|" * (head.count("|") + 1), *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, ""])
