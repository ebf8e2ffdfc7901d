"""A plan travels as JSON, and its fingerprint tells joins apart."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from watersmeet.plan import InputSpec, JoinPlan, OutputColumn

NESTED = pa.map_(
    pa.string(),
    pa.struct(
        [pa.field("a", pa.list_(pa.field("element", pa.timestamp("us", "UTC"), False))), pa.field("a", pa.null())]
    ),
)
VARIANT = pa.struct(
    [pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False, {"variant": "true"})]
)
PLAN = JoinPlan(
    operator="symmetric",
    inputs=(
        InputSpec("left", (pa.int64(), pa.decimal128(38, 18)), (NESTED, VARIANT, pa.null())),
        InputSpec("right", (pa.int64(), pa.decimal128(38, 18)), (), keep_null_keys=True),
    ),
    output=(
        OutputColumn(pa.field("k", pa.int64()), "left", "_k0"),
        OutputColumn(pa.field("ключ `.`", NESTED), "left", "_p0"),
        OutputColumn(pa.field("_hash", VARIANT), "left", "_p1"),
        OutputColumn(pa.field("d", pa.decimal128(38, 18)), "right", "_k1"),
    ),
    options={"memory": 10, "policy": "rpj"},
    tuning={"pages": 3},
    partitions=7,
)


def test_round_trip() -> None:
    again = JoinPlan.from_dict(json.loads(json.dumps(PLAN.to_dict())))
    assert again == PLAN
    assert [spec.keep_null_keys for spec in again.inputs] == [False, True]
    assert again.fingerprint() == PLAN.fingerprint()
    variant = again.output[2].field.type  # Spark knows a variant by the metadata of its child
    assert variant.field("metadata").metadata == {b"variant": b"true"}


def test_input_by_name() -> None:
    assert PLAN.input("right").schema.names == ["_hash", "_k0", "_k1"]
    assert PLAN.input("left").schema.names == ["_hash", "_k0", "_k1", "_p0", "_p1", "_p2"]


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAN, operator="other"),
        replace(PLAN, options={"memory": 11, "policy": "rpj"}),
        replace(PLAN, inputs=(PLAN.inputs[0], replace(PLAN.inputs[1], payload=(pa.int8(),)))),
        replace(PLAN, inputs=(PLAN.inputs[0], replace(PLAN.inputs[1], name="rechts"))),
        replace(PLAN, output=PLAN.output[::-1]),
        # The same output columns, joined on another column of the same type.
        replace(PLAN, output=(replace(PLAN.output[0], input="right"), *PLAN.output[1:])),
    ],
    ids=["operator", "options", "payload", "input name", "output order", "key column"],
)
def test_other_joins_have_other_fingerprints(other: JoinPlan) -> None:
    assert other.fingerprint() != PLAN.fingerprint()


def test_tuning_and_partitions_are_not_in_the_fingerprint() -> None:
    assert replace(PLAN, tuning={}, partitions=2).fingerprint() == PLAN.fingerprint()
