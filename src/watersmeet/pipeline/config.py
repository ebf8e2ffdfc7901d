"""Pipelines read from a file or made in Python, and everything that is wrong with them.

`load` reads a file, `from_dict` takes the same structure from Python, `draft` goes on in spite of problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from watersmeet.pipeline.document import Document
from watersmeet.pipeline.joins import Join, failed, wiring_of
from watersmeet.pipeline.models import Columns, Config, Pipeline, SinkConfig, SourceConfig, TriggerConfig, misfits
from watersmeet.pipeline.problems import Path, PipelineError, Problem, nearest
from watersmeet.pipeline.secrets import Secrets, UnresolvedReferenceError
from watersmeet.pipeline.storage import know_storage
from watersmeet.pipeline.wiring import Wiring
from watersmeet.plan.options import WRITTEN


@dataclass(frozen=True)
class Parts:
    """What of a pipeline is right by itself, whatever is wrong with the rest of it."""

    sources: Mapping[str, SourceConfig]
    wiring: Wiring | None
    join: Join | None
    result: Columns | None
    sink: SinkConfig | None


# The model behind each place of a file, for the nearest right name of an unknown key.
_MODELS: dict[str, type[Config]] = {
    "sources": SourceConfig, "sink": SinkConfig, "trigger": TriggerConfig, "result": Columns,
}  # fmt: skip


class LoadedPipeline:
    """A pipeline with the document it came from: paths, lines and secrets."""

    def __init__(
        self,
        pipeline: Pipeline,
        secrets: Secrets,
        document: Document | None,
        folder: FilePath,
        parts: Parts | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        self.pipeline = pipeline
        self.secrets = secrets
        self.document = document
        self.folder = folder
        join = pipeline.join if parts is None else parts.join
        wiring = None if join is None else join.wiring
        self.parts = parts or Parts(pipeline.sources, wiring, join, pipeline.result, pipeline.sink)
        self.problems = list(problems)  # only a draft has any
        know_storage(self.state_dir, pipeline.conf or {})

    def resolve(self, path: str) -> str:
        """A path of the file: relative ones start at the file's folder, URIs and absolute ones stay."""
        if "://" in path or path.startswith(("file:", "/")):
            return path
        return str((self.folder / path).resolve())

    def _work(self, name: str) -> str:
        return f"{self.resolve(self.pipeline.work_dir).rstrip('/')}/{self.pipeline.name}/{name}"

    @property
    def state_dir(self) -> str:
        """Where the join keeps its state."""
        given = self.pipeline.state_dir
        return self.resolve(given) if given else self._work("state")

    @property
    def checkpoint(self) -> str:
        """Where Spark keeps its checkpoint."""
        given = self.pipeline.checkpoint
        return self.resolve(given) if given else self._work("checkpoint")

    @property
    def cache(self) -> dict[str, Any]:
        """What the file says of the cache on the hosts' disks, as the functions take it."""
        given = {"cache": self.pipeline.cache, "cache_dir": self.pipeline.cache_dir}
        return {name: value for name, value in given.items() if value is not None}

    def problem(self, message: str, path: Path) -> Problem:
        """A problem at a place of the pipeline."""
        text = self.secrets.redact(message)
        return self.document.problem(text, path) if self.document else Problem(text, path)


def load(file: str | FilePath) -> LoadedPipeline:
    """Read and validate a pipeline file; everything that is wrong with it in one `PipelineError`."""
    return _complete(draft(file))


