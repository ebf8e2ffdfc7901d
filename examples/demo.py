"""A tour of the five joins, about two minutes on an idle machine: `make demo`.

For every operator a pipeline is written with sample data beside it (as `watersmeet init` does), run with the live view,
and compared with Spark's own batch join over the same files. For the progressive join the sources are played: files
appear while the query runs, both sources stall, and the join goes on with what it has on disk. At the end there is a
summary, and the page of `watersmeet ui` with all five joins, saved as a file.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from watersmeet.pipeline.config import LoadedPipeline, load
from watersmeet.pipeline.display import make_display
from watersmeet.pipeline.run import Outcome, run
from watersmeet.pipeline.session import start_session
from watersmeet.pipeline.starter import STARTERS, init, write_part
from watersmeet.view.board import Board, ShownJoin
from watersmeet.view.report import write_report

PARTS, ROWS = 4, 10_000
# Seconds before each file of a played source: both are silent in the middle.
PAUSES = {"orders": (0, 1, 6, 1), "payments": (0, 2, 5, 1)}


@dataclass(frozen=True)
class Stop:
    """One stop of the tour, for the summary."""

    operator: str
    rows: int
    results: int
    seconds: float
    right: bool
    state_dir: str


def main() -> int:
    """Run the tour; 0 if every answer was right."""
    home = Path(tempfile.mkdtemp(prefix="watersmeet-demo-"))
    print("Starting Spark ...", flush=True)
    wanted = sys.argv[1:] or list(STARTERS)
    stops = []
    session: SparkSession | None = None
    for operator in wanted:
        file = init(operator, home, parts=PARTS, rows=ROWS)
        if operator == "progressive":
            _as_played(file)
        loaded = load(file)
        session = session or start_session(loaded)
        print(f"\n== {operator}: {loaded.pipeline.join.wiring.SUMMARY}", flush=True)
        before = _played(home) if operator == "progressive" else None
        stops.append(_visit(operator, loaded, session, home, before))
    _summary(stops)
    page = write_report(Board([ShownJoin(stop.state_dir, stop.operator) for stop in stops]), home / "tour.html")
    print(f"\nWhat the joins did, to open in a browser: {page}\nEverything the tour wrote is in {home}")
    if session is not None:
        session.stop()
    return 0 if all(stop.right and stop.results for stop in stops) else 1


def _visit(
    operator: str, loaded: LoadedPipeline, session: SparkSession, home: Path, play: Callable[[], None] | None
) -> Stop:
    started = time.monotonic()
    if play is not None:
        threading.Thread(target=play, daemon=True).start()
    outcome: Outcome = run(loaded, session, display=make_display("auto", loaded.secrets.redact))
    seconds = time.monotonic() - started
    right = _is_right(operator, session, home)
    rows = sum(one.rows for one in outcome.snapshot.inputs)
    print(f"{outcome.snapshot.results:,} results: {'as' if right else 'NOT as'} Spark's batch join", flush=True)
    return Stop(operator, rows, outcome.snapshot.results, seconds, right, loaded.state_dir)


def _as_played(file: Path) -> None:
    """Let the pipeline run on while its sources stall, with a budget small enough that rows go to disk."""
    text = file.read_text()
    text = text.replace("available_now: true ", "processing_time: 500 ms ").replace("memory: 64 MB", "memory: 1 MB")
    file.write_text(text.replace("policy: rpj", "page_rows: 512\n  policy: rpj") + "drained_after: 8 s\n")


def _played(home: Path) -> Callable[[], None]:
    """Take the sample files away, and give back what brings them one by one."""
    tables = STARTERS["progressive"].tables(PARTS, ROWS)
    for source in tables:
        for path in (home / "progressive-data" / source).iterdir():
            path.unlink()

    def bring(source: str) -> None:
        for number, (pause, table) in enumerate(zip(PAUSES[source], tables[source], strict=True)):
            time.sleep(pause)
            write_part(table, home / "progressive-data" / source, number)

    def play() -> None:
        sources = [threading.Thread(target=bring, args=(source,), daemon=True) for source in tables]
        for source in sources:
            source.start()

    return play


def _is_right(operator: str, session: SparkSession, home: Path) -> bool:
    for source in (home / f"{operator}-data").iterdir():
        session.read.parquet(str(source)).createOrReplaceTempView(source.name)
    got = session.read.parquet(str(home / f"{operator}-out"))
    expected = session.sql(STARTERS[operator].answer)
    return got.exceptAll(expected).isEmpty() and expected.exceptAll(got).isEmpty()


def _summary(stops: list[Stop]) -> None:
    print(f"\n{'operator':<14}{'rows':>10}{'results':>12}{'seconds':>10}  answer")
    for stop in stops:
        answer = "right" if stop.right else "WRONG"
        print(f"{stop.operator:<14}{stop.rows:>10,}{stop.results:>12,}{stop.seconds:>10.1f}  {answer}")


if __name__ == "__main__":
    raise SystemExit(main())
