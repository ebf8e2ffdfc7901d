"""A value that the driver computes whenever Spark plans a micro-batch: no job, and no task of Python.

Spark's optimizer folds expressions without columns. One that calls a function of the JVM is such an expression, and
py4j makes a function of the JVM of an object of this process, as it does for `foreachBatch`:

    Invoke(function, "apply")  --optimizer, in the thread of the query-->  this process  -->  a literal in the plan

So the rest of the plan is optimized for the value: what it makes superfluous is not there. The thread tells which
micro-batch it plans. The optimizer has several copies of an expression by then, and folds each: the value is computed
for the first one, and is that of the micro-batch however often it is planned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, SparkSession

from watersmeet.spark.java import Py4JError
from watersmeet.spark.plans import is_classic

BATCH = "streaming.sql.batchId"

# From the number of a micro-batch to a value of it; None for one that is the same as no value.
OfBatch = Callable[[int], bytes | None]


class _Called:
    """A function of the JVM."""

    def __init__(self, session: SparkSession, value: OfBatch) -> None:
        self.context, self.value, self.calls = session.sparkContext, value, 0
        self.newest: tuple[int, bytes | None] | None = None  # a micro-batch, and its value

    def apply(self, _: Any) -> bytes | None:
        """The value of the micro-batch that is planned. Outside of a query, where a plan may be looked at, there is
        none; nor is there a task that would run."""
        self.calls += 1
        batch = self.context.getLocalProperty(BATCH)
        if batch is None:
            return None
        if self.newest is None or self.newest[0] != int(batch):
            self.newest = int(batch), self.value(int(batch))
        return self.newest[1]

    class Java:
        """What py4j must know."""

        implements = ("java.util.function.Function",)


def planned(session: SparkSession, value: OfBatch) -> Column | None:
    """A binary column with the value of the micro-batch that is planned; None where Spark offers no way to it.

    Connect's clients have no JVM. Where Python's threads are not those of the JVM (`PYSPARK_PIN_THREAD=false`) nobody
    knows for which micro-batch he is asked.
    """
    if not is_classic(session):
        return None
    from py4j.clientserver import ClientServer  # which a client without Java does not have

    if not isinstance(session.sparkContext._gateway, ClientServer):
        return None
    called = _Called(session, value)
    try:
        column = _column(session, called)
        # A session may be told to leave out rules of its optimizer.
        session.range(1).select(column)._jdf.queryExecution().optimizedPlan()
    except (Py4JError, TypeError):  # another release, in which classes have moved
        return None
    return column if called.calls else None


def _column(session: SparkSession, called: _Called) -> Column:
    from pyspark.java_gateway import ensure_callback_server_started

    java: Any = session._jvm
    ensure_callback_server_started(session.sparkContext._gateway)  # type: ignore[no-untyped-call]
    function = java.java.util.function.Function
    # Spark compares and prints what is in a plan: a function of the JVM's own does that without this process.
    wrapped = function.identity().compose(called)
    expressions = java.org.apache.spark.sql.catalyst.expressions
    types = java.org.apache.spark.sql.types
    nothing = java.PythonUtils.toSeq([])
    kind = types.ObjectType(java.java.lang.Class.forName("java.util.function.Function"))
    target, given = expressions.Literal(wrapped, kind), expressions.Literal(0, types.DataTypes.IntegerType)
    arguments = java.PythonUtils.toSeq([given])
    invoked = expressions.objects.Invoke(
        target, "apply", types.DataTypes.BinaryType, arguments, nothing, True, True, True
    )  # fmt: skip
    return Column(java.org.apache.spark.sql.classic.ExpressionUtils.column(invoked))
