"""Errors on their way from a Spark task to the user.

A Python worker sends the text of an exception, and Spark wraps it into the text of its own:

    task      BrokenPromiseError  ->  "watersmeet.errors.BrokenPromiseError: <the sentence>"
                                      "watersmeet-error: <the same as JSON>"
    driver    StreamingQueryException: ... that text ...  ->  `error(query)`  ->  BrokenPromiseError

What an expression of Spark's finds out, without a task of Python, comes the same way (`raised`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from watersmeet.errors import ERROR_MARK, OptionError, WatersmeetError, find_error, named
from watersmeet.plan.options import known_names

# Spark's `spark.sql.execution.pyspark.udf.hideTraceback.enabled` reaches a Python worker under this name.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def reported(who: str) -> Iterator[None]:
    """Around the work of a task: an error of ours leaves it under the name of the public function, its sentence first.

    Other exceptions leave with their traceback: they are defects, and it says where.
    """
    try:
        yield
    except WatersmeetError as error:
        # Else the frames of PySpark's worker come before the sentence. The setting ends with this process: PySpark
        # does not use a worker again in which a task has failed.
        os.environ[_HIDE_TRACEBACK] = "1"
        raise noted(error, who) from None


def noted(error: WatersmeetError, who: str) -> WatersmeetError:
    """An error of ours under the name of the public function, with the line by which it is found in Spark's text."""
    sent = named(error, who).with_traceback(None)
    sent.add_note(sent.as_line())
    return sent


def raised(
    kind: type[WatersmeetError], who: str | Column, *, expected: str, found: str | Column, hint: str, **about: str
) -> Column:
    """A column that raises an error of ours where Spark evaluates it.

    The line for `find_error` is put together only then: Spark prints the plan below every failure of the query, and
    an error that is found there is one that nobody raised.
    """
    values = {"error": kind.__name__, "who": who, "expected": expected, "found": found, "hint": hint, **about}
    parts = {name: value if isinstance(value, Column) else F.lit(value) for name, value in values.items()}
    pieces = (parts["who"], ": expected ", parts["expected"], ", found ", parts["found"], ". ", parts["hint"])
    sentence = F.concat(*(piece if isinstance(piece, Column) else F.lit(piece) for piece in pieces))
    line = F.concat(F.lit(f"\n{ERROR_MARK}"), F.to_json(F.struct(*(part.alias(name) for name, part in parts.items()))))
    return F.raise_error(F.concat(sentence, line))


@known_names
def error(failed: Any) -> WatersmeetError | None:
    """Why a query failed, as the exception that the join raised in its task.

    Args:
        failed: A streaming query, or the exception that `awaitTermination`, an action or `foreachBatch` raised. Spark
            Connect's are as good.

    Returns:
        The exception, of its own class, with `who`, `expected`, `found`, `hint` and, where they apply, `option`,
        `column` and `input`. None if the query has not failed, or not because of a join: then `query.exception()` has
        all that Spark knows.

    >>> import watersmeet as wm
    >>> try:  # doctest: +SKIP
    ...     query.awaitTermination()
    ... except StreamingQueryException as failure:
    ...     raise wm.error(failure) or failure  # doctest: +SKIP
    """
    if isinstance(failed, BaseException):
        return _cause(failed)
    ask = getattr(failed, "exception", None)  # classic and Connect have no class in common
    if not callable(ask):
        raise OptionError(
            "error",
            expected="failed = a streaming query or an exception",
            found=repr(failed),
            hint="Give what start() returned, or what awaitTermination raised.",
            option="failed",
        )
    exception = ask()
    return None if exception is None else _cause(exception)


def _cause(exception: BaseException) -> WatersmeetError | None:
    """The first error of ours in a chain of exceptions."""
    pending: BaseException | None = exception
    seen: set[int] = set()
    while pending is not None and id(pending) not in seen:
        if isinstance(pending, WatersmeetError):
            return pending
        found = find_error(str(pending))
        if found is not None:
            return found
        seen.add(id(pending))
        pending = pending.__cause__ or pending.__context__
    return None
