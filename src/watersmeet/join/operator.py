"""The contract between the join operators and whatever drives them (Spark, the lab, a test).

An operator sees batches and holds runs; it knows nothing of Spark, files or versions. Once per batch the driver calls

    advance(operator, batch)   ->   on_batch      all rows of the batch probe the state and each other, then are stored
                                    on_idle       useful work if no row came, within a few pages; not at the end
                                    (inputs that end with this batch are noted)
                                    finish        only once, in the batch with which the last input ended
                                    report        gauges, after those of the rows held, which are the same for all

and keeps what `save` returns until the next batch. The laws an operator must obey:

    exactly once     over a run, all tables returned add up to the plain join of all inputs
    deterministic    output and next state depend on the state and the multiset of rows in the batch, on nothing else
                     (no wall clock, no row order, no randomness); budgets are counted in rows or pages
    bounded          a batch costs in proportion to its rows, not to the state
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pyarrow as pa

from watersmeet.columns.arrow import Hashes, Indices, data_bytes
from watersmeet.columns.partitions import Partition
from watersmeet.errors import EndedInputError
from watersmeet.join.waits import WaitingRows, Waits
from watersmeet.plan import JoinPlan
from watersmeet.plan.metrics import Metrics
from watersmeet.state.accounts import Accounts
from watersmeet.state.operator_state import OperatorState
from watersmeet.state.parts import Part
from watersmeet.state.rows import RowStore
from watersmeet.state.space import RunSpace

__all__ = ["Batch", "Operator", "OperatorState", "Origin", "advance", "resume", "saved", "take_over"]


@dataclass(frozen=True)
class Batch:
    """What arrives in one micro-batch, for one key partition.

    `rows` and `punctuations` hold a table per input (an input may be missing); `time` is the batch's clock in
    microseconds, the same on every retry; `ended` names the inputs that are complete with this batch.

    Rows with a null in their key match nothing. They are not in `rows` but apart: in `null_rows`, tables in the schema
    of their input (the hash has no meaning), if the plan keeps them (`InputSpec.keep_null_keys`); of the others only
    the number comes, in `null_keys`.

    `copies` are further rows, of keys that are spread over several partitions: those that another partition has, too
    (`plan.hot_table`). They are joined and stored like the others, and counted apart, so that over all partitions a row
    has come once. `taken` are such rows that came to the other partition in earlier batches.
    """

    number: int
    time: int = 0
    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    punctuations: Mapping[str, pa.Table] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()
    signals: tuple[int, ...] = ()  # numbers sent to the join by `spark.control.send_signal`, in order
    null_keys: Mapping[str, int] = field(default_factory=dict)
    null_rows: Mapping[str, pa.Table] = field(default_factory=dict)
    copies: Mapping[str, pa.Table] = field(default_factory=dict)
    taken: Mapping[str, pa.Table] = field(default_factory=dict)
    has_guests: bool = True  # whether rows may be of keys that belong to another partition

    @property
    def is_idle(self) -> bool:
        """Whether no row with a key came on any input: the sources of this partition are silent."""
        return all(table.num_rows == 0 for table in self.rows.values())


class Operator(ABC):
    """A join algorithm. Subclasses add `name`, the four methods below, and (where they have idle work) `on_idle`."""

    name: ClassVar[str]
    has_promises: ClassVar[bool] = False  # whether it knows of single keys what will not come: see `hear`

    def __init__(self, plan: JoinPlan, space: RunSpace) -> None:
        self.plan = plan
        self.space = space
        self.metrics = Metrics()
        self.accounts = Accounts(self.metrics)
        self.ended: dict[str, int] = {}  # input -> the batch with which it ended
        self.finished = False

    @abstractmethod
    def on_batch(self, batch: Batch) -> Iterator[pa.Table]:
        """Join the batch with the state and with itself, then store it. Yields tables of the plan's output."""

    def on_idle(self, batch: Batch) -> Iterator[pa.Table]:
        """Work that a batch without rows leaves time for, within the plan's budget of pages."""
        return iter(())

    def finish(self) -> Iterator[pa.Table]:
        """All inputs have ended: yield whatever is still owed and drop the state."""
        return iter(())

    def report(self) -> None:  # noqa: B027  (most operators have nothing to add)
        """Gauges of how things stand after the batch, beside those of the rows held."""

    def row_stores(self) -> Iterable[RowStore]:
        """All stores of rows there are."""
        return ()

    def waits(self, part: Part, rows: Indices) -> WaitingRows:
        """What stored rows wait for, for whoever looks at the state: the other inputs' end, if a join knows no more."""
        yield rows, Waits("end", self.going_on(part.store.input))

    def going_on(self, name: str) -> tuple[str, ...]:
        """The inputs beside one of them on which rows may still come."""
        return tuple(spec.name for spec in self.plan.inputs if spec.name != name and spec.name not in self.ended)

    @classmethod
    def splits(cls, plan: JoinPlan) -> tuple[str, ...]:
        """The inputs of which a hot key's rows can be divided among partitions, if each has all rows of the others.

        Every result must have exactly one row of such an input, and rows of the others must be the same to the join
        when they come later than they did, before any row of the split one.
        """
        return ()

    @classmethod
    def divides_both(cls, plan: JoinPlan) -> bool:
        """Whether a key's rows of both inputs can be divided at once, if each pair of them is in one partition: then no
        partition has all rows of either.

        Every result must be a pair, and no row may be emitted by itself.
        """
        return False

    @classmethod
    def witnessed(cls, plan: JoinPlan) -> tuple[str, ...]:
        """Those of `splits` of which a key's home must have had a row before the key is divided by them.

        A row of another input is emitted, once, because it matches or does not. With such a witness at home all of them
        match there, and the home alone emits them.
        """
        return ()

    @classmethod
    def kept_whole(cls, plan: JoinPlan) -> tuple[str, str] | None:
        """Of a join of which no input can be split, what the matter is, and why; None if it cannot say."""
        return None

    def take_in(self, batch: Batch) -> Batch:
        """The batch, with the rows taken from other partitions. To most joins these come now."""
        return replace(batch, rows=_together(batch.rows, batch.taken), taken={})

    def hear(self, origin: Operator, keys: pa.Table, batch: int) -> None:  # noqa: B027  (most joins know of none)
        """What another partition has been promised of keys that are here for the first time."""

    def note_copies(self, keys: Mapping[str, Hashes]) -> None:  # noqa: B027  (most joins count nothing twice)
        """By input the keys of which the rows here are copies: what they do is counted where they are themselves."""

    def hush(self, copies: Mapping[str, Hashes]) -> None:  # noqa: B027  (many joins emit pairs only)
        """By input the keys of which other partitions emit the rows, matched or not."""

    @classmethod
    def votes(cls, plan: JoinPlan) -> bool:
        """Whether partitions vote on rows of hot keys that lie in several of them and are emitted if they match in none
        (see `join.votes`)."""
        return False

    def vote_on(self, keys: Mapping[str, Hashes]) -> None:  # noqa: B027  (most joins do not vote)
        """By input, sorted, the keys whose rows may be matched in several partitions in this batch, or were before."""

    def cast(self) -> list[pa.Table]:
        """The votes of this batch."""
        return []

    def newest_times(self) -> dict[str, int]:
        """By input, the newest time of its rows that have come here."""
        return {}

    def follow(self, newest: Mapping[str, int]) -> None:  # noqa: B027  (most joins let no rows go by their time)
        """In a join that votes, the newest times that have come in any partition: rows must expire by these, because
        all partitions have to let the same ones go in the same batch."""

    def host(self, keys: Hashes) -> None:  # noqa: B027  (most joins have nothing but what comes)
        """Rows of these keys of other partitions are here, or may come with the next batch: for a join that has more to
        match rows with than what comes, and knows by the partition where to look."""

    def done_with(self, keys: Hashes) -> Hashes:
        """Those of the keys that `host` was given last for which it makes no difference to be forgotten. (Where rows
        leave by their time, the driver sees it by their stores.)"""
        return keys[:0]

    @abstractmethod
    def inherit(self, heir: Partition, origins: Sequence[Origin], version: int) -> None:
        """Take up, in place of `restore`, what former partitions held after batch `version` of the heir's keys.

        Rows are shared by reference (`state.sharing`). What holds for a whole partition is made true of the heir: of
        clocks the one that is furthest behind counts, because no row must be given up too soon.
        """

    @abstractmethod
    def save(self) -> OperatorState:
        """The state after the batch. Runs that are already stored are not written again."""

    @abstractmethod
    def restore(self, state: OperatorState) -> None:
        """Take up the state that `save` returned after the batch before."""

    def has_ended(self, name: str) -> bool:
        """Whether an input has ended in an earlier batch: nothing more will come on it."""
        return name in self.ended

    def ends(self, name: str, batch: Batch) -> bool:
        """Whether nothing more will come on an input after this batch."""
        return name in self.ended or name in batch.ended


