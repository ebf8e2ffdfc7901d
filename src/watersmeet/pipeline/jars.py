"""Fetches jars by their Maven coordinates with the Ivy that comes with Spark.

`spark.jars.packages` also fetches the dependencies of dependencies, and fails if one of them is missing, whether it is
needed or not. Here a list of jars can be complete in itself. Ivy keeps what it has fetched in its own cache; a list of
the files of each request is kept beside it, so a request that was answered before needs neither Java nor a network.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pyspark

from watersmeet.errors import WatersmeetError
from watersmeet.pipeline.connectors import jars_of, settings
from watersmeet.plan.options import known_names

# How Ivy lists what it has not found (`:: group#name;version: not found`) or not downloaded (`...;version!file`).
_MISSING = re.compile(r":: ([^\s#]+)#([^\s;]+);([^\s:!]+)[:!]")
# What may pass, unlike a repository that does not have a file: `Server access error at url ... (<reason>)`.
_PASSING = re.compile(r"Server access error|SERVER ERROR|FAILED DOWNLOADS|download failed")
_REASON = re.compile(r"Server access error at url \S+ \((.+)\)")
PAUSES = (2.0, 10.0, 30.0)  # seconds before the second attempt, the third, ...


def fetch(coordinates: Iterable[str], *, transitive: bool = False) -> list[Path]:
    """The files of these artifacts, from the cache or downloaded; with `transitive` those of their dependencies too.

    >>> fetch(["org.apache.commons:commons-pool2:2.12.1"])[0].name  # doctest: +SKIP
    'commons-pool2-2.12.1.jar'
    """
    wanted = sorted(set(coordinates))
    if not wanted:
        return []
    request = _request(wanted, transitive)
    answer = _cache() / f"{hashlib.sha256(request.encode()).hexdigest()[:16]}.txt"
    if answer.exists():
        files = _paths(answer)
        if all(file.exists() for file in files):
            return files
    with tempfile.TemporaryDirectory(prefix="watersmeet-jars-") as scratch:
        found = Path(scratch, "files.txt")
        _run_ivy(wanted, request, Path(scratch, "ivy.xml"), found)
        files = _paths(found)
        answer.parent.mkdir(parents=True, exist_ok=True)
        hidden = answer.with_suffix(f".{os.getpid()}")
        hidden.write_bytes(found.read_bytes())
        hidden.rename(answer)
    return files


@known_names
def connector_settings(*names: str, config: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of a session with these connectors (`kafka`, `delta`, `iceberg`, `avro`); their jars are fetched.

    What is given in `config` stays, and wins.

    >>> import watersmeet as wm
    >>> spark = wm.local_session(config=wm.connector_settings("kafka", "delta"))  # doctest: +SKIP
    """
    jars = fetch(jars_of(names, pyspark.__version__))
    merged = settings(names, config or {})
    return listed(merged, "spark.jars", [str(jar) for jar in jars])


def listed(given: dict[str, str], name: str, more: list[str]) -> dict[str, str]:
    """The settings with more entries in one that is a list."""
    before = [given[name]] if given.get(name) else []
    return {**given, name: ",".join([*before, *more])} if more else given


def _run_ivy(wanted: list[str], request: str, module: Path, found: Path) -> None:
    module.write_text(request, encoding="utf-8")
    java = java_program()
    ivy = next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
    command = [str(java), "-jar", str(ivy), "-cache", str(_cache() / "ivy"), "-ivy", str(module)]
    command += ["-cachepath", str(found)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for pause in PAUSES:
            if not _PASSING.search(done.stdout + done.stderr):
                break
            time.sleep(pause)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise WatersmeetError(
            "connectors",
            expected="Java, to fetch jars",
            found=f"no program {java}",
            hint="Install Java 17 or newer, or let JAVA_HOME point at it.",
        ) from None
    if done.returncode or not found.exists():
        output = done.stdout + done.stderr
        missing = [":".join(one) for one in _MISSING.findall(output)]
        reason = _REASON.search(output)
        raise WatersmeetError(
            "connectors",
            expected=f"the jars {', '.join(wanted)}",
            found=f"that {', '.join(dict.fromkeys(missing))} cannot be fetched{f' ({reason[1]})' if reason else ''}"
            if missing
            else output.strip()[-500:],
            hint="Check that the Maven repository can be reached from here, or give the jars with "
            "conf: {spark.jars: ...} in place of packages.",
        )


def java_program() -> Path:
    """The Java that Spark would use: that of JAVA_HOME, of the project's own set-up, or of the PATH."""
    recorded = Path(sys.prefix, "java_home")
    home = os.environ.get("JAVA_HOME") or (recorded.read_text().strip() if recorded.is_file() else "")
    return Path(home, "bin", "java") if home else Path("java")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "watersmeet" / "jars"


def _paths(listing: Path) -> list[Path]:
    return [Path(name) for name in listing.read_text(encoding="utf-8").strip().split(os.pathsep)]


def _request(coordinates: list[str], transitive: bool) -> str:
    """Ivy's description of a module that depends on the artifacts."""
    lines = []
    for one in coordinates:
        group, artifact, version = (quoteattr(part) for part in one.split(":"))
        lines.append(
            f"<dependency org={group} name={artifact} rev={version} conf='*->default' "
            f"transitive='{str(transitive).lower()}'/>"
        )
    return (
        "<ivy-module version='2.0'><info organisation='watersmeet' module='jars'/>"
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )
