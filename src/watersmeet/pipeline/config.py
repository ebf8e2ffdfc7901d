"""Pipelines as one set of models: what a file may say, what it means, and the text of the reference page.

`load` reads a file, `Pipeline.model_validate` takes the same structure from Python. Unknown keys are errors everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails

from watersmeet.pipeline.connectors import CONNECTORS
from watersmeet.pipeline.document import Document
from watersmeet.pipeline.joins import Join, detail, failed, parse_join, wiring_of
from watersmeet.pipeline.lag import FILE_FORMATS
from watersmeet.pipeline.problems import Path, PipelineError, Problem, nearest
from watersmeet.pipeline.secrets import ConnectorOptions, Secrets, UnresolvedReferenceError
from watersmeet.pipeline.storage import know_storage
from watersmeet.pipeline.wiring import Wiring
from watersmeet.plan.options import WRITTEN, Duration

_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
_PACKAGE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+\Z")


def _checked_name(value: str) -> str:
    if not _NAME.match(value):
        raise ValueError(f"{value!r} is not a name: only letters, digits, '_' and '-' are allowed")
    return value


def _checked_package(value: str) -> str:
    if value not in CONNECTORS and not _PACKAGE.match(value):
        raise ValueError(
            f"{value!r} is neither a connector nor of the form group:artifact:version; {nearest(value, CONNECTORS)}"
        )
    return value


def _check_path(kind: str | None, path: str | None, options: dict[str, str]) -> None:
    if kind in FILE_FORMATS and path is None and "path" not in options:
        raise ValueError(f"format {kind} needs a path")


def _spark_text(value: Any) -> Any:
    """Options are text in Spark; YAML's numbers and booleans are written as Spark writes them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Name = Annotated[str, AfterValidator(_checked_name)]
OptionText = Annotated[str, BeforeValidator(_spark_text)]
SparkOptions = Annotated[dict[str, OptionText], AfterValidator(ConnectorOptions)]
Expressions = Annotated[list[str], BeforeValidator(_one_or_many)]


class Config(BaseModel):
    """Base of the models: no unknown keys, no changes, no values in error messages."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)


class Columns(Config):
    """What is done to the columns of a stream, in this order: with_columns, where, select."""

    with_columns: dict[str, str] = Field(
        default_factory=dict, description="New or replaced columns: name to Spark SQL expression."
    )
    where: Expressions = Field(
        default_factory=list, description="Conditions in Spark SQL; rows must fulfil all of them."
    )
    select: Expressions = Field(
        default_factory=list, description="Columns to keep, as Spark SQL expressions such as `id as order_id`."
    )


class SourceConfig(Columns):
    """A stream, or a table for an operator that takes one, read by one of Spark's connectors."""

    format: str | None = Field(
        default=None, description="The connector, by Spark's name: parquet, json, kafka, rate, ..."
    )
    path: str | None = Field(default=None, description="Where the data is; relative to the pipeline file.")
    table: str | None = Field(default=None, description="A table of Spark's catalog, in place of format and path.")
    ddl: str | None = Field(
        default=None,
        alias="schema",
        description="The columns as Spark SQL DDL; file formats need it to be read as a stream.",
    )
    options: SparkOptions = Field(
        default_factory=lambda: ConnectorOptions(), description="The connector's own options, by Spark's names."
    )

    @model_validator(mode="after")
    def _has_an_origin(self) -> Self:
        if (self.table is None) == (self.format is None):
            raise ValueError("give either format (with path and options) or table")
        if self.table is not None and (self.path is not None or self.ddl is not None):
            raise ValueError("a table has its own path and schema; remove them")
        _check_path(self.format, self.path, self.options)
        return self


class SinkConfig(Config):
    """Where the results go."""

    format: str | None = Field(default=None, description="The connector, by Spark's name: parquet, kafka, console, ...")
    path: str | None = Field(default=None, description="Where the results go; relative to the pipeline file.")
    table: str | None = Field(default=None, description="A table of Spark's catalog, in place of path.")
    mode: Literal["append", "update"] = Field("append", description="Spark's output mode.")
    partition_by: Expressions = Field(default_factory=list, description="Columns that partition the output files.")
    options: SparkOptions = Field(
        default_factory=lambda: ConnectorOptions(), description="The connector's own options, by Spark's names."
    )

    @model_validator(mode="after")
    def _has_a_target(self) -> Self:
        if self.table is None and self.format is None:
            raise ValueError("give format (with path and options) or table")
        if self.table is None:
            _check_path(self.format, self.path, self.options)
        return self