def saved(operator: Operator) -> OperatorState:
    """All that must be kept of an operator."""
    state = operator.save()
    state.ended, state.finished, state.accounts = dict(operator.ended), operator.finished, operator.accounts.save()
    return state


def resume(operator: Operator, state: OperatorState) -> None:
    """Go on from what `saved` returned."""
    operator.ended, operator.finished = dict(state.ended), state.finished
    operator.accounts.restore(state.accounts)
    if not state.finished:
        operator.restore(state)


@dataclass(frozen=True)
class Origin:
    """A former partition, as it stood after the batch before the state was divided anew."""

    partition: Partition
    operator: Operator


def take_over(operator: Operator, heir: Partition, origins: Sequence[Origin], version: int) -> None:
    """Go on from former partitions, in place of `resume`.

    Rows that have left are in the accounts of one of the heirs, so that sums over all partitions stay what they were.
    """
    first = origins[0].operator
    operator.ended, operator.finished = dict(first.ended), first.finished
    if not first.finished:
        operator.inherit(heir, origins, version)
    accounts = operator.accounts
    for origin in origins:
        if heir.is_first_heir(origin.partition):
            for name, reasons in origin.operator.accounts.left.items():
                for reason, rows in reasons.items():
                    accounts.leave(name, reason, rows)
    held = {spec.name: 0 for spec in operator.plan.inputs}
    for store in operator.row_stores():
        held[store.input] = held.get(store.input, 0) + store.held
    for name in held.keys() | accounts.left.keys():
        accounts.came[name] = held.get(name, 0) + sum(accounts.left.get(name, {}).values())


