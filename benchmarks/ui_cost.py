"""What a page that is open costs the join it shows: `stream_stream.py`'s join, in turns with and without a page.

    python benchmarks/ui_cost.py [--rows 2000000] [--turns 15] [--batches 40]

With: a process of its own serves the page (`watersmeet ui`) and a client does what a browser does, that is, listens to
the events and asks for what is new after each. Both run on the cores of the join, as they do on a laptop. The ratio is
the median of pairs of steady rows per second, with over without, one after the other, in both orders by turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path

import harness as h
import psutil
import stream_stream

import watersmeet as wm

WARM_UP = 4  # runs until the JVM has compiled what a run uses


class Visitor(threading.Thread):
    """Does what the page's script does, without drawing."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.asked, self.batches, self.share = url, 0, 0, 0.0
        self.over = threading.Event()

    def run(self) -> None:
        """Listen and ask, until it is over."""
        after = -1
        # The server ends when the join has; whoever listens then hears the line break.
        with suppress(OSError, HTTPException), urllib.request.urlopen(f"{self.url}api/events") as events:
            for line in events:
                if self.over.is_set():
                    return
                if line.startswith(b"data:"):
                    with urllib.request.urlopen(f"{self.url}api/joins/{self.name_of_join}?after={after}") as answer:
                        found = json.load(answer)
                    self.asked += 1
                    after = max([after, *found.get("series", {}).get("batch", [])])
                    self.batches = after + 1

    name_of_join = "state"


@contextmanager
def shown(state: Path) -> Iterator[Visitor]:
    """A page about a state directory, with somebody who looks at it."""
    command = [sys.executable, "-c", SERVER, str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        visitor = Visitor(server.stdout.readline().strip())
        process, began = psutil.Process(server.pid), time.monotonic()
        before = sum(process.cpu_times()[:2])
        visitor.start()
        try:
            yield visitor
            visitor.share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
        finally:
            visitor.over.set()
            server.terminate()


# The join has not begun when its page is opened.
SERVER = """
import sys
from watersmeet.view.board import Board, ShownJoin
from watersmeet.view.server import PageServer
with PageServer(Board([ShownJoin(sys.argv[1], "state", waits=True)])) as page:
    print(page.url, flush=True)
    page.wait()
"""


def main() -> None:
    """Run in turns, check, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows per input")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--batches", type=int, default=40)
    arguments = parser.parse_args()
    stream_stream.BATCHES = arguments.batches
    spark = wm.local_session("ui_cost", cores=2, partitions=2, config={"spark.driver.memory": "6g"})
    speeds: dict[str, list[float]] = {"without": [], "with": []}
    asked, shares = 0, list[float]()
    with h.scratch() as folder:
        stream_stream.write_inputs(spark, folder, arguments.rows)
        batch = [spark.read.parquet(str(folder / name)) for name in ("left", "right")]
        expected = h.batch_answer(batch[0].join(batch[1], "k"), ["k", "a", "b"])
        left, right = stream_stream.streams(spark, folder)

        def measure(name: str, turn: int) -> float:
            state = folder / f"{name}-{turn}" / "state"
            joined = wm.progressive_join(left, right, on="k", state_dir=state)
            run = h.run_to_end(f"{name}-{turn}", joined, folder, ["k", "a", "b"])
            h.check(run, expected)
            return run.steady()

        for turn in range(WARM_UP):
            measure("warm", turn)
        for turn in range(arguments.turns):
            order = ["without", "with"] if turn % 2 == 0 else ["with", "without"]
            for name in order:
                if name == "without":
                    speeds[name].append(measure(name, turn))
                    continue
                with shown(folder / f"{name}-{turn}" / "state") as visitor:
                    speeds[name].append(measure(name, turn))
                asked += visitor.asked
                shares.append(visitor.share)
            h.console.print({name: round(values[-1]) for name, values in speeds.items()})
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    pairs = [a / b for a, b in zip(speeds["with"], speeds["without"], strict=True)]
    ratio = statistics.median(pairs)
    h.console.print(
        f"with a page {medians['with']:,.0f} rows/s, without {medians['without']:,.0f}: "
        f"ratio {ratio:.3f} (pairs {min(pairs):.3f} to {max(pairs):.3f}); the page asked {asked} times and took "
        f"{100 * statistics.median(shares):.1f} % of a core"
    )
    assert asked, "nobody looked"
    h.save(
        "ui_cost",
        {
            "rows": arguments.rows,
            "batches": arguments.batches,
            "ratio": ratio,
            "speeds": speeds,
            "asked": asked,
            "share_of_a_core": round(statistics.median(shares), 3),
        },
    )


if __name__ == "__main__":
    main()
