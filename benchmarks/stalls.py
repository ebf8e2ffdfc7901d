"""The paper's arrival patterns through Spark, with and without stalls: how much of the answer is there before the end?

    python benchmarks/stalls.py [--rows 100000] [--patterns harmony-1 reverse-5] [--networks reliable unreliable]
    python benchmarks/stalls.py --sweep 16 64 256 1024      RPJ and HMJ with other budgets of idle work

Patterns (section 6 of the RPJ paper): 20 buckets whose probabilities rise from 1 % to 9 %, for both inputs alike
(harmony) or for the second the other way round (reverse); the first input as fast as the second, or five times as fast.
Reliable: rows come without a pause, so only flushing matters. Unreliable: after every fifth micro-batch both inputs
fall silent for a number of idle micro-batches, the same for every policy. Memory holds a tenth of all rows, pages have
100 rows. Every run's answer is checked against the number of results that the keys' frequencies give.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness as h
import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

import watersmeet as wm
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.spark.progressive import join
from watersmeet.state.buckets import Buckets
from watersmeet.state.directory import StateDir
from watersmeet.state.history import metrics_history, newest_manifests

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BUCKETS, BATCHES, GROUP, IDLE_BATCHES = 20, 50, 5, 2
PATTERNS = ["harmony-1", "harmony-5", "reverse-1", "reverse-5"]
LONG_RUN = "rpj+long-run"  # a policy, and how it flushes
POLICIES = {
    "reliable": ["rpj", LONG_RUN, "xjoin", "hmj"],
    "unreliable": ["rpj", LONG_RUN, "rpj-md", "rpj-dd", "xjoin", "xjoin-fresh", "hmj"],
}
IDLE_AFTER = 1_000_000  # microseconds
IDLE_PAGES = ProgressiveOptions(policy="rpj").idle_pages


def keys_of_buckets(spark: h.SparkSession, per_bucket: int) -> np.ndarray[Any, Any]:
    """For each bucket, keys that Spark's hash puts there."""
    frame = spark.range(per_bucket * BUCKETS * 3).select("id", F.xxhash64("id").alias("hash")).toArrow()
    bucket = Buckets(BUCKETS).of(frame["hash"].to_numpy().view(np.uint64))
    keys = frame["id"].to_numpy()
    return np.stack([keys[bucket == number][:per_bucket] for number in range(BUCKETS)])


def write_rows(folder: Path, pattern: str, keys: np.ndarray[Any, Any], rows: int) -> int:
    """Write both inputs as one file per micro-batch; returns the number of results of the whole join."""
    shape, _, ratio = pattern.partition("-")
    rng = np.random.default_rng(7)
    first = 0.01 + 0.08 / 19 * np.arange(BUCKETS)
    probabilities = (first, first[::-1] if shape == "reverse" else first)
    side = (rng.random(rows) >= int(ratio) / (int(ratio) + 1)).astype(int)
    drawn = [rng.choice(BUCKETS, rows, p=p / p.sum()) for p in probabilities]
    key = keys[np.where(side == 0, *drawn), rng.integers(0, keys.shape[1], rows)]
    frequencies = []
    for number, name in enumerate(("left", "right")):
        (folder / name).mkdir(parents=True)
        for batch, part in enumerate(np.array_split(np.arange(rows), BATCHES)):
            mine = part[side[part] == number]
            table = pa.table({"k": key[mine], "ab"[number]: mine})
            pq.write_table(table, folder / name / f"{batch:03d}.parquet")
        frequencies.append(np.bincount(key[side == number], minlength=int(keys.max()) + 1))
    return int((frequencies[0] * frequencies[1]).sum())


class Progress:
    """What a running join has done, from its state directory."""

    def __init__(self, state: Path) -> None:
        self.directory = StateDir(state)

    def batches(self) -> list[dict[str, Any]]:
        """Time, rows in and rows out of every batch that all partitions have finished."""
        newest = newest_manifests(self.directory)
        histories = [metrics_history(self.directory, manifest) for manifest in newest]
        merged = []
        for entries in zip(*histories, strict=False):
            rows_in = sum(sum(entry["rows_in"].values()) for entry in entries)
            rows_out = sum(entry["rows_out"] for entry in entries)
            merged.append({"time": max(e["time"] for e in entries), "rows_in": rows_in, "rows_out": rows_out})
        return merged

    def wait_for_rows(self, rows: int) -> None:
        """Until so many rows have been taken in."""
        while sum(batch["rows_in"] for batch in self.batches()) < rows:
            time.sleep(0.05)

    def wait_for_idle_batches(self, count: int) -> None:
        """Until so many batches have worked on what is on disk since the last row."""
        while True:
            batches = self.batches()
            last = max(number for number, batch in enumerate(batches) if batch["rows_in"])
            idle = [b for b in batches[last + 1 :] if b["time"] - batches[last]["time"] >= IDLE_AFTER]
            if len(idle) >= count:
                return
            time.sleep(0.05)


def feed(source: Path, inbox: Path, progress: Progress) -> Iterator[None]:
    """Hand over the files, a group at a time; yields when a group has been taken in."""
    sent = 0
    files = sorted(path.name for path in (source / "left").iterdir())
    for start in range(0, len(files), GROUP):
        for file in files[start : start + GROUP]:
            for name in ("left", "right"):
                sent += pq.read_metadata(source / name / file).num_rows
                (inbox / name / file).hardlink_to(source / name / file)
        progress.wait_for_rows(sent)
        yield


