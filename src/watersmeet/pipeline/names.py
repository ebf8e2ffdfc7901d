"""The names that a pipeline file gives to the inputs of its join.

The join itself calls its inputs left and right (or stream); people know them by their sources. A run writes the names
beside the state, so that whoever looks at the state later can use them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from watersmeet.state.directory import StateDir, check_fields, seal, unseal

NAMES_FILE = "sources.json"


class InputNames:
    """The source of each input, where there is one.

    >>> names = InputNames({"left": "orders", "right": "payments"})
    >>> names["left"], names["late.right"], names["left.left.expired"], names["runs_probed"]
    ('orders', 'late.payments', 'left.orders.expired', 'runs_probed')
    >>> names.in_text("expected no rows on input 'left', found left.id: int")
    "expected no rows on input 'orders', found orders.id: int"
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = dict(sources)
        inputs = "|".join(map(re.escape, self.sources))
        # In messages an input stands in quotes, before its column, or after its punctuations; inside a path it is none.
        places = (
            rf"(?<=input ')({inputs})(?=')",
            rf"(?<![\w/.-])({inputs})(?=\.\w)",
            rf"(?<=punctuations of )({inputs})\b",
        )
        self._in_text = re.compile("|".join(places))

    def __getitem__(self, name: str) -> str:
        """The name to show for an input, or for a metric with an input's name among its labels."""
        if "." not in name:
            return self.sources.get(name, name)
        metric, *labels = name.split(".")
        return ".".join([metric, *(self.sources.get(label, label) for label in labels)])

    def in_text(self, message: str) -> str:
        """A message of the join with the names of the sources."""
        return self._in_text.sub(lambda found: self.sources[found[0]], message) if self.sources else message


def record_names(directory: StateDir, names: InputNames) -> None:
    """Keep the names beside the state."""
    content = seal({"sources": names.sources})
    if directory.size(NAMES_FILE) is None or directory.read(NAMES_FILE) != content:
        directory.publish(NAMES_FILE, content)


def recorded_names(directory: StateDir) -> InputNames:
    """The names kept beside the state; none for a join that no pipeline has run."""
    if directory.size(NAMES_FILE) is None:
        return InputNames({})
    where = directory.path(NAMES_FILE)
    body = unseal(directory.read(NAMES_FILE), where)
    check_fields(body, where, "sources")
    return InputNames(body["sources"])
