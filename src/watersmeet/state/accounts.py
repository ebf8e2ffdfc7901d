"""Where every row is: what came on an input is held, or has left for a reason.

    rows that came  +  copies  =  rows held  +  rows that left, by reason

The suite checks this after every batch. A row leaves once, through the prologue (it was never stored) or through
`RowStore.remove`; to be flushed, spilled or merged is not to leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watersmeet.plan.metrics import REASONS, Metrics


class Accounts:
    """Rows that came and left, by input, over the whole run."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.came: dict[str, int] = {}
        self.left: dict[str, dict[str, int]] = {}
        self.copied: dict[str, int] = {}  # rows that have come to another partition, too

    def arrive(self, name: str, rows: int) -> None:
        """Rows came on an input."""
        if rows:
            self.came[name] = self.came.get(name, 0) + rows

    def copy(self, name: str, rows: int) -> None:
        """Copies of rows came that are another partition's."""
        if rows:
            self.copied[name] = self.copied.get(name, 0) + rows

    def leave(self, name: str, reason: str, rows: int) -> None:
        """Rows of an input are not held any more, or never were."""
        if reason not in REASONS:
            raise ValueError(f"{reason!r} is not a reason to leave: {', '.join(REASONS)}")
        if rows and name:
            of_input = self.left.setdefault(name, {})
            of_input[reason] = of_input.get(reason, 0) + rows
            self.metrics.count(f"left.{name}.{reason}", rows)

    def held(self, name: str) -> int:
        """Rows that came and have not left."""
        return self.came.get(name, 0) + self.copied.get(name, 0) - sum(self.left.get(name, {}).values())

    def save(self) -> dict[str, Any]:
        """The state, in JSON form."""
        copied = {"copied": dict(self.copied)} if self.copied else {}
        return {"came": dict(self.came), "left": {name: dict(reasons) for name, reasons in self.left.items()}, **copied}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take up what `save` returned."""
        self.came = dict(saved.get("came", {}))
        self.left = {name: dict(reasons) for name, reasons in saved.get("left", {}).items()}
        self.copied = dict(saved.get("copied", {}))
