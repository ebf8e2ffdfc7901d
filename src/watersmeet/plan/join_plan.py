"""A join, completely described: operator, inputs, output, options, partitions.

A plan is made once, when the join is built, and travels to the tasks as JSON. Its fingerprint is stored with the
state, so that state is never read by a join that means something else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import xxhash

from watersmeet.columns.arrow import HASH, key_name, payload_name


@dataclass(frozen=True)
class OutputColumn:
    """An output column: its field, and the input and internal column that feed it.

    A result that has no row of that input takes the value from the same column of the input `otherwise`, if given.
    `null_if` names a column of the same row that is true where the value is null: a key of which nulls match is never
    null inside the operators.
    """

    field: pa.Field
    input: str
    column: str
    otherwise: str = ""
    null_if: str = ""


@dataclass(frozen=True)
class InputSpec:
    """One input: its name, and the types of its key and payload columns (internal names, see `arrow`).

    With `keep_null_keys` rows that have a null in their key reach the operator too, apart from the others
    (`Batch.null_rows`): the join preserves the rows of this input.
    """

    name: str
    keys: tuple[pa.DataType, ...]
    payload: tuple[pa.DataType, ...]
    keep_null_keys: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The schema of the tables in which this input's rows reach the operator."""
        fields = [pa.field(HASH, pa.uint64())]
        fields += [pa.field(key_name(i), kind) for i, kind in enumerate(self.keys)]
        fields += [pa.field(payload_name(i), kind) for i, kind in enumerate(self.payload)]
        return pa.schema(fields)


@dataclass(frozen=True)
class JoinPlan:
    """Everything a task needs to know about a join.

    `options` are the operator's own, already validated and in plain JSON form; they decide what the state means and
    are part of the fingerprint. `tuning` may change between restarts (how much idle work, how often to merge).
    """

    operator: str
    inputs: tuple[InputSpec, ...]
    output: tuple[OutputColumn, ...]
    options: dict[str, Any] = field(default_factory=dict)
    tuning: dict[str, Any] = field(default_factory=dict)
    partitions: int = 1
    how: str = "inner"
    condition: dict[str, Any] | None = None  # on pairs of rows with equal keys (see `join.condition`)
    former: tuple[int, ...] = ()  # the numbers of partitions that the state was divided into before, the oldest first
    hot_keys: bool = False  # whether the rows of one key may be in several partitions (see `hot_table`)

    @property
    def division(self) -> int:
        """Which division of the state this is."""
        return len(self.former)

    def divided(self, number: int) -> JoinPlan:
        """The plan as it was when the state was in its division `number`."""
        return replace(self, partitions=(*self.former, self.partitions)[number], former=self.former[:number])

    @property
    def null_flags(self) -> dict[str, str]:
        """For key columns of which nulls match, the key column that is true where they are null."""
        return {column.column: column.null_if for column in self.output if column.null_if}

    def input(self, name: str) -> InputSpec:
        """The input of that name."""
        return next(spec for spec in self.inputs if spec.name == name)

    def identity(self) -> dict[str, Any]:
        """What must be equal for state to be usable, in readable form."""
        return {
            "operator": self.operator,
            "how": self.how,
            **({} if self.condition is None else {"where": self.condition["text"]}),
            **({"hot_keys": "auto"} if self.hot_keys else {}),
            "options": self.options,
            "inputs": {
                spec.name: {"keys": [str(k) for k in spec.keys], "payload": [str(p) for p in spec.payload]}
                for spec in self.inputs
            },
            "output": [
                f"{column.field.name}: {column.field.type} = {column.input}.{column.column}" for column in self.output
            ],
        }

    def fingerprint(self) -> str:
        """A digest of `identity`."""
        return xxhash.xxh3_128_hexdigest(json.dumps(self.identity(), sort_keys=True).encode())

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values; Arrow types travel as serialised schemas."""
        return {
            "operator": self.operator,
            "inputs": [
                {
                    "name": spec.name,
                    "keys": len(spec.keys),
                    "schema": _encode(spec.schema),
                    "keep_null_keys": spec.keep_null_keys,
                }
                for spec in self.inputs
            ],
            "output": [[column.input, column.column, column.otherwise, column.null_if] for column in self.output],
            "output_schema": _encode(pa.schema([column.field for column in self.output])),
            "options": self.options,
            "tuning": self.tuning,
            "partitions": self.partitions,
            "how": self.how,
            "condition": self.condition,
            "former": list(self.former),
            "hot_keys": self.hot_keys,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> JoinPlan:
        """The plan that `to_dict` wrote."""
        inputs = []
        for spec in raw["inputs"]:
            types = _decode(spec["schema"]).types[1:]
            keys, payload = tuple(types[: spec["keys"]]), tuple(types[spec["keys"] :])
            inputs.append(InputSpec(spec["name"], keys, payload, spec["keep_null_keys"]))
        output = [
            OutputColumn(field, *described)
            for field, described in zip(_decode(raw["output_schema"]), raw["output"], strict=True)
        ]
        settings = raw["options"], raw["tuning"], raw["partitions"], raw["how"], raw["condition"], tuple(raw["former"])
        return cls(raw["operator"], tuple(inputs), tuple(output), *settings, raw.get("hot_keys", False))


def _encode(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _decode(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(text)))
