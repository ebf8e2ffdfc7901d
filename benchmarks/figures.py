"""The measured figures of README and docs, written from the result files.

    python benchmarks/figures.py [--check]

A page has a block for each set of figures, between `<!-- figures: NAME -->` and `<!-- end -->`. Every block is a
function here, of the files in `results/`. `make figures` writes them all; a test compares them.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from watersmeet.chooser.scaling import USUAL_REQUEST, BatchCosts

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n\n)(.*?)(<!-- end -->)", re.DOTALL)
BLOCKS: dict[str, Callable[[], str]] = {}
SYSTEMS = {
    "watersmeet": "Watersmeet",
    "spark_default": "Spark, default store",
    "spark_rocksdb": "Spark, RocksDB with changelog",
    "spark_rocksdb_tuned": "Spark, RocksDB, newest state format, tuned",
    "flink_heap": "Flink, state on the heap",
    "flink_rocksdb": "Flink, RocksDB",
    "pathway": "Pathway, nothing kept on disk",
    "pathway_persistent": "Pathway, with persistence",
    "echo": "an echo: the same shuffle and transfer to stock Python workers, no join",
    "echo_spared": "an echo in Watersmeet's own workers",
}

SEMI_STREAM = {
    "ours": "`wm.join`",
    "semi-stream": "`semi_stream_join`",
    "spark": "Spark's stream-static join",
    "spark cached": "with the table cached",
    "spark broadcast": "cached and broadcast",
    "floor": "floor",
}
EXECUTOR_CORES = 4  # in the computed part of docs/scaling.md
# Where the state is, and how the keys are, there
SETTINGS: dict[str, dict[str, float]] = {
    "": {},
    "state in an object store": {"request": USUAL_REQUEST},
    "a key with 10 % of the rows": {"hottest": 0.1},
}


def block(function: Callable[[], str]) -> Callable[[], str]:
    """Register a block by the name of its function."""
    BLOCKS[function.__name__.replace("_", "-")] = function
    return function


def result(name: str) -> Any:
    """A result file."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown, without columns that are empty in every row."""
    lines = [list(map(str, line)) for line in rows]
    kept = [place for place in range(len(header)) if any(line[place] for line in lines)]
    shown = [[f" {line[place]} " if line[place] else " " for place in kept] for line in [list(header), *lines]]
    shown.insert(1, ["---"] * len(kept))
    return "\n".join(f"|{'|'.join(line)}|" for line in shown)


def prose(text: str) -> str:
    """Text in lines as long as those of the pages."""
    return textwrap.fill(" ".join(text.split()), 130, break_long_words=False, break_on_hyphens=False)


def times(ratio: float) -> str:
    """A ratio with two digits that count.

    >>> times(0.8234), times(5.86), times(21.95), times(131.2)
    ('0.82x', '5.9x', '22x', '131x')
    """
    return f"{ratio:.2f}x" if ratio < 1 else f"{ratio:.1f}x" if ratio < 10 else f"{ratio:.0f}x"


def _engines(runs: dict[str, Any], speed: str, names: dict[str, str] | None = None) -> str:
    """A table of engines: rows per second, and how many times as fast ours, the first, is."""
    ours = next(iter(runs.values()))[speed]
    rows = [
        (
            (names or SYSTEMS).get(name, SYSTEMS.get(name, name)),
            f"{run[speed]:,}",
            times(ours / run[speed]) if place else "",
        )
        for place, (name, run) in enumerate(runs.items())
    ]
    return table(["engine", "steady rows/s" if "steady" in speed else "rows/s", "Watersmeet over it"], rows)


@block
def ui_cost() -> str:
    """What an open page costs the join that it shows."""
    found = result("ui_cost")
    pairs = [a / b for a, b in zip(found["speeds"]["with"], found["speeds"]["without"], strict=True)]
    return prose(
        f"In {len(pairs)} turns of each the process that serves the page took {100 * found['share_of_a_core']:.1f} % "
        f"of a core, and the join had {found['ratio']:.2f} of the speed that it has without a page (medians; single "
        f"pairs {min(pairs):.2f} to {max(pairs):.2f}: they differ by more than the page costs)."
    )


