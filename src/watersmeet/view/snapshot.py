"""One JSON document with all that the page shows of a join: made of what was read, and of nothing else.

Series and decisions can be asked for from a batch on, so that a page that is open gets only what is new; the rest is
small and comes whole. Bytes are bytes, times are microseconds since 1970, lengths of time are seconds.
"""

from __future__ import annotations

import shutil
import statistics
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from typing import Any

from watersmeet.chooser.bounds import bounds
from watersmeet.chooser.decide import listed
from watersmeet.engine.why import shown_time
from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.pipeline.history import BatchRecord
from watersmeet.plan.metrics import FAMILIES
from watersmeet.plan.quantities import format_duration
from watersmeet.state.history import held_runs
from watersmeet.state.manifest import Manifest
from watersmeet.view.reading import JoinReader
from watersmeet.view.sentences import seconds, sentence
from watersmeet.view.troubles import Facts, InputFacts, troubles

RATE_SECONDS = 30.0
RECENT = 50  # batches
TOP = 20  # keys
QUIET_SECONDS = 60.0  # without a batch: it has stopped, or nothing comes
PARTITIONS = 512  # that are listed

_FAMILY = {operator: family for family, operators in FAMILIES.items() for operator in operators}
_DELAYS = ("delay_p50", "delay_p95", "delay_p99", "delay_max")


