"""All experiments, by paper."""

from __future__ import annotations

from watersmeet.errors import OptionError
from watersmeet.lab.driver_largest import EXPERIMENTS as DRIVER_LARGEST
from watersmeet.lab.driver_memory import EXPERIMENTS as DRIVER_MEMORY
from watersmeet.lab.drivers import EXPERIMENTS as DRIVERS
from watersmeet.lab.experiment import Experiment
from watersmeet.lab.punctuations import EXPERIMENTS as PUNCTUATIONS
from watersmeet.lab.rpj import EXPERIMENTS as RPJ
from watersmeet.lab.rpj_examples import EXPERIMENTS as RPJ_EXAMPLES
from watersmeet.lab.rpj_long_run import EXPERIMENTS as RPJ_LONG_RUN
from watersmeet.lab.ssbj import EXPERIMENTS as SSBJ
from watersmeet.lab.ssbj_example import EXPERIMENTS as SSBJ_EXAMPLE
from watersmeet.lab.ssbj_theorems import EXPERIMENTS as SSBJ_THEOREMS
from watersmeet.lab.ssbj_validation import EXPERIMENTS as SSBJ_VALIDATION
from watersmeet.lab.window_choice import EXPERIMENTS as WINDOW_CHOICE
from watersmeet.lab.window_output import EXPERIMENTS as WINDOW_OUTPUT
from watersmeet.lab.window_splits import EXPERIMENTS as WINDOW_SPLITS
from watersmeet.lab.windows import EXPERIMENTS as WINDOWS

PAPERS: dict[str, str] = {
    "rpj": "Tao, Yiu, Papadias, Hadjieleftheriou, Mamoulis: RPJ: Producing Fast Join Results on Streams through "
    "Rate-based Optimization, SIGMOD 2005",
    "drivers": "Valsomatzis, Gounaris: Driver Input Selection for Main-Memory Multi-Way Joins, SAC 2013",
    "windows": "Kang, Naughton, Viglas: Evaluating Window Joins over Unbounded Streams, ICDE 2003",
    "punctuations": "Ding, Rundensteiner, Heineman: MJoin: A Metadata-Aware Stream Join Operator, DEBS 2003",
    "ssbj": "Naeem, Weber, Lutteroth: A Memory-Optimal Many-to-Many Semi-Stream Join, "
    "Distributed and Parallel Databases",
}

ALL = (
    RPJ_EXAMPLES, RPJ, RPJ_LONG_RUN, DRIVERS, DRIVER_MEMORY, DRIVER_LARGEST, WINDOWS, WINDOW_CHOICE, WINDOW_OUTPUT,
    WINDOW_SPLITS, PUNCTUATIONS, SSBJ_EXAMPLE, SSBJ_THEOREMS, SSBJ, SSBJ_VALIDATION,
)  # fmt: skip
EXPERIMENTS: dict[str, Experiment] = {experiment.id: experiment for group in ALL for experiment in group}


def select(names: list[str]) -> list[Experiment]:
    """The experiments that names stand for: an id, a paper, or `all`."""
    chosen: dict[str, Experiment] = {}
    for name in names:
        found = [e for e in EXPERIMENTS.values() if name in ("all", e.id, e.group)]
        if not found:
            raise OptionError(
                "watersmeet lab",
                expected=f"all, a paper ({', '.join(PAPERS)}) or an experiment such as rpj/fig8",
                found=repr(name),
                hint="`watersmeet lab list` shows every experiment.",
            )
        chosen |= {experiment.id: experiment for experiment in found}
    return list(chosen.values())
