"""The directories of a pipeline, looked at before it runs. A check leaves no traces: an object store gets one object,
which is deleted again; elsewhere nothing is created."""

from __future__ import annotations

import os
from pathlib import Path

from watersmeet.errors import StateDirError
from watersmeet.pipeline.config import LoadedPipeline
from watersmeet.pipeline.lag import FILE_FORMATS
from watersmeet.pipeline.problems import Path as Place
from watersmeet.pipeline.problems import PipelineError, Problem
from watersmeet.pipeline.run import check_sink
from watersmeet.pipeline.storage import storage_problem
from watersmeet.storage.uri import is_local, local_path, located

_NOT_REMOTE = "with --remote the state must be on a file system that client and server share, not in an object store"


def place_problems(loaded: LoadedPipeline, *, remote: bool = False) -> list[Problem]:
    """What is wrong with the places for state, checkpoint and results; of those of a server only the state is seen."""
    pipeline, sink = loaded.pipeline, loaded.parts.sink
    if remote:
        where = "state_dir" if pipeline.state_dir else "work_dir"
        reason = _reason(loaded.state_dir) if is_local(loaded.state_dir) else _NOT_REMOTE
        return [loaded.problem(reason, (where,))] if reason else []
    wanted = {"state_dir": loaded.state_dir, "checkpoint": loaded.checkpoint}
    places = {(name if getattr(pipeline, name) else "work_dir",): path for name, path in wanted.items()}
    if "work_dir" in {place for (place,) in places}:
        places["work_dir",] = loaded.resolve(pipeline.work_dir)
    found: list[tuple[str | None, Place]] = [(_reason(path), place) for place, path in places.items()]
    if is_local(loaded.state_dir):
        what = f"only for state in an object store: {loaded.state_dir} is used directly. Leave it out"
        found += [(what, (name,)) for name in loaded.cache]
    elif not any(reason for reason, _ in found):
        found.append((storage_problem(loaded.state_dir), ("state_dir" if pipeline.state_dir else "work_dir",)))
    if sink is not None and sink.path and sink.format in FILE_FORMATS:
        found.append((_reason(loaded.resolve(sink.path)), ("sink", "path")))
    problems = [loaded.problem(reason, place) for reason, place in found if reason]
    if sink is not None:
        try:
            check_sink(loaded)
        except PipelineError as error:
            problems += error.problems
    return problems


def nearest_folder(path: str) -> Path:
    """What is there already of a local path."""
    there = Path(local_path(path) or path)
    while not there.exists() and there != there.parent:
        there = there.parent
    return there


def _reason(path: str) -> str | None:
    """Why nothing can be written to a path, as far as it can be seen from here."""
    if not is_local(path):
        try:
            located(path)
        except StateDirError as error:
            return str(error)
        return None
    there = nearest_folder(path)
    if not there.is_dir():
        return f"{path} cannot be written: {there} is not a directory"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{path} cannot be written: no permission to write to {there}"
    return None