@block
def rescale() -> str:
    """Seconds of a change of partitions, and what the next batches cost."""
    rows = [
        (
            f"{one['rows']:,}",
            {"unlimited": "none", "budget": "a quarter of the rows in memory"}[one["join"]],
            f"{one['from']} to {one['to']}",
            f"{one['seconds']:.2f}",
            f"{one['bytes_written'] / one['bytes_of_state']:.1%}".replace("%", " %"),
            f"{one['first_batch']:.2f}, {one['next_batch']:.2f}",
        )
        for one in result("rescale")["changes"]
    ]
    header = ["rows held", "budget", "partitions", "seconds", "written, of the state", "next two batches, seconds"]
    return table(header, rows)


@block
def chooser() -> str:
    """How the choices compare with the best fixed ones."""
    found = result("chooser")
    groups: dict[str, list[float]] = {}
    for one in found["settings"]:
        groups.setdefault(one["group"], []).append(one["ratio"])
    what = {
        "windows": "hash or nested loops for each window",
        "budgets": "which rows leave memory",
        "tables": "how a table is read, and how long rows may wait",
        "drivers": "which input drives",
    }
    rows = [
        (what[group], len(ratios), sum(ratio <= 1.1 for ratio in ratios), f"{max(ratios):.2f}")
        for group, ratios in groups.items()
    ]
    shown = table(["choice", "settings", "within 10 % of the best fixed one", "at worst, times the best"], rows)
    summary = prose(
        f"In all {len(found['settings'])} settings: within 10 % of the best fixed choice in {found['close']:.0%}, at "
        f"worst {found['worst']:.2f} times it.".replace("%,", " %,")
    )
    if found.get("door"):
        costs = found["door"]
        summary += "\n\n" + prose(
            f"On Spark, {costs['rows']:,} rows, {costs['turns']} pairs of turns: `wm.join` takes {costs['ratio']:.2f} "
            f"times as long as `wm.progressive_join`, which it chooses (from {costs['ratios'][0]:.2f} to "
            f"{costs['ratios'][-1]:.2f})."
        )
    picture = "![The chosen one over the best fixed one, by setting](../benchmarks/results/chooser.png)"
    return f"{shown}\n\n{summary}\n\n{picture}"


@block
def object_store() -> str:
    """Requests, bytes and time of a join with its state in an object store, by executors."""
    found = [result(name) for name in ("object_store", "object_store_4") if (RESULTS / f"{name}.json").exists()]

    def thirds(one: dict[str, Any]) -> str:
        fetched, size = one["bytes_fetched"], len(one["bytes_fetched"]) // 3
        parts = fetched[1 : size + 1], fetched[-size:]
        return ", ".join(f"{sum(part) / size / one['executors'] / 1e6:.1f}" for part in parts)

    measures: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        (
            "requests per partition and batch, last 30 batches",
            lambda one: f"{sum(one['requests_per_partition_and_batch'].values()):.1f}",
        ),
        ("files found in the caches", lambda one: f"{100 * one['hit_share']:.0f} %"),
        ("MB fetched per host and batch, first and last third", thirds),
        ("seconds of a batch above those on a local disk, median", lambda one: f"{one['seconds_above_local']:.2f}"),
        (
            "cold restart: MB fetched, seconds until the first batch is done",
            lambda one: f"{one['cold_restart']['bytes'] / 1e6:.0f}, {one['cold_restart']['seconds']:.1f}",
        ),
        ("dollars per day for 8 partitions and batches of a second", lambda one: f"{one['dollars_per_day']:.1f}"),
    ]
    if all("megabytes_per_second" in one["cold_restart"] for one in found):
        rate = "cold restart: MB per second while loading"
        measures.insert(-1, (rate, lambda one: f"{one['cold_restart']['megabytes_per_second']:.0f}"))
    header = ["measure", *(f"{one['executors']} executors" for one in found)]
    return table(header, [(name, *(shown(one) for one in found)) for name, shown in measures])