def draft(file: str | FilePath) -> LoadedPipeline:
    """The same, with what is wrong in `problems` and what is right in `parts`: `check` goes on with those.

    Of what is wrong, `pipeline` has the defaults, or nothing. A file that is no YAML is an error here too.
    """
    path = FilePath(file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise PipelineError([Problem(f"cannot be read: {reason}", file=str(file))]) from None
    document = Document(text, str(file))
    return _drafted(document.data, path.resolve().parent, document)


def from_dict(data: dict[str, Any], folder: str | FilePath = ".") -> LoadedPipeline:
    """The same from a structure made in Python; relative paths start at `folder`."""
    return _complete(_drafted(data, FilePath(folder).resolve(), None))


def _complete(loaded: LoadedPipeline) -> LoadedPipeline:
    if loaded.problems:
        raise PipelineError(loaded.problems)
    return loaded


def _drafted(data: Any, folder: FilePath, document: Document | None) -> LoadedPipeline:
    secrets = Secrets(folder=folder)
    problems: list[Problem] = list(document.problems) if document else []
    place = document.problem if document else lambda message, path: Problem(message, path)
    resolved = _resolve(data, (), secrets, problems, place)
    secrets.note_all("", resolved)
    if not isinstance(resolved, dict):
        raise PipelineError([*problems, place("a pipeline is a mapping with name, sources, join and sink", ())])
    try:
        if not problems:
            return LoadedPipeline(Pipeline.model_validate(resolved, context=WRITTEN), secrets, document, folder)
    except ValidationError:
        pass  # once more below, part by part
    known = {problem.path for problem in problems}  # a wrong reference is one problem, not two
    parts, pipeline, errors = _by_part(resolved, known)
    found = [(secrets.redact(_message(one)), _place(one["loc"])) for one in errors]
    problems += [place(message, path) for message, path in dict.fromkeys(found) if path not in known]
    problems.sort(key=lambda problem: problem.line)
    return LoadedPipeline(pipeline, secrets, document, folder, parts, problems)


def _by_part(data: dict[str, Any], known: Set[Path]) -> tuple[Parts, Pipeline, list[Any]]:
    """The parts that are right, a pipeline of them, and everything that is wrong besides what is known already.

    A model with a wrong field is not checked as a whole. Where only names are unknown it can be: without them. What is
    then found missing may be what a misspelt name stands for, and is not a second problem.
    """
    errors = _errors(data)
    unknown = [one for one in errors if one["type"] == "extra_forbidden"]
    if unknown:
        data = _without(data, [_place(one["loc"]) for one in unknown])
        misspelt = {one["loc"][:-1] for one in unknown if "did you mean" in _message(one)}
        errors = [*unknown, *(one for one in _errors(data) if one["loc"] not in misspelt)]
    wrong = {path[:length] for path in {*known, *(_place(one["loc"]) for one in errors)} for length in (1, 2)}
    right: dict[str, Any] = {}
    for name, spec in Pipeline.model_fields.items():
        kind: Any = Annotated[(spec.annotation, *spec.metadata)] if spec.metadata else spec.annotation
        if name in data and name != "sources" and (name,) not in wrong:
            right[name] = _validated(kind, data[name])
    given = data.get("sources")
    named = given if isinstance(given, dict) else {}
    every = {
        name: None if ("sources", name) in wrong else _validated(SourceConfig, value) for name, value in named.items()
    }
    sources = {name: source for name, source in every.items() if source is not None}
    join = right.get("join")
    wiring = join.wiring if join is not None else wiring_of(data.get("join"))
    if wiring is not None and named:
        trigger = right.get("trigger") if "trigger" in data else TriggerConfig(processing_time=1)
        details = misfits(wiring, every, trigger, right.get("finish"))
        errors += failed(details).errors(include_url=False) if details else []
    pipeline = Pipeline.model_construct(
        **{"name": "unnamed", **{name: value for name, value in right.items() if value is not None}}, sources=sources
    )
    result = right.get("result") if "result" in data else Columns()
    return Parts(sources, wiring, join, result, right.get("sink")), pipeline, errors


def _errors(data: dict[str, Any]) -> list[Any]:
    try:
        Pipeline.model_validate(data, context=WRITTEN)
    except ValidationError as error:
        return list(error.errors(include_url=False))
    return []


def _validated(kind: Any, value: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return None


def _without(data: Any, paths: Sequence[Path]) -> Any:
    """A copy of the data without the keys at some paths."""
    if not isinstance(data, dict):
        return data
    return {
        key: _without(value, [path[1:] for path in paths if path[:1] == (key,)])
        for key, value in data.items()
        if (key,) not in paths
    }


def _resolve(value: Any, path: Path, secrets: Secrets, problems: list[Problem], place: Any) -> Any:
    if isinstance(value, dict):
        return {key: _resolve(inner, (*path, key), secrets, problems, place) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolve(inner, (*path, i), secrets, problems, place) for i, inner in enumerate(value)]
    if not isinstance(value, str):
        return value
    try:
        return secrets.resolve(value)
    except UnresolvedReferenceError as error:
        problems.append(place(str(error), path))
        return value


def _place(location: tuple[str | int, ...]) -> Path:
    """Pydantic's location without its own additions (such as `[key]` for a mapping's key)."""
    return tuple(part for part in location if part != "[key]")


def _message(error: Any) -> str:
    location = _place(error["loc"])
    if error["type"] == "extra_forbidden":
        model = Pipeline if len(location) == 1 else _MODELS.get(str(location[0]), Pipeline)
        known = [field.alias or name for name, field in model.model_fields.items()]
        return f"unknown key; {nearest(str(location[-1]), known)}"
    if error["type"] == "missing":
        return "missing"
    message: str = error["msg"].removeprefix("Value error, ").replace("Input should", "should")
    return message.replace("should be True", "should be true")
