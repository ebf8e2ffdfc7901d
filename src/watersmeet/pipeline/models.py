"""What a pipeline file may say, as models that check it and that the reference page is made from.

Unknown keys are errors everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from watersmeet.pipeline.connectors import CONNECTORS
from watersmeet.pipeline.joins import Join, detail, failed, parse_join
from watersmeet.pipeline.lag import FILE_FORMATS
from watersmeet.pipeline.problems import nearest
from watersmeet.pipeline.secrets import ConnectorOptions
from watersmeet.pipeline.wiring import Wiring
from watersmeet.plan.options import Duration, Size

_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
_PACKAGE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+\Z")


def _checked_name(value: str) -> str:
    if not _NAME.match(value):
        raise ValueError(f"{value!r} is not a name: only letters, digits, '_' and '-' are allowed")
    return value


def _checked_package(value: str) -> str:
    if value not in CONNECTORS and not _PACKAGE.match(value):
        raise ValueError(
            f"{value!r} is neither a connector nor of the form group:artifact:version; {nearest(value, CONNECTORS)}"
        )
    return value


def _check_path(kind: str | None, path: str | None, options: dict[str, str]) -> None:
    if kind in FILE_FORMATS and path is None and "path" not in options:
        raise ValueError(f"format {kind} needs a path")


def _spark_text(value: Any) -> Any:
    """Options are text in Spark; YAML's numbers and booleans are written as Spark writes them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Name = Annotated[str, AfterValidator(_checked_name)]
OptionText = Annotated[str, BeforeValidator(_spark_text)]
SparkOptions = Annotated[dict[str, OptionText], AfterValidator(ConnectorOptions)]
Expressions = Annotated[list[str], BeforeValidator(_one_or_many)]


class Config(BaseModel):
    """Base of the models: no unknown keys, no changes, no values in error messages."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)


class Columns(Config):
    """What is done to the columns of a stream, in this order: with_columns, where, select."""

    with_columns: dict[str, str] = Field(
        default_factory=dict, description="New or replaced columns: name to Spark SQL expression."
    )
    where: Expressions = Field(
        default_factory=list, description="Conditions in Spark SQL; rows must fulfil all of them."
    )
    select: Expressions = Field(
        default_factory=list, description="Columns to keep, as Spark SQL expressions such as `id as order_id`."
    )


class SourceConfig(Columns):
    """A stream, or a table for an operator that takes one, read by one of Spark's connectors."""

    format: str | None = Field(
        default=None, description="The connector, by Spark's name: parquet, json, kafka, rate, ..."
    )
    path: str | None = Field(default=None, description="Where the data is; relative to the pipeline file.")
    table: str | None = Field(default=None, description="A table of Spark's catalog, in place of format and path.")
    ddl: str | None = Field(
        default=None,
        alias="schema",
        description="The columns as Spark SQL DDL; file formats need it to be read as a stream.",
    )
    options: SparkOptions = Field(
        default_factory=lambda: ConnectorOptions(), description="The connector's own options, by Spark's names."
    )

    @model_validator(mode="after")
    def _has_an_origin(self) -> Self:
        if (self.table is None) == (self.format is None):
            raise ValueError("give either format (with path and options) or table")
        if self.table is not None and (self.path is not None or self.ddl is not None):
            raise ValueError("a table has its own path and schema; remove them")
        _check_path(self.format, self.path, self.options)
        return self


class SinkConfig(Config):
    """Where the results go."""

    format: str | None = Field(default=None, description="The connector, by Spark's name: parquet, kafka, console, ...")
    path: str | None = Field(default=None, description="Where the results go; relative to the pipeline file.")
    table: str | None = Field(default=None, description="A table of Spark's catalog, in place of path.")
    mode: Literal["append", "update"] = Field("append", description="Spark's output mode.")
    partition_by: Expressions = Field(default_factory=list, description="Columns that partition the output files.")
    options: SparkOptions = Field(
        default_factory=lambda: ConnectorOptions(), description="The connector's own options, by Spark's names."
    )

    @model_validator(mode="after")
    def _has_a_target(self) -> Self:
        if self.table is None and self.format is None:
            raise ValueError("give format (with path and options) or table")
        if self.table is None:
            _check_path(self.format, self.path, self.options)
        return self


