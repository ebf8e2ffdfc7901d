"""Logical plans of DataFrames, as far as watermarks, sizes and our own joins go, in a session of this process and in
Connect.

classic   nodes are objects of the JVM, reached through py4j
Connect   nodes are PySpark's own objects, from which it makes its messages to the server; what a view or a table
          stands for is known to the server alone
"""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame

from watersmeet.chooser.table_size import UNKNOWN, parse_bytes

_ESTIMATE = re.compile(r"Statistics\(sizeInBytes=([^,)]+)")
DELAY = "spark.watermarkDelayMs"  # in the metadata of a column with a watermark

Node = Any
# From the delay of a watermark, in milliseconds, to another one; None takes the watermark away.
NewDelay = Callable[[int], int | None]


class Plans(ABC):
    """The plan of a DataFrame."""

    WATERMARK: str  # the name of its node

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame
        self.session: Any = frame.sparkSession

    @abstractmethod
    def root(self) -> Node:
        """The node at the top."""

    @abstractmethod
    def children(self, node: Node) -> list[Node]:
        """The nodes below."""

    @abstractmethod
    def name(self, node: Node) -> str:
        """What a node does."""

    @abstractmethod
    def is_streaming(self, node: Node) -> bool:
        """Whether its rows come from a stream, or may do."""

    def alias(self) -> str | None:
        """The name that `DataFrame.alias` has given it, if that was the last thing done to it."""
        return self.label(self.root()) or None

    @abstractmethod
    def label(self, node: Node) -> str:
        """The name of a node that is a `DataFrame.alias`; else nothing."""

    @abstractmethod
    def with_delays(self, new: NewDelay) -> DataFrame:
        """The DataFrame with other delays of its watermarks."""

    @abstractmethod
    def function(self, node: Node) -> str:
        """The Python function of a node that is a `mapInArrow`, by its name or in a text that has it; else nothing."""

    @abstractmethod
    def estimated_bytes(self) -> int:
        """How many bytes Spark estimates that its rows take."""

    def functions(self) -> Iterator[str]:
        """Those of all nodes, from the top down."""
        yield from filter(None, map(self.function, self.nodes()))

    def functions_and_labels(self) -> Iterator[str]:
        """The same with the names of aliases."""
        for node in self.nodes():
            yield from filter(None, (self.function(node), self.label(node)))

    def nodes(self) -> Iterator[Node]:
        """All nodes."""
        pending = [self.root()]
        while pending:
            node = pending.pop()
            yield node
            pending += self.children(node)

    def has_joins(self) -> bool:
        """Whether rows are joined. Spark's estimate of a join is the product of its inputs' sizes."""
        return any(self.name(node) == "Join" for node in self.nodes())

    def has_watermarks(self) -> bool:
        """Whether there is a watermark that can be changed."""
        return any(self.name(node) == self.WATERMARK for node in self.nodes())

    def hides_watermarks(self) -> bool:
        """Whether there is one that cannot: in a view of which only Connect's server knows the plan."""
        declared = any(DELAY in (field.metadata or {}) for field in self.frame.schema.fields)
        return declared and not self.has_watermarks()

    def removes_duplicates(self) -> bool:
        """Whether a stream is deduplicated, which needs its watermark."""
        return any(self.name(node).startswith("Deduplicate") and self.is_streaming(node) for node in self.nodes())

    def holds_rows(self) -> bool:
        """Whether a stateful operator emits rows in later micro-batches than those in which they come."""
        return any(map(self._holds, self.nodes()))

    def _holds(self, node: Node) -> bool:
        name = self.name(node)
        if name == "Join":
            return all(map(self.is_streaming, self.children(node)))
        return (name in ("Aggregate", "Distinct") or "WithState" in name) and self.is_streaming(node)