def run(
    spark: h.SparkSession, folder: Path, source: Path, policy: str, memory_rows: int, idle_pages: int
) -> list[dict[str, Any]]:
    """One run to the end; returns its batches, the last of which cleans up. Without idle pages there are no stalls."""
    for side in ("left", "right"):
        (folder / side).mkdir(parents=True)
    name, _, flush = policy.partition("+")
    options = ProgressiveOptions(
        policy=name,
        flush=flush or None,
        memory_rows=memory_rows,
        page_rows=100,
        idle_after=IDLE_AFTER,
        idle_pages=idle_pages,
    )
    left, right = (h.stream(spark, folder / name, f"k long, {name[0]} long") for name in ("left", "right"))
    joined = join(left, right, "k", str(folder / "state"), options)
    query = joined.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint")).start()
    progress = Progress(folder / "state")
    for _ in feed(source, folder, progress):
        if idle_pages:
            progress.wait_for_idle_batches(IDLE_BATCHES)
    for name in ("left", "right"):
        wm.end_input(folder / "state", name)
    while not all(manifest.finished for manifest in newest_manifests(progress.directory)):
        if not query.isActive:
            raise SystemExit(f"{policy} failed: {query.exception()}")
        time.sleep(0.1)
    query.stop()
    batches = progress.batches()
    end = max(number for number, batch in enumerate(batches) if batch["rows_out"] or batch["rows_in"])
    return batches[: end + 1]


def plot(arrivals: dict[str, Any], path: Path) -> None:
    """Share of the answer over micro-batches, whose length is the machine's affair, not the policy's."""
    figure, axes = plt.subplots(2, len(PATTERNS), figsize=(4 * len(PATTERNS), 6), squeeze=False, layout="constrained")
    for row, network in enumerate(POLICIES):
        for axis, pattern in zip(axes[row], PATTERNS, strict=True):
            for policy, found in arrivals.get(f"{network} {pattern}", {}).items():
                axis.plot([share for _, share in found["curve"]], label=policy)
            axis.set(title=f"{network} {pattern}", xlabel="micro-batch", ylim=(0, 1))
            axis.legend(fontsize=7)
        axes[row][0].set_ylabel("share of the answer")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> None:
    """Run all combinations, check, print, plot, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--patterns", nargs="*", default=PATTERNS, choices=PATTERNS)
    parser.add_argument("--networks", nargs="*", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--sweep", nargs="*", type=int, help="pages that an idle micro-batch may read and write")
    arguments = parser.parse_args()
    spark = wm.local_session("stalls", cores=2, partitions=2)
    keys = keys_of_buckets(spark, per_bucket=100)
    if arguments.sweep:
        sweep(spark, keys, arguments.rows, arguments.sweep)
        return
    arrivals = earlier(arguments.rows)
    with h.scratch() as folder:
        for pattern in arguments.patterns:
            expected = write_rows(folder / pattern, pattern, keys, arguments.rows)
            for network in arguments.networks:
                title = f"{network} {pattern}"
                arrivals[title] = {}
                for policy in POLICIES[network]:
                    where = folder / f"{title} {policy}".replace(" ", "-")
                    pages = IDLE_PAGES if network == "unreliable" else 0
                    batches = run(spark, where, folder / pattern, policy, arguments.rows // 10, pages)
                    found = [batch["rows_out"] for batch in batches]
                    h.check(h.Run(title, answer={"count": sum(found)}), {"count": expected})
                    times = [round((batch["time"] - batches[0]["time"]) / 1e6, 1) for batch in batches]
                    shares = np.round(np.cumsum(found) / expected, 4).tolist()
                    share = round(sum(found[:-1]) / expected, 3)
                    arrivals[title][policy] = {"share": share, "curve": list(zip(times, shares, strict=True))}
                    h.console.print(f"{title} {policy}: {share:.3f} before the inputs ended")
                h.save("stalls", {"rows": arguments.rows, "arrivals": arrivals})
    every = POLICIES["unreliable"]
    shown = []
    for title, found in arrivals.items():
        share = {policy: one["share"] for policy, one in found.items()}
        best = max(share["xjoin"], share["hmj"])
        shown.append((title, *(share.get(policy, "") for policy in every), share["rpj"] / best))
    header = ["arrivals", *every, "rpj over best baseline"]
    h.table(f"share of the answer before the inputs ended ({arguments.rows:,} rows)", header, shown)
    plot(arrivals, h.RESULTS / "stalls.png")


def sweep(spark: h.SparkSession, keys: np.ndarray[Any, Any], rows: int, budgets: list[int]) -> None:
    """The share before the end for several budgets of idle work, on the unreliable network, harmony, equal rates."""
    shares: dict[str, dict[str, float]] = {}
    with h.scratch() as folder:
        expected = write_rows(folder / "rows", "harmony-1", keys, rows)
        for pages in budgets:
            shares[str(pages)] = {}
            for policy in ("rpj", "hmj"):
                batches = run(spark, folder / f"{policy}-{pages}", folder / "rows", policy, rows // 10, pages)
                found = [batch["rows_out"] for batch in batches]
                h.check(h.Run(policy, answer={"count": sum(found)}), {"count": expected})
                shares[str(pages)][policy] = round(sum(found[:-1]) / expected, 3)
                h.console.print(f"{pages} pages, {policy}: {shares[str(pages)][policy]:.3f} before the inputs ended")
    header = ["pages in an idle micro-batch", "rpj", "hmj"]
    h.table("share of the answer before the inputs ended", header, [(p, *one.values()) for p, one in shares.items()])
    h.save("stalls_idle_pages", {"rows": rows, "shares": shares})


def earlier(rows: int) -> dict[str, Any]:
    """What an earlier run of as many rows has found for other patterns and networks; all take half an hour."""
    path = h.RESULTS / "stalls.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    return dict(known["arrivals"]) if known.get("rows") == rows else {}


if __name__ == "__main__":
    main()
