"""Does `wm.join` choose well? What it chooses beside every fixed choice, over a grid of settings.

    python benchmarks/chooser.py [--repeats 5] [--only windows budgets tables drivers door] [--scale 1.0]

In process, one partition, processor time. A setting is a workload; its choices are those that give the same rows:

windows   hash or nested loops for each side; `algorithm="auto"` decides after every batch
budgets   which rows leave memory: policy and flush; counted to the end, when everything owed has been emitted
tables    how a master table is read: policy and `max_delay`, beside fixed ones that let rows wait no longer
drivers   which of three inputs goes first

The choices of a setting run in turns, in one order and then in the other, until each has run `--repeats` times and for
LEAST_SECONDS, and the best turn of each counts: two runs of one choice differ by a tenth and more. All of them must
give the same number of rows. The verdict: within 10 % of the best fixed choice in at least 90 % of the settings, and
never worse than 1.5 times.

door      on Spark, wall clock: `wm.join` in turns with the function that it chooses, on the same files

A piece that is not in `--only` stays as it was measured before, so that a machine need not be quiet for all of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import harness as h
import matplotlib as mpl
import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

import watersmeet as wm
from watersmeet.calibration.window import window_costs
from watersmeet.chooser.tuning import as_options, choices
from watersmeet.columns.arrow import hash_keys, sort_by_hash
from watersmeet.engine.registry import build
from watersmeet.join.operator import Batch, advance
from watersmeet.multiway.options import MultiwayOptions
from watersmeet.plan import InputSpec, JoinPlan
from watersmeet.plan.options import Options
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.semistream.master_table import Description, Layout, encode_schema
from watersmeet.semistream.master_writer import write_version
from watersmeet.state.space import MemorySpace
from watersmeet.testing.arrivals import make_plan
from watersmeet.testing.masters import semi_stream_plan
from watersmeet.window.options import WindowOptions

mpl.use("Agg")
import matplotlib.pyplot as plt

KEYS, PAYLOAD = (pa.int64(),), (pa.int64(), pa.int64())
TICK = 1_000_000
ROW_BYTES = 36  # hash, key, payload, and the batch in which it came
CLOSE, NEVER = 1.10, 1.50
LEAST_SECONDS = 1.0  # of processor time, of each choice in each setting
PIECES = ("windows", "budgets", "tables", "drivers", "door")
DRIVERS = ("output_size", "timestamp", "round_robin", "consumption_rate", "output_rate")


@dataclass(frozen=True)
class Setting:
    """A workload, the plans of all its choices, and which of them `wm.join` takes."""

    group: str
    name: str
    plans: Mapping[str, JoinPlan]
    chosen: str
    batches: list[Batch]
    warm_up: int  # batches that are not counted


def rows(rng: np.random.Generator, count: int, keys: int, skew: float, batch: int, spec: InputSpec) -> pa.Table:
    """A batch of one input: a key, a time, a number. With skew, ranks follow Zipf's law and keys are scattered."""
    ranks = rng.integers(0, keys, count) if not skew else np.minimum((keys + 1) ** rng.random(count) - 1, keys - 1)
    key = pa.array((ranks.astype(np.int64) * 2_654_435_761) % keys)
    times = pa.array(np.sort(rng.integers(batch * TICK, (batch + 1) * TICK, count)))
    columns = [pa.array(hash_keys([key])), key, times, pa.array(np.arange(count))]
    return sort_by_hash(pa.Table.from_arrays(columns, schema=spec.schema))


def stream(plan: JoinPlan, rates: Mapping[str, int], keys: int, skew: float, batches: int, *, end: bool) -> list[Batch]:
    """All batches of a workload; with `end` the last one ends the inputs."""
    rng = np.random.default_rng(keys + sum(rates.values()))
    made = []
    for number in range(batches):
        tables = {name: rows(rng, rate, keys, skew, number, plan.input(name)) for name, rate in rates.items()}
        made.append(Batch(number, (number + 1) * TICK, tables))
    if end:
        made.append(Batch(batches, (batches + 1) * TICK, ended=frozenset(rates)))
    return made


