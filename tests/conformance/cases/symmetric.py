"""The symmetric join with unlimited memory, of every type."""

from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.testing.cases import Case
from watersmeet.testing.oracle import BinaryOracle


def case(how: str) -> Case:
    name = "symmetric" if how == "inner" else f"symmetric, {how}"
    return Case(name, "symmetric", how=how, by_batch=lambda script: BinaryOracle(how).answer(script))


CASES = [case(how) for how in JOIN_TYPES]