class Snapshot:
    """The document of one join at one moment. `live` is what only the process that runs it knows: the run's phase,
    how long its newest micro-batch took with all that Spark does, the backlog of each input, why it failed."""

    def __init__(self, join: JoinReader, *, now: int | None = None, live: Mapping[str, Any] | None = None) -> None:
        self.join = join
        self.now = int(time.time() * 1e6) if now is None else now
        self.live = dict(live or {})
        self.batches = join.complete
        self.recent = self.batches[-RECENT:]
        self.newest = self.batches[-1] if self.batches else BatchRecord(-1)
        self.family = _FAMILY.get(join.record["identity"]["operator"], "progressive")
        self.failures = [*join.failures, *self.live.get("failures", ())]
        self.status = self._status()
        # While it runs, rates and waits count up to now; afterwards up to its last batch.
        self.until = self.now if self.status == "running" else self.newest.time
        self.manifests: list[Manifest] = list(join.manifests.values())

    def document(self, after: int = -1) -> dict[str, Any]:
        """The document, with series and decisions of the batches later than `after`."""
        join, identity = self.join, self.join.record["identity"]
        inputs = [self._input(name) for name in join.inputs]
        keys = self._keys()
        return {
            "operator": identity["operator"],
            "family": self.family,
            "how": identity.get("how", "inner"),
            "place": join.directory.uri,
            "partitions": join.record["partitions"],
            "options": {**identity["options"], **join.tuning},
            "choices": [] if join.story is None else [asdict(choice) for choice in join.story.reasons],
            "key_columns": [{"name": name, "type": kind} for name, kind in join.key_columns],
            "nulls_match": join.nulls_match,
            "status": self.status,
            "phase": self.live.get("phase"),
            "now": self.now,
            "counted_from": join.first,  # totals are of the batches from this one on
            "newest_batch": self.newest.batch if self.batches else None,
            "newest_time": self.newest.time,
            "began": self.batches[0].time if self.batches else None,
            "inputs": inputs,
            "results": {
                "rows": join.results,
                "rate": self._rate(lambda one: one.rows_out, join.results),
            },
            "delay": self._delay(),
            "state": self._state(),
            "partition_list": self._partitions(),
            "keys": keys,
            "troubles": troubles(self._facts(inputs, keys)),
            "restarts": self._restarts(),
            "failures": self.failures,
            "series": self._series(self.batches[bisect_right(self.batches, after, key=lambda one: one.batch) :]),
            "decisions": self._decisions(after),
        }

    def _status(self) -> str:
        if self.join.finished:
            return "finished"
        if self.live.get("phase"):
            return "stopped" if self.live["phase"] in ("done", "stopped", "failed") else "running"
        if self.failures and self.failures[-1]["time"] > self.newest.time:
            return "stopped"
        return "running" if self.batches and self.now - self.newest.time < QUIET_SECONDS * 1e6 else "quiet"

    def _rate(self, amount: Callable[[BatchRecord], int], total: int) -> float:
        """Amounts per second: of a running join over the last seconds, of another over the whole run."""
        if not self.batches:
            return 0.0
        begin = self.batches[0].time - self.batches[0].seconds * 1e6
        if self.status == "running" and begin < self.until - RATE_SECONDS * 1e6:
            begin = self.until - RATE_SECONDS * 1e6
            total = sum(amount(one) for one in takewhile(lambda one: one.time > begin, reversed(self.batches)))
        return total / max((self.until - begin) / 1e6, 1.0)

    def _total(self, batches: Iterable[BatchRecord], name: str) -> int:
        return int(sum(one.counters.get(name, 0) for one in batches))

    def _input(self, name: str) -> dict[str, Any]:
        join, shown = self.join, self.join.names[name]
        gauges = self.newest.counters
        left: Counter[str] = Counter()
        clocks = []
        for manifest in self.manifests:
            left.update(manifest.accounts.get("left", {}).get(name, {}))
            clock = manifest.values.get("newest")
            if isinstance(clock, dict) and isinstance(clock.get(name), int):
                clocks.append(clock[name])
        rows = join.rows[name]
        last = join.newest_rows.get(name, self.batches[0].time if self.batches else self.until)
        since = takewhile(lambda one: not one.rows_in.get(name), reversed(self.batches))
        held = ("held_rows", "resident_rows", "resident_bytes", "spilled_rows", "spilled_bytes", "runs", "waiting_rows")
        return {
            "name": shown,
            "internal": name,
            "rows": rows,
            "rate": self._rate(lambda one: one.rows_in.get(name, 0), rows),
            "ended": name in join.ended,
            # Up to the newest batch: while one is under way nobody knows what it has found.
            "silent_seconds": max((self.newest.time - last) / 1e6, 0.0),
            "silent_batches": sum(any(one.rows_in.values()) for one in since),
            "backlog": self.live.get("backlog", {}).get(shown),
            "late": join.counted[f"late.{name}"],
            "left": dict(left),
            "clock": shown_time(max(clocks), join.is_local(name)) if clocks else None,
            **{metric: int(gauges.get(f"{metric}.{name}", 0)) for metric in held},
        }

    def _delay(self) -> dict[str, Any]:
        taken = sorted(one.seconds for one in self.recent)
        found: dict[str, Any] = {
            "batch_seconds": self.live.get("batch_seconds"),
            "join_seconds": self.newest.seconds if self.batches else None,
        }
        if taken:
            found |= {"median": statistics.median(taken), "p95": taken[int(0.95 * (len(taken) - 1))]}
        if answered := next((one for one in reversed(self.recent) if "delay_p95" in one.counters), None):
            found["waits"] = {name.removeprefix("delay_"): answered.counters.get(name) for name in _DELAYS}
        if held := self._held_for():
            found["held"] = held
        return found

    def _held_for(self) -> dict[str, float]:
        """For inputs whose unmatched rows are results, how long the oldest row that is held has waited, at most."""
        kind = JOIN_TYPES.get(self.join.record["identity"].get("how", "inner"), JOIN_TYPES["inner"])
        wanted = {name for name, kept in zip(self.join.inputs, kind.unmatched, strict=False) if kept}
        oldest: dict[str, int] = {}
        for manifest in self.manifests:
            for name, run, alive in held_runs(manifest):
                if name in wanted and alive:
                    oldest[name] = min(run.oldest, oldest.get(name, run.oldest))
        times = {one.batch: one.time for one in self.batches}
        first = self.batches[0].time if self.batches else self.until
        return {
            self.join.names[name]: max(self.until - times.get(batch, first), 0) / 1e6 for name, batch in oldest.items()
        }

    def _state(self) -> dict[str, Any]:
        budget = self.join.budget
        total = self.newest.resident_bytes + self.newest.spilled_bytes
        bound, text = self._bound()
        growth, full_in = self._growth(total)
        return {
            "rows": self.newest.state_rows,
            "resident_bytes": self.newest.resident_bytes,
            "spilled_bytes": self.newest.spilled_bytes,
            "budget": budget,
            "bound": bound,
            "bound_text": text,
            "unbounded": bound == "none" or (bound == "budget" and self.family in ("progressive", "multiway")),
            "growth": growth,
            "full_in": full_in,
            "projection": None if full_in is None else f"full in {seconds(full_in)} at this rate",
        }

    def _bound(self) -> tuple[str, str]:
        """What bounds the state: in a word, and in words. A window may be open on a side, and a promise missing."""
        window = self.join.record["identity"]["options"].get("window")
        if self.family == "semi_stream":
            return "budget", "Budget for waiting rows and cache"
        if window or self.family == "punctuated":
            story = self.join.story.named(self.join.names.sources) if self.join.story is not None else None
            # A warning says what is without a bound, and after a colon what to do.
            warnings = [one.warning.partition(":")[0] for one in (bounds(story, {}) if story else ()) if one.warning]
            if warnings:
                text = listed(warnings)
                return "none", text[0].upper() + text[1:]
            if window:
                return "window", f"Bounded by the window of {_lengths(window)}"
            return "promises", "Bounded by what the inputs promise"
        if self.join.budget:
            return "budget", "Memory is bounded by the budget, the disk is not"
        return "none", "Nothing bounds it"

    def _growth(self, total: int) -> tuple[float, float | None]:
        """Bytes per second since the newer half of the batches began, and in how many seconds the disk is full."""
        half = self.batches[len(self.batches) // 2 :]
        if self.status != "running" or len(half) < 5 or not self.join.directory.is_local:
            return 0.0, None
        span = (self.until - half[0].time) / 1e6
        growth = (total - half[0].resident_bytes - half[0].spilled_bytes) / span if span > 1 else 0.0
        if growth <= 0:
            return growth, None
        return growth, shutil.disk_usage(self.join.directory.root).free / growth

    def _partitions(self) -> list[dict[str, Any]]:
        found = []
        for number, part in sorted(self.join.partitions.items(), key=lambda item: item[0])[:PARTITIONS]:
            gauges = part.newest.get("counters", {})
            held = {
                self.join.names[name]: {
                    "rows": int(gauges.get(f"held_rows.{name}", 0)),
                    "resident_bytes": int(gauges.get(f"resident_bytes.{name}", 0)),
                    "spilled_bytes": int(gauges.get(f"spilled_bytes.{name}", 0)),
                    "spilled_rows": int(gauges.get(f"spilled_rows.{name}", 0)),
                }
                for name in self.join.inputs
            }
            rows = {self.join.names[name]: part.rows.get(name, 0) for name in self.join.inputs}
            entry = {"number": number, "rows": rows, "results": part.results, "held": held, "seconds": part.seconds}
            found.append(entry)
        return found

    def _keys(self) -> dict[str, Any]:
        rows: dict[str, Counter[str]] = {}
        seen: Counter[str] = Counter()
        results: Counter[str] = Counter()
        all_results = 0
        for manifest in self.manifests:
            for name, found in manifest.keys.get("rows", {}).items():
                rows.setdefault(name, Counter()).update(found["top"])
                seen[name] += found["seen"]
            found = manifest.keys.get("results", {"top": {}, "seen": 0})
            results.update(found["top"])
            all_results += found["seen"]
        weight: dict[str, float] = {key: count / max(all_results, 1) for key, count in results.items()}
        for name, counts in rows.items():
            for key, count in counts.items():
                weight[key] = max(weight.get(key, 0.0), count / max(seen[name], 1))
        hot = []
        for key, _ in sorted(weight.items(), key=lambda item: (-item[1], item[0]))[:TOP]:
            of_inputs = {
                self.join.names[name]: min(counts[key] / max(seen[name], 1), 1.0) for name, counts in rows.items()
            }
            fewest = min((counts[key] for counts in rows.values() if counts[key]), default=0)
            hot.append(
                {
                    "key": key,
                    "rows": {self.join.names[name]: counts[key] for name, counts in rows.items()},
                    "shares": of_inputs,
                    "results": results[key],
                    "result_share": min(results[key] / max(all_results, 1), 1.0),
                    "per_row": results[key] / fewest if fewest else None,
                }
            )
        return {"hot": hot, "fan_out": self._fan_out()}

    def _fan_out(self) -> dict[str, float] | None:
        with_results = [one.estimates for one in self.recent if "fan_out_p99" in one.estimates]
        if not with_results:
            return None
        return {name: max(one[f"fan_out_{name}"] for one in with_results) for name in ("p90", "p99", "max")} | {
            "mean": statistics.fmean(one["fan_out_mean"] for one in with_results)
        }

    def _restarts(self) -> list[dict[str, int]]:
        return [{"batch": one.batch, "time": one.time} for one in self.join.restarts]

    def _series(self, batches: Sequence[BatchRecord]) -> dict[str, Any]:
        names, inputs = self.join.names, self.join.inputs
        kinds = sorted({kind for one in batches for kind in one.events})
        reasons = sorted({name for one in batches for name in one.counters if name.startswith("left.")})

        def gauges(name: str) -> list[int]:
            return [int(one.counters.get(name, 0)) for one in batches]

        return {
            "batch": [one.batch for one in batches],
            "time": [one.time for one in batches],
            "seconds": [round(one.seconds, 5) for one in batches],
            "results": [one.rows_out for one in batches],
            "rows": {names[name]: [one.rows_in.get(name, 0) for one in batches] for name in inputs},
            "held": {names[name]: gauges(f"held_rows.{name}") for name in inputs},
            "late": {names[name]: gauges(f"late.{name}") for name in inputs},
            "resident": [one.resident_bytes for one in batches],
            "spilled": [one.spilled_bytes for one in batches],
            "fan_out": [one.estimates.get("fan_out_p99") for one in batches],
            "waits": [one.counters.get("delay_p95") for one in batches],
            "events": {kind: [one.events.get(kind, 0) for one in batches] for kind in kinds},
            "left": {names[name]: gauges(name) for name in reasons},
        }

    def _decisions(self, after: int) -> list[dict[str, Any]]:
        last = self.newest.batch
        found = []
        for one in self.join.decisions:
            if after < one.batch <= last:
                event = self._named(one.event)
                found.append(
                    {
                        "batch": one.batch,
                        "time": one.time,
                        "partition": one.partition,
                        "kind": event["kind"],
                        "sentence": sentence(event),
                        "numbers": {name: value for name, value in event.items() if name != "kind"},
                    }
                )
        return found

    def _named(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """An event with the sources' names for the inputs."""
        found = dict(event)
        sources = self.join.names.sources
        if isinstance(found.get("input"), str):
            found["input"] = sources.get(found["input"], found["input"])
        if "probe_order" in found:
            found["probe_order"] = [sources.get(name, name) for name in found["probe_order"]]
        if isinstance(found.get("scores"), dict):
            found["scores"] = {sources.get(name, name): score for name, score in found["scores"].items()}
        return found

    def _facts(self, inputs: Sequence[Mapping[str, Any]], keys: Mapping[str, Any]) -> Facts:
        recent, join = self.recent, self.join
        busy = [one for one in recent if sum(one.rows_in.values())]
        usual = [one.seconds for one in self.batches[-RECENT * 4 : -5]]
        state = self._state()
        facts = [
            InputFacts(
                one["name"],
                rows=one["rows"],
                recent_rows=sum(batch.rows_in.get(one["internal"], 0) for batch in recent),
                silent_seconds=one["silent_seconds"],
                silent_batches=one["silent_batches"],
                ended=one["ended"],
                late=self._total(recent, f"late.{one['internal']}"),
                too_late=self._total(recent, f"left.{one['internal']}.late"),
                null_keys=one["left"].get("null_key", 0),
                shed=one["left"].get("shed", 0),
                shrunk=one["left"].get("shrunk", 0),
                held=one["held_rows"],
                top=tuple(
                    sorted(((hot["key"], hot["shares"].get(one["name"], 0.0)) for hot in keys["hot"]), key=_by_share)
                ),
            )
            for one in inputs
        ]
        violations = {
            join.names[name]: broken
            for name in join.inputs
            if (broken := sum(rows for one, rows in join.counted.items() if one.startswith(f"violations.{name}.")))
        }
        return Facts(
            self.family,
            running=self.status == "running",
            inputs=tuple(facts),
            recent_results=sum(one.rows_out for one in recent),
            result_top=tuple((hot["key"], hot["result_share"], hot["per_row"] or 0.0) for hot in keys["hot"]),
            budget=join.budget,
            resident_bytes=self.newest.resident_bytes,
            spilled_bytes=self.newest.spilled_bytes,
            flushing_share=sum(bool(one.counters.get("rows_flushed")) for one in busy) / len(busy) if busy else 0.0,
            overloads=self._total(recent, "overloads"),
            partition_rows=tuple(sum(part["rows"].values()) for part in self._partitions()),
            batch_seconds=statistics.fmean(one.seconds for one in self.batches[-5:]) if self.batches else 0.0,
            usual_seconds=statistics.median(usual) if len(usual) >= 10 else 0.0,
            violations=violations,
            repeats=sum(manifest.repeats for manifest in self.manifests),
            unbounded=state["unbounded"],
            growth=state["growth"],
            full_in=state["full_in"],
            failure=self._failure(),
            hot_keys=join.record["identity"].get("hot_keys", "off"),
        )

    def _failure(self) -> str | None:
        """Why the last run ended, if nothing has been done since."""
        last = self.failures[-1] if self.failures else None
        over = last is not None and last["time"] > self.newest.time and self.status != "finished"
        return str(last["message"]) if last is not None and over else None


def _lengths(window: Any) -> str:
    """The lengths of a window; of two that differ, that of the left input first."""
    sides = list(dict.fromkeys(window)) if isinstance(window, list | tuple) else [window]
    return " and ".join("any length" if side is None else format_duration(side) for side in sides)


def _by_share(item: tuple[str, float]) -> float:
    return -item[1]