def planned(operator: str, options: Options, inputs: tuple[str, ...] = ("left", "right")) -> JoinPlan:
    plan = make_plan(operator, inputs, keys=KEYS, payload=PAYLOAD)
    return replace(plan, options=options.identity(), tuning=options.tuning())


def windows(scale: float) -> Iterator[Setting]:
    costs = window_costs().for_sorted_arrivals()
    rates = ((100, 10_000), (10_000, 100), (3_000, 3_000))
    for (left, right), span, keys in product(rates, (4, 20), (1_000, 10_000, 100_000)):
        usual = {
            "window": (span * TICK, span * TICK),
            "time": ("t", "t"),
            "time_columns": ("_p0", "_p0"),
            "lateness": 0,
        }
        plans = {
            name: planned("window", WindowOptions(**usual, algorithm=name, costs=costs if name == "auto" else None))
            for name in ("auto", "HH", "HN", "NH", "NN")
        }
        both = {"left": int(left * scale), "right": int(right * scale)}
        made = stream(plans["auto"], both, keys, 0.0, 3 * span + 6, end=False)
        yield Setting("windows", f"{left}:{right} rows, {span} batches, {keys:,} keys", plans, "auto", made, span + 4)


def budgets(scale: float) -> Iterator[Setting]:
    for (left, right), share, skew in product(((4_000, 4_000), (800, 8_000)), (0.2, 0.6), (0.0, 1.0)):
        batches, both = 20, {"left": int(left * scale), "right": int(right * scale)}
        memory = int(share * sum(both.values()) * batches * ROW_BYTES)
        usual = {"memory": memory, "page_rows": 256}
        fixed: dict[str, dict[str, Any]] = {name: {"policy": name} for name in ("rpj", "xjoin", "hmj")}
        made = as_options(choices("progressive", {"memory": memory}), {})
        chosen = "/".join(made.values())
        fixed[chosen] = made
        plans = {
            name: planned(options["policy"], ProgressiveOptions(**usual, **options)) for name, options in fixed.items()
        }
        work = stream(plans[chosen], both, 200_000, skew, batches, end=True)
        yield Setting("budgets", f"{left}:{right} rows, {share:.0%} in memory, skew {skew}", plans, chosen, work, 0)


def tables(scale: float, folder: Path) -> Iterator[Setting]:
    layouts: tuple[Layout, ...] = ("hash", "arrival")
    for size, layout, skew in product((100_000, 1_000_000, 3_000_000), layouts, (0.0, 1.0)):
        size = int(size * scale)
        path = folder / f"{size}-{layout}"
        about = {"rows": size, "chunk_rows": 100_000, "partitions": 1, "layout": layout}
        if not path.exists():
            _write_table(path, size, layout)
        made = as_options(choices("semi-stream", {}, table=about), {})
        policies = ("aligned", "ssbj", "mesh") if layout == "hash" else ("ssbj", "mesh")
        plans = {
            f"{policy}/{delay}": semi_stream_plan(
                str(path),
                {"policy": policy},
                {"memory": 64_000_000, "max_delay": delay},
                keys=KEYS,
                payload=PAYLOAD,
            )
            for policy, delay in product(policies, sorted({1, made["max_delay"]}))
        }
        chosen = f"{made['policy']}/{made['max_delay']}"
        work = stream(plans[chosen], {"stream": int(10_000 * scale)}, size, skew, 12, end=True)
        yield Setting("tables", f"{size:,} rows by {layout}, skew {skew}", plans, chosen, work, 3)


