"""What can be wrong with a pipeline file, and where."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from watersmeet.errors import PlanError

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where in the document, and on which line of which file (0: no file was read)."""

    message: str
    path: Path = ()
    line: int = 0
    file: str = ""

    def __str__(self) -> str:
        position = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        where = f"{dotted(self.path)}: " if self.path else ""
        return f"{position}{where}{self.message}"


class PipelineError(PlanError):
    """A pipeline cannot be run as it is written; `problems` has everything that was found.

    >>> print(PipelineError([Problem("unknown key", ("join", "memry"), 7, "p.yaml")]))
    p.yaml:7: join.memry: unknown key
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("pipeline", expected="a valid pipeline", found=f"{len(self.problems)} problem(s)", hint="")
        self.args = ("\n".join(str(problem) for problem in self.problems),)

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        return PipelineError, (self.problems,)


def dotted(path: Path) -> str:
    """A path as people write it.

    >>> dotted(("join", "constraints", 0, "one"))
    'join.constraints[0].one'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest right one, or all of them."""
    names = list(known)
    folded = {other.lower().replace("-", "_"): other for other in names}
    near = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1)
    return f"did you mean {folded[near[0]]!r}?" if near else f"known are {', '.join(names)}"