@block
def object_store_phases() -> str:
    """How long a batch takes to join and to send, and how much of the sending could be hidden."""
    found = result("object_store_phases")["phases"]
    names = {"symmetric": "none", "rpj": "40 % of the rows"}
    header = ["budget", "rows per input", "MB sent", "load", "join", "store", "send", "hidden at most"]
    rows = [
        (
            names[one["operator"]],
            f"{one['rows']:,}",
            f"{one['megabytes']:.1f}",
            *(f"{one[phase]:.3f}" for phase in header[3:]),
        )
        for one in found
    ]
    return table(header, rows)


@block
def skew() -> str:
    """How evenly a join with hot keys works, and how fast it is beside others. Parts that were not measured are left
    out."""
    found = result("skew")
    engines = {"hot": '`hot_keys="auto"`', "off": '`"off"`', "spark": "Spark", "salted": "Spark, 8 salts"}
    places = {"local": "2 cores", "cluster": "4 executors of a core"}

    def shown(run: dict[str, Any], key: str, form: str) -> str:
        return f"{run[key]:{form}}".replace("%", " %") if run.get(key) is not None else ""

    parts = []
    for place, text in places.items():
        even = []
        for name, runs in found.get(place, {}).items():
            hot, off = (runs.get(kind, {}) for kind in ("hot", "off"))
            pairs = [(one, key) for key in ("busiest_over_mean_work", "fullest_over_mean_state") for one in (off, hot)]
            even.append((name, *(shown(one, key, ".2f") for one, key in pairs), shown(hot, "copied_share", ".1%")))
        header = ["busiest over mean work, off", "auto", "fullest over mean state, off", "auto", "rows copied"]
        if even:
            parts.append(table([f"hot key, {text}", *header], even))
    speed = "steady_rows_per_second"
    for place, text in places.items():
        runs = {name: one for name, one in found.get(place, {}).items() if one.get("hot", {}).get(speed)}
        if runs:
            rows = [(name, *(shown(one.get(kind, {}), speed, ",") for kind in engines)) for name, one in runs.items()]
            parts.append(table([f"rows/s, {text}", *engines.values()], rows))
        costs = [
            (one["hot"]["cost"], statistics.median(one["off"]["batch_seconds"]))
            for one in runs.values()
            if one["hot"].get("cost") is not None
        ]
        if costs:
            said = " and ".join(f"{max(cost, 0):.1%} of micro-batches of {seconds:.2g} s" for cost, seconds in costs)
            parts.append(prose(f"Where keys are uniform, `hot_keys` costs {said} ({text}).".replace("%", " %")))
    return "\n\n".join(parts)


@block
def grid() -> str:
    """One input copied, and the grid."""
    header = [
        "Zipf",
        "partitions",
        "divided",
        "busiest over mean work, 4th batch on",
        "last batch",
        "fullest over mean state",
        "copies over work",
        "rows held over rows",
    ]
    even = ("busiest_over_mean_work", "busiest_in_the_last_batch", "fullest_over_mean_state")
    rows = [
        (
            one["exponent"],
            one["partitions"],
            said,
            *(f"{one[way][key]:.2f}" for key in even),
            f"{one[way]['copies_of_work']:.2%}".replace("%", " %"),
            f"{one[way]['state_over_rows']:.1f}",
        )
        for one in result("grid")["settings"]
        for way, said in (("copied", "one input"), ("grid", "both"))
    ]
    return table(header, rows)


@block
def stream_stream() -> str:
    runs = result("stream_stream")["runs"]
    echoes = [name for name in runs if name.startswith("echo")]
    order = [*(name for name in runs if name not in echoes), *echoes]
    names = {"watersmeet": "Watersmeet `progressive_join`"}
    join = "Spark's stream-stream join"
    names |= {name: SYSTEMS[name].replace("Spark", join, 1) for name in order if name.startswith("spark")}
    return _engines({name: runs[name] for name in order}, "steady_rows_per_second", names)


@block
def outer_sentence() -> str:
    window, delay = result("outer")["window"], result("outer")["delay"]
    silent = delay["silent-spark"]
    return prose(
        f"""A left outer window join of the same size is {window["ratio_vs_default"]:.1f} times as fast as Spark's with
        the default store and {window["ratio_vs_rocksdb"]:.0f} times as with RocksDB, at
        {window["left_speed_of_inner"]:.2f} of the speed of our inner join; half of the unmatched rows appear
        {_batches(delay["steady-watersmeet"]["p50_batches"])} they become certain, with Spark's
        {_batches(delay["steady-spark"]["p50_batches"])}, and while an input is silent {silent["p50_batches"]} to
        {silent["p99_batches"]} batches after (`python benchmarks/outer.py`, [join types](docs/join-types.md#cost))."""
    )