class TriggerConfig(Config):
    """When micro-batches run: exactly one of the three."""

    processing_time: Duration | None = Field(default=None, ge=0, description="A micro-batch this often, for ever.")
    available_now: Literal[True] | None = Field(
        default=None,
        description="Everything that is there, in as many micro-batches as the sources' limits ask for, then end.",
    )
    once: Literal[True] | None = Field(
        default=None, description="Everything that is there in one micro-batch, then end."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"give exactly one of processing_time, available_now and once (found {found})")
        return self

    @property
    def ends(self) -> bool:
        """Whether a run ends by itself."""
        return self.processing_time is None


class Pipeline(Config):
    """A whole pipeline file."""

    name: Name = Field(description="The pipeline's name; its state and checkpoint are in a directory of that name.")
    sources: dict[Name, SourceConfig] = Field(min_length=1, description="What is joined, by name.")
    join: Annotated[Join, PlainValidator(parse_join), PlainSerializer(repr, return_type=str)] = Field(
        description="The operator, its inputs and its options."
    )
    result: Columns = Field(default_factory=Columns, description="What is done to the columns of the result.")
    sink: SinkConfig = Field(description="Where the results go.")
    trigger: TriggerConfig = Field(
        default_factory=lambda: TriggerConfig(processing_time=1_000_000),
        description="When micro-batches run; every second if left out.",
    )
    finish: Literal["never", "when_drained"] = Field(
        "never",
        description="`when_drained`: once the sources are read, declare them ended, finish the join and end the run. "
        "That end is final: new data then needs a new state and checkpoint.",
    )
    drained_after: Duration = Field(
        5_000_000,
        ge=0,
        description="With a processing_time trigger: how long all sources must be silent to count as read.",
    )
    work_dir: str = Field(
        "watersmeet-work",
        description="Where state and checkpoint are kept, under the pipeline's name; relative to the file.",
    )
    state_dir: str | None = Field(default=None, description="The join's state, if not under work_dir.")
    checkpoint: str | None = Field(default=None, description="Spark's checkpoint, if not under work_dir.")
    master: str | None = Field(
        default=None, description="The Spark master; `local[*]` if neither this nor --master is given."
    )
    packages: list[Annotated[str, AfterValidator(_checked_package)]] = Field(
        default_factory=list,
        description="Connectors to fetch: `kafka`, `delta`, `iceberg`, `avro` in the version that fits the running "
        "Spark, or Maven coordinates, `group:artifact:version`.",
    )
    conf: SparkOptions = Field(
        default_factory=lambda: ConnectorOptions(), description="Spark settings for this pipeline."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        wrong = misfits(self.join.wiring, self.sources, self.trigger, self.finish)
        if wrong:
            raise failed(wrong)
        return self


def misfits(
    wiring: Wiring, sources: Mapping[str, SourceConfig | None], trigger: TriggerConfig | None, finish: str | None
) -> list[InitErrorDetails]:
    """Where the parts of a pipeline do not fit each other; a source or trigger that is wrong by itself is None."""
    used = [*wiring.sources().items(), *((name, name) for name in (*wiring.more_streams(), *wiring.tables()))]
    wrong = [
        detail(
            f"the join's input {name!r} is source {source!r}, which is not there; {nearest(source, sources)}",
            ("join", name),
        )
        for name, source in used
        if source not in sources
    ]
    idle = sources.keys() - {source for _, source in used}
    if not wrong:
        wrong += [detail("is not used by the join", ("sources", name)) for name in sorted(idle)]
    if finish == "when_drained" and trigger is not None and not trigger.ends:
        wrong += [
            detail(
                f"would never happen: source {name!r} ({source.format}) has no end; "
                "use trigger: {available_now: true} or finish: never",
                ("finish",),
            )
            for name, source in sources.items()
            if source is not None and (source.format or "").startswith("rate")
        ]
    return wrong


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
