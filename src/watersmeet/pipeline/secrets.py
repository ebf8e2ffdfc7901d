"""Secrets: taken from the environment or from files, given to Spark, shown nowhere.

`${NAME}` in any value of a pipeline file is replaced by the environment variable, `${NAME:-text}` has a default, and
`${file:path}` is replaced by a file's content (without the final newline); `$${` stands for `${`. A value is secret if
it came from a file, if the name of its option or variable looks like one of a secret, or if it is a URL with user info.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MASK = "***"

_WORDS = (
    r"pass(?:word|wd|phrase)|(?<![a-z])pass(?![a-z])|pwd|secret|token|credential|jaas|signature|private|sas(?![a-z])"
)
# An option may be called just `key` (as a word of its own: `keyspace` is no secret). In a text that word alone means
# nothing: columns are called so.
_SECRET_NAME = re.compile(rf"{_WORDS}|(?<![a-z])key(?![a-z])", re.IGNORECASE)
_NAME_IN_TEXT = rf"{_WORDS}|(?:api|access|account|shared|auth|encryption)[._-]?key(?![a-z])"
# What stands before the @ of a URL; in URIs of Azure that is a container, and no secret.
_USER_INFO = re.compile(
    r"(?<=://)(?:(?<!abfs://)(?<!abfss://)(?<!wasb://)(?<!wasbs://)|(?=[^/\s@?#]*:))[^/\s@?#]+(?=@)", re.IGNORECASE
)
_REFERENCE = re.compile(r"\$(\$?)\{([^{}]*)\}")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?$", re.DOTALL)
# password=x, "password": "x", token: x in whatever text Spark or a driver prints
_ASSIGNMENT = re.compile(
    rf"""(?P<name>["']?[\w.\-]*(?:{_NAME_IN_TEXT})[\w.\-]*["']?\s*[=:]\s*)(?P<value>"[^"]*"|'[^']*'|[^\s,;\])}}"']+)""",
    re.IGNORECASE,
)
# Shorter values would blot out ordinary words wherever they occur; they are masked by their option's name.
_LEAST_LENGTH = 4


def looks_secret(name: str) -> bool:
    """Whether an option of this name should not be shown.

    >>> [looks_secret(n) for n in ("kafka.sasl.jaas.config", "fs.s3a.access.key", "keyspace", "maxFilesPerTrigger")]
    [True, True, False, False]
    """
    # fooBarKey -> foo.Bar.Key, so that words in camel case are words
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", ".", name)
    return bool(_SECRET_NAME.search(spaced))


class UnresolvedReferenceError(ValueError):
    """A `${...}` that cannot be resolved."""


class Secrets:
    """The secret values of one pipeline, and the means to keep them out of texts."""

    def __init__(self, environment: Mapping[str, str] | None = None, folder: Path | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._folder = folder or Path()
        self._values: set[str] = set()

    def add(self, value: str) -> None:
        """Keep this value out of every text."""
        for piece in {value, value.strip(), *value.splitlines()}:
            if len(piece) >= _LEAST_LENGTH:
                self._values.add(piece)

    def note(self, name: str, value: Any) -> None:
        """Remember an option's value if it is secret."""
        if not isinstance(value, str):
            return
        if looks_secret(name):
            self.add(value)
        for match in _USER_INFO.finditer(value):
            self.add(match[0])
            for part in match[0].split(":")[1:]:
                self.add(part)

    def note_all(self, name: str, value: Any) -> None:
        """Remember the secret values anywhere in a structure."""
        if isinstance(value, Mapping):
            for key, inner in value.items():
                self.note_all(str(key), inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                self.note_all(name, inner)
        else:
            self.note(name, value)

    def resolve(self, text: str) -> str:
        """A value with its references replaced."""
        return _REFERENCE.sub(self._replacement, text)

    def _replacement(self, match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        if match[2].startswith("file:"):
            path = self._folder / match[2].removeprefix("file:")
            try:
                content = path.read_text(encoding="utf-8").removesuffix("\n")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not text"
                raise UnresolvedReferenceError(f"cannot read the file of {match[0]}: {reason}") from None
            self.add(content)
            return content
        variable = _VARIABLE.match(match[2])
        if variable is None:
            raise UnresolvedReferenceError(
                f"{match[0]} is neither ${{NAME}} nor ${{file:path}}; write $${{ for ${{ itself"
            )
        value = self._environment.get(variable[1], variable[2])
        if value is None:
            raise UnresolvedReferenceError(f"environment variable {variable[1]} is not set")
        if looks_secret(variable[1]):
            self.add(value)
        return value

    def redact(self, text: str) -> str:
        """A text without secrets: known values, user info in URLs, and anything assigned to a secret-looking name."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, MASK)
        text = _USER_INFO.sub(MASK, text)
        return _ASSIGNMENT.sub(lambda match: match["name"] + MASK, text)


class ConnectorOptions(dict[str, str]):
    """Options for a connector; what they are is never shown in full."""

    def shown(self) -> dict[str, str]:
        """The options with secrets masked."""
        return {k: MASK if looks_secret(k) else _USER_INFO.sub(MASK, v) for k, v in self.items()}

    def __repr__(self) -> str:
        return repr(self.shown())

    __str__ = __repr__
