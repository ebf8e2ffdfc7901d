"""Do the tests notice small mistakes? A fixed sample of mutations of the operators and the state layer.

    python scripts/mutation.py [--count 220] [--seed 1] [--budget 60] [--jobs 2] [--fresh] [--only SUBSTRING]

A baseline run of tests/unit and tests/conformance (without Spark) must pass; it records the CPU time of each test and
which functions it calls. Each mutant is then written into a copy of src that comes first on the path, and the tests
that call the mutated function are run until one fails: unit tests of its package, then the quickest of the rest, up to
a budget of test seconds. A mutant that the tests do not end in time counts as killed. What survives within the budget
might still be killed by a test beyond it, so the rate is a lower bound.

Results are kept in .mutation/ and an interrupted run is taken up again. A kill stands while the mutated function is
unchanged; survivors are tried again when a source or a test file, or the budget, has changed. Mutants that no test can
tell from the original are listed with the reason in tests/mutation/equivalent.toml and are not counted. Exit code 1
below 85 %.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import json
import multiprocessing
import os
import py_compile
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import pytest

import mutants
from mutants import Mutant

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
KEPT = ROOT / ".mutation"
EQUIVALENT = ROOT / "tests" / "mutation" / "equivalent.toml"
FAMILIES = ["progressive", "window", "multiway", "punctuated", "semistream"]
SHARED = ["calibration", "engine", "join", "state", "estimate", "columns"]
MUTATED = [f"watersmeet/{name}" for name in [*FAMILIES, *SHARED]]
SUITES = ["conformance", "unit"]  # the longest first
REQUIRED = 0.85
LOADED = ["pytest", "hypothesis", "numpy", "pyarrow", "pyarrow.compute", "pyarrow.dataset", "pydantic", "pyspark.sql"]
FORKS = multiprocessing.get_context("forkserver")  # each run of pytest is forked from a process that has loaded these
FORKS.set_forkserver_preload(LOADED)
MEMORY = 6 << 30  # a mutant that asks for more gets a MemoryError

Tests = dict[str, dict[str, Any]]  # id -> seconds, and the functions it calls as "module:name"


# The tests


def baseline(source: str, jobs: int) -> Tests:
    """Every test of the suites with its time and the functions it calls; only what is not known yet is run.

    What is known of a test stands while its file is unchanged. Its calls are kept by name, so they outlive most edits
    of the source; a test recorded on another source is believed to notice a mutant only when it passes without it.
    """
    shared = _digest(file for file in (ROOT / "tests").rglob("*.py") if not file.name.startswith("test_"))
    wanted = {}
    for suite in SUITES:
        for file in sorted((ROOT / "tests" / suite).rglob("test_*.py")):
            wanted[file.relative_to(ROOT).as_posix()] = f"{shared}-{_digest([file])}"
    kept = KEPT / "baseline.jsonl"

    def known() -> tuple[Tests, set[str]]:
        lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
        lines = [each for each in lines if each["key"] == wanted.get(each["file"])]
        return {each["test"]: each for each in lines if each["test"]}, {e["file"] for e in lines if not e["test"]}

    tests, complete = known()
    stale = {file: key for file, key in wanted.items() if file not in complete}
    if stale:
        print(f"baseline: {len(stale)} test files", flush=True)
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs) as pool:
            about = Path(scratch) / "about.json"
            about.write_text(json.dumps({"out": str(kept), "keys": stale, "source": source, "known": list(tests)}))

            def record(files: list[str]) -> int:
                return _pytest(files, SOURCE, {"MUTATION_RECORD": str(about)}, seconds=7200)

            files = list(stale)
            codes = set(pool.map(record, (files[first : first + 5] for first in range(0, len(files), 5))))
        if failed := codes - {0, int(pytest.ExitCode.NO_TESTS_COLLECTED)}:
            sys.exit(f"mutation: the tests do not pass without a mutation (pytest ended with {failed}); see above")
        with kept.open("a") as out:
            out.writelines(json.dumps({"file": file, "key": key, "test": ""}) + "\n" for file, key in stale.items())
        tests, _ = known()
    return tests


def chosen(mutant: Mutant, tests: Tests, budget: float, first: str | None) -> list[list[str]]:
    """The tests that may notice a mutant, within the budget of seconds: those of its package, quick to load and likely
    to, and then others."""
    unit, stem = mutant.file.split("/")[1].removesuffix(".py"), Path(mutant.file).stem
    if mutant.function is not None:
        place = f"{stem}:{mutant.function}"
        calling = [test for test, facts in tests.items() if place in facts["calls"]]
    else:  # run at import: whoever uses the module, and its package's own tests, because others import what it defines
        place = f"{stem}:"
        calling = [test for test, facts in tests.items() if any(call.startswith(place) for call in facts["calls"])]
        calling = list({*calling, *(test for test in tests if test.startswith(f"tests/unit/{unit}/"))})

    def is_far(test: str) -> bool:
        return test != first and not test.startswith((f"tests/unit/{unit}/", f"tests/unit/test_{stem}.py"))

    near, far, spent = [], [], 0.0
    for test in sorted(calling, key=lambda test: (test != first, is_far(test), tests[test]["seconds"], test)):
        spent += tests[test]["seconds"]
        if (near or far) and spent > budget:
            break
        (far if is_far(test) else near).append(test)
    return [group for group in (near, far) if group]


def _pytest(arguments: Iterable[str], source: Path, environment: dict[str, str], seconds: float) -> int:
    """pytest's exit code; negative if it used up its CPU seconds, or ten times as many waiting."""
    process = FORKS.Process(target=_run_pytest, args=(list(arguments), str(source), environment, int(seconds)))
    process.start()
    process.join(10 * seconds)
    if process.exitcode is None and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return int(process.exitcode or 0)


