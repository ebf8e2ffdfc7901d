"""Runs that expire: the stored rows of one input under a window.

Time is cut into spans of a quarter of the window, and only runs whose newest rows fall into the same span are merged. A
run is dropped whole, without reading it, once its newest row has expired; so what is held is the live window, at most a
span more, and what the newest batch brought.

    spans      |   1   |   2   |   3   |   4   |   5
    runs          OOOO    OOOO    OOO     OO     O o o       merged within their span, by size
    bound            ^ all before this has expired: the run of span 1 goes when its newest row does

When the first rows of a new span come, each older span's runs become one, so a probe meets about five runs more than
the few of the span in progress.
"""

from __future__ import annotations

from collections.abc import Iterable

from watersmeet.state.run import Run
from watersmeet.state.tiers import FANOUT, MAX_ROWS, merge_runs

SPANS_PER_WINDOW = 4


class ExpiringRuns:
    """The runs of one input, oldest first; every run says when its `earliest` and `latest` rows happened."""

    def __init__(
        self, runs: Iterable[Run] = (), *, window: int, fanout: int = FANOUT, max_rows: int = MAX_ROWS
    ) -> None:
        self.runs = list(runs)
        self.span = max(1, window // SPANS_PER_WINDOW)
        self.fanout = fanout
        self.max_rows = max_rows

    @property
    def rows(self) -> int:
        """Rows held."""
        return sum(run.rows for run in self.runs)

    def add(self, run: Run) -> int:
        """Store a run with the attributes `earliest` and `latest`; returns how many rows were rewritten by merging."""
        if not run.rows:
            return 0
        newest = max((self._span_of(other) for other in self.runs), default=self._span_of(run))
        self.runs.append(run.with_attributes(level=0))
        rewritten = self._merge_level(self._span_of(run), 0)
        if self._span_of(run) > newest:
            for span in sorted({self._span_of(other) for other in self.runs} - {self._span_of(run)}):
                rewritten += self._merge([other for other in self.runs if self._span_of(other) == span])
        return rewritten

    def expire(self, before: float) -> int:
        """Drop the runs whose rows all happened before a time; returns how many rows that were."""
        kept = [run for run in self.runs if run.attributes["latest"] >= before]
        dropped = self.rows - sum(run.rows for run in kept)
        self.runs = kept
        return dropped

    def _span_of(self, run: Run) -> int:
        return int(run.attributes["latest"]) // self.span

    def _merge_level(self, span: int, level: int) -> int:
        alike = [run for run in self.runs if self._span_of(run) == span and run.attributes["level"] == level]
        if len(alike) < self.fanout:
            return 0
        rewritten = self._merge(alike)
        return rewritten + (self._merge_level(span, level + 1) if rewritten else 0)

    def _merge(self, runs: list[Run]) -> int:
        if len(runs) < 2 or sum(run.rows for run in runs) > self.max_rows:
            return 0
        merged = merge_runs(runs).with_attributes(
            level=max(run.attributes["level"] for run in runs) + 1,
            earliest=min(run.attributes["earliest"] for run in runs),
            latest=max(run.attributes["latest"] for run in runs),
        )
        at = self.runs.index(runs[0])
        gone = {id(run) for run in runs}
        self.runs = [run for run in self.runs if id(run) not in gone]
        self.runs.insert(at, merged)
        return merged.rows