class TriggerConfig(Config):
    """When micro-batches run: exactly one of the three."""

    processing_time: Duration | None = Field(default=None, ge=0, description="A micro-batch this often, for ever.")
    available_now: Literal[True] | None = Field(
        default=None,
        description="Everything that is there, in as many micro-batches as the sources' limits ask for, then end.",
    )
    once: Literal[True] | None = Field(
        default=None, description="Everything that is there in one micro-batch, then end."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"give exactly one of processing_time, available_now and once (found {found})")
        return self

    @property
    def ends(self) -> bool:
        """Whether a run ends by itself."""
        return self.processing_time is None


class Pipeline(Config):
    """A whole pipeline file."""

    name: Name = Field(description="The pipeline's name; its state and checkpoint are in a directory of that name.")
    sources: dict[Name, SourceConfig] = Field(min_length=1, description="What is joined, by name.")
    join: Annotated[Join, PlainValidator(parse_join), PlainSerializer(repr, return_type=str)] = Field(
        description="The operator, its inputs and its options."
    )
    result: Columns = Field(default_factory=Columns, description="What is done to the columns of the result.")
    sink: SinkConfig = Field(description="Where the results go.")
    trigger: TriggerConfig = Field(
        default_factory=lambda: TriggerConfig(processing_time=1_000_000),
        description="When micro-batches run; every second if left out.",
    )
    finish: Literal["never", "when_drained"] = Field(
        "never",
        description="`when_drained`: once the sources are read, declare them ended, finish the join and end the run. "
        "That end is final: new data then needs a new state and checkpoint.",
    )
    drained_after: Duration = Field(
        5_000_000,
        ge=0,
        description="With a processing_time trigger: how long all sources must be silent to count as read.",
    )
    work_dir: str = Field(
        "watersmeet-work",
        description="Where state and checkpoint are kept, under the pipeline's name; relative to the file.",
    )
    state_dir: str | None = Field(default=None, description="The join's state, if not under work_dir.")
    cache: Size | None = Field(
        default=None, description="Of state in an object store: bytes that each host may keep on its disk."
    )
    cache_dir: str | None = Field(
        default=None, description="Where hosts keep them; by default a folder in `spark.local.dir`."
    )
    checkpoint: str | None = Field(default=None, description="Spark's checkpoint, if not under work_dir.")
    master: str | None = Field(
        default=None, description="The Spark master; `local[*]` if neither this nor --master is given."
    )
    packages: list[Annotated[str, AfterValidator(_checked_package)]] = Field(
        default_factory=list,
        description="Connectors to fetch: `kafka`, `delta`, `iceberg`, `avro` in the version that fits the running "
        "Spark, or Maven coordinates, `group:artifact:version`.",
    )
    conf: SparkOptions = Field(
        default_factory=lambda: ConnectorOptions(), description="Spark settings for this pipeline."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        wrong = misfits(self.join.wiring, self.sources, self.trigger, self.finish)
        if wrong:
            raise failed(wrong)
        return self


def misfits(
    wiring: Wiring, sources: Mapping[str, SourceConfig | None], trigger: TriggerConfig | None, finish: str | None
) -> list[InitErrorDetails]:
    """Where the parts of a pipeline do not fit each other; a source or trigger that is wrong by itself is None."""
    used = [*wiring.sources().items(), *((name, name) for name in (*wiring.more_streams(), *wiring.tables()))]
    wrong = [
        detail(
            f"the join's input {name!r} is source {source!r}, which is not there; {nearest(source, sources)}",
            ("join", name),
        )
        for name, source in used
        if source not in sources
    ]
    idle = sources.keys() - {source for _, source in used}
    if not wrong:
        wrong += [detail("is not used by the join", ("sources", name)) for name in sorted(idle)]
    if finish == "when_drained" and trigger is not None and not trigger.ends:
        wrong += [
            detail(
                f"would never happen: source {name!r} ({source.format}) has no end; "
                "use trigger: {available_now: true} or finish: never",
                ("finish",),
            )
            for name, source in sources.items()
            if source is not None and (source.format or "").startswith("rate")
        ]
    return wrong
