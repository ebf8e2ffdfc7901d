"""The symmetric join with unlimited memory, of every type."""

from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.testing.cases import Case
from watersmeet.testing.oracle import BinaryOracle


def case(how: str) -> Case:
    return Case(f"symmetric, {how}", "symmetric", how=how, by_batch=lambda script: BinaryOracle(how).answer(script))


CASES = [Case("symmetric", "symmetric"), *(case(how) for how in JOIN_TYPES)]
