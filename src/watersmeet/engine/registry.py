"""The operators there are, by name. Adding one is adding a line here (see CONTRIBUTING)."""

from __future__ import annotations

from importlib import import_module

from watersmeet.join.operator import Operator
from watersmeet.plan import JoinPlan
from watersmeet.state.space import RunSpace

# Imported on first use: a Spark worker loads only the operator it runs.
OPERATORS = {
    "mjoin": "watersmeet.multiway.mjoin:MJoin",
    "symmetric": "watersmeet.progressive.symmetric:SymmetricJoin",
    "promised_window": "watersmeet.combined.promised_window:PromisedWindowJoin",
    "window": "watersmeet.window.window_join:WindowJoin",
    "rpj": "watersmeet.progressive.rpj:RateBasedJoin",
    "xjoin": "watersmeet.progressive.xjoin:XJoin",
    "hmj": "watersmeet.progressive.hmj:HashMergeJoin",
    "semi_stream": "watersmeet.semistream.semi_stream_join:SemiStreamJoin",
    "punctuated": "watersmeet.punctuated.punctuated_join:PunctuatedJoin",
}


def operator_class(name: str) -> type[Operator]:
    """The class registered under `name`."""
    module, _, attribute = OPERATORS[name].partition(":")
    found: type[Operator] = getattr(import_module(module), attribute)
    return found


def build(plan: JoinPlan, space: RunSpace) -> Operator:
    """A fresh operator for a plan."""
    return operator_class(plan.operator)(plan, space)
