"""Every error Watersmeet raises.

    WatersmeetError
      PlanError                the join cannot be built (raised before Spark starts)
        NotStreamingError      a batch DataFrame where a streaming one is needed
        ColumnError            a column is unknown, ambiguous or clashes with another
        KeyTypeError           join keys cannot be compared with each other
        OptionError            an option has a wrong value
        StateDirError          the state directory cannot be created or written
      StateError               the state directory and the query do not fit each other
        StateMismatchError     the state belongs to another join, query or number of partitions
        StateFormatError       the state was written by a newer release
        MissingVersionError    the version that the batch must start from is not there
        CorruptStateError      a state file is damaged
      BrokenPromiseError       a source sent what it had promised not to send
      OverloadError            a stream is faster than the join's memory allows
      FanOutError              a batch would give more results than the join may build
      WorkerSetupError         a Spark worker cannot run the join

A message always says who complains, what was expected, what was found and what to do.
"""

from __future__ import annotations


class WatersmeetError(Exception):
    """Base of all errors raised by Watersmeet.

    >>> print(WatersmeetError("progressive_join", expected="memory > 0", found="-1", hint="Give a size."))
    progressive_join: expected memory > 0, found -1. Give a size.
    """

    def __init__(self, who: str, *, expected: str, found: str, hint: str) -> None:
        self.who, self.expected, self.found, self.hint = who, expected, found, hint
        super().__init__(f"{who}: expected {expected}, found {found}. {hint}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.who, self.expected, self.found, self.hint)


def _rebuild(kind: type[WatersmeetError], who: str, expected: str, found: str, hint: str) -> WatersmeetError:
    return kind(who, expected=expected, found=found, hint=hint)


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


class FanOutError(WatersmeetError):
    """A batch would give more results than the join was allowed to build."""


class OverloadError(WatersmeetError):
    """A stream is faster than the join's memory allows, and the join was told not to cope."""


class WorkerSetupError(WatersmeetError):
    """A Spark worker lacks something the join needs."""
