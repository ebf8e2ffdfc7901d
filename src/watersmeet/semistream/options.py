"""Options of the semi-stream joins."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from watersmeet.join.join_type import JOIN_TYPES, JoinType, checked_how
from watersmeet.plan.options import HotKeys, Options, Size

TYPES = tuple(name for name, one in JOIN_TYPES.items() if not one.unmatched[1])


class SemiStreamOptions(Options):
    """What `semi_stream_join` may be told.

    `master` identifies the prepared table (not where it is: a table that was moved is still the same one) and with
    `policy` decides what the state means; everything else may change at a restart.
    """

    TUNING: ClassVar[frozenset[str]] = frozenset(
        {"path", "version", "memory", "max_delay", "switching_factor", "on_overload", "idle_chunks", "bare_inequality"}
    )
    INTERNAL: ClassVar[frozenset[str]] = frozenset({"master", "path", "version", "bare_inequality"})

    master: str = Field(description="id of the prepared master table")
    path: str = Field(description="where the master table is")
    version: int = Field(1, ge=1, description="version to begin with; later ones are announced through the stream")
    policy: Literal["aligned", "ssbj", "mesh"] = Field("aligned", description="which algorithm")
    memory: Size = Field(64_000_000, ge=1, description="bytes for waiting rows and cache together, over all partitions")
    max_delay: int = Field(10, ge=1, description="micro-batches after which a row is finished; 1 means at once")
    switching_factor: float = Field(1.0, gt=0, description="how much dearer waiting must be before a key is cached")
    bare_inequality: bool = Field(
        False, description="the cache inequality of SSBJ as printed: no price of an entry, no discount for chance"
    )
    on_overload: Literal["wait", "raise"] = Field(
        "wait", description="too fast for the memory: read more chunks per batch, or fail"
    )
    idle_chunks: int = Field(16, ge=0, description="chunks read in addition while the stream is silent")

    hot_keys: HotKeys = Field(
        "off", description="Whether keys with a large part of the work are spread over partitions."
    )

    def effective(self) -> dict[str, Any]:
        """MESHJOIN has no cache to put keys into."""
        unused = {"switching_factor"} if self.policy == "mesh" else set()
        return {name: value for name, value in super().effective().items() if name not in unused}


def checked_type(who: str, how: object) -> JoinType:
    """A join type that a semi-stream join can have; the stream is its left input.

    >>> checked_type("semi_stream_join", "leftAnti").name
    'left_anti'
    """
    return checked_how(
        who,
        how,
        TYPES,
        others="The table's unmatched rows are not a result of the stream: while it goes on, none of them is certain, "
        "and the table may change. Find them with a batch query over what was emitted.",
    )
