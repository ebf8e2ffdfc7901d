"""What leaves memory, and how much of it: every flush of a run is recomputed by a model that knows only plain rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import hash_keys, hashes_of
from watersmeet.engine.registry import build
from watersmeet.join.flush_policies import ALIKE, LEAST_RUN
from watersmeet.join.operator import advance, resume
from watersmeet.join.operator import saved as saved_state
from watersmeet.progressive.options import FLUSHES, OPERATOR, ProgressiveOptions
from watersmeet.state.buckets import Buckets
from watersmeet.state.run import Run
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, batch_of, make_plan, random_script

NAMES = ("left", "right")
COMBINATIONS = [(policy, flush) for policy, operator in OPERATOR.items() for flush in FLUSHES[operator]]
SECOND = 1_000_000
Place = tuple[int, int]  # input and bucket


@dataclass(frozen=True)
class Held:
    """A row as the model sees it."""

    ident: int
    hash: int
    batch: int


@dataclass
class Model:
    """Memory as lists of rows; flushes by sorting lists."""

    flush: str
    concurrent: bool
    limit: int
    share: float
    buckets: Buckets
    memory: dict[Place, list[Held]] = field(default_factory=dict)
    disk: dict[Place, list[Held]] = field(default_factory=dict)
    total: Counter[Place] = field(default_factory=Counter)
    recent: list[float] = field(default_factory=list)  # per input, at the end of the last second
    now: list[int] = field(default_factory=lambda: [0, 0])
    ended: set[int] = field(default_factory=set)

    def places(self) -> list[Place]:
        return [(index, bucket) for index in (0, 1) for bucket in range(self.buckets.count)]

    def size(self) -> int:
        return sum(len(rows) for rows in self.memory.values())

    def batch(self, number: int, arrival: Arrival) -> list[dict[str, object]]:
        """The flushes of a batch, in the order in which they are reported. Every batch is a second of its own."""
        if number:
            self.recent = [(a + b) / 2 for a, b in zip(self.recent or self.now, self.now, strict=True)]
            self.now = [0, 0]
        arrived = 0
        for index, name in enumerate(NAMES):
            rows = [row for row in arrival.rows.get(name, []) if row[0] is not None]
            hashes = hash_keys([pa.array([row[0] for row in rows], pa.int64())]) if rows else []
            for row, hash_ in zip(rows, hashes, strict=True):
                place = (index, int(self.buckets.of(np.array([hash_]))[0]))
                self.memory.setdefault(place, []).append(Held(row[1], int(hash_), number))
                self.total[place] += 1
            self.now[index] = len(rows)
            arrived += len(rows)
        for index, bucket in self.places():  # nothing will come or come back to meet these
            if 1 - index in self.ended and not self.disk.get((1 - index, bucket)):
                self.memory.pop((index, bucket), None)
        if not arrived:
            return []
        room = max(0, self.limit - arrived)
        if self.size() <= room:
            return []
        events = [
            self.leave(*victim) for victim in self.victims(max(self.size() - room, ceil(self.share * self.limit)))
        ]
        return sorted(events, key=lambda event: (event["input"], event["bucket"]))

    def probability(self, place: Place) -> float:
        """How probably the next row comes there."""
        index = place[0]
        if index in self.ended:
            return 0.0
        mine = sum(self.total[index, each] for each in range(self.buckets.count))
        share = self.total[place] / mine if mine else 1 / self.buckets.count
        speeds = self.recent or self.now
        return share * (speeds[index] / sum(speeds) if sum(speeds) else 0.5)

    def victims(self, amount: int) -> Iterator[tuple[Place, int]]:
        """Buckets, and how many of their rows leave."""
        sizes = {place: len(self.memory.get(place, [])) for place in self.places()}
        partly = self.flush in ("optimal", "long-run")
        shortest = 0
        if partly:
            least = sorted(self.places(), key=lambda place: (self.probability(place), place))
            order = [(1 - index, bucket) for index, bucket in least]
            if self.flush == "long-run":
                shortest = ceil(LEAST_RUN * amount)
                order.sort(key=lambda place: 0 if sizes[place] >= shortest else shortest - sizes[place])
        elif self.flush == "classes":
            left = sorted(self.places(), key=lambda place: (self.probability(place), place))
            order = []
            while left:
                alike = [place for place in left if self.probability(place) <= ALIKE * self.probability(left[0])]
                left = left[len(alike) :]
                order += sorted(((1 - index, bucket) for index, bucket in alike), key=lambda place: -sizes[place])
        elif self.flush in ("largest", "smallest"):
            sign = -1 if self.flush == "largest" else 1
            order = sorted(self.places(), key=lambda place: (sign * sizes[place], place))
        elif self.flush == "all":
            order, amount = sorted(self.places(), key=lambda place: place[::-1]), self.size()
        else:
            pairs = [(sizes[0, bucket], sizes[1, bucket]) for bucket in range(self.buckets.count)]
            best = sorted(range(len(pairs)), key=lambda bucket: (-min(pairs[bucket]), -sum(pairs[bucket]), bucket))
            order = [(0, bucket) for bucket in best]
        taken: set[Place] = set()
        for first in order:
            if amount <= 0:
                return
            for place in [(0, first[1]), (1, first[1])] if self.concurrent else [first]:
                if sizes[place] and place not in taken:
                    taken.add(place)
                    yield place, min(max(amount, shortest), sizes[place]) if partly else sizes[place]
                    amount -= sizes[place]

    def leave(self, place: Place, count: int) -> dict[str, object]:
        """The oldest rows of a bucket; rows of one batch and hash go together."""
        rows = sorted(self.memory[place], key=lambda row: (row.batch, row.hash))
        while count < len(rows) and (rows[count].batch, rows[count].hash) == (
            rows[count - 1].batch,
            rows[count - 1].hash,
        ):
            count += 1
        self.disk.setdefault(place, []).extend(rows[:count])
        self.memory[place] = rows[count:]
        index, bucket = place
        return {
            "kind": "flush",
            "input": NAMES[index],
            "bucket": bucket,
            "rows": count,
            "rows_left": len(rows) - count,
            "probability": pytest.approx(self.probability((1 - index, bucket))),
        }


def held(runs: Iterable[Run], tier: str, buckets: Buckets) -> dict[Place, Counter[int]]:
    """The rows (by their number in the script) of one tier."""
    found: dict[Place, Counter[int]] = {}
    for run in runs:
        if run.tier != tier:
            continue
        for table in (
            run.parts if tier == "resident" else [page for each in range(buckets.count) for page in run.read(each)]
        ):
            for bucket, ident in zip(buckets.of(hashes_of(table)), table.column("_p0").to_pylist(), strict=True):
                found.setdefault((NAMES.index(run.label), int(bucket)), Counter())[ident] += 1
    return found


def numbers(rows: dict[Place, list[Held]]) -> dict[Place, Counter[int]]:
    return {place: Counter(row.ident for row in mine) for place, mine in rows.items() if mine}


@pytest.mark.parametrize("memory_rows", [0, 9, 25])
@pytest.mark.parametrize(("policy", "flush"), COMBINATIONS)
def test_every_flush_is_the_one_the_model_makes(policy: str, flush: str, memory_rows: int) -> None:
    rng = random.Random(f"{policy} {flush} {memory_rows}")
    for share in (0.1, 0.6):
        script = random_script(rng.randrange(1 << 32), batches=14, batch_rows=8, keys=12, idle_share=0.15, end=False)
        script[8] = Arrival(script[8].rows, script[8].time, ended=frozenset(["right"]))
        script[9:] = [Arrival({**each.rows, "right": []}, each.time) for each in script[9:]]
        options = ProgressiveOptions(
            policy=policy, flush=flush, memory_rows=memory_rows, buckets=3, page_rows=3, flush_share=share, idle_pages=0
        )
        plan = make_plan(options.operator, options=options.identity(), tuning=options.tuning())
        buckets = Buckets(3)
        model = Model(flush, OPERATOR[policy] == "hmj", memory_rows, share, buckets)
        operator = build(plan, MemorySpace())
        for number, arrival in enumerate(script):
            list(advance(operator, batch_of(plan, number, arrival)))
            model.ended |= {NAMES.index(name) for name in arrival.ended}
            wanted = model.batch(number, arrival)
            assert operator.metrics.events == wanted
            counters, saved = operator.metrics.counters, saved_state(operator)
            assert counters.get("rows_flushed", 0) == sum(event["rows"] for event in wanted)
            assert held(saved.runs, "resident", buckets) == numbers(model.memory)
            assert held(saved.runs, "spilled", buckets) == numbers(model.disk)
            came = {row.ident: row.batch for rows in (*model.memory.values(), *model.disk.values()) for row in rows}
            for run in saved.runs:  # a run names the batches of its rows
                mine = [came[ident] for rows in held([run], run.tier, buckets).values() for ident in rows]
                assert run.oldest <= min(mine) <= max(mine) <= run.newest <= number
                assert run.tier == "resident" or run.oldest == min(mine)
            # Four runs are merged, not fewer; what a bucket keeps of a long run is one of them.
            if number < (2 if flush == "long-run" else 3):
                assert counters.get("rows_rewritten", 0) == 0
            operator = build(plan, MemorySpace())
            resume(operator, saved)
