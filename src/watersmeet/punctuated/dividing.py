"""Hot keys of joins with promises: which inputs can be divided among partitions, and why others cannot.

Every partition that has rows of a key knows what was promised of it: punctuations of single keys are sent to all of
them (`plan.hot_table.HotKey.listeners`), patterns to all partitions there are, and one that gets a key for the first
time takes over what its home knew and what the partition knew from which it takes rows (`Knowledge.hear`). What follows
from rows (clusters that ended, orders) each partition finds out by itself: it sees a part of an input, in which what is
true of the whole is true as well. So each row of a divided input is joined with all that it can match, or breaks a
promise where it is.

One row of a key is no witness that others match (`Operator.witnessed`): it may have been purged. And an input on which
keys are unique has nothing to divide; it is always the one that is copied, so that all who have rows of a key know the
one that it has there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.plan import JoinPlan
from watersmeet.punctuated.promises.constraints import Constraint, one_sides


def divisible(offered: Sequence[str], plan: JoinPlan, constraints: Sequence[Constraint], mode: str) -> tuple[str, ...]:
    """Of the inputs that the type of the join allows to divide, those that the promises allow, too. `mode` is what
    happens to rows that break one."""
    if _conflict(constraints, mode) is not None:
        return ()
    ones = _named(plan, one_sides(constraints))
    return tuple(name for name in offered if name not in ones)


def kept_whole(
    offered: Sequence[str], plan: JoinPlan, constraints: Sequence[Constraint], mode: str
) -> tuple[str, str] | None:
    """What of the options keeps the rows of a key together, and why; None if an input can be divided."""
    if divisible(offered, plan, constraints, mode):
        return None
    if all(JOIN_TYPES[plan.how].unmatched):
        return f"how={plan.how!r}", (
            "Rows that lie in several partitions cannot be emitted once when they match nothing: promises purge the "
            "rows by which one of them could tell for all. Of a full join those of one input would have to be."
        )
    conflict = _conflict(constraints, mode)
    if conflict is not None:
        return conflict
    sides = sorted(one_sides(constraints))
    if len(sides) == 2:
        return "keys that are unique on both inputs", "A key with one row on each input is not hot."
    return f"how={plan.how!r} and keys that are unique on the {sides[0]} input", (
        f"Of such a join the rows of the {sides[0]} input would have to be divided, and a key has one of them at most."
    )


def _conflict(constraints: Sequence[Constraint], mode: str) -> tuple[str, str] | None:
    if mode == "keep":
        return "on_violation='keep'", (
            "A promise that a row breaks would be taken back in the partition of that row alone, while others purge by "
            "it."
        )
    if mode != "raise" and constraints:
        return f"on_violation={mode!r} and constraints (unique, clustered, ordered)", (
            "Each partition checks the rows that it has of a key: partitions that have copies of one row could find "
            "differently whether it breaks a constraint. With punctuations alone they cannot."
        )
    return None


def _named(plan: JoinPlan, sides: Collection[str]) -> set[str]:
    """The names that a plan has for the left and the right input."""
    return {spec.name for spec, side in zip(plan.inputs, ("left", "right"), strict=True) if side in sides}
