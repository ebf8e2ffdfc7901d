"""Join types: which rows a join emits, and what it must remember for that. Nothing else knows their names."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass

from watersmeet.errors import OptionError

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


def checked_how(who: str, how: object, offered: Collection[str] = tuple(JOIN_TYPES), *, others: str = "") -> JoinType:
    """The join type in any of PySpark's spellings; an `OptionError` if it is none, or none that is offered.

    `others` says why the other types are not offered, and what to do.
    """
    found = canonical(how) if isinstance(how, str) else None
    if found not in offered:
        near = difflib.get_close_matches(str(how).lower(), offered, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "Leave it out for 'inner'."
        raise OptionError(
            who,
            expected=f"how {', '.join(map(repr, offered))}, in any of PySpark's spellings",
            found=repr(how),
            hint=others if found else hint,
            option="how",
        )
    return JOIN_TYPES[str(found)]
