"""The options of a window join of inputs with promises."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from watersmeet.punctuated.promises.constraints import Clustered, OneToMany, Ordered, one_sides
from watersmeet.window.options import WindowOptions


class PromisedWindowOptions(WindowOptions):
    """Those of `window_join`, and what is known of the keys.

    >>> options = PromisedWindowOptions(window="60 s", constraints=[OneToMany(one="left")])
    >>> sorted(options.one_sides)
    ['left']
    """

    TUNING: ClassVar[frozenset[str]] = WindowOptions.TUNING | {"on_violation"}

    constraints: tuple[Annotated[OneToMany | Clustered | Ordered, Field(discriminator="kind")], ...] = ()
    """What is known of the keys of an input."""
    on_violation: Literal["raise", "drop", "keep"] = "raise"
    """What happens to a row that breaks a promise: the batch fails, the row is dropped, or the promise is void."""

    @model_validator(mode="after")
    def _nothing_gives_way(self) -> Self:
        if self.on_overload != "keep":
            raise ValueError(f"on_overload={self.on_overload!r} cannot be combined with promises; only 'keep' can")
        if self.algorithm not in ("auto", "HH"):
            raise ValueError(
                f"algorithm={self.algorithm!r} cannot be combined with promises, which are looked up by key"
            )
        return self

    @property
    def one_sides(self) -> frozenset[str]:
        """The inputs on which a key occurs at most once."""
        return one_sides(self.constraints)
