"""Which rows may still come, and which unmatched rows are owed: from the definition of each promise alone.

    legal(history, row)       may this row come in the next batch?
    can_match(history, x)     is there a legal row of the other input that would match x?
    follow(history, held)     the batch that has just come: pairs, unmatched rows owed, rows that stay

Plain Python over a handful of rows; shares no code with the operators (but for the length of a cell of time).

One further row is enough. A row x has a future if some continuation that keeps its promises matches it. Every promise
only takes away from what may still come: an input that has ended has no rows, punctuations and ended inputs are not
taken back, newest times only grow (also those that a silent input is taken to have), an order of all rows is an order
of any part of them, and a key that has come once has come. So take the continuation, keep the one row that matches x,
leave out everything before and beside it, and let it come in the next batch: fewer rows and promises forbid nothing
that was allowed, and find nothing less. Thus x has a future if and only if a single row in the next batch can match it
(`test_one_further_row_is_enough`).

This is not so where promises are taken back (`on_violation="keep"`): a row that breaks a promise makes rows legal that
were not. There `can_match` looks through whole continuations (`further`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby, permutations, product

from watersmeet.window.cells import cell_length

SIDES = ("left", "right")
OTHER = {"left": "right", "right": "left"}
FOREVER = 10**9
FAR = 40  # farther than the times of any two rows of a history
PRESERVED = {"left": ("left",), "right": ("right",), "full": SIDES, "left_anti": ("left",)}


@dataclass(frozen=True)
class Row:
    """A row; its number tells it from all others. The time is its own, or the clock of its batch."""

    side: str
    number: int
    key: int | None
    time: int | None = 0


@dataclass(frozen=True)
class Step:
    """A batch. A promise is an input and the range of keys that it sends no more, both ends included."""

    rows: tuple[Row, ...] = ()
    said: tuple[tuple[str, int, int], ...] = ()
    ended: frozenset[str] = frozenset()
    clock: int = 1


History = tuple[Step, ...]
Held = tuple[tuple[Row, bool], ...]  # rows that have a future, and whether they have matched


@dataclass(frozen=True)
class Answer:
    """What a batch owes, and the rows that stay."""

    pairs: frozenset[tuple[int, int]]
    unmatched: frozenset[tuple[str, int]]
    held: Held


@dataclass(frozen=True)
class Rules:
    """A join: its type, how rows match, and what its inputs promise beforehand."""

    how: str
    keys: tuple[int, ...] = (1, 2)
    window: tuple[int | None, int | None] | None = None  # how long left and right rows wait; None: for ever
    lateness: int = 0
    arrival_clock: bool = False
    timeout: int | None = None  # how long an input may be silent before its clock follows the other one's
    punctuated: bool = False  # whether the inputs make promises as they go
    one: frozenset[str] = frozenset()  # inputs on which a key comes at most once
    order: tuple[tuple[str, str], ...] = ()  # inputs whose rows come "clustered", "ascending" or "descending"
    sequence: bool = False  # whether the rows of a batch are known to have come by their numbers
    on_violation: str = "raise"
    further: int = 0  # batches of a continuation before the row that matches

    # -- what may still come

    def legal(self, history: History, *rows: Row) -> bool:
        """Whether these rows may come together in the next batch."""
        ended = {side for step in history for side in step.ended}
        if any(row.side in ended or self.promised(history, row) for row in rows):
            return False
        now = max((step.clock for step in history), default=0)
        if self.arrival_clock and any(row.time is None or row.time < now for row in rows):
            return False
        come = (*history, Step(rows))
        # Where rows that break a promise are joined, a row may come when the one row of its key has come and gone. To
        # know that no other will come, all keys that ever came would have to be kept: it waits for a promise or an end.
        once = self.one if self.on_violation != "keep" else ()
        return all(orderly(how, self._keys(come, side), self.sequence) for side, how in self.order) and all(
            unique(chain(*self._keys(come, side))) for side in once
        )

    @staticmethod
    def _keys(history: History, side: str) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(row.key for row in step.rows if row.side == side and row.key is not None) for step in history
        )

    def promised(self, history: History, row: Row) -> bool:
        """Whether its input has promised in an earlier batch not to send this row's key any more."""
        if row.key is None or not said(history, row.side, row.key):
            return False
        if self.on_violation != "keep":
            return True
        # A row that came all the same has taken the promises of its key back, for good.
        return not any(
            one.side == row.side and one.key == row.key and said(history[:number], row.side, row.key)
            for number, step in enumerate(history)
            for one in step.rows
        )

    # -- what matches

    def near(self, x: Row, y: Row) -> bool:
        """Whether two rows match, if they are ever compared."""
        if x.side == y.side or x.key is None or x.key != y.key:
            return False
        if self.window is None:
            return True
        left, right = (x, y) if x.side == "left" else (y, x)
        if left.time is None or right.time is None:
            return False
        return -self.waits("right") <= right.time - left.time <= self.waits("left")

    def waits(self, side: str) -> int:
        """How long rows wait for others that come after them."""
        found = None if self.window is None else self.window[SIDES.index(side)]
        return FOREVER if found is None else found

    def finds(self, history: History, x: Row, y: Row) -> bool:
        """Whether a row y of the next batch finds x. A row that is late finds only what rows that are not late could
        match as well: what is at or after the horizon."""
        if self.window is None or self.arrival_clock:
            return True
        bound = self.bound(history, y.side)
        assert x.time is not None
        assert y.time is not None
        if bound is None or y.time >= bound:
            return True
        reach = self.waits(x.side)
        if x.side == "right" and self.how == "left_anti":  # in cells: see `window.cells`
            return x.time >= (bound - reach) // self.cell * self.cell
        return x.time + reach >= bound

    @property
    def cell(self) -> int:
        """The length of the cells of time of the right input, where only keys and times are kept of it."""
        assert self.window is not None
        left, right = (self.waits(side) for side in SIDES)
        return cell_length(left + right, max(right, 0) + self.lateness)

    def bound(self, history: History, side: str) -> int | None:
        """The time before which rows of an input are late; None if none is. The clock of an input that has been silent
        for so long follows the other one's."""
        newest: dict[str, int] = {}
        active: dict[str, int] = {}
        for step in history:
            for one in SIDES:
                times = [row.time for row in step.rows if row.side == one and row.key is not None]
                known = [time for time in times if time is not None]
                if known:
                    newest[one] = max([*known, *([newest[one]] if one in newest else [])])
                if known or one not in active:
                    active[one] = step.clock
            if self.timeout is None or not newest:
                continue
            ahead = max(newest.values())
            for one in SIDES:
                if step.clock - active[one] >= self.timeout:
                    newest[one] = ahead
        return newest[side] - self.lateness if side in newest else None

    def _others(self, history: History, x: Row) -> Iterator[Row]:
        """Rows of the other input that would match x, whether or not they may come."""
        times: Iterable[int] = (0,)
        if self.window is not None and x.time is not None:
            farthest = max(FAR if wait is None else abs(wait) for wait in self.window)
            times = range(x.time - farthest, x.time + farthest + 1)
        for time in times:
            y = Row(OTHER[x.side], 10**6, x.key, time)
            if self.near(x, y):
                yield y

    def can_match(self, history: History, x: Row) -> bool:
        """Whether a row still to come can match x."""
        return self.within(history, x, self.further)

    def within(self, history: History, x: Row, further: int) -> bool:
        """The same, if at most so many batches come before the row that matches."""
        if any(self.legal(history, y) and self.finds(history, x, y) for y in self._others(history, x)):
            return True
        return further > 0 and any(
            self.within((*history, step), x, further - 1) for step in self.continuations(history)
        )

    def continuations(self, history: History) -> Iterator[Step]:
        """Every legal batch of at most one row per input and at most one promise."""
        clock = max((step.clock for step in history), default=1) + (self.timeout is not None)
        times: tuple[int, ...] = (0,)
        if self.window is not None:
            times = (clock,) if self.arrival_clock else (0, 1)
        rows = {
            side: [(), *((Row(side, 10**5 + (side == "right"), key, time),) for key in self.keys for time in times)]
            for side in SIDES
        }
        told: list[tuple[tuple[tuple[str, int, int], ...], frozenset[str]]] = [((), frozenset())]
        told += [((), frozenset({side})) for side in SIDES]
        if self.punctuated:
            told += [(((side, key, key),), frozenset()) for side in SIDES for key in self.keys]
        for left, right in product(rows["left"], rows["right"]):
            if self.legal(history, *left, *right):
                for promise, ended in told:
                    yield Step((*left, *right), promise, ended, clock)

    # -- what is owed

    @property
    def waits_for_its_window(self) -> bool:
        """Where keys may come twice after all, a window join takes nothing from their being unique."""
        return self.on_violation == "keep" and self.window is not None

    def admitted(self, history: History, step: Step) -> Step:
        """A batch without the rows that broke a promise, if those are dropped. Rows without a time match nothing: they
        are not looked at."""
        if self.on_violation != "drop":
            return step
        kept = tuple(row for row in step.rows if row.time is None or not self.promised(history, row))
        return Step(kept, step.said, step.ended, step.clock)

    def follow(self, history: History, held: Held) -> Answer:
        """The last batch of a history: its rows are compared with those held and with each other; then whatever has no
        future leaves, and is owed if it never matched."""
        new = history[-1].rows
        matched = {row.number for row, had in held if had}
        pairs = set()
        for x, y in chain(product((row for row, _ in held), new), product(new, new)):
            if self.near(x, y):
                left, right = (x, y) if x.side == "left" else (y, x)
                pairs.add((left.number, right.number))
                matched |= {left.number, right.number}
        staying, unmatched = [], set()
        for row in (*(row for row, _ in held), *new):
            if row.number in matched and OTHER[row.side] in self.one and not self.waits_for_its_window:
                continue  # it has matched the only row it can match
            if self.can_match(history, row):
                staying.append((row, row.number in matched))
            elif row.side in PRESERVED[self.how] and row.number not in matched:
                unmatched.add((row.side, row.number))
        return Answer(frozenset(pairs), frozenset(unmatched), tuple(staying))


def said(history: History, side: str, key: int) -> bool:
    """Whether an input has ever promised a key away."""
    return any(name == side and low <= key <= high for step in history for name, low, high in step.said)


def unique(keys: Iterable[int]) -> bool:
    """Whether no key comes twice."""
    listed = list(keys)
    return len(listed) == len(set(listed))


@lru_cache(maxsize=1 << 16)
def orderly(how: str, batches: tuple[tuple[int, ...], ...], in_sequence: bool) -> bool:
    """Whether the rows of some batches can have come in the order that was promised. Within a batch they may have come
    in any order, unless it is known."""
    arrangements: Iterable[Iterable[tuple[int, ...]]] = (
        [batches] if in_sequence else product(*(set(permutations(keys)) for keys in batches))
    )
    return any(KEEPS[how](list(chain(*arrangement))) for arrangement in arrangements)


KEEPS = {
    "ascending": lambda keys: keys == sorted(keys),
    "descending": lambda keys: keys == sorted(keys, reverse=True),
    "clustered": lambda keys: len([key for key, _ in groupby(keys)]) == len(set(keys)),
}
