"""Join types: which rows a join emits, and what it must remember for that. Nothing else knows their names."""

from __future__ import annotations

from dataclasses import dataclass

MATCHED = "matched"  # the flag of stored rows that have matched


@dataclass(frozen=True)
class JoinType:
    """A join type of two inputs, left and right."""

    name: str
    pairs: bool = True  # a row for every match
    unmatched: tuple[bool, bool] = (False, False)  # a row for every left, every right row that never matches
    semi: bool = False  # a row for every left row that matches, once

    @property
    def exists(self) -> bool:
        """Whether it only matters if a left row matches: it is done with then, and right rows are wanted as keys."""
        return not self.pairs


JOIN_TYPES = {
    one.name: one
    for one in (
        JoinType("inner"),
        JoinType("left", unmatched=(True, False)),
        JoinType("right", unmatched=(False, True)),
        JoinType("full", unmatched=(True, True)),
        JoinType("left_semi", pairs=False, semi=True),
        JoinType("left_anti", pairs=False, unmatched=(True, False)),
    )
}

# All that PySpark's `join` takes, without underscores.
_SPELLINGS = {
    "inner": "inner",
    "left": "left",
    "leftouter": "left",
    "right": "right",
    "rightouter": "right",
    "full": "full",
    "outer": "full",
    "fullouter": "full",
    "semi": "left_semi",
    "leftsemi": "left_semi",
    "anti": "left_anti",
    "leftanti": "left_anti",
}


def canonical(how: str) -> str | None:
    """The name of a join type in any of PySpark's spellings; None if there is no such type.

    >>> canonical("leftOuter"), canonical("left_anti"), canonical("outer"), canonical("sideways")
    ('left', 'left_anti', 'full', None)
    """
    return _SPELLINGS.get(how.lower().replace("_", ""))
