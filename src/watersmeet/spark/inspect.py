"""`read_state` and `read_metrics`: what a join holds and what it did, as DataFrames.

Both read the manifests in the state directory and no run file, so they are cheap and may be called while the query
runs. They show the newest version of every partition; in a batch that is under way some may be ahead of others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from watersmeet.errors import OptionError
from watersmeet.plan.options import checked_path, known_names
from watersmeet.spark.storage import find_storage
from watersmeet.state.directory import StateDir
from watersmeet.state.history import all_metrics, held_runs, newest_manifests
from watersmeet.state.identity import require_join
from watersmeet.state.manifest import Manifest, RunEntry

_STATE = (
    "partition int, input string, bucket int, tier string, runs long, rows long, bytes long, "
    "oldest_batch long, newest_batch long, version long"
)
_METRICS = (
    "batch long, partition int, time long, rows_in map<string, long>, rows_out long, counters map<string, double>, "
    "events array<string>, state_rows long, resident_bytes long, spilled_bytes long, timings map<string, double>, "
    "estimates map<string, double>, repeats long, run string"
)


@known_names
def read_state(spark: SparkSession, state_dir: str | os.PathLike[str]) -> DataFrame:
    """What a join holds: a row for each partition, input, bucket and tier.

    Only rows of inputs count, and only those that have not left: `rows` adds up to the gauges `held_rows.<input>` of
    the newest batch. What a join keeps beside them (punctuations, marks, keys of a cache) is not listed.

    | column | |
    |---|---|
    | `partition` | key partition |
    | `input` | whose rows these are; `master` for the rows that a semi-stream join has cached |
    | `bucket` | range of the key hash; null for resident rows, which are not kept apart by bucket on disk |
    | `tier` | `resident` (memory-mapped) or `spilled` (compressed pages) |
    | `runs`, `rows` | how many; a run with several buckets counts for each of them |
    | `bytes` | of the runs, with rows that have left and are still in them; shared out to buckets by rows |
    | `oldest_batch`, `newest_batch` | the batches in which these rows arrived |
    | `version` | the batch after which this was the state |

    >>> import watersmeet as wm
    >>> state = wm.read_state(spark, "state/orders")  # doctest: +SKIP
    >>> state.groupBy("input", "tier").sum("rows").show()  # doctest: +SKIP
    """
    directory = opened_state(spark, state_dir, "read_state")
    rows = [row for manifest in newest_manifests(directory) for row in _holdings(manifest)]
    return spark.createDataFrame(rows, _STATE)


@known_names
def read_metrics(spark: SparkSession, state_dir: str | os.PathLike[str]) -> DataFrame:
    """What a join did: a row for each batch and partition, from the first batch on.

    | column | |
    |---|---|
    | `batch`, `partition` | which |
    | `time` | when, in microseconds since 1970: the batch's clock; for joins without one, the end of the batch |
    | `rows_in`, `rows_out` | rows by input (or of its punctuations), and results |
    | `counters` | counters and gauges by name, the same for all joins: see `docs/metrics.md` |
    | `events` | decisions with the numbers behind them, each a JSON document |
    | `state_rows` | rows of all inputs held after the batch |
    | `resident_bytes`, `spilled_bytes` | bytes held after the batch: rows, and all that is kept beside them |
    | `timings` | seconds by phase: `load`, `join`, `store`, and `send` to an object store |
    | `estimates` | gauges from samples: hot keys and fan-out, see `docs/metrics.md` |
    | `repeats` | batches so far that came out differently when Spark repeated them: a source did not replay |
    | `run` | Spark's id of the run of the query that wrote the batch: another one after a restart |

    >>> import watersmeet as wm
    >>> metrics = wm.read_metrics(spark, "state/orders")  # doctest: +SKIP
    >>> metrics.groupBy("batch").sum("rows_out").orderBy("batch").show()  # doctest: +SKIP
    """
    directory = opened_state(spark, state_dir, "read_metrics")
    entries = all_metrics(directory, newest_manifests(directory))
    rows = [_metrics_row(partition, entry) for partition, entry in entries]
    return spark.createDataFrame(sorted(rows, key=lambda row: row[:2]), _METRICS)


def opened_state(spark: object, state_dir: object, who: str) -> StateDir:
    """The state directory of a join, for whoever looks at it."""
    if not callable(getattr(spark, "createDataFrame", None)):  # Spark Connect's session is a class of its own
        raise OptionError(
            who,
            expected="spark = a Spark session",
            found=repr(spark),
            hint="Give the session, then the state directory.",
            option="spark",
        )
    place = checked_path(who, "state_dir", state_dir)
    find_storage(who, place)
    directory = StateDir(place)
    require_join(directory)
    return directory


@dataclass
class _Holding:
    runs: int = 0
    rows: int = 0
    nbytes: int = 0
    oldest: list[int] = field(default_factory=list)
    newest: list[int] = field(default_factory=list)

    def add(self, run: RunEntry, rows: int, nbytes: int) -> None:
        self.runs += 1
        self.rows += rows
        self.nbytes += nbytes
        self.oldest.append(run.oldest)
        self.newest.append(run.newest)


def _holdings(manifest: Manifest) -> Iterator[tuple[Any, ...]]:
    found: dict[tuple[str, str, int | None], _Holding] = {}
    for name, run, alive in held_runs(manifest):
        for bucket, rows, nbytes in _by_bucket(run, alive):
            found.setdefault((name, run.tier, bucket), _Holding()).add(run, rows, nbytes)
    for (name, tier, bucket), held in found.items():
        yield (
            manifest.partition, name, bucket, tier, held.runs, held.rows, held.nbytes,
            min(held.oldest), max(held.newest), manifest.version,
        )  # fmt: skip


def _by_bucket(run: RunEntry, alive: int) -> Iterator[tuple[int | None, int, int]]:
    """The living rows of a run and its bytes by bucket, as far as its shares tell."""
    if not run.shares:
        yield None, alive, run.nbytes
        return
    live = run.live if run.live is not None else [[0, run.stored_rows]]
    rows: dict[int, int] = {}
    starts = accumulate((stored for _, _, stored in run.shares), initial=0)
    for (bucket, _, stored), start in zip(run.shares, starts, strict=False):
        there = sum(max(0, min(stop, start + stored) - max(begin, start)) for begin, stop in live)
        if there:
            rows[bucket] = there
    total = sum(rows.values())
    upto = list(accumulate(rows.values(), initial=0))
    living, nbytes = ([amount * rank // total for rank in upto] if total else [] for amount in (alive, run.nbytes))
    for i, bucket in enumerate(rows):
        yield bucket, living[i + 1] - living[i], nbytes[i + 1] - nbytes[i]


def _metrics_row(partition: int, entry: dict[str, Any]) -> tuple[Any, ...]:
    return (
        entry["batch"],
        partition,
        entry["time"],
        entry["rows_in"],
        entry["rows_out"],
        {name: float(value) for name, value in entry["counters"].items()},
        [json.dumps(event) for event in entry["events"]],
        entry["state_rows"],
        entry["resident_bytes"],
        entry["spilled_bytes"],
        {name: float(value) for name, value in entry["timings"].items()},
        {name: float(value) for name, value in entry.get("estimates", {}).items()},
        entry["repeats"],
        entry.get("run"),
    )
