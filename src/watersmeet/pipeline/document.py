"""A YAML file as plain data, with the line of every key and value.

YAML 1.2 rules for plain words: only `true` and `false` are booleans, so that `on:` is a key like any other, `010` is
ten (`0o10` is eight), and dates stay text. A key given twice is an error.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml
from yaml.reader import ReaderError

from watersmeet.pipeline.problems import Path, PipelineError, Problem

_NULL, _BOOL, _INT, _FLOAT, _MAP, _SEQ = (
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "map", "seq")
)
_INTEGER = r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"


class _Loader(yaml.SafeLoader):
    """A safe loader with the plain words of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (as PyYAML has it)


for _tag, _pattern, _first in (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, _INTEGER, list("-+0123456789")),
    (_FLOAT, r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})$"), _first)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    if not re.fullmatch(_INTEGER, text):
        raise ValueError(f"{text!r} is no integer")
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


_Loader.add_constructor(_INT, _integer)


class Document:
    """Data and lines. `line(path)` gives the line of the nearest thing that the file has.

    What is no YAML is an error; `problems` are keys that are left out of the data.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines: dict[Path, int] = {(): 1}
        self.problems: list[Problem] = []
        self._open: set[yaml.Node] = set()  # what encloses the value that is being read
        self.data: Any = None
        self._read(text)

    def _read(self, text: str) -> None:
        loader = None
        try:
            loader = _Loader(text)
            root = loader.get_single_node()
            self.data = None if root is None else self._value(loader, root, ())
        except PipelineError:  # a ValueError, too
            raise
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self._invalid(str(error.problem or error.context), mark.line + 1 if mark else 1) from None
        except ReaderError as error:
            raise self._invalid(
                f"the character U+{error.character:04X} is not allowed", text.count("\n", 0, error.position) + 1
            ) from None
        except (ValueError, OverflowError, RecursionError) as error:  # of PyYAML: an escape that is no character, say
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise self._invalid(reason, loader.line + 1 if loader else 1) from None
        finally:
            if loader is not None:
                loader.dispose()

    def _invalid(self, reason: str, line: int) -> PipelineError:
        return PipelineError([Problem(f"not valid YAML: {reason}", (), line, self.file)])

    def line(self, path: Path) -> int:
        """The line of a key, or of the nearest enclosing one."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]

    def find(self, value: str, under: Path) -> Path:
        """Where below a place the file says `value`; the place itself if it does not."""
        pending = [(under, self._at(under))]
        for path, found in pending:
            if found == value:
                return path
            inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
            pending += [((*path, key), one) for key, one in inner]
        return under

    def _at(self, path: Path) -> Any:
        found = self.data
        for part in path:
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def problem(self, message: str, path: Path) -> Problem:
        """A problem at a place of this document."""
        return Problem(message, path, self.line(path), self.file)

    def _value(self, loader: Any, node: yaml.Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.CollectionNode) and node.tag not in (_MAP, _SEQ):
            raise yaml.MarkedYAMLError(problem=f"unknown tag {node.tag}", problem_mark=node.start_mark)
        if not isinstance(node, yaml.CollectionNode):
            return _plain(loader, node)
        if node in self._open:
            raise self._invalid("an alias stands inside of what it repeats", self.lines[path])
        self._open.add(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(loader, node, path)
            return [self._value(loader, item, (*path, index)) for index, item in enumerate(node.value)]
        finally:
            self._open.remove(node)

    def _mapping(self, loader: Any, node: yaml.MappingNode, path: Path) -> dict[Hashable, Any]:
        result: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = _plain(loader, key_node)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                self.problems.append(Problem(f"keys must be text, found {key!r}", path, line, self.file))
                continue
            if key in result:
                self.problems.append(
                    Problem(f"given twice, first on line {self.lines[*path, key]}", (*path, key), line, self.file)
                )
                continue
            self.lines[*path, key] = line
            result[key] = self._value(loader, value_node, (*path, key))
        return result


def _plain(loader: Any, node: yaml.Node) -> Any:
    """A value that is no collection, or a key."""
    try:
        return loader.construct_object(node)
    except (ValueError, LookupError, AttributeError, OverflowError) as error:  # a tag that its text does not fit
        kind = node.tag.rpartition(":")[2]
        raise yaml.MarkedYAMLError(
            problem=f"{node.value!r} is not of the type {kind}", problem_mark=node.start_mark
        ) from error
