"""Driver policies: which input's buffer is drained next (Valsomatzis and Gounaris, 3.2 and Fig. 2 to 4).

A policy gives every input a score. Among the inputs with rows left, the best score drives next and ties go to the
input that comes first; the scores are worked out anew before every slice. The answer does not depend on the policy:
each slice probes all that is stored and drained of the other inputs, then becomes part of its own, so every combination
is found exactly once, by the last of its rows to be drained.

    timestamp          oldest slice first                         Fig. 2, in slices of time
    round_robin        one slice of each input in turn
    consumption_rate   smallest sigma_Sj first, whole buffers     Fig. 3
    output_size        largest outBuffer_j first, whole buffers   Fig. 4 and Eq. 1
    output_rate        largest outBuffer_j / |buffer_j| first, whole buffers
    fixed_order, reversed_output_size: controls of experiments, the first input first and the opposite of output_size
    largest_buffer     most rows first, whole buffers             an idea of our own, for experiments
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from watersmeet.estimate.selectivity import Selectivities
from watersmeet.multiway.slices import Slices, Slicing

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Situation:
    """What is known before a slice is chosen."""

    queues: Sequence[Slices]  # the slices still to be drained, per input
    waiting: Sequence[int]  # |buffer_j|: rows still to be drained
    stored: Sequence[int]  # |ht_j|: rows stored and drained
    last: int  # the input that drove last, -1 at the start of a batch
    estimates: Selectivities


class DriverPolicy(ABC):
    """Scores the inputs; `slicing` says into what slices buffers are cut, `largest` which score is best."""

    slicing: ClassVar[Slicing] = "whole"
    largest: ClassVar[bool] = True

    @abstractmethod
    def scores(self, situation: Situation) -> Scores:
        """One score per input; those of inputs with nothing left do not matter."""


class Timestamp(DriverPolicy):
    """The slice that is oldest."""

    slicing = "clock"
    largest = False

    def scores(self, situation: Situation) -> Scores:
        """The number of each input's next slice of time."""
        return np.array([queue[0].number if queue else np.inf for queue in situation.queues], np.float64)


class RoundRobin(DriverPolicy):
    """One slice of each input in turn."""

    slicing = "share"
    largest = False

    def scores(self, situation: Situation) -> Scores:
        """How many turns away each input is."""
        inputs = len(situation.queues)
        return ((np.arange(inputs) - situation.last - 1) % inputs).astype(np.float64)


class ConsumptionRate(DriverPolicy):
    """The input whose rows give the fewest results, so that its buffer empties quickly."""

    largest = False

    def scores(self, situation: Situation) -> Scores:
        """sigma_Sj."""
        return situation.estimates.of_inputs()


class OutputSize(DriverPolicy):
    """The buffer that is expected to give the most results."""

    def scores(self, situation: Situation) -> Scores:
        """outBuffer_j of Eq. 1."""
        return np.array(situation.waiting, np.float64) * _results_per_row(situation)


class ReversedOutputSize(OutputSize):
    """The buffer that is expected to give the fewest results."""

    largest = False


class FixedOrder(DriverPolicy):
    """Always the same order."""

    largest = False

    def scores(self, situation: Situation) -> Scores:
        """The place of each input."""
        return np.arange(len(situation.queues), dtype=np.float64)


class LargestBuffer(DriverPolicy):
    """The buffer with most rows, which then probe tables that the others have not been added to."""

    def scores(self, situation: Situation) -> Scores:
        """|buffer_j|."""
        return np.array(situation.waiting, np.float64)


class OutputRate(DriverPolicy):
    """The buffer that is expected to give the most results per row."""

    def scores(self, situation: Situation) -> Scores:
        """outRate_j of Table 1: Eq. 1 over |buffer_j|."""
        return _results_per_row(situation)


def _results_per_row(situation: Situation) -> Scores:
    """sigma_MJoin times the product of the other inputs' |ht_l|, for every input."""
    sizes = np.array(situation.stored, np.float64)
    others = np.array([np.prod(np.delete(sizes, j)) for j in range(len(sizes))])
    return others * situation.estimates.of_join


POLICIES: dict[str, type[DriverPolicy]] = {
    "timestamp": Timestamp,
    "round_robin": RoundRobin,
    "consumption_rate": ConsumptionRate,
    "output_size": OutputSize,
    "output_rate": OutputRate,
    "fixed_order": FixedOrder,
    "reversed_output_size": ReversedOutputSize,
    "largest_buffer": LargestBuffer,
}


def choose(policy: DriverPolicy, situation: Situation) -> tuple[int, Scores]:
    """The input that drives next, and the scores behind the choice."""
    scores = policy.scores(situation)
    best = scores if policy.largest else -scores
    return int(np.argmax(np.where(np.array(situation.waiting) > 0, best, -np.inf))), scores
