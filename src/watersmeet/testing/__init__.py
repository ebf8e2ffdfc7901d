"""Running operators in process: arrival scripts, an oracle that recomputes the join, the conformance cases."""

from watersmeet.testing.arrivals import Arrival, Script, batch_of, ending_script, make_plan, random_script
from watersmeet.testing.harness import Outcome, run_in_memory, run_stored
from watersmeet.testing.oracle import inner_join

__all__ = [
    "Arrival",
    "Outcome",
    "Script",
    "batch_of",
    "ending_script",
    "inner_join",
    "make_plan",
    "random_script",
    "run_in_memory",
    "run_stored",
]
