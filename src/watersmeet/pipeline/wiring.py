"""How a join is connected: the part of its description that is not an option of the operator."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pyspark.sql import DataFrame, SparkSession

import watersmeet as wm
from watersmeet.errors import OptionError
from watersmeet.join.join_type import checked_how
from watersmeet.plan.options import MAX_PARTITIONS, Options

Pair = Annotated[list[str], Field(min_length=2, max_length=2)]
Keys = str | list[str] | list[Pair]

NULLS_MATCH: Any = Field(
    default=False,
    description="Whether a null in the key matches a null: for all key columns, or for those that are named.",
)
WHERE: Any = Field(
    default=None,
    description="A SQL condition on pairs of rows with equal keys, such as `left.price <= right.limit`; of several "
    "inputs they are called by their names.",
)


@dataclass(frozen=True)
class Site:
    """Where a join is built: its streams and tables by source, its state, and how paths are to be read.

    In a rehearsal (`check`, `explain`) only columns and types matter: nothing may be computed, and nothing written
    outside `state_dir`; `real_state` is then where the join would have its state.
    """

    frames: Mapping[str, DataFrame]
    state_dir: str
    session: SparkSession
    resolve: Callable[[str], str]
    rehearsal: bool = False
    real_state: str = ""
    cache: Mapping[str, Any] = field(default_factory=dict)  # `cache` and `cache_dir`, where the file has them

    @property
    def state(self) -> dict[str, Any]:
        """Where the join keeps its state, as the functions take it. A rehearsal has no cache."""
        return {"state_dir": self.state_dir, **({} if self.rehearsal else self.cache)}

    @property
    def home(self) -> str:
        """Where the state of the join is, also in a rehearsal."""
        return self.real_state or self.state_dir


class Wiring(BaseModel):
    """Base of the families. Subclasses add the fields, `sources` and `build`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    OPTIONS: ClassVar[type[Options]]
    SUMMARY: ClassVar[str]
    FUNCTION: ClassVar[str]  # the public function that builds the join

    operator: str = Field(description="Which join.")
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PARTITIONS,
        description="Key partitions; another number at a restart divides the state anew. By default those of the "
        "state, else `spark.sql.shuffle.partitions` if set, else one per core.",
    )

    @classmethod
    def check_type(cls, how: str) -> None:
        """Raise an `OptionError` if the join has no such type."""
        checked_how(cls.FUNCTION, how)

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """What is wrong although every key has a value of its type: the key, and a sentence. Columns and options are
        checked all the same."""
        if not getattr(self, "on", True):
            yield "on", "name at least one column"
        try:
            self.check_type(getattr(self, "how", "inner"))
        except OptionError as error:
            yield "how", f"expected {error.expected}, found {error.found}. {error.hint}"

    @abstractmethod
    def sources(self) -> dict[str, str]:
        """The source of each input of the join."""

    @abstractmethod
    def build(self, site: Site, options: dict[str, Any]) -> DataFrame:
        """The joined stream."""

    def more_streams(self) -> list[str]:
        """Further streams that the join reads, after the inputs."""
        return []

    def columns(self, options: Options | None) -> Iterator[tuple[str, str, str]]:
        """The columns that the join names: the option that does, the source and the column.

        Without options (they are wrong), those that the wiring names alone.
        """
        yield from ()

    def tables(self) -> frozenset[str]:
        """The sources that are read as tables, not as streams."""
        return frozenset()

    def reads(self) -> set[str]:
        """All sources that the join needs."""
        return {*self.sources().values(), *self.more_streams(), *self.tables()}

    def filled_in(self) -> dict[str, Any]:
        """Values for internal options that have no default, good enough to check the others with."""
        return {}

    def table(self, site: Site) -> dict[str, Any] | None:
        """What is known of the table that the stream is joined with, if there is one."""
        return None

    @classmethod
    def option_names(cls) -> list[str]:
        """The options a pipeline file may give."""
        return [name for name in cls.OPTIONS.offered() if name not in cls.model_fields]


class BinaryWiring(Wiring):
    """Two streams."""

    left: str = Field(description="The source that is the left input.")
    right: str = Field(description="The source that is the right input.")
    on: Keys = Field(description="The key: a column, a list of columns, or a list of pairs `[left, right]`.")
    how: str = Field(
        default="inner",
        description="`inner`, `left`, `right`, `full`, `left_semi` or `left_anti`.",
    )
    nulls_match: bool | list[str] = NULLS_MATCH
    where: str | None = WHERE

    def sources(self) -> dict[str, str]:
        """Left and right."""
        return {"left": self.left, "right": self.right}

    def columns(self, options: Options | None) -> Iterator[tuple[str, str, str]]:
        """The keys."""
        yield from key_columns(self.on, self.left, self.right)

    def build(self, site: Site, options: dict[str, Any]) -> DataFrame:
        """Call the family's function."""
        join: Callable[..., DataFrame] = getattr(wm, self.FUNCTION)
        return join(
            site.frames[self.left],
            site.frames[self.right],
            on=python_keys(self.on),
            how=self.how,
            nulls_match=self.nulls_match,
            where=self.where,
            partitions=self.partitions,
            **site.state,
            **options,
        )


def key_columns(on: Keys, left: str | None, right: str | None) -> Iterator[tuple[str, str, str]]:
    """The key columns of one or two sources, as `Wiring.columns` gives them."""
    for key in [on] if isinstance(on, str) else on:
        for source, column in zip((left, right), (key, key) if isinstance(key, str) else key, strict=True):
            if source is not None:
                yield "on", source, column


def python_keys(on: Keys) -> str | list[str | tuple[str, str]]:
    """`on` as the Python functions take it: pairs are tuples there.

    >>> python_keys([["order_id", "id"]]), python_keys(["a", "b"])
    ([('order_id', 'id')], ['a', 'b'])
    """
    if isinstance(on, str):
        return on
    return [item if isinstance(item, str) else (item[0], item[1]) for item in on]
