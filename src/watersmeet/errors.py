"""Every error Watersmeet raises, and how it warns.

    WatersmeetError
      PlanError                the join cannot be built (raised before Spark starts)
        NotStreamingError      a batch DataFrame where a streaming one is needed
        ColumnError            a column is unknown, ambiguous or clashes with another
        KeyTypeError           join keys cannot be compared with each other
        OptionError            an option has a wrong value
        StateDirError          the state directory cannot be created or written
        PipelineError          a pipeline file cannot be run as it is written
      StateError               the state directory and the query do not fit each other
        StateMismatchError     the state belongs to another join, query or number of partitions
        StateFormatError       the state was written by a newer release
        MissingVersionError    the version that the batch must start from is not there
        CorruptStateError      a state file is damaged
        BusyError              another run of the same pipeline is under way
      BrokenPromiseError       a source sent what it had promised not to send
        EndedInputError        rows came on an input that was declared ended
      OverloadError            rows are more than the join's memory allows, or than Arrow can hold in one column
      PunctuationError         a punctuation says nothing that could be promised of the key
      FanOutError              a batch would give more results than the join may build
      ConditionError           a condition has no result for some pair of rows
      WorkerSetupError         a Spark worker cannot run the join
      MissingExtraError        a package of an optional part is not installed
      RunFailedError           the query of a pipeline failed

A message always says who complains, what was expected, what was found and what to do. What an error is about is also
there as attributes: `option`, `column`, `input`. Nothing needs to read a message.

From a Spark task only text comes back. A task therefore sends an error as a line of JSON below its sentence
(`as_line`), and `find_error` makes the exception of it again, whatever Spark wraps around the text.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

ERROR_MARK = "watersmeet-error: "
_ATTRIBUTES = ("option", "column", "input")


class WatersmeetError(Exception):
    """Base of all errors raised by Watersmeet.

    >>> print(WatersmeetError("progressive_join", expected="memory > 0", found="-1", hint="Give a size."))
    progressive_join: expected memory > 0, found -1. Give a size.
    """

    def __init__(
        self,
        who: str,
        *,
        expected: str,
        found: str,
        hint: str,
        option: str | None = None,
        column: str | None = None,
        input: str | None = None,
    ) -> None:
        self.who, self.expected, self.found, self.hint = who, expected, found, hint
        self.option, self.column, self.input = option, column, input
        super().__init__(f"{who}: expected {expected}, found {found}. {hint}")

    def as_dict(self) -> dict[str, str]:
        """Everything the error says, and its class."""
        about = {name: value for name in _ATTRIBUTES if (value := getattr(self, name)) is not None}
        sentence = {"who": self.who, "expected": self.expected, "found": self.found, "hint": self.hint}
        return {"error": type(self).__name__, **sentence, **about}

    def as_line(self) -> str:
        """The same as a line that `find_error` finds in any text."""
        return ERROR_MARK + json.dumps(self.as_dict())

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.as_dict())


def _rebuild(kind: type[WatersmeetError], values: dict[str, str]) -> WatersmeetError:
    names = ("who", "expected", "found", "hint")
    about = {name: values[name] for name in _ATTRIBUTES if name in values}
    return kind(values["who"], **{name: values[name] for name in names[1:]}, **about)


def named(error: WatersmeetError, who: str) -> WatersmeetError:
    """The error as one of `who`, the public function: below it, an operator or a file may not know who asked."""
    if error.who.startswith(who):
        return error
    return _rebuild(type(error), {**error.as_dict(), "who": f"{who}, {error.who}"})


def find_error(text: str) -> WatersmeetError | None:
    """The error that a task sent, in a text that Spark made of it; None if there is none.

    >>> sent = OverloadError("semi_stream_join", expected="x", found="y", hint="Send less.", input="stream")
    >>> got = find_error(f"[STREAM_FAILED] {sent}\\n{sent.as_line()}\\n\\tat org.apache.spark...")
    >>> type(got).__name__, got.found, got.input
    ('OverloadError', 'y', 'stream')
    """
    start = text.find(ERROR_MARK)
    while start >= 0:
        start += len(ERROR_MARK)
        try:
            values, _ = json.JSONDecoder().raw_decode(text, start)
            known = {kind.__name__: kind for kind in _classes(WatersmeetError)}
            return _rebuild(known.get(values["error"], WatersmeetError), values)
        except (ValueError, TypeError, KeyError):  # cut off, or something that only looks like it
            start = text.find(ERROR_MARK, start)
    return None


def without_line(text: str) -> str:
    """The text without the lines meant for `find_error`."""
    return "\n".join(line for line in text.split("\n") if not line.startswith(ERROR_MARK))


def _classes(kind: type[WatersmeetError]) -> Iterator[type[WatersmeetError]]:
    yield kind
    for derived in kind.__subclasses__():
        yield from _classes(derived)


class PlanError(WatersmeetError, ValueError):
    """The join cannot be built as asked; nothing has been started."""


class NotStreamingError(PlanError):
    """A batch DataFrame was given where a streaming one is needed."""


class ColumnError(PlanError):
    """A column is unknown, or two columns of the output would have the same name."""


class KeyTypeError(PlanError):
    """The key columns of the inputs have types that do not compare."""


class OptionError(PlanError):
    """An option has a value it cannot have."""


class StateDirError(PlanError):
    """The state directory cannot be created, read or written."""


class StateError(WatersmeetError):
    """State and query do not fit each other."""


class StateMismatchError(StateError):
    """The state belongs to another join, other parameters, another query or another partition count."""


class StateFormatError(StateError):
    """The state was written by a newer release."""


class MissingVersionError(StateError):
    """The version that a batch must start from does not exist."""


class CorruptStateError(StateError):
    """A state file is damaged."""


class BrokenPromiseError(WatersmeetError):
    """A source sent rows that it had promised not to send."""


class EndedInputError(BrokenPromiseError):
    """Rows came on an input that was declared ended."""


class PunctuationError(WatersmeetError):
    """A punctuation cannot be read as a promise about values of the key."""


class FanOutError(WatersmeetError):
    """A batch would give more results than the join was allowed to build."""


class ConditionError(WatersmeetError):
    """A condition has no result for some pair of rows: a number is too large for its type."""


class OverloadError(WatersmeetError):
    """Rows come faster than the join's memory allows, and its options say to raise; or more at once than one column can
    hold."""


class WorkerSetupError(WatersmeetError):
    """A Spark worker lacks something the join needs."""


class MissingExtraError(WatersmeetError):
    """A package of an optional part of Watersmeet is not installed."""


@contextmanager
def extra(name: str, who: str) -> Iterator[None]:
    """Around imports that need an extra: a package that is missing becomes an error that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            who,
            expected=f"the packages of watersmeet[{name}]",
            found=f"no module {error.name}",
            hint=f"Install them: pip install 'watersmeet[{name}]'.",
        ) from error


def warn(text: str) -> None:
    """Warn at the line of the user's program: the newest one outside of this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