def _run_pytest(arguments: list[str], source: str, environment: dict[str, str], seconds: int) -> None:
    """In a process of its own, forked from one that has loaded everything but the package."""
    os.setsid()
    os.nice(max(0, 10 - os.nice(0)))
    Thread(target=_end_after, args=(seconds,), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.chdir(ROOT)
    os.environ.update(environment)
    sys.dont_write_bytecode = True
    sys.path[:0] = [source, str(ROOT / "scripts")]
    if "MUTATION_RECORD" not in environment:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
    options = ["-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "mutation_plugin"]
    options += [] if "MUTATION_RECORD" in environment else ["-x"]
    code = pytest.main([*options, "-m", "not spark", *arguments])
    sys.stdout.flush()
    os._exit(int(code))  # nothing that a test left behind may hold us up


def _end_after(seconds: int) -> None:
    """End this process when it has used so much CPU time. A limit of the system would make that clock tick coarsely."""
    while time.process_time() < seconds:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


# The mutants


class Results:
    """What happened to each mutant so far: one JSON line each, the last one counts."""

    def __init__(self, fresh: bool) -> None:
        self.file = KEPT / "results.jsonl"
        if fresh:
            self.file.unlink(missing_ok=True)
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.all: dict[str, dict[str, Any]] = {each["id"]: each for each in map(json.loads, lines)}
        self._lock = Lock()

    def add(self, result: dict[str, Any]) -> None:
        with self._lock, self.file.open("a") as out:
            self.all[result["id"]] = result
            out.write(json.dumps(result) + "\n")

    def stands(self, mutant: Mutant, state: str) -> bool:
        """Whether nothing has changed that could change the result."""
        found = self.all.get(mutant.id)
        if found is None:
            return False
        if found["killed"]:
            return found["code"] == mutant.body
        return found["state"] == state


def run(mutant: Mutant, groups: list[list[str]], tests: Tests, folder: Path) -> tuple[bool, str]:
    """Whether the tests notice the mutant, and what did."""
    target = folder / "src" / mutant.file
    target.write_text(mutants.source_of(SOURCE, mutant))
    try:
        for group in groups:
            if by := notices(group, sum(tests[test]["seconds"] for test in group), folder):
                return True, by
    finally:
        shutil.copyfile(SOURCE / mutant.file, target)
    return False, f"{sum(map(len, groups))} tests pass"


def notices(tests: list[str], seconds: float, folder: Path) -> str | None:
    """The first of the tests that fails on a folder's source, or what else went wrong; None if all pass."""
    listed, killer = folder / "tests.json", folder / "killer"
    killer.unlink(missing_ok=True)
    listed.write_text(json.dumps(tests))
    files = sorted({test.split("::")[0] for test in tests})
    environment = {"MUTATION_TESTS": str(listed), "MUTATION_KILLER": str(killer)}
    code = _pytest(files, folder / "src", environment, seconds=30 + 5 * seconds)
    if code in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    return killer.read_text() if killer.exists() else "out of time" if code < 0 else "does not load"


def copy_of_source(folder: Path) -> Path:
    """A folder with a copy of src, compiled so that a mutated file is noticed by its content, not by its time."""
    shutil.copytree(SOURCE, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder / "src", quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return folder


def equivalents() -> dict[str, str]:
    """Mutants that no test can notice, each with the reason."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")) if EQUIVALENT.exists() else {}
    return {entry["id"]: entry["reason"] for entry in listed.get("equivalent", [])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=220, help="mutants drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests per mutant")
    parser.add_argument("--jobs", type=int, default=2, help="runs of pytest at a time")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--only", default="", help="run only mutants whose file or id contains this; no verdict")
    arguments = parser.parse_args()

    KEPT.mkdir(exist_ok=True)
    candidates = mutants.find(SOURCE, MUTATED)
    excused = equivalents()
    drawn = [each for each in mutants.sample(candidates, arguments.count, arguments.seed) if each.id not in excused]
    drawn = [each for each in drawn if arguments.only in each.id or arguments.only in each.file]
    source = _digest(SOURCE.rglob("*.py"))
    tests = baseline(source, arguments.jobs)
    results = Results(arguments.fresh)
    noticing = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "scripts").glob("muta*.py")]
    state = f"{source}-{_digest(noticing)}-{arguments.budget:g}"
    believed = {each["by"] for each in results.all.values() if each["state"] == state}
    believed |= {test for test, facts in tests.items() if facts["source"] == source}
    waiting = [mutant for mutant in drawn if not results.stands(mutant, state)]
    print(
        f"{len(candidates)} mutations, {len(drawn)} drawn with seed {arguments.seed}, {len(waiting)} to run", flush=True
    )

    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(arguments.jobs) as pool:
        folders: SimpleQueue[Path] = SimpleQueue()
        for job in range(arguments.jobs):
            folders.put(copy_of_source(Path(scratch) / str(job)))

        def one(mutant: Mutant) -> None:
            folder = folders.get()
            try:
                last = results.all.get(mutant.id, {}).get("by")
                selected = chosen(mutant, tests, arguments.budget, last)
                killed, by = run(mutant, selected, tests, folder)
                if by in tests and by not in believed:
                    if notices([by], tests[by]["seconds"], folder) is not None:
                        sys.exit(f"mutation: {by} fails without a mutation")
                    believed.add(by)
                results.add({"id": mutant.id, "killed": killed, "by": by, "code": mutant.body, "state": state})
                print(f"{'killed  ' if killed else 'SURVIVED'} {mutant} [{mutant.id}] by {by}", flush=True)
            finally:
                folders.put(folder)

        list(pool.map(one, waiting))
    return verdict(drawn, candidates, results, excused, partial=bool(arguments.only))


def verdict(
    drawn: list[Mutant], candidates: list[Mutant], results: Results, excused: dict[str, str], partial: bool
) -> int:
    """Print the survivors and the rate; the exit code."""
    survivors = [mutant for mutant in drawn if not results.all[mutant.id]["killed"]]
    print(f"\nSurvived ({len(survivors)}):")
    for mutant in sorted(survivors, key=lambda mutant: (mutant.file, mutant.number)):
        print(f"  {mutant} [{mutant.id}]")
    for gone in sorted(set(excused) - {mutant.id for mutant in candidates}):
        print(f"  {EQUIVALENT.relative_to(ROOT)} lists {gone}, which no longer exists: remove it")
    rate = 1 - len(survivors) / max(1, len(drawn))
    print(f"\nKilled {len(drawn) - len(survivors)} of {len(drawn)} mutants: {rate:.1%} (required: {REQUIRED:.0%})")
    return 0 if partial or rate >= REQUIRED else 1


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
