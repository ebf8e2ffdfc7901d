"""What a join has done so far, as far as its prediction can be compared with it: from the state directory alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from watersmeet.plan.hot_table import HotTable
from watersmeet.plan.metrics import add_up
from watersmeet.state.directory import StateDir
from watersmeet.state.history import all_metrics, held_runs, metrics_history, newest_manifests
from watersmeet.state.manifest import Manifest


@dataclass
class Observed:
    """All batches of a join, all partitions together."""

    batches: int = 0
    seconds: float = 0.0  # of work in tasks
    rows_in: Counter[str] = field(default_factory=Counter)
    rows_out: int = 0
    newest: dict[str, float] = field(default_factory=dict)  # counters and gauges of each partition's newest batch
    totals: Counter[str] = field(default_factory=Counter)  # counters of all batches
    rates: Mapping[str, float] = field(default_factory=dict)  # rows per second, as the batches took them
    density: Mapping[str, float] = field(default_factory=dict)  # held rows per second of their own time
    finished: bool = False
    hot: HotTable = field(default_factory=HotTable)  # keys that are spread over partitions, or were

    def held(self, name: str) -> int:
        """Rows held of an input after the newest batch."""
        return int(self.newest.get(f"held_rows.{name}", 0))

    def row_bytes(self, name: str) -> float | None:
        """What a held row takes; None if none is held, or it is not known."""
        held = self.held(name)
        nbytes = sum(self.newest.get(f"{tier}_bytes.{name}", 0) for tier in ("resident", "spilled"))
        return nbytes / held if held and nbytes else None

    def counted(self, kind: str) -> dict[str, int]:
        """Counters of a kind that are not zero, by the rest of their names: `late` by input, `unmatched` by input and
        proof."""
        names = sorted(name for name, rows in self.totals.items() if rows and name.startswith(f"{kind}."))
        return {name.removeprefix(f"{kind}."): self.totals[name] for name in names}


def observe(directory: StateDir) -> Observed | None:
    """What the join in a state directory has done; None if it has not run."""
    manifests = newest_manifests(directory)
    if not manifests:
        return None
    seen = Observed(finished=all(manifest.finished for manifest in manifests))
    times: dict[int, int] = {}  # of batches
    came: dict[int, Counter[str]] = {}
    for _, entry in all_metrics(directory, manifests):
        batch = int(entry["batch"])
        times[batch] = max(times.get(batch, 0), int(entry["time"]))
        came.setdefault(batch, Counter()).update({name: int(rows) for name, rows in entry["rows_in"].items()})
        seen.rows_out += int(entry["rows_out"])
        seen.seconds += sum(entry["timings"].values())
        seen.totals.update({name: int(value) for name, value in entry["counters"].items()})
    for manifest in manifests:
        add_up(seen.newest, _newest(directory, manifest))
    seen.hot = HotTable.from_json([key for manifest in manifests for key in manifest.hot.get("table", [])])
    seen.batches = len(times)
    for rows in came.values():
        seen.rows_in.update(rows)
    seen.rates, seen.density = _rates(times, came), _density(manifests)
    return seen


def _newest(directory: StateDir, manifest: Manifest) -> Mapping[str, float]:
    """Counters and gauges of a partition's newest batch, which may be one more than another partition's; what it holds
    if no batch made its version (see `rescale`): its files are shared, so their bytes say nothing."""
    for entry in metrics_history(directory, manifest, after=manifest.version - 1):
        return dict(entry["counters"])
    held: Counter[str] = Counter()
    for name, _, alive in held_runs(manifest):
        held[f"held_rows.{name}"] += alive
    return dict(held)


def _rates(times: Mapping[int, int], came: Mapping[int, Counter[str]]) -> dict[str, float]:
    """What came after the first batch over the time since; nothing if nothing came.

    >>> _rates({0: 0, 1: 2_000_000}, {0: Counter(left=9), 1: Counter(left=6, right=0)})
    {'left': 3.0, 'right': 0.0}
    >>> _rates({0: 0, 1: 2_000_000}, {0: Counter(left=9), 1: Counter(left=0)})
    {}
    """
    first = min(times)
    seconds = (max(times.values()) - times[first]) / 1e6
    later: Counter[str] = Counter()
    for batch, rows in came.items():
        if batch != first:
            later.update(rows)
    return {name: rows / seconds for name, rows in later.items()} if seconds > 0 and later.total() else {}


def _density(manifests: list[Manifest]) -> dict[str, float]:
    """By the times of the runs that are held, where runs have times."""
    rows: Counter[str] = Counter()
    spans: dict[str, tuple[int, int]] = {}
    for manifest in manifests:
        for name, run, alive in held_runs(manifest):
            begin, end = run.facts.get("time_from"), run.facts.get("time_to")
            if begin is None or end is None:
                continue
            rows[name] += alive
            low, high = spans.get(name, (begin, end))
            spans[name] = min(low, begin), max(high, end)
    return {name: 1e6 * rows[name] / (high - low) for name, (low, high) in spans.items() if high > low and rows[name]}