def _write_table(path: Path, size: int, layout: Layout) -> None:
    spec = InputSpec("master", KEYS, PAYLOAD)
    keys = pa.array(np.arange(size))
    table = pa.Table.from_arrays([pa.array(hash_keys([keys])), keys, keys, keys], schema=spec.schema)
    about = Description("in-process", ["k"], ["a", "b"], encode_schema(spec.schema), 1, "in-process")
    write_version(str(path), about, [table], chunk_rows=100_000, layout=layout)


def drivers(scale: float) -> Iterator[Setting]:
    names = ("a", "b", "c")
    for rates, keys in product(((2_000, 2_000, 2_000), (200, 2_000, 8_000)), (10_000, 100_000)):
        plans = {name: planned("mjoin", MultiwayOptions(driver=name), names) for name in DRIVERS}
        both = {name: int(rate * scale) for name, rate in zip(names, rates, strict=True)}
        made = stream(plans["output_size"], both, keys, 0.0, 12, end=False)
        text = ":".join(map(str, rates))
        yield Setting("drivers", f"{text} rows, {keys:,} keys", plans, "output_size", made, 2)


def measured(setting: Setting, plan: JoinPlan) -> tuple[float, int]:
    """Processor seconds of the batches that count, and all rows emitted."""
    operator = build(plan, MemorySpace())
    spent, results = 0.0, 0
    for batch in setting.batches:
        started = process_time()
        results += sum(table.num_rows for table in advance(operator, batch))
        if batch.number >= setting.warm_up:
            spent += process_time() - started
    return spent, results


def compared(setting: Setting, repeats: int) -> dict[str, Any]:
    turns: dict[str, list[float]] = {name: [] for name in setting.plans}
    counts: dict[str, int] = {}
    while any(len(spent) < repeats or sum(spent) < LEAST_SECONDS for spent in turns.values()):
        forth = list(setting.plans.items())
        for name, plan in forth if len(turns[setting.chosen]) % 2 else reversed(forth):
            spent, counts[name] = measured(setting, plan)
            turns[name].append(spent)
            gc.collect()
    best = {name: min(spent) for name, spent in turns.items()}
    if len(set(counts.values())) != 1:
        raise SystemExit(f"{setting.group}, {setting.name}: the choices disagree: {counts}")
    fixed = {name: spent for name, spent in best.items() if name != "auto"}
    winner = min(fixed, key=fixed.__getitem__)
    return {
        "group": setting.group,
        "setting": setting.name,
        "results": counts[setting.chosen],
        "chosen": setting.chosen,
        "best": winner,
        "ratio": round(best[setting.chosen] / fixed[winner], 3),
        "ms": {name: round(1e3 * spent, 1) for name, spent in best.items()},
        "median_ms": {name: round(1e3 * statistics.median(spent), 1) for name, spent in turns.items()},
        "turns": len(turns[setting.chosen]),
    }


