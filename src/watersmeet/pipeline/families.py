"""The join operators as pipelines name them.

A family is one `Wiring` class: which sources go in, how they are connected, and which public function builds the join.
All its other parameters are the fields of the family's own options model, so that a pipeline file accepts what the
Python function accepts, with the same checks. Adding a family is adding a class here and a line to `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import watersmeet as wm
from watersmeet.combined.options import PromisedWindowOptions
from watersmeet.multiway.options import MAX_INPUTS, MIN_INPUTS, MultiwayOptions
from watersmeet.pipeline.wiring import (
    NULLS_MATCH,
    WHERE,
    BinaryWiring,
    Keys,
    Site,
    Wiring,
    key_columns,
    python_keys,
)
from watersmeet.plan.options import MAX_PARTITIONS, Options
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.punctuated.options import PunctuatedOptions
from watersmeet.semistream.master_table import MasterTable
from watersmeet.semistream.options import SemiStreamOptions, checked_type
from watersmeet.spark.schema import comparable_name, key_pairs
from watersmeet.spark.semistream import prepared_table
from watersmeet.state.directory import StateDir
from watersmeet.window.options import WindowOptions


class ProgressiveWiring(BinaryWiring):
    """See `wm.progressive_join`."""

    OPTIONS = ProgressiveOptions
    FUNCTION = "progressive_join"
    SUMMARY = "two streams that may stall: results from the first rows on, within a memory budget"

    operator: Literal["progressive"]


class PromisedWiring(BinaryWiring):
    """Two inputs that may promise something about their keys."""

    punctuations: dict[Literal["left", "right"], PunctuationOrigin] = Field(
        default_factory=dict,
        description="Per input (left, right): `{column: name}` for marked rows, `{source: name}` for a stream of them.",
    )

    def more_streams(self) -> list[str]:
        """Streams of punctuations."""
        return [origin.source for origin in self.punctuations.values() if origin.source is not None]

    def columns(self, options: Options | None) -> Iterator[tuple[str, str, str]]:
        """Keys, marks, the keys in streams of punctuations, and the columns of constraints."""
        yield from super().columns(options)
        for name, origin in self.punctuations.items():
            if origin.column is not None:
                yield "punctuations", self.sources()[name], origin.column
            else:
                sides = (origin.source, None) if name == "left" else (None, origin.source)
                yield from key_columns(self.on, *sides)
        constraints = options.constraints if isinstance(options, PunctuatedOptions | PromisedWindowOptions) else ()
        for constraint in constraints:
            if not isinstance(constraint, wm.OneToMany) and constraint.sequence is not None:
                yield "constraints", self.sources()[constraint.input], constraint.sequence

    def build(self, site: Site, options: dict[str, Any]) -> DataFrame:
        """The same with the punctuations, if there are any."""
        punctuations = {
            name: wm.PunctuationRows(origin.column) if origin.column else site.frames[str(origin.source)]
            for name, origin in self.punctuations.items()
        }
        return super().build(site, {"punctuations": punctuations or None, **options})


class WindowWiring(PromisedWiring):
    """See `wm.window_join`."""

    OPTIONS = PromisedWindowOptions
    FUNCTION = "window_join"
    SUMMARY = "two unbounded streams, each with a moving window of its own"

    operator: Literal["window"]

    def columns(self, options: Options | None) -> Iterator[tuple[str, str, str]]:
        """Keys, promises and times."""
        yield from super().columns(options)
        times = options.time if isinstance(options, WindowOptions) else None
        for source, column in zip((self.left, self.right), times or (), strict=False):
            yield "time", source, column


class MultiwayWiring(Wiring):
    """See `wm.multiway_join`."""

    OPTIONS = MultiwayOptions
    FUNCTION = "multiway_join"
    SUMMARY = "two to sixteen streams on one key, in one operator without intermediate results"

    operator: Literal["multiway"]
    inputs: list[str] = Field(
        min_length=MIN_INPUTS, max_length=MAX_INPUTS, description="The sources; their names prefix columns that clash."
    )
    on: str | list[str] | dict[str, str | list[str]] = Field(
        description="The key: a column or a list of columns that all inputs share, or those of each input by its name."
    )
    time: str | dict[str, str] | None = Field(
        default=None,
        description="The time column, one for all inputs or one for each by its name; needed with `window`.",
    )
    nulls_match: bool | list[str] = NULLS_MATCH
    where: str | None = WHERE

    def sources(self) -> dict[str, str]:
        """Every input has the name of its source."""
        return {name: name for name in self.inputs}

    def columns(self, options: Options | None) -> Iterator[tuple[str, str, str]]:
        """Keys and times."""
        for option, given in (("on", self.on), ("time", self.time or [])):
            for name in self.inputs:
                mine = given.get(name, []) if isinstance(given, dict) else given
                for column in [mine] if isinstance(mine, str) else mine:
                    yield option, name, column

    def filled_in(self) -> dict[str, Any]:
        """The time columns, not resolved yet."""
        return {"time": dict.fromkeys(self.inputs, self.time) if isinstance(self.time, str) else self.time or {}}

    def build(self, site: Site, options: dict[str, Any]) -> DataFrame:
        """Call `wm.multiway_join`."""
        return wm.multiway_join(
            {name: site.frames[name] for name in self.inputs},
            on=self.on,
            time=self.time,
            nulls_match=self.nulls_match,
            where=self.where,
            partitions=self.partitions,
            **site.state,
            **options,
        )


class PunctuationOrigin(BaseModel):
    """Where the punctuations of an input come from: rows of the input, or a stream of their own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str | None = Field(default=None, description="A column of the input that marks its punctuations.")
    source: str | None = Field(default=None, description="A source whose rows are punctuations, a column for each key.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.column is None) == (self.source is None):
            raise ValueError("give column or source, one of them")
        return self


class PunctuatedWiring(PromisedWiring):
    """See `wm.punctuated_join`."""

    OPTIONS = PunctuatedOptions
    FUNCTION = "punctuated_join"
    SUMMARY = "two streams that promise what they will not send any more: state is purged as soon as it is useless"

    operator: Literal["punctuated"]


class SemiStreamWiring(Wiring):
    """See `wm.semi_stream_join`."""

    OPTIONS = SemiStreamOptions
    FUNCTION = "semi_stream_join"
    SUMMARY = "a fast stream against a large table, with a cache of hot rows"

    operator: Literal["semi-stream"]
    stream: str = Field(description="The source that is the stream.")
    master: str | None = Field(
        default=None, description="The source that is the table; prepared into the state directory at the first run."
    )
    master_path: str | None = Field(
        default=None, description="In place of master: a table that `wm.prepare_master` has written."
    )
    on: Keys = Field(description="The key: a column, a list of columns, or a list of pairs `[stream, master]`.")
    how: str = Field(
        default="inner",
        description="`inner`, `left`, `left_semi` or `left_anti`, the stream is left; fixed once the pipeline has run.",
    )
    where: str | None = WHERE
    master_columns: list[str] | None = Field(
        default=None,
        description="The columns of the table that the output has beside the keys, all by default; only these are "
        "cached.",
    )
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PARTITIONS,
        description="Key partitions; another number at a restart divides the state anew. By default those of the "
        "state, else those of the table.",
    )
    idle: Literal["work", "sleep"] = Field(
        default="work", description="While the stream is silent: finish waiting rows (`work`), or let them wait."
    )

    @classmethod
    def check_type(cls, how: str) -> None:
        """The stream is left, and nothing is known of the table's rows."""
        checked_type(cls.FUNCTION, how)

    @model_validator(mode="after")
    def _one_master(self) -> Self:
        if (self.master is None) == (self.master_path is None):
            raise ValueError("give master (a source) or master_path (a prepared table), one of them")
        return self

    def sources(self) -> dict[str, str]:
        """The stream."""
        return {"stream": self.stream}

    def columns(self, options: Options | None) -> Iterator[tuple[str, str, str]]:
        """The keys; those of a prepared table are known to the join alone."""
        yield from key_columns(self.on, self.stream, self.master)

    def tables(self) -> frozenset[str]:
        """The master table."""
        return frozenset({self.master} if self.master else ())

    def filled_in(self) -> dict[str, Any]:
        """The table is known by its preparation."""
        return {"master": "", "path": ""}

    def build(self, site: Site, options: dict[str, Any]) -> DataFrame:
        """Call `wm.semi_stream_join`."""
        master = site.frames[self.master] if self.master else site.resolve(str(self.master_path))
        return wm.semi_stream_join(
            site.frames[self.stream],
            self._empty(site, master) if site.rehearsal else master,
            on=python_keys(self.on),
            how=self.how,
            where=self.where,
            master_columns=self.master_columns,
            idle=self.idle,
            partitions=self.partitions,
            **site.state,
            **options,
        )

    def table(self, site: Site) -> dict[str, Any] | None:
        """Size and layout of the table, which is prepared now if it is not; nothing in a rehearsal without one."""
        if self.master is None:
            return MasterTable(site.resolve(str(self.master_path))).about()
        table = MasterTable(f"{site.home}/master")
        if not table.versions():
            if site.rehearsal:
                return None
            keys = [right for _, right in key_pairs("join", python_keys(self.on))[0]]
            table = prepared_table(site.frames[self.master], keys, StateDir(site.home), self.partitions)
        return table.about()

    def _empty(self, site: Site, master: str | DataFrame) -> str | DataFrame:
        """A table like the master, without rows: preparing it costs nothing, and no table learns of this join."""
        keys = [self.on] if isinstance(self.on, str) else [k if isinstance(k, str) else k[1] for k in self.on]
        if isinstance(master, DataFrame):
            return empty_frame(site.session, master.schema, keys)
        description = MasterTable(master).description
        schema = StructType.fromJson({"type": "struct", "fields": description.fields})
        path = f"{site.state_dir}-master"
        empty = empty_frame(site.session, schema, description.keys)
        wm.prepare_master(empty, on=description.keys, path=path, partitions=description.partitions)
        return path


def empty_frame(session: SparkSession, schema: StructType, keys: Sequence[str]) -> DataFrame:
    """A DataFrame without rows whose emptiness Spark does not know, so that it plans as for a table with rows."""
    wanted = {comparable_name(session, key) for key in keys}
    columns = [
        (F.col("id").cast("string") if comparable_name(session, field.name) in wanted else F.lit(None)).cast(
            field.dataType
        )
        for field in schema.fields
    ]
    named = [column.alias(field.name) for column, field in zip(columns, schema.fields, strict=True)]
    return session.range(1).where(F.rand() > 2).select(*named)


FAMILIES: dict[str, type[Wiring]] = {
    "progressive": ProgressiveWiring,
    "window": WindowWiring,
    "multiway": MultiwayWiring,
    "punctuated": PunctuatedWiring,
    "semi-stream": SemiStreamWiring,
}
