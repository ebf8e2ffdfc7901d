"""What a join is asked to do and how it reports on it: the plan, its options, the metrics."""

from watersmeet.plan.join_plan import InputSpec, JoinPlan, OutputColumn

__all__ = ["InputSpec", "JoinPlan", "OutputColumn"]