def _batches(count: int) -> str:
    return {0: "in the micro-batch in which", 1: "one batch after"}.get(count, f"{count} batches after")


@block
def outer_cost() -> str:
    found = result("outer")
    rows = []
    for family in ("progressive", "window"):
        one = found[family]
        for how in ("left", "full", "left_semi"):
            if f"{how}_speed_of_inner" in one:
                rivals = [
                    one.get(f"ratio_vs_{store}") if how == "left" else None
                    for store in ("default", "rocksdb", "rocksdb_tuned")
                ]
                cells = [times(rival).removesuffix("x") if rival else "" for rival in rivals]
                speed, held = one[f"{how}_speed_of_inner"], one[f"{how}_bytes_of_inner"]
                rows.append((f"{family}, `{how}`", f"{speed:.2f}", f"{held:.2f}", *cells))
    header = [
        "join",
        "of our inner join's rows/s",
        "of its state",
        "over Spark, default store",
        "RocksDB",
        "RocksDB, tuned",
    ]
    return table(header, rows)


@block
def outer_delay() -> str:
    found = result("outer")["delay"]
    names = {
        "steady-watersmeet": "Watersmeet",
        "steady-spark": "Spark",
        "silent-watersmeet": "Watersmeet, one input silent, `idle_timeout` of two intervals",
        "silent-spark": "Spark, one input silent",
    }
    return table(
        ["", "p50, p99 in batches", "p50, p99 in seconds"],
        [
            (name, f"{d['p50_batches']}, {d['p99_batches']}", f"{d['p50_seconds']:.1f}, {d['p99_seconds']:.1f}")
            for name, d in ((name, found[key]) for key, name in names.items())
        ],
    )


@block
def window_join() -> str:
    return _engines(result("window_join")["runs"], "steady_rows_per_second", {"watersmeet": "`window_join`"})


@block
def multiway() -> str:
    rows = []
    for name, case in result("multiway").items():
        if name == "machine":
            continue
        ours = case["runs"]["watersmeet"]
        ways, _, keys = name.partition(" ")
        ratios = [case.get(f"ratio_vs_{store}") for store in ("default", "rocksdb", "rocksdb_tuned")]
        rows.append(
            (
                f"{ways}, {'one row' if keys == 'low' else 'three rows'} per key",
                f"{ours['steady_rows_per_second']:,}",
                *(f"{ratio:.1f}" if ratio else "" for ratio in ratios),
                f"{ours['state']['bytes']:,}",
                f"{case['state_share_of_default']:.1%}".replace("%", " %"),
            )
        )
    over = ["over Spark's cascade", "over it with RocksDB", "with RocksDB, tuned"]
    return table(["join", "`multiway_join` rows/s", *over, "state bytes", "of Spark's"], rows)


@block
def semi_stream() -> str:
    rows = []
    for one in result("semi_stream")["results"]:
        seconds, chosen = one["seconds_per_batch"], one.get("chosen", "")
        ours = {"ours": f"{seconds['ours']:.2f} ({chosen})"} if chosen else {"semi-stream": f"{seconds['ours']:.2f}"}
        shown = {name: f"{value:.2f}" for name, value in seconds.items()} | ours
        best = min(value for name, value in seconds.items() if name.startswith("spark"))
        delays = " / ".join(f"{one[f'delay_p{q}']:.1f}" for q in (50, 95, 99))
        cells = [shown.get(name, "") if chosen or name != "ours" else "" for name in SEMI_STREAM]
        rows.append((f"{one['master_rows']:,}", *cells, times(best / seconds["ours"]), delays))
    header = ["master rows", *SEMI_STREAM.values(), "best of Spark over ours", "delay p50 / p95 / p99"]
    return table(header, rows)


