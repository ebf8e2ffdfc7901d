"""The constants of a condition as text: which parts of sqlglot's tree are constant, and how Spark wrote them."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
_SUFFIXES = {"BIGINT": "L", "SMALLINT": "S", "TINYINT": "Y", "DOUBLE": "D", "FLOAT": "F", "DECIMAL": "BD"}
_LITERALS = {
    "DATE": "DATE",
    "TIMESTAMPTZ": "TIMESTAMP",
    "TIMESTAMPLTZ": "TIMESTAMP_LTZ",
    "TIMESTAMPNTZ": "TIMESTAMP_NTZ",
}


def is_constant(node: exp.Expr) -> bool:
    """Whether a part has no columns, and only what Spark computes alike at any time."""
    if isinstance(node, exp.Literal | exp.Boolean | exp.Null | exp.HexString | exp.Interval):
        return True
    if isinstance(node, exp.Cast | exp.Paren | exp.Neg):
        return is_constant(node.this)
    return isinstance(node, tuple(ARITHMETIC)) and is_constant(node.this) and is_constant(node.expression)


def constants_in(node: exp.Expr) -> Iterator[exp.Expr]:
    """The largest parts that are constants."""
    if is_constant(node):
        yield node
    else:
        for part in node.iter_expressions():
            yield from constants_in(part)


def written(node: exp.Expr, *, suffixes: bool = False) -> str:
    """The text of a constant. sqlglot reads DATE '...' and 5L as casts; Spark tells them from casts."""
    if isinstance(node, exp.Paren):
        return written(node.this, suffixes=suffixes)
    if isinstance(node, exp.Neg):
        return f"-{written(node.this, suffixes=suffixes)}"
    if type(node) in ARITHMETIC:
        one, other = (written(part, suffixes=suffixes) for part in (node.this, node.expression))
        return f"({one} {ARITHMETIC[type(node)]} {other})"
    if isinstance(node, exp.Cast):
        target, inner = node.to.this.name, node.this
        if type(node) is exp.Cast and isinstance(inner, exp.Literal) and inner.is_string and target in _LITERALS:
            return f"{_LITERALS[target]} {inner.sql(dialect='spark')}"
        if suffixes and isinstance(inner, exp.Literal) and target in _SUFFIXES:
            return f"{inner.name}{_SUFFIXES[target]}"
    return node.sql(dialect="spark")
