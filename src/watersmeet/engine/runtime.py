"""Drives an operator over a state directory: load a version, take a batch, commit the next version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter, time

import pyarrow as pa

from watersmeet.engine.guests import Guests
from watersmeet.engine.hot_keys import KeyWatch
from watersmeet.engine.hot_tables import votes
from watersmeet.engine.inheritance import bring_up
from watersmeet.engine.registry import build
from watersmeet.join.operator import Batch, advance, saved
from watersmeet.join.votes import no_votes
from watersmeet.plan import JoinPlan
from watersmeet.state.directory import StateDir
from watersmeet.state.manifest import Manifest
from watersmeet.state.store import SWEEP_EVERY, PartitionStore
from watersmeet.state.sweeping import sweep

# Results up to this size are held back until the version is committed, so that a consumer that stops early (a limit)
# cannot leave a batch without a version. Larger results stream out, and the commit follows them.
HOLD_BYTES = 64 << 20


def run_batch(
    plan: JoinPlan,
    directory: StateDir,
    partition: int,
    batch: Batch,
    *,
    query: str = "in-process",
    run_id: str = "in-process",
    attempt: str = "0",
    join: str = "",
    choices: Sequence[Mapping[str, str]] = (),
) -> Iterator[pa.Table]:
    """One batch of one partition: yields the results and leaves the next version behind. Where partitions vote, there
    are votes among the results, to be judged with those of all other partitions (`join.votes`).

    `choices` are those made when the join was built. They are recorded once in every run of the query.
    """
    started = perf_counter()
    store = PartitionStore(directory, partition, plan.division)
    if plan.former:
        directory.make(store.folder)
    space = store.space(batch.number, attempt)
    operator = build(plan, space)
    before = bring_up(operator, store, batch.number, query, run_id, join)
    keys = KeyWatch(plan, before.keys, batch)
    guests = Guests(plan, directory, partition, run_id, before.hot) if plan.hot_keys else None
    voting = votes(plan)
    timings = {"load": perf_counter() - started}

    held, size = [], 0
    joined = batch
    if guests is not None:
        joined = guests.with_rows_of_home(batch, operator)
        operator.hush(guests.hushed())
        operator.note_copies(guests.copied())
        operator.host(guests.keys)
        guests.open_votes(batch.number, operator)
    results = advance(operator, joined)
    joining = 0.0
    while True:
        started = perf_counter()
        table = next(results, None)
        joining += perf_counter() - started
        if table is None:
            break
        keys.emitted(table)
        held.append(no_votes(table, partition) if voting else table)
        size += table.nbytes
        if size > HOLD_BYTES:
            yield from held
            held = []
    timings["join"] = joining
    held += operator.cast()

    after = Manifest(
        version=batch.number,
        partition=partition,
        query=query,
        run_id=run_id,
        join=join,
        attempt=attempt,
        history=before.history,
        repeats=before.repeats,
        keys=keys.save(),
        division=plan.division,
        partitions=plan.partitions,
    )
    now = batch.time or int(time() * 1e6)
    begins = partition == 0 and (before.version < 0 or before.run_id != run_id)
    said = [{"kind": "choice", **choice} for choice in choices] if begins else []
    state = saved(operator)
    if guests is not None:
        state.hot = guests.save(batch, operator)
    store.commit(after, state, space, operator.metrics, timings, now, keys.estimates(), said)
    store.collect(batch.number)
    if plan.former and partition == 0 and batch.number % SWEEP_EVERY == SWEEP_EVERY - 1:
        sweep(directory, plan)
    yield from held
