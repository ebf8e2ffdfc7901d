"""What an operator keeps between batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from watersmeet.state.run import Run
from watersmeet.state.shelf import StoreState
from watersmeet.state.side_table import SideTable


@dataclass
class OperatorState:
    """Stores of rows, side tables, and a few JSON values.

    The driver adds which inputs have `ended` in which batch, whether the join has `finished`, the `accounts`, and what
    is known of `hot` keys. To
    `restore` it also hands the `history` it recorded of the latest batches (metrics and timings, as committed with the
    version that the batch starts from, so that every attempt of the batch sees the same).
    """

    stores: list[StoreState] = field(default_factory=list)
    tables: dict[str, SideTable] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    finished: bool = False
    accounts: dict[str, Any] = field(default_factory=dict)
    hot: dict[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> list[Run]:
        """The runs of all stores."""
        return [run for store in self.stores for run in store.runs]

    @property
    def side_tables(self) -> list[SideTable]:
        """The side tables of all stores and of the operator itself."""
        return [*(table for store in self.stores for table in store.tables.values()), *self.tables.values()]

    def digest(self) -> dict[str, Any]:
        """What two attempts of one batch must agree on."""
        return {
            "runs": [run.digest() for run in self.runs],
            "tables": [table.digest() for table in self.side_tables],
            "stores": [[store.name, store.values] for store in self.stores],
            "values": self.values,
            "ended": self.ended,
            "finished": self.finished,
            "accounts": self.accounts,
            **({"hot": self.hot} if self.hot else {}),
        }