@block
def semi_stream_model() -> str:
    found = result("ssbj_vs_mesh")
    rows = []
    for skew in sorted({one[0] for one in found["table"]}):
        lines = [one for one in found["table"] if one[0] == skew]
        ranges = [_span([line[place] for line in lines]) for place in (3, 4, 5, 6)]
        rows.append((f"{skew:g}", *ranges))
    names = ("`ssbj`: memory saved", "`ssbj`: rate gained", "`aligned`: memory saved", "`aligned`: rate gained")
    off = {
        policy: [
            run["policies"][policy]["predicted_rows_per_second"] / run["policies"][policy]["cpu_rows_per_second"]
            for run in found["runs"]
        ]
        for policy in found["runs"][0]["policies"]
    }
    said = ", ".join(f"`{policy}` {min(some):.2f} to {max(some):.2f}" for policy, some in off.items())
    points = sum(map(len, off.values()))
    model = (
        f"The cost model, with costs timed in the same run, over the rate measured at these {points} points: {said}."
    )
    return f"{table(['skew', *names], rows)}\n\n{prose(model)}"


def _span(ratios: list[float]) -> str:
    known = [one for one in ratios if one == one]
    return f"{times(min(known))} to {times(max(known))}"


@block
def window_crossover() -> str:
    header = [
        "rows a batch that probe", "window in batches", "decided cells", "won by hash", "prediction right",
        "Eq. 8 right", "predicted over measured: hash", "nested loops",
    ]  # fmt: skip
    rows = []
    for one in result("window_crossover")["settings"]:
        off = [one[f"predicted_over_measured_{name}"] for name in ("hash", "loop")]
        rows.append(
            (
                one["rate"],
                one["span"],
                f"{one['decided_cells']} of {len(one['cells'])}",
                one["won_by"]["hash"],
                f"{100 * one['agreement']:.0f} %",
                f"{100 * one['eq_8_agreement']:.0f} %",
                *(f"{low:.2f} to {high:.2f}" for low, _, high in off),
            )
        )
    return table(header, rows)


@block
def punctuations() -> str:
    names = {
        "punctuated": "`punctuated_join`",
        "progressive": "`progressive_join`, keeps everything",
        "xjoin": "XJoin, 64 MB",
        "spark": "Spark's own join, no watermark",
    }
    rows = []
    for arrival, found in result("punctuations")["spark"].items():
        for engine, name in names.items():
            run = found["engines"][engine]
            most = max(run["state_rows"])
            held = f"**{most:,}**" if most < 100 else f"{most:,}"
            rows.append((arrival if engine == "punctuated" else "", name, f"{run['rows_per_second']:,}", held))
    return table(["arrival of the news", "", "rows/s", "most rows held"], rows)


@block
def bounded_memory() -> str:
    found = result("bounded_memory")
    whole = 2 * found["rows_per_input"] * 24
    megabytes = {name: round(found[f"peak_{name}_bytes"] / 1e6) for name in ("resident", "spilled", "worker_pss")}
    early = round(100 * found["share_of_results_before_clean_up"])
    return prose(
        f"""The whole state would be {whole / 1e6:.0f} MB; at most {megabytes["resident"]} MB of it were in memory and
        {megabytes["spilled"]} MB on disk, and the Python workers with their daemon took at most
        {megabytes["worker_pss"]} MB (proportional set size, sampled twice a second).
        {found["arrival_rows_per_second"]:,} rows/s while the rows came, {found["clean_up_seconds"]} s for the clean-up,
        {early} % of the results before it; the answer is that of Spark's batch join."""
    )


@block
def stalls() -> str:
    """The policies that were measured, in the order of the paper's comparison."""
    arrivals = result("stalls")["arrivals"]
    order = ("rpj", "rpj+long-run", "rpj-md", "rpj-dd", "xjoin", "xjoin-fresh", "hmj")
    names = [name for name in order if any(name in found for found in arrivals.values())]
    rows = []
    for arrival, found in arrivals.items():
        network, _, pattern = arrival.partition(" ")
        shares = {name: one["share"] for name, one in found.items()}
        kind, _, rate = pattern.partition("-")
        over = shares["rpj"] / max(shares[name] for name in ("xjoin", "xjoin-fresh", "hmj") if name in shares)
        cells = [f"{shares[name]:.2f}" if name in shares else "" for name in names]
        rows.append((f"{network}, {kind} {rate}:1", *cells, f"{over:.2f}"))
    rows.sort(key=lambda row: row[0])
    return table(["arrivals", *(f"`{name}`" for name in names), "`rpj` over the best of XJoin and HMJ"], rows)


