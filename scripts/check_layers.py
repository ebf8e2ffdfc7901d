"""Check that imports respect the layers of the package.

    spark, pipeline, lab, cli      streaming DataFrames; the only place where pyspark is known
      |            testing         runs operators without Spark
    progressive window multiway punctuated semistream      the operator families
      |
    join                           what the families share: admitting rows, clocks, probing, output rows
      |
    operator                       the contract of an operator
      |
    state                          holds rows, knows nothing of joins
      |
    estimate                       numbers only
      |
    arrow errors matching metrics options plan saturating spark_hash

The tables below say all of it; the code under them only applies them. Every import counts, wherever it
stands: inside a function, under `TYPE_CHECKING`, relative, or by name through `importlib.import_module`.

    python scripts/check_layers.py [PACKAGE_FOLDER]
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "watersmeet"

# A unit is a module or sub-package directly under the package; "__init__" is the package itself.
FOUNDATION = frozenset(
    {"arrow", "errors", "matching", "metrics", "operator", "options", "plan", "saturating", "spark_hash"}
)
FAMILIES = frozenset({"progressive", "window", "multiway", "punctuated", "semistream"})
SPARK_SIDE = frozenset({"spark", "pipeline", "lab", "cli", "__init__", "__main__"})

# Which units of the package an operator family may import, besides itself; all others are forbidden to it.
FAMILY_MAY_IMPORT = FOUNDATION | {"state", "estimate", "join"}
FAMILY_MAY_ALSO_IMPORT = {"punctuated": frozenset({"progressive"})}
FAMILY_WHY = "a family builds on join/, state/, estimate/ and the foundation, not on other families or Spark"

# Which units the units below the families may not import.
OPERATORS_AND_ABOVE = FAMILIES | SPARK_SIDE | {"testing"}
JOINS_AND_ABOVE = OPERATORS_AND_ABOVE | {"join"}
MUST_NOT_IMPORT: dict[str, tuple[frozenset[str], str]] = {
    **dict.fromkeys(FOUNDATION, (JOINS_AND_ABOVE, "the foundation knows no operators")),
    "estimate": (JOINS_AND_ABOVE | {"state"}, "estimate/ is numbers only and lies below state/"),
    "state": (JOINS_AND_ABOVE | {"operator"}, "state/ holds rows and knows nothing of joins"),
    "join": (OPERATORS_AND_ABOVE, "join/ is what the families share and knows none of them"),
}

# Every other unit, `testing` among them, may import all but the Spark side; that side may import everything.
OTHERS_WHY = "everything below spark/ runs without it"

# Where a foreign package may be imported; nowhere if no unit is named.
FENCED: dict[str, tuple[frozenset[str], str]] = {
    "pyspark": (frozenset({"spark", "pipeline", "lab", "cli"}), "operators and state run without Spark"),
    **{
        name: (frozenset(), "state is JSON and Arrow IPC, never objects that run code when they are read")
        for name in ("pickle", "cloudpickle", "dill", "marshal")
    },
    "pandas": (frozenset(), "it changes types (a nullable int64 becomes a float); use Arrow or NumPy"),
}

# The same for attributes, whatever they are called on.
FENCED_ATTRIBUTES: dict[str, tuple[frozenset[str], str]] = {
    name: (frozenset({"lab"}), "pandas loses types; only the lab's reports may use it")
    for name in ("to_pandas", "toPandas")
}


@dataclass(frozen=True, order=True)
class Violation:
    file: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def check(package: Path) -> list[Violation]:
    """All violations in the package folder, in order of file and line."""
    units = {path.stem for path in package.iterdir() if path.is_dir() or path.suffix == ".py"}
    found = []
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
        for node in ast.walk(tree):
            for problem in problems(node, parts, units - {"__init__"}):
                found.append(Violation(file, getattr(node, "lineno", 1), problem))
    return sorted(set(found))


def problems(node: ast.AST, parts: tuple[str, ...], units: set[str]) -> Iterator[str]:
    """What is wrong with one node of the module at `parts` (its path below the package)."""
    unit = parts[0]
    for name in imported_names(node, parts):
        top, *rest = name.split(".")
        if top == PACKAGE:
            target = rest[0] if rest and rest[0] in units else "__init__"
            reason = internal_reason(unit, target)
        else:
            reason = foreign_reason(unit, name)
        if reason:
            yield f"{unit} imports {name}: {reason}"
    if isinstance(node, ast.Attribute) and node.attr in FENCED_ATTRIBUTES:
        allowed, why = FENCED_ATTRIBUTES[node.attr]
        if unit not in allowed:
            yield f"{unit} uses .{node.attr}: {why}"


def imported_names(node: ast.AST, parts: tuple[str, ...]) -> list[str]:
    """The absolute dotted names that a node imports; `from a import b` gives `a.b`, be b a module or not."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(level=0):
            return [f"{node.module}.{alias.name}" for alias in node.names]
        case ast.ImportFrom():
            # Both a/b.py and a/__init__.py are `a` for one leading dot; every further dot drops a folder.
            folder = (PACKAGE, *parts)[: -node.level]
            base = ".".join((*folder, *([node.module] if node.module else [])))
            return [f"{base}.{alias.name}" for alias in node.names]
        case ast.Call(
            func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return [name]
    return []


def internal_reason(unit: str, target: str) -> str | None:
    """Why `unit` may not import `target`, both of this package; None if it may."""
    if unit == target or unit in SPARK_SIDE:
        return None
    if unit in FAMILIES:
        allowed = FAMILY_MAY_IMPORT | FAMILY_MAY_ALSO_IMPORT.get(unit, frozenset())
        return None if target in allowed else FAMILY_WHY
    forbidden, why = MUST_NOT_IMPORT.get(unit, (SPARK_SIDE, OTHERS_WHY))
    return why if target in forbidden else None


def foreign_reason(unit: str, name: str) -> str | None:
    """Why `unit` may not import the foreign `name`; None if it may.

    Every part of the name counts, so that `pyspark.cloudpickle` and `pyspark.pandas` are found as well.
    """
    for part in name.split("."):
        allowed, why = FENCED.get(part, (frozenset({unit}), ""))
        if unit not in allowed:
            return why
    return None


def main(arguments: list[str]) -> int:
    default = Path(__file__).resolve().parent.parent / "src" / PACKAGE
    package = Path(arguments[0]) if arguments else default
    if not package.is_dir():
        print(f"check_layers: {package} is not a folder", file=sys.stderr)
        return 2
    violations = check(package)
    for violation in violations:
        print(violation)
    if violations:
        print(f"{len(violations)} import(s) break the layers; the rules: {Path(__file__).name}")
        return 1
    print("Layers respected")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