class ClassicPlans(Plans):
    """Of a session in this process."""

    WATERMARK = "EventTimeWatermark"

    def root(self) -> Node:
        """The analysed plan."""
        return self.frame._jdf.queryExecution().analyzed()

    def children(self, node: Node) -> list[Node]:
        """Scala's sequence as a list."""
        found = node.children()
        return [found.apply(i) for i in range(found.size())]

    def name(self, node: Node) -> str:
        """Spark's own name."""
        return str(node.nodeName())

    def function(self, node: Node) -> str:
        """In the text of its expressions."""
        return str(node.expressions()) if self.name(node).endswith("MapInArrow") else ""

    def is_streaming(self, node: Node) -> bool:
        """Spark knows."""
        return bool(node.isStreaming())

    def label(self, node: Node) -> str:
        """As Spark has it."""
        return str(node.alias()) if self.name(node) == "SubqueryAlias" else ""

    def estimated_bytes(self) -> int:
        """By the statistics of the optimised plan."""
        return int(self.frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())

    def with_delays(self, new: NewDelay) -> DataFrame:
        """A plan of new nodes, above the watermarks."""
        java: Any = self.session._jvm

        def rewritten(node: Node) -> Node:
            children = self.children(node)
            if children:
                node = node.withNewChildren(java.PythonUtils.toSeq([rewritten(child) for child in children]))
            return replaced(node) if self.name(node) == self.WATERMARK else node

        def replaced(node: Node) -> Node:
            logical = java.org.apache.spark.sql.catalyst.plans.logical
            millis = new(int(logical.EventTimeWatermark.getDelayMs(node.delay())))
            if millis is None:
                return node.child()
            interval = java.org.apache.spark.unsafe.types.CalendarInterval(0, 0, millis * 1000)
            # Spark tells watermarks apart by their ids, and one stream may be on both sides of a join.
            return node.copy(java.java.util.UUID.randomUUID(), node.eventTime(), interval, node.child())

        dataset = java.org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(self.session._jsparkSession, rewritten(self.root())), self.session)


class ConnectPlans(Plans):
    """Of a session of Spark Connect."""

    WATERMARK = "WithWatermark"

    def root(self) -> Node:
        """The plan that was not sent yet."""
        return self.frame._plan

    def children(self, node: Node) -> list[Node]:
        """Those that a node refers to, each once: a join has its left side under two names."""
        kind = self._node_class()
        found = [value for value in vars(node).values() if isinstance(value, kind)]
        return list({id(child): child for child in found}.values())

    def name(self, node: Node) -> str:
        """The name of its class."""
        return type(node).__name__

    def function(self, node: Node) -> str:
        """It is known by name."""
        return str(node._function._function_name) if self.name(node) == "MapPartitions" else ""

    def is_streaming(self, node: Node) -> bool:
        """Sources say so; text in SQL may be anything."""
        children = self.children(node)
        if not children:
            return bool(getattr(node, "_is_streaming", self.name(node) in ("SQL", "CachedRemoteRelation")))
        return any(map(self.is_streaming, children))

    def label(self, node: Node) -> str:
        """As it was given."""
        return str(node._alias) if self.name(node) == "SubqueryAlias" else ""

    def estimated_bytes(self) -> int:
        """The server tells it in the text of a plan, the node at the top first, rounded."""
        frame: Any = self.frame
        text = str(frame._explain_string(mode="cost"))
        found = _ESTIMATE.search(text.partition("== Optimized Logical Plan ==")[2])
        return UNKNOWN if found is None else parse_bytes(found[1])

    def with_delays(self, new: NewDelay) -> DataFrame:
        """Copies of the nodes above the watermarks. They keep their ids, by which columns refer to them."""
        kind = self._node_class()
        known: dict[int, Node] = {}

        def rewritten(node: Node) -> Node:
            if id(node) not in known:
                made = copy.copy(node)
                for name, value in vars(node).items():
                    if isinstance(value, kind):
                        setattr(made, name, rewritten(value))
                known[id(node)] = replaced(node, made) if self.name(node) == self.WATERMARK else made
            return known[id(node)]

        def replaced(node: Node, made: Node) -> Node:
            millis = new(self._delay(node))
            if millis is None:
                return made._child
            made._delay_threshold = f"{millis} milliseconds"
            return made

        return self._frame(rewritten(self.root()))

    def _delay(self, node: Node) -> int:
        """The delay of a watermark, which may be written in any unit: Spark notes it with the column."""
        fields = self._frame(node).schema.fields
        return next(int(field.metadata[DELAY]) for field in fields if DELAY in (field.metadata or {}))

    def _frame(self, node: Node) -> DataFrame:
        return type(self.frame)(node, self.session)

    @staticmethod
    def _node_class() -> type[Any]:
        from pyspark.sql.connect.plan import LogicalPlan  # needs packages that only Connect's users have

        return LogicalPlan


def plans(frame: DataFrame) -> Plans:
    """The plan of a DataFrame, whichever session it belongs to."""
    return ClassicPlans(frame) if is_classic(frame.sparkSession) else ConnectPlans(frame)


def is_classic(session: Any) -> bool:
    """Whether a session runs in this process, and not behind Spark Connect."""
    return hasattr(session, "_jsparkSession")