def advance(operator: Operator, batch: Batch) -> Iterator[pa.Table]:
    """One batch, in the order the contract promises."""
    operator.metrics.reset()
    for name in dict.fromkeys([*batch.rows, *batch.null_rows, *batch.null_keys]):
        rows, kept = batch.rows.get(name), batch.null_rows.get(name)
        apart = batch.null_keys.get(name, 0) + (kept.num_rows if kept is not None else 0)
        arrived = operator.metrics.rows_in[name] = apart + (rows.num_rows if rows is not None else 0)
        operator.accounts.arrive(name, arrived)
        operator.accounts.leave(name, "null_key", apart)
        if arrived and operator.has_ended(name):
            raise EndedInputError(
                f"input {name!r}",
                expected=f"no rows after its end in batch {operator.ended[name]}",
                found=f"{arrived} rows in batch {batch.number}",
                hint="Call end_input only when the source is complete; this batch is not committed.",
                input=name,
            )
    for table in _stages(operator, _with_copies(operator, batch)):
        if table.num_rows:
            operator.metrics.rows_out += table.num_rows
            yield table


def _with_copies(operator: Operator, batch: Batch) -> Batch:
    """The batch as the operator gets it: copies are rows."""
    if not batch.copies and not batch.taken:
        return batch
    for tables in (batch.copies, batch.taken):
        for name, table in tables.items():
            operator.accounts.copy(name, table.num_rows)
            operator.metrics.count(f"rows_copied.{name}", table.num_rows)
            operator.metrics.count(f"bytes_copied.{name}", data_bytes(table))
    return operator.take_in(replace(batch, rows=_together(batch.rows, batch.copies), copies={}))


def _together(rows: Mapping[str, pa.Table], more: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The rows of each input, and more of them."""
    found = dict(rows)
    for name, table in more.items():
        found[name] = pa.concat_tables([found[name], table]) if name in found else table
    return found


def _stages(operator: Operator, batch: Batch) -> Iterator[pa.Table]:
    if operator.finished:
        return
    yield from operator.on_batch(batch)
    is_last = all(spec.name in operator.ended or spec.name in batch.ended for spec in operator.plan.inputs)
    if batch.is_idle and not is_last:  # what is owed at the end is found by `finish` at once, for less
        yield from operator.on_idle(batch)
    for name in sorted(batch.ended):
        operator.ended.setdefault(name, batch.number)
    if is_last:
        yield from operator.finish()
        operator.finished = True
    _report(operator)


def _report(operator: Operator) -> None:
    """What is held after the batch: the same gauges for all operators, from their stores."""
    stores: dict[str, list[RowStore]] = {spec.name: [] for spec in operator.plan.inputs}
    for store in operator.row_stores():
        if store.input:
            stores.setdefault(store.input, []).extend([store] if store.runs else [])
    gauge = operator.metrics.gauge
    for name, found in stores.items():
        gauge(f"held_rows.{name}", sum(store.held for store in found))
        gauge(f"resident_rows.{name}", sum(store.resident_rows for store in found))
        gauge(f"resident_bytes.{name}", sum(store.nbytes for store in found))
        gauge(f"spilled_rows.{name}", sum(store.spilled_rows for store in found))
        gauge(f"spilled_bytes.{name}", sum(store.spilled_bytes for store in found))
        gauge(f"runs.{name}", sum(len(store.runs) for store in found))
    operator.report()
