"""The decision: from what is known of the inputs to the join that can use all of it.

What each join can take is one line of `JOINS`; the first line that takes everything that was said is the choice. To let
joins combine more, change the lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from watersmeet.chooser.table_size import TableSize
from watersmeet.errors import OptionError, PlanError

PROMISES = ("unique", "clustered", "ordered", "ends")


@dataclass(frozen=True)
class Facts:
    """What was said of a join: how many streams, or a stream and a table; a window; which promises; the type."""

    streams: int = 2
    several: bool = False  # the streams were given as a list or a dict
    table: bool = False
    window: bool = False
    promises: tuple[str, ...] = ()
    memory: bool = False
    how: str = "inner"
    frame: bool = False  # the table is a DataFrame, not one that was prepared
    size: TableSize | None = None  # of such a table; None: nothing depends on it
    only: tuple[str, ...] = ()  # options that were given, and that of the joins with a table only one has
    built: str = ""  # the join with a table that was built in this state directory before

    def said(self) -> str:
        """The facts in words.

        >>> Facts(window=True, promises=("unique",), memory=True).said()
        'two streams, within, unique and memory'
        """
        streams = "a stream and a table" if self.table else f"{_NUMBERS.get(self.streams, self.streams)} streams"
        given = [*(["within"] if self.window else []), *self.promises, *(["memory"] if self.memory else [])]
        how = [f"how={self.how!r}"] if self.how != "inner" else []
        return listed([streams, *given, *how])


@dataclass(frozen=True)
class Choice:
    """One thing that was chosen, and the reason."""

    what: str
    value: str
    why: str


@dataclass(frozen=True)
class Join:
    """What a join can take."""

    name: str
    function: str
    window: Literal["never", "maybe", "always"]
    promises: bool
    several: bool = False
    table: bool = False
    frame: bool = False  # of tables, only those that are not prepared
    memory: bool = True
    why: str = ""

    def takes(self, facts: Facts) -> bool:
        """Whether it can use all that was said."""
        return (
            self.table == facts.table
            and (facts.frame or not self.frame)
            and self.several == facts.several
            and (self.window == "maybe" or (self.window == "always") == facts.window)
            and (self.promises or not facts.promises)
            and (not self.several or facts.how == "inner")
        )

    def fits(self, facts: Facts) -> bool:
        """Whether it is the choice, if those before it are not: what was built before, or what the table's size and
        the options say."""
        if not self.takes(facts) or (self.frame and facts.only):
            return False
        if facts.built:
            return self.name == facts.built
        return not self.frame or (facts.size is not None and facts.size.fits)

    def reason(self, facts: Facts) -> str:
        """Why it was chosen."""
        if facts.built:
            return "the state directory was made by such a join: it goes on as it was, whatever size the table has now"
        if self.frame and facts.size is not None:
            return f"the table is small, {facts.size} ({facts.size.rule}): {self.why}"
        if facts.only:
            return f"{self.why}; only this join has {listed(list(facts.only))}"
        return f"{self.why}; it is not broadcast at {facts.size} ({facts.size.rule})" if facts.size else self.why

    def uses(self) -> str:
        """What it can be told, in words."""
        window = {"never": [], "maybe": ["within"], "always": ["within"]}[self.window]
        return listed([*window, *(PROMISES if self.promises else ()), *(["memory"] if self.memory else [])])


JOINS: dict[str, Join] = {
    join.name: join
    for join in (
        Join(
            "broadcast", "broadcast_join", window="never", promises=False, table=True, frame=True, memory=False,
            why="Spark's own join, with the table sent to every task, needs no shuffle and no state",
        ),
        Join(
            "semi-stream", "semi_stream_join", window="never", promises=False, table=True,
            why="the right input is a table: it is read in chunks, and its hot rows are cached",
        ),
        Join(
            "multiway", "multiway_join", window="maybe", promises=False, several=True,
            why="a list of streams on one key: they are joined at once, and no intermediate result is stored",
        ),
        Join(
            "progressive", "progressive_join", window="never", promises=False,
            why="two streams, with neither a window nor promises: every pair is a result, whenever its rows come",
        ),
        Join(
            "window", "window_join", window="always", promises=True,
            why="within says how long the rows of each stream wait for each other",
        ),
        Join(
            "punctuated", "punctuated_join", window="never", promises=True,
            why="the streams promise what they will not send: rows that can match nothing any more are purged",
        ),
    )
}  # fmt: skip

_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def decide(who: str, facts: Facts, operator: str | None = None) -> Choice:
    """The join for these facts, or the one that was asked for; a `PlanError` if there is none that takes them all.

    >>> decide("join", Facts()).value, decide("join", Facts(window=True, memory=True)).value
    ('progressive', 'window')
    >>> decide("join", Facts(promises=("ends",))).why
    'the streams promise what they will not send: rows that can match nothing any more are purged'
    """
    if operator is not None:
        return _pinned(who, facts, operator)
    for join in JOINS.values():
        if join.fits(facts):
            return Choice("join", join.name, join.reason(facts))
    raise _impossible(who, facts)


def _pinned(who: str, facts: Facts, operator: object) -> Choice:
    if not isinstance(operator, str) or operator not in JOINS:
        raise OptionError(
            who,
            expected=f"operator {', '.join(map(repr, JOINS))}",
            found=repr(operator),
            hint="Leave it out, and the join is chosen.",
            option="operator",
        )
    join = JOINS[operator]
    # A punctuated join without promises is one that keeps everything, and its state can be given promises later.
    if not join.takes(facts):
        lacking = join.window == "always" and not facts.window
        raise PlanError(
            who,
            expected=f"what a {operator} join can use: {', '.join(filter(None, (_inputs(join), join.uses())))}",
            found=f"{facts.said()}{', which was prepared' if join.frame and facts.table and not facts.frame else ''}",
            hint="Leave operator out, and the join is chosen; or "
            + ("say how long rows wait (within)." if lacking else "leave out what it cannot use."),
            option="operator",
        )
    return Choice("join", operator, "operator was given")


def _inputs(join: Join) -> str:
    if join.table:
        return f"a stream and a {'batch DataFrame' if join.frame else 'table'}"
    return "a list of streams with how='inner'" if join.several else "two streams"


def _impossible(who: str, facts: Facts) -> PlanError:
    """Which facts do not go together: those of two streams all do."""
    joins = (one for one in JOINS.values() if not one.frame)  # the other join with a table can be told more
    join = next(one for one in joins if one.table == facts.table and one.several == facts.several)
    if facts.several and facts.how != "inner" and not facts.promises:
        return PlanError(
            who,
            expected="how='inner' with a list of streams",
            found=f"how={facts.how!r}",
            hint="Name the inputs that may be missing from a combination: optional=[...] (docs/multiway.md).",
            option="how",
        )
    return PlanError(
        who,
        expected=f"with {_inputs(join)} no more than {join.uses()}",
        found=facts.said(),
        hint="Leave the others out; what they say is of use between two streams.",
        option=_first(facts, join),
    )


def _first(facts: Facts, join: Join) -> str:
    """The first fact that a join cannot use."""
    if facts.window and join.window == "never":
        return "within"
    return facts.promises[0] if facts.promises else "how"


def listed(words: list[str]) -> str:
    """Words as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
