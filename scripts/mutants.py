"""Small mutations of Python source: which there are in a package, a fixed sample of them, and each one's source.

A mutation changes one thing: a comparison (`<` to `<=`, `==` to `!=`), a sign (`+` to `-`), `and` to `or`, `&` to `|`,
True to False, an integer by one, a dropped `not`, `min` to `max`. Type annotations, docstrings, assertions, texts of
errors, `__repr__` and imports are left alone, and so is what only restates an expectation (`zip(strict=True)`).
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
SWAPPED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
LARGE = 1000  # one more makes no difference to a number that only has a size
SKIPPED_FUNCTIONS = {"__repr__", "__str__", "_repr_html_"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """One change in one file. `function` is the innermost function with its classes, None for code run at import."""

    id: str
    file: str  # below the source folder
    line: int
    function: str | None
    before: str
    after: str
    code: str  # the line it stands in
    number: int  # which of the file's mutations it is
    body: str = ""  # digest of the function, or of the statement of a module or class

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  ->  {self.after}   in `{self.code}`"


@dataclass(frozen=True)
class _Site:
    """A node, where it hangs in its parent, and what may stand there instead."""

    parent: ast.AST
    field: str
    index: int | None
    node: ast.AST
    instead: ast.AST
    scope: tuple[str, ...]
    function: str | None
    body: ast.AST

    def apply(self) -> None:
        if self.index is None:
            setattr(self.parent, self.field, self.instead)
        else:
            getattr(self.parent, self.field)[self.index] = self.instead


def find(source: Path, parts: list[str]) -> list[Mutant]:
    """All mutations of the given files and folders below `source`, in order."""
    places = [source / part for part in parts]
    files = [file for place in places for file in ([place] if place.suffix == ".py" else place.rglob("*.py"))]
    seen: Counter[tuple[str, ...]] = Counter()
    return [mutant for file in sorted(files) for mutant in _of_file(file, file.relative_to(source).as_posix(), seen)]


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """The `count` mutations with the smallest digests under the seed, in that order: the first of them are a smaller
    sample, and an edit elsewhere does not change the draw."""
    return sorted(mutants, key=lambda mutant: _digest(str(seed), mutant.id))[:count]


def source_of(source: Path, mutant: Mutant) -> str:
    """The whole file with the mutation in it (comments are lost, behaviour is not)."""
    tree = ast.parse((source / mutant.file).read_text(encoding="utf-8"))
    list(_sites(tree))[mutant.number].apply()
    return ast.unparse(ast.fix_missing_locations(tree))


def _of_file(file: Path, name: str, seen: Counter[tuple[str, ...]]) -> Iterator[Mutant]:
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    for number, site in enumerate(_sites(ast.parse(text))):
        before, after = _shown(site.node), _shown(site.instead)
        change = (file.stem, *site.scope, before, after)
        seen[change] += 1
        # Neither the line nor the package is part of the id: it does not change when code or a file moves.
        id_ = f"{file.stem}.{'.'.join(site.scope) or 'module'}-{_digest(*change, str(seen[change]))[:8]}"
        line: int = site.node.lineno  # type: ignore[attr-defined]
        body = _digest(ast.dump(site.body))[:16]
        yield Mutant(id_, name, line, site.function, before, after, lines[line - 1].strip(), number, body)


def _shown(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 90 else f"{text[:60]} ... {text[-25:]}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _sites(
    tree: ast.AST, scope: tuple[str, ...] = (), function: str | None = None, body: ast.AST | None = None
) -> Iterator[_Site]:
    for field, value in ast.iter_fields(tree):
        if _is_left_alone(tree, field):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST):
                continue
            for instead in _instead(node, tree, field):
                yield _Site(tree, field, index, node, instead, scope, function, body or node)
            if isinstance(node, Function):
                if node.name not in SKIPPED_FUNCTIONS:
                    inside = (*scope, node.name)
                    yield from _sites(node, inside, ".".join(inside), node)
            elif isinstance(node, ast.ClassDef):
                yield from _sites(node, (*scope, node.name), function, body)
            elif not isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
                yield from _sites(node, scope, function, body or node)


def _is_left_alone(tree: ast.AST, field: str) -> bool:
    if field in {"annotation", "returns", "type_params"}:
        return True
    if field == "decorator_list":
        return True
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        # Arguments of an error are its text; a type variable's are its bounds.
        return tree.func.id.endswith("Error") or tree.func.id in {"TypeVar", "cast", "NewType"}
    return isinstance(tree, ast.keyword) and tree.arg in {"strict", "description", "title"}


def _instead(node: ast.AST, parent: ast.AST, field: str) -> Iterator[ast.AST]:
    """What may stand in place of a node."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                changed = copy.deepcopy(node)
                changed.ops[place] = COMPARISONS[type(op)]()
                yield changed
        case ast.BinOp(op=op, left=left, right=right) if type(op) in ARITHMETIC and not (_text(left) or _text(right)):
            changed = copy.deepcopy(node)
            changed.op = ARITHMETIC[type(op)]()
            yield changed
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            changed = copy.deepcopy(node)
            changed.op = ARITHMETIC[type(op)]()
            yield changed
        case ast.BoolOp(op=op):
            changed = copy.deepcopy(node)
            changed.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield changed
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub(), operand=operand):
            yield copy.deepcopy(operand)
        case ast.Constant(value=bool(value)):
            yield ast.copy_location(ast.Constant(not value), node)
        case ast.Constant(value=int(value)) if value < LARGE:
            yield ast.copy_location(ast.Constant(value + 1), node)
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
            changed = copy.deepcopy(node)
            changed.func = ast.Name(SWAPPED[name], ast.Load())
            yield changed
        case ast.Attribute(attr=name) if name in SWAPPED and isinstance(parent, ast.Call) and field == "func":
            changed = copy.deepcopy(node)
            changed.attr = SWAPPED[name]
            yield changed


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
