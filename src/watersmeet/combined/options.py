"""The options of a window join of inputs with promises."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

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

    @property
    def one_sides(self) -> frozenset[str]:
        """The inputs on which a key occurs at most once."""
        return one_sides(self.constraints)