def door(folder: Path, repeats: int, scale: float) -> dict[str, Any]:
    """Seconds to build and to run `wm.join`, and the function that it chooses, in turns; the first does not count."""
    session = wm.local_session(cores=2, partitions=2)
    count = int(1_000_000 * scale)
    for side in ("left", "right"):
        made = session.range(count).select(
            F.col("id").alias("seq"), (F.col("id") % (count // 2)).alias("k"), F.col("id").alias(side)
        )
        h.write_input(made, folder / side, 4)
    inputs = [h.stream(session, folder / side, f"k long, {side} long") for side in ("left", "right")]
    functions = {"wm.join": wm.join, "wm.progressive_join": wm.progressive_join}
    build: dict[str, list[float]] = {name: [] for name in functions}
    run: dict[str, list[float]] = {name: [] for name in functions}
    answers: list[dict[str, int]] = []
    for turn in range(2 * repeats + 1):
        pair = list(functions.items())
        for name, function in pair if turn % 2 else reversed(pair):
            started = perf_counter()
            joined = function(*inputs, "k", state_dir=folder / f"state-{turn}-{name}")
            built = perf_counter() - started
            found = h.run_to_end(f"{turn}-{name}", joined, folder, ["k", "left", "right"])
            answers.append(found.answer)
            if turn:
                build[name].append(built)
                run[name].append(sum(found.seconds))
    session.stop()
    if any(answer != answers[0] for answer in answers):
        raise SystemExit(f"door: the answers differ: {answers}")
    pairs = [chosen / called for chosen, called in zip(*run.values(), strict=True)]
    return {
        "rows": 2 * count,
        "turns": len(pairs),
        "build_ms": {name: round(1e3 * statistics.median(seconds), 1) for name, seconds in build.items()},
        "run_seconds": {name: round(statistics.median(seconds), 3) for name, seconds in run.items()},
        "ratio": round(statistics.median(pairs), 3),
        "ratios": [round(one, 3) for one in sorted(pairs)],
    }


def plot(found: list[dict[str, Any]]) -> None:
    """The chosen one over the best fixed one, all settings in order."""
    figure, axes = plt.subplots(figsize=(9, 3.5), layout="constrained")
    for group in dict.fromkeys(one["group"] for one in found):
        places = [(place, one["ratio"]) for place, one in enumerate(found) if one["group"] == group]
        axes.bar(*zip(*places, strict=True), label=group)
    for line in (1.0, CLOSE, NEVER):
        axes.axhline(line, color="black", linewidth=0.6, linestyle="-" if line == 1.0 else "--")
    axes.set(ylabel="chosen / best fixed", xlabel="setting", ylim=(0, 2))
    axes.legend()
    h.RESULTS.mkdir(exist_ok=True)
    figure.savefig(h.RESULTS / "chooser.png", dpi=120)


def kept(only: list[str]) -> dict[str, Any]:
    """What was measured before of the other pieces."""
    path = h.RESULTS / "chooser.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    settings = [one for one in before.get("settings", []) if one["group"] not in only]
    return {"settings": settings, "door": before.get("door") if "door" not in only else None}


def main() -> None:
    """Measure what was asked for, print the table and the verdict of all there is, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", choices=PIECES, default=list(PIECES))
    args = parser.parse_args()
    there = kept(args.only)
    found, costs = there["settings"], there["door"]
    with h.scratch() as folder:
        if "door" in args.only:
            costs = door(folder, args.repeats, args.scale)
        gc.disable()
        groups = {
            "windows": lambda: windows(args.scale),
            "budgets": lambda: budgets(args.scale),
            "tables": lambda: tables(args.scale, folder),
            "drivers": lambda: drivers(args.scale),
        }
        for name, settings in groups.items():
            for setting in settings() if name in args.only else ():
                found.append(compared(setting, args.repeats))
                gc.collect()
    found.sort(key=lambda one: PIECES.index(one["group"]))
    h.table(
        "What is chosen beside the best fixed choice, CPU",
        ["setting", "chosen", "best fixed", "ratio"],
        [(f"{one['group']}: {one['setting']}", one["chosen"], one["best"], one["ratio"]) for one in found],
    )
    close = sum(one["ratio"] <= CLOSE for one in found) / max(len(found), 1)
    worst = max((one["ratio"] for one in found), default=0.0)
    good = close >= 0.9 and worst <= NEVER
    h.console.print(
        f"{len(found)} settings: within {CLOSE - 1:.0%} of the best fixed choice in {close:.0%}, at worst {worst:.2f} "
        f"times ({'as' if good else 'NOT as'} promised)"
    )
    if costs is not None:
        h.console.print(f"wm.join over the function that it chooses: {costs['ratio']} (pairs {costs['ratios']})")
    plot(found)
    arguments = {"repeats": args.repeats, "scale": args.scale}
    result = {"arguments": arguments, "close": round(close, 3), "worst": worst, "settings": found, "door": costs}
    h.save("chooser", result)


if __name__ == "__main__":
    main()
