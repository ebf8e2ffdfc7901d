"""What a pipeline would do, in words: streams, key, partitions, memory, the operator's choices. Nothing is started."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Set
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich import filesize

from watersmeet.chooser.explanation import Explanation, explained
from watersmeet.pipeline.build import Built, build
from watersmeet.pipeline.config import LoadedPipeline
from watersmeet.pipeline.joins import Join
from watersmeet.pipeline.models import Columns
from watersmeet.pipeline.places import nearest_folder, place_problems
from watersmeet.pipeline.problems import PipelineError
from watersmeet.pipeline.reference import shown_value
from watersmeet.pipeline.wiring import Site
from watersmeet.plan.quantities import format_duration
from watersmeet.spark.explaining import known_slots, stories
from watersmeet.spark.plans import is_classic
from watersmeet.spark.schema import row_bytes
from watersmeet.state.directory import StateDir
from watersmeet.state.history import newest_manifests
from watersmeet.state.identity import read_join, recorded_partitions
from watersmeet.storage.uri import is_local

Frames = dict[str, DataFrame]


def check(loaded: LoadedPipeline, session: SparkSession) -> None:
    """Let Spark analyse the pipeline: columns, expressions, types, connectors. Nothing is read or written.

    Everything that is wrong is in one `PipelineError`; of a draft, that is what `draft` found too.
    """
    problems = place_problems(loaded, remote=not is_classic(session))
    try:
        with _scratch(loaded, session) as scratch:
            build(loaded, session, rehearsal=f"{scratch}/state")
    except PipelineError as error:
        problems += error.problems
    if problems:
        raise PipelineError(sorted(problems, key=lambda problem: problem.line))


def explain(loaded: LoadedPipeline, session: SparkSession) -> str:
    """The plan as text, without secrets."""
    with _scratch(loaded, session) as scratch:
        built = build(loaded, session, rehearsal=f"{scratch}/state")
        explanation = _explained(loaded, built, session)
    lines = [f"pipeline {loaded.pipeline.name}", ""]
    lines += _sources(loaded, built.sources)
    lines += _join(loaded, built, explanation)
    lines += ["result", *_schema(built.result), *_columns(loaded.pipeline.result)]
    lines += ["", *_sink(loaded), *_state(loaded)]
    return loaded.secrets.redact("\n".join(lines))


def _scratch(loaded: LoadedPipeline, session: SparkSession) -> tempfile.TemporaryDirectory[str]:
    """For the state of a rehearsal; near the place of the state itself if a server must see it, too."""
    near = None if is_classic(session) or not is_local(loaded.state_dir) else nearest_folder(loaded.state_dir)
    return tempfile.TemporaryDirectory(prefix=".watersmeet-check-", dir=near)


def _sources(loaded: LoadedPipeline, frames: Frames) -> Iterator[str]:
    tables = loaded.pipeline.join.wiring.tables()
    for name, source in loaded.pipeline.sources.items():
        origin = f"table {source.table}" if source.table else f"{source.format} {source.path or ''}".strip()
        yield f"{'table' if name in tables else 'stream'} {name}: {origin}"
        for key, value in source.options.shown().items():  # type: ignore[attr-defined]
            yield f"  option {key} = {value}"
        yield from _columns(source)
        yield from _schema(frames[name])
        yield ""


def _columns(columns: Columns) -> Iterator[str]:
    for name, expression in columns.with_columns.items():
        yield f"  {name} := {expression}"
    for condition in columns.where:
        yield f"  where {condition}"
    if columns.select:
        yield f"  select {', '.join(columns.select)}"


def _schema(frame: DataFrame) -> Iterator[str]:
    yield f"  columns: {', '.join(f'{f.name} {f.dataType.simpleString()}' for f in frame.schema.fields)}"


def _explained(loaded: LoadedPipeline, built: Built, session: SparkSession) -> Explanation:
    """What `wm.explain` says of the join, with its real state."""
    wiring = loaded.pipeline.join.wiring
    ((story, _),) = stories(built.joined)
    site = Site(built.sources, loaded.state_dir, session, loaded.resolve)
    table = wiring.table(site)
    # What the next run will have: a number in the file divides the state anew.
    partitions = wiring.partitions or recorded_partitions(StateDir(loaded.state_dir)) or story.partitions
    story = replace(story, partitions=partitions, table=table or {})
    return explained(story, StateDir(loaded.state_dir), slots=known_slots(session))


def _join(loaded: LoadedPipeline, built: Built, explanation: Explanation) -> Iterator[str]:
    join, frames = loaded.pipeline.join, built.sources
    yield f"join: {join.wiring.operator} ({join.wiring.SUMMARY})"
    sources = join.wiring.sources()
    yield f"  inputs: {', '.join(s if s == name else f'{s} ({name})' for name, s in sources.items())}"
    partitions = explanation.story.partitions
    yield f"  partitions: {partitions}, by the hash of the key {_key(join.wiring)}"
    if join.memory is not None:
        share = filesize.decimal(join.memory // partitions)
        yield f"  memory: {filesize.decimal(join.memory)} in all, {share} for each partition"
        for source in sources.values():
            width = row_bytes(frames[source].schema.fields)
            yield f"    would hold about {join.memory // width:,} rows of {source} alone, at about {width} bytes each"
    else:
        yield "  memory: unlimited (give memory to set a budget)"
    yield from _options(join, besides={one.what for one in explanation.choices})
    for line in str(explanation).splitlines()[1:]:  # the first says what is above
        yield f"  {line}"
    yield ""


def _options(join: Join, besides: Set[str]) -> Iterator[str]:
    """Every option that has an effect here, and those that were given although they have none."""
    in_force = join.options.effective()
    fields = type(join.options).model_fields
    for name in join.wiring.option_names():
        if name == "memory" or name in besides:  # printed elsewhere: with the partitions' shares, or with a reason
            continue
        if name in in_force:
            origin = "given" if name in join.given else "default"
            fixed = "" if name in type(join.options).TUNING else ", fixed once it has run"
            yield f"  {name}: {shown_value(fields[name], in_force[name])} ({origin}{fixed})"
        elif name in join.given and (value := getattr(join.options, name)) is not None:
            yield f"  {name}: {shown_value(fields[name], value)} (given, without effect here)"


def _key(wiring: Any) -> str:
    """The columns of the key, those with different names as `id = order`."""
    on = wiring.on
    if isinstance(on, dict):
        return ", ".join(
            f"{name}: {columns if isinstance(columns, str) else ', '.join(columns)}" for name, columns in on.items()
        )
    return ", ".join(one if isinstance(one, str) else " = ".join(one) for one in ([on] if isinstance(on, str) else on))


def _sink(loaded: LoadedPipeline) -> Iterator[str]:
    pipeline = loaded.pipeline
    sink = pipeline.sink
    target = f"table {sink.table}" if sink.table else f"{sink.format} {sink.path or ''}".strip()
    yield f"sink: {target}, {sink.mode}"
    for key, value in sink.options.shown().items():  # type: ignore[attr-defined]
        yield f"  option {key} = {value}"
    trigger = pipeline.trigger
    when = (
        f"every {format_duration(trigger.processing_time)}"
        if trigger.processing_time is not None
        else "what is there now"
    )
    yield f"trigger: {when}; finish: {pipeline.finish}"


def _state(loaded: LoadedPipeline) -> Iterator[str]:
    yield f"state: {loaded.state_dir}"
    yield f"checkpoint: {loaded.checkpoint}"
    directory = StateDir(loaded.state_dir)
    manifests = newest_manifests(directory) if read_join(directory) else []
    if manifests:
        rows = sum(run.rows for manifest in manifests for run in manifest.runs)
        version = max(manifest.version for manifest in manifests)
        done = ", finished" if all(manifest.finished for manifest in manifests) else ""
        yield f"  has run up to batch {version}, holds {rows:,} rows{done}"
    else:
        yield "  has not run yet"