@block
def idle_pages() -> str:
    shares = result("stalls_idle_pages")["shares"]
    rows = [(f"`{name}`", *(f"{found[name]:.2f}" for found in shares.values())) for name in ("rpj", "hmj")]
    return table(["`idle_pages`", *shares], rows)


@block
def rivals() -> str:
    found = result("rivals")
    return f"{_engines(found['runs'], 'rows_per_second')}\n\n{_measured_on(found)}"


def _measured_on(found: dict[str, Any]) -> str:
    """The machine and the versions of a result."""
    machine, settings = found["machine"], found["settings"]
    others = {"Flink": "flink", "Pathway": "pathway", "DuckDB": "duckdb"}
    versions = [f"Spark {machine['pyspark']}"]
    versions += [f"{name} {settings[key]}" for name, key in others.items() if settings.get(key)]
    return prose(
        f"""{machine["processor"]}, {settings["cores"]} of {machine["cores"]} cores, {machine["memory_gib"]} GiB; Java
        {machine["java"]}, Python {machine["python"]}, {", ".join(versions)}."""
    )


@block
def nexmark() -> str:
    queries = result("nexmark")["queries"]
    engines = [name for name in SYSTEMS if any(name in runs for runs in queries.values())]
    rows = []
    for query, runs in queries.items():
        ours = runs["watersmeet"]["rows_per_second"]
        cells = [_beside(ours, runs.get(name)) if name != "watersmeet" else f"{ours:,}" for name in engines]
        rows.append((query, *cells))
    shown = table(["query", *(SYSTEMS[name] for name in engines)], rows)
    picture = "![Input rows per second of every system, by query](../benchmarks/results/nexmark.png)"
    return f"{shown}\n\n{picture}\n\n{_measured_on(result('nexmark'))}"


def _beside(ours: int, run: dict[str, Any] | None) -> str:
    """A rival's rows per second, and how many times as fast ours is."""
    if run is None:
        return "-"
    speed = run["rows_per_second"]
    return f"{speed:,} ({times(ours / speed)})" if speed else "no batch done in time"


@block
def wide_rows() -> str:
    names = {
        "wide": "20 columns, 500 bytes a row",
        "text keys": "keys of 36 characters",
        "nested": "struct, array and map",
    }
    found = result("wide_rows")
    rows = [
        (
            text,
            f"{found[name]['runs']['watersmeet']['steady_rows_per_second']:,}",
            times(found[name]["ratio_vs_default"]),
            times(found[name]["ratio_vs_echo"]),
            *(_times_of_spark(found[name]["runs"], engine) for engine in ("echo_spared", "shuffle")),
        )
        for name, text in names.items()
    ]
    heads = ["rows", "Watersmeet rows/s", "over Spark, default store", "over the echo"]
    return table([*heads, "echo in our workers over Spark", "shuffle alone over Spark"], rows)


def _times_of_spark(runs: dict[str, Any], engine: str) -> str:
    """How many times as fast as Spark's join an engine is that joins nothing."""
    if engine not in runs:
        return "-"
    return times(runs[engine]["steady_rows_per_second"] / runs["spark_default"]["steady_rows_per_second"])


@block
def hundred_million() -> str:
    """The same rows with keys of which there are more and more, and with a fixed number of them."""
    found, fixed = result("state_growth_100m_growing"), result("state_growth_100m")
    ours, spark = (fixed["runs"][name] for name in ("watersmeet", "spark_default"))
    seconds, reached = ours["batch_seconds"], len(spark["batch_seconds"])
    rival = f"Spark's own join reached micro-batch {reached} in the time it was given"
    if reached:
        last = spark["batch_seconds"][-1]
        rival += f", which took it {last:.1f} s, {times(last / seconds[reached - 1])} as long as ours"
    return prose(
        f"""{sum(ours["batch_rows"]):,} rows in {len(seconds)} micro-batches. As many keys as rows have come, so that a
        row finds one stored row on average: {_pace(found)} A fixed number of keys, so that each row finds more and more
        stored ones: {_pace(fixed)} Per row that comes or leaves it took {fixed["growth_per_row"]:.2f} times as long.
        {rival}."""
    )


