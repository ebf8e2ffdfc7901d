"""Versions: batch N of a query reads version N - 1 of its partition's state and writes version N.

    part-00003/
      v-000000000042.json                    manifest: a version exists when this file does
      run-000000000042-<attempt>-0.arrow     a run first written in batch 42
      metrics-0-000005.json                  finished batches' metrics (see `segments`)

Run files are written first, the manifest last and in one piece. Two attempts of a batch write files of their own and
equal manifests, so it does not matter which of them comes last. The last `KEEP` versions stay, because Spark may repeat
the last batch after a crash; files that no kept version names are collected once no attempt can still want them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from watersmeet.errors import CorruptStateError, MissingVersionError, StateMismatchError
from watersmeet.plan.metrics import Metrics
from watersmeet.state.directory import StateDir, corrupt, sealed_text
from watersmeet.state.manifest import Manifest, RunEntry, TableEntry, digest_of
from watersmeet.state.object_dir import ObjectDir
from watersmeet.state.operator_state import OperatorState
from watersmeet.state.run import Run
from watersmeet.state.segments import Segments
from watersmeet.state.shelf import StoreState
from watersmeet.state.side_table import SideTable
from watersmeet.state.space import FileSpace
from watersmeet.state.stored_run import PageReaders, StoredRun

KEEP = 3
COLLECT_EVERY = 16  # batches, in an object store
SWEEP_EVERY = 64  # batches, after the state has been divided anew
ESTABLISHED = "established"  # the attempt of a version that no batch has made
_MANIFEST = re.compile(r"v-(\d{12})\.json$")
_RUN = re.compile(r"run-(\d{12})-")
_NAMED = re.compile(rb'[/"](run-\d{12}-[^"/@]+)')  # a run file, or a pack, in the text of a manifest
_TEMPORARY = re.compile(r"\.(?:v|run)-(\d{12})[-.].*\.tmp$")


class PartitionStore:
    """The versions of one partition's state."""

    def __init__(self, directory: StateDir, partition: int, division: int = 0) -> None:
        self.directory = directory
        self.partition, self.division = partition, division
        self.folder = folder_name(partition, division)
        self.readers = PageReaders()
        self.segments = Segments(directory, self.folder)
        self._base = ""  # the run that wrote the version which the batch starts from
        self._finished = False  # whether the version that was written here is the last

    def versions(self) -> list[int]:
        """The versions that exist, oldest first."""
        found = (_MANIFEST.match(name) for name in self.directory.list(self.folder))
        return [int(match[1]) for match in found if match]

    def manifest(self, version: int) -> Manifest:
        """A version's manifest."""
        name, content = self._manifest_name(version), self._content(version)
        manifest = Manifest.from_bytes(content, self.directory.path(name))
        named = version, self.partition, self.division
        found = manifest.version, manifest.partition, manifest.division
        if named != found:
            words = "version {} of partition {}" + (" in division {}" if named[2] or found[2] else "")
            raise corrupt(self.directory.path(name), words.format(*named), words.format(*found))
        return manifest

    def _content(self, version: int) -> bytes:
        try:
            return self.directory.read(self._manifest_name(version))
        except FileNotFoundError:
            there = self.versions()
            raise MissingVersionError(
                f"state directory {self.directory.uri}, partition {self.partition}",
                expected=f"version {version}, which the next batch starts from",
                found=f"versions {there[0]} to {there[-1]}" if there else "no version at all",
                hint="State and checkpoint must be kept, copied and deleted together, and every batch must be read to "
                "its end (limit, take, show and isEmpty on the join's result do not): restore the matching state, or "
                "start over with a new state directory and a new checkpoint.",
            ) from None

    def _files(self, version: int) -> list[str]:
        """The run files that a version names, found in its text: to take it apart costs several times as much."""
        text = sealed_text(self._content(version), self.directory.path(self._manifest_name(version)))
        return [name.decode() for name in _NAMED.findall(text)]

    def load(self, batch: int, query: str, run_id: str, join: str = "", partitions: int = 0) -> Manifest:
        """The manifest that a batch starts from; a new one for the first batch of a query. It must be a share of so
        many `partitions`, where both are known."""
        if batch == 0:
            self.directory.make(self.folder)
            self.check_queries(query)
            return Manifest(version=-1, partition=self.partition, query=query, run_id=run_id)
        manifest = self.manifest(batch - 1)
        self._check_query(manifest, query)
        if 0 not in (partitions, manifest.partitions) and partitions != manifest.partitions:
            where = self.directory.path(self._manifest_name(manifest.version))
            raise corrupt(where, f"one of {partitions} partitions", f"one of {manifest.partitions}")
        if manifest.run_id == run_id and manifest.join != join:
            raise self._shared()
        self._base = manifest.run_id
        return manifest

    def check_queries(self, query: str) -> None:
        """Whether all there is belongs to a query that is about to begin."""
        for version in self.versions():
            self._check_query(self.manifest(version), query)

    def state(self, manifest: Manifest, run_id: str) -> OperatorState:
        """A version's state. What an earlier run of the query wrote is checked byte for byte when it is first read."""
        resident = (entry for entry in manifest.runs if entry.tier == "resident")
        wanted: list[RunEntry | TableEntry] = [*resident, *manifest.tables]
        self.directory.prefetch((self._place(entry.file), entry.length, entry.checksum) for entry in wanted)
        runs: dict[str, list[Run]] = {}
        for entry in manifest.runs:
            if not entry.adds_up():
                where = self.directory.path(self._manifest_name(manifest.version))
                raise corrupt(where, f"an account of {entry.file} that adds up", f"{entry.stored_rows} rows")
            runs.setdefault(entry.label, []).append(entry.run(self._data(entry, entry.stored_rows, run_id)))
        tables: dict[str, dict[str, SideTable]] = {}
        for table in manifest.tables:
            data = self._data(table, table.rows, run_id)
            found = SideTable(data, table.rows, table.nbytes, table.content)
            tables.setdefault(table.store, {})[table.name] = found
        stores = [
            StoreState(**saved, runs=runs.pop(saved["name"], []), tables=tables.get(saved["name"], {}))
            for saved in manifest.stores
        ]
        return OperatorState(
            stores,
            tables.get("", {}),
            manifest.values,
            manifest.history,
            manifest.ended,
            manifest.finished,
            manifest.accounts,
        )

    def _data(self, entry: RunEntry | TableEntry, rows: int, run_id: str) -> StoredRun:
        name, verify = self._place(entry.file), entry.verified != run_id
        data = StoredRun(self.directory, name, entry.length, entry.checksum, rows, verify, self.readers)
        data.check_length()
        return data

    def _place(self, file: str) -> str:
        """Where a file that a manifest names is: beside it, unless it was inherited from a former partition."""
        return file if "/" in file else f"{self.folder}/{file}"

    def _file(self, place: str) -> str:
        """The name under which a manifest lists a file."""
        return place.removeprefix(f"{self.folder}/")

    def space(self, batch: int, attempt: str) -> FileSpace:
        """Room for one attempt's run files."""
        return FileSpace(self.directory, self.folder, self.partition, batch, attempt, self.readers)

    def commit(
        self,
        manifest: Manifest,
        state: OperatorState,
        space: FileSpace,
        metrics: Metrics,
        timings: dict[str, float],
        time: int,
        estimates: dict[str, float] | None = None,
        said: Sequence[Mapping[str, Any]] = (),
    ) -> Manifest:
        """Write what has no file yet, then the manifest: from then on the version exists.

        `time` and `timings` come from the wall clock, `estimates` from samples, and events that are `said` by the run
        of the query and not by the batch: they are recorded beside what the digest covers.
        """
        started = perf_counter()
        self._list(manifest, state, space)
        timings["store"] = perf_counter() - started
        if not self.directory.is_local:
            started = perf_counter()
            space.room.seal()
            timings["send"] = perf_counter() - started
        deterministic = metrics.as_dict()
        entry = {"batch": manifest.version, "time": time, "run": manifest.run_id, **deterministic, "timings": timings}
        entry["estimates"] = estimates or {}
        entry["events"] = [*said, *entry["events"]]
        resident = [run.nbytes for run in state.runs if run.tier == "resident"]
        entry["resident_bytes"] = sum(resident) + sum(table.nbytes for table in state.side_tables)
        entry["spilled_bytes"] = sum(run.nbytes for run in state.runs if run.tier == "spilled")
        entry["state_rows"] = sum(store.rows for store in state.stores if store.input)
        manifest.digest = digest_of(state, deterministic)
        if isinstance(self.directory, ObjectDir):
            entry["storage"] = self.directory.traffic()
            return self._claim(self.directory, manifest, entry)
        content = self._completed(manifest, entry, manifest.history, self._earlier(manifest.version))
        self.directory.publish(self._manifest_name(manifest.version), content)
        self._finished = manifest.finished
        return manifest

    def _completed(
        self, manifest: Manifest, entry: dict[str, Any], history: list[dict[str, Any]], earlier: Manifest | None
    ) -> bytes:
        """The manifest's bytes, with the batch's metrics, and what an earlier attempt of the batch has to say."""
        if earlier is not None:
            manifest.repeats = self._repeats(manifest, earlier)
            if earlier.digest == manifest.digest:  # the next batch may have read these already: they stay
                kept = ("time", "run", "timings", "estimates")
                last = earlier.history[-1] if earlier.history else {}
                entry |= {name: value for name, value in last.items() if name in kept}
        entry["repeats"] = manifest.repeats
        manifest.history = self.segments.add(history, entry)
        return manifest.to_bytes()

    def _claim(self, directory: ObjectDir, manifest: Manifest, entry: dict[str, Any]) -> Manifest:
        """Publish a manifest where nobody can be overwritten unseen: one writer has each version.

        Whoever comes second and belongs to the same run of the query takes what is there, if it is equal. After a
        restart, which begins with a version of an earlier run, the last batch is written anew under the new run's
        name: from then on what is left of the earlier run finds that it is not alone. A run that has written the
        version before and finds this one written by another is the loser.
        """
        name, history = self._manifest_name(manifest.version), manifest.history
        content = self._completed(manifest, entry, history, None)
        written = directory.publish_new(name, content)
        while not written:
            try:
                found = directory.read_tagged(name)
            except FileNotFoundError:  # so old that it has been collected meanwhile
                written = directory.publish_new(name, content)
                continue
            earlier = self._readable(found.content, name)
            if earlier is not None:
                self._check_query(earlier, manifest.query)
                if earlier.run_id != manifest.run_id and self._base == manifest.run_id:
                    raise self._fenced(manifest, earlier)
            content = self._completed(manifest, entry, history, earlier)
            if earlier is not None and (earlier.run_id, earlier.digest) == (manifest.run_id, manifest.digest):
                return earlier
            written = directory.replace(name, content, found.tag)
        self._finished = manifest.finished
        return manifest

    def establish(self, manifest: Manifest, state: OperatorState, space: FileSpace) -> None:
        """Write a version that no batch has made: what a partition has taken over from former ones. It has no metrics,
        and a batch of its number may still be repeated."""
        manifest.attempt = ESTABLISHED
        self._list(manifest, state, space)
        space.room.seal()
        manifest.digest = digest_of(state, {})
        self.directory.publish(self._manifest_name(manifest.version), manifest.to_bytes())

    def _list(self, manifest: Manifest, state: OperatorState, space: FileSpace) -> None:
        """Write the runs and side tables of a state, and enter them in the manifest."""
        manifest.values, manifest.ended = state.values, state.ended
        manifest.finished, manifest.accounts, manifest.hot = state.finished, state.accounts, state.hot
        manifest.runs = [self._entry(space.store(run), manifest.run_id) for run in state.runs]
        manifest.stores = [
            {"name": store.name, "input": store.input, "rows": store.rows, "values": store.values}
            for store in state.stores
        ]
        owned = [(store.name, store.tables) for store in state.stores] + [("", state.tables)]
        for store, tables in owned:
            for name, table in tables.items():
                data = space.store_table(table)
                verified = "" if data.verify else manifest.run_id
                entry = TableEntry(
                    store, name, self._file(data.name), data.length, data.checksum,
                    table.rows, table.nbytes, table.content, verified,
                )  # fmt: skip
                manifest.tables.append(entry)

    def collect(self, newest: int) -> None:
        """Delete versions older than the last `KEEP`, and run files of that age that no kept version names."""
        if not self.directory.is_local and not self._finished and (newest + self.partition) % COLLECT_EVERY:
            return  # a listing costs as much as a put
        horizon = newest - KEEP
        names = self.directory.list(self.folder)
        versions = {int(match[1]): name for name in names if (match := _MANIFEST.match(name))}
        alive = {file for version in versions if version > horizon for file in self._files(version)}
        gone = [name for version, name in versions.items() if version <= horizon]
        for name in names:
            written = _batch_of(name)
            if written is not None and written <= horizon and name not in alive:
                gone.append(name)
        gone += self.segments.obsolete(names, horizon)
        self.directory.delete_all(f"{self.folder}/{name}" for name in gone)

    def _manifest_name(self, version: int) -> str:
        return f"{self.folder}/v-{version:012d}.json"

    def _entry(self, run: Run, run_id: str) -> RunEntry:
        data = run.data
        assert isinstance(data, StoredRun)
        verified = "" if data.verify else run_id
        return RunEntry.of(run, self._file(data.name), data.length, data.checksum, verified)

    def _check_query(self, manifest: Manifest, query: str) -> None:
        if manifest.query != query:
            raise StateMismatchError(
                f"state directory {self.directory.uri}, partition {self.partition}",
                expected=f"state of query {query}",
                found=f"state of query {manifest.query}",
                hint="A state directory belongs to one query and its checkpoint: restart from that checkpoint, or "
                "give this query a new state directory.",
            )

    def _earlier(self, version: int) -> Manifest | None:
        """What an earlier attempt of the same batch has committed."""
        name = self._manifest_name(version)
        return None if self.directory.size(name) is None else self._readable(self.directory.read(name), name)

    def _readable(self, content: bytes, name: str) -> Manifest | None:
        try:
            return Manifest.from_bytes(content, name)
        except CorruptStateError:  # left half-written by a dead attempt; this one replaces it
            return None

    def _repeats(self, manifest: Manifest, earlier: Manifest) -> int:
        """How many batches so far came out differently when they were repeated, this one included."""
        if earlier.attempt == ESTABLISHED:
            return earlier.repeats
        if manifest.join and earlier.run_id == manifest.run_id:
            if earlier.attempt == manifest.attempt:
                raise self._renumbered()
            if earlier.join != manifest.join:
                raise self._shared()
        if earlier.digest == manifest.digest:
            return earlier.repeats
        warnings.warn(
            f"batch {manifest.version} of partition {self.partition} was repeated and came out differently: a source "
            "did not replay the same rows",
            stacklevel=3,
        )
        return earlier.repeats + 1

    def _fenced(self, manifest: Manifest, earlier: Manifest) -> StateMismatchError:
        return StateMismatchError(
            f"state directory {self.directory.uri}, partition {self.partition}",
            expected=f"version {manifest.version} to be written by run {manifest.run_id} of the query, which wrote "
            "the version before it",
            found=f"one that run {earlier.run_id} has written meanwhile",
            hint="Two drivers run the query from one checkpoint. Stop one of them: the state is whole, and the other "
            "can be started again.",
        )

    def _renumbered(self) -> StateMismatchError:
        return StateMismatchError(
            f"state directory {self.directory.uri}, partition {self.partition}",
            expected="one key partition per task",
            found="a task that computes two of them under one number",
            hint="A coalesce right after the join merges its partitions: use repartition(n) in its place, or write the "
            "result to a sink first.",
        )

    def _shared(self) -> StateMismatchError:
        return StateMismatchError(
            f"state directory {self.directory.uri}, partition {self.partition}",
            expected="one join",
            found="two joins of one query",
            hint="Give every join a state directory of its own.",
        )


def folder_name(partition: int, division: int = 0) -> str:
    """The folder of a partition; after the state has been divided anew, of a partition of that division.

    >>> folder_name(3), folder_name(3, 1)
    ('part-00003', 'part-00003.1')
    """
    return f"part-{partition:05d}.{division}" if division else f"part-{partition:05d}"


def _batch_of(name: str) -> int | None:
    """The batch in which a run file, or a file that a dead attempt left half-made, was written; None for others."""
    match = _RUN.match(name) or _TEMPORARY.match(name)
    return int(match[1]) if match else None
