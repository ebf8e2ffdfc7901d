"""The symmetric join with unlimited memory."""

from watersmeet.testing.cases import Case

CASES = [Case("symmetric", "symmetric")]