def _pace(found: Any) -> str:
    ours = found["runs"]["watersmeet"]
    early, late = (statistics.median(some) for some in (ours["batch_seconds"][4:15], ours["batch_seconds"][-10:]))
    return (
        f"{ours['rows_per_second']:,} rows/s; a micro-batch took {early:.2f} s (median of the 5th to 15th) and "
        f"{late:.2f} s at the end (of the last ten), {found['growth']:.2f} times as long, the slowest of all "
        f"{found['worst_over_median']:.2f} times the median."
    )


@block
def row_cost() -> str:
    found = result("row_cost")
    rows = [
        (step, f"{ns:,}", f"{ns / found['sum_ns']:.0%}".replace("%", " %")) for step, ns in found["steps_ns"].items()
    ]
    rows += [("sum", f"{found['sum_ns']:,}", ""), ("the whole join on Spark", f"{found['join_ns']:,}", "")]
    return table(["step", "core ns per row", "share"], rows)


@block
def small_batches() -> str:
    found = result("small_batches")
    whole = {name: phases["triggerExecution"] for name, phases in found["median_ms"].items()}
    first = table(["query", "median ms"], [(name, f"{ms:.0f}") for name, ms in whole.items()])
    second = table(["part", "ms"], [(name, f"{ms:.0f}") for name, ms in found["shares_ms"].items()])
    return f"{first}\n\n{second}"


@block
def scaling_model() -> str:
    found = result("scaling")["settings"]
    rows = [
        (
            f"`{one['master']}`",
            one["partitions"],
            f"{one['rows']:,}",
            f"{one['seconds']:.2f}",
            f"{one['model']:.2f}",
            "" if one["fitted"] else f"{one['model_over_measured']:.2f}",
        )
        for one in found
    ]
    return table(["master", "partitions", "rows a batch", "measured s", "model s", "model over measured"], rows)


@block
def scaling_limits() -> str:
    costs = BatchCosts(**result("scaling")["costs"])
    rows = []
    for cores in (10, 100, 1000):
        for size in (100_000, 1_000_000, 10_000_000):
            for place, more in SETTINGS.items():
                cluster: dict[str, Any] = {"executors": cores // EXECUTOR_CORES, **more}
                best = costs.best(size, cores, **cluster)
                parts = costs.parts(size, best, cores, **cluster)
                seconds = sum(parts.values())
                limit = max(parts, key=lambda name: parts[name])
                share = f"{limit} ({100 * parts[limit] / seconds:.0f} %)"
                rows.append(
                    (f"{cores:,}", f"{size:,}", place, best, f"{seconds:.2f}", f"{size / seconds:,.0f}", share)
                )  # fmt: skip
    header = ["cores", "rows a batch", "", "best partitions", "seconds a batch", "rows/s", "largest cost"]
    return table(header, rows)


def rewritten(page: str) -> str:
    """A page with all its blocks written anew."""

    def replaced(match: re.Match[str]) -> str:
        head, name, _, tail = match.groups()
        try:
            return f"{head}{BLOCKS[name]()}\n\n{tail}"
        except FileNotFoundError as missing:
            return f"{head}Not measured yet: there is no `benchmarks/results/{Path(missing.filename).name}`.\n\n{tail}"

    return BLOCK.sub(replaced, page)


def main() -> None:
    """Write or compare all pages."""
    stale = [path for path in PAGES if rewritten(path.read_text()) != path.read_text()]
    for path in stale:
        print(f"{'differs' if '--check' in sys.argv else 'written'}: {path.relative_to(ROOT)}")
        if "--check" not in sys.argv:
            path.write_text(rewritten(path.read_text()))
    if stale and "--check" in sys.argv:
        sys.exit("Run `make figures`.")


if __name__ == "__main__":
    main()
