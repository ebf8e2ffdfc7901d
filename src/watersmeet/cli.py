"""The command `watersmeet`.

Exit codes: 0 done or stopped on request, 1 the join or Spark failed, 2 the pipeline file or the command line is wrong.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from watersmeet.errors import PlanError, WatersmeetError, extra
from watersmeet.release import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.pipeline.config import LoadedPipeline

app = typer.Typer(
    help="Stream joins on Apache Spark: run them, check them, look into them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

PipelineFile = Annotated[Path, typer.Argument(help="The pipeline file.", show_default=False)]
Master = Annotated[str | None, typer.Option(help="The Spark master, in place of the file's; by default local[*].")]
Remote = Annotated[
    str | None, typer.Option(help="A Spark Connect server to run on, sc://host[:port], in place of a master.")
]
Conf = Annotated[list[str] | None, typer.Option("--conf", help="A Spark setting, name=value; may be repeated.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the full trace of a failure, and what Spark prints at its start.")
]
StateArgument = Annotated[
    str, typer.Argument(metavar="DIR", help="A join's state directory, or a pipeline's directory under its work_dir.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines in place of text, for machines.")]
Host = Annotated[
    str, typer.Option(help="The page's address; any but this machine's needs a token, made up if not given.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The page's port; 0 for any free one.")]
Token = Annotated[
    str | None,
    typer.Option(envvar="WATERSMEET_UI_TOKEN", help="What visitors of the page must show.", show_default=False),
]
LOOPBACK = "127.0.0.1"
Plot = Annotated[Path | None, typer.Option(help="Write a picture to this file (.png, .svg or .pdf).")]

SAME_SIGNAL_SECONDS = 0.5


def _version(wanted: bool) -> None:
    if wanted:
        print(f"watersmeet {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Stream joins on Apache Spark: run them, check them, look into them."""


@app.command()
def run(
    pipeline: PipelineFile,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
    plain: Annotated[bool, typer.Option("--plain", help="A line per micro-batch in place of the live view.")] = False,
    ui: Annotated[bool, typer.Option("--ui", help="Show the join in the browser while it runs.")] = False,
    host: Host = LOOPBACK,
    port: Port = 0,
    token: Token = None,
    verbose: Verbose = False,
) -> None:
    """Run a pipeline. Ctrl-C stops it cleanly; starting it again goes on where it stopped."""
    with _exit_codes(verbose) as guard:
        from watersmeet.pipeline.display import make_display
        from watersmeet.pipeline.run import run as run_pipeline

        loaded = guard.load(pipeline, conf)
        if ui:
            _need_ui("watersmeet run --ui")
        with ExitStack() as around:
            session = around.enter_context(_session(loaded, master, remote, conf, verbose))
            stop = _stop_on_signals()
            style = "json" if as_json else "plain" if plain else "auto"
            display = make_display(style, loaded.secrets.redact)
            if ui:
                from watersmeet.view.watching import Watching

                display = watching = Watching(display)
                page = around.enter_context(watching.page(loaded, host=host, port=port, token=token))
                print(f"{loaded.pipeline.name} in the browser: {page.url}", file=sys.stderr, flush=True)
            outcome = run_pipeline(loaded, session, display=display, stop=stop)
        end = "finished" if outcome.finished else "stopped; start it again to go on" if stop.is_set() else "done"
        snapshot = outcome.snapshot
        if ui and not as_json:
            print(f"the page again: watersmeet ui {shlex.quote(loaded.state_dir)}", file=sys.stderr)
        if as_json:
            print(json.dumps({"event": "end", "status": outcome.status, **snapshot.as_dict()}), flush=True)
        else:
            rows = sum(one.rows for one in snapshot.inputs)
            print(f"{loaded.pipeline.name} {end}: {snapshot.results:,} results from {rows:,} rows")


@app.command()
def check(
    pipeline: PipelineFile,
    spark: Annotated[
        bool,
        typer.Option("--spark/--no-spark", help="Also let Spark analyse columns and expressions (takes some seconds)."),
    ] = True,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    verbose: Verbose = False,
) -> None:
    """Validate a pipeline file without running it: keys, types, sizes, options, columns, expressions."""
    with _exit_codes(verbose) as guard:
        from watersmeet.pipeline.places import place_problems
        from watersmeet.pipeline.problems import PipelineError
        from watersmeet.pipeline.remote import packages_note
        from watersmeet.pipeline.session import package_notes, package_problems
        from watersmeet.pipeline.storage import storage_notes

        loaded = guard.load(pipeline, conf, draft=True)
        packages = packages_note(loaded) if remote else package_notes(loaded)
        for line in [*packages, *storage_notes(loaded.state_dir)]:
            print(f"{pipeline}: {line}")
        wrong_packages = [] if remote else package_problems(loaded)
        if spark and not wrong_packages:
            from watersmeet.pipeline.explain import check as check_with_spark

            with ExitStack() as open_session:
                try:
                    session = open_session.enter_context(_session(loaded, master, remote, conf, verbose))
                except WatersmeetError as error:  # a package that cannot be had; the rest can still be reported
                    if remote:
                        raise
                    problem = loaded.problem(str(error), ("packages",))
                    raise PipelineError([*loaded.problems, *place_problems(loaded), problem]) from error
                check_with_spark(loaded, session)
        elif problems := [*loaded.problems, *place_problems(loaded), *wrong_packages]:
            raise PipelineError(problems)
        print(f"{pipeline}: OK")


@app.command()
def init(
    operator: Annotated[
        str, typer.Argument(help="auto, progressive, window, multiway, punctuated or semi-stream.")
    ] = "auto",
    into: Annotated[Path, typer.Option(help="The folder to write to.")] = Path(),
    origin: Annotated[
        str, typer.Option("--from", help="What the sources are: files, kafka, delta, iceberg.")
    ] = "files",
    how: Annotated[str, typer.Option(help="inner, left, right, full, left_semi or left_anti.")] = "inner",
    verbose: Verbose = False,
) -> None:
    """Write a commented pipeline file, with sample data beside it; with files as sources it runs as it is."""
    with _exit_codes(verbose):
        from watersmeet.join.join_type import checked_how
        from watersmeet.pipeline.origins import ORIGINS
        from watersmeet.pipeline.problems import nearest
        from watersmeet.pipeline.starter import STARTERS
        from watersmeet.pipeline.starter import init as write_starter
        from watersmeet.semistream.options import checked_type

        if operator not in STARTERS:
            raise typer.BadParameter(f"unknown operator {operator!r}; {nearest(operator, STARTERS)}")
        if origin not in ORIGINS:
            raise typer.BadParameter(f"unknown origin {origin!r}; {nearest(origin, ORIGINS)}", param_hint="--from")
        if operator == "multiway" and how != "inner":
            raise typer.BadParameter(
                "a multiway join has no other type than inner, but optional inputs: write the file "
                "without --how, and name them there (optional: [buys])",
                param_hint="--how",
            )
        kind = (checked_type if operator == "semi-stream" else checked_how)(f"init {operator}", how)
        file = write_starter(operator, into, origin=origin, how=kind.name)
        load = "" if origin == "files" else f"load the sample into {origin} (docs/connectors.md), then "
        print(f"wrote {file} and {operator}-data beside it; now: {load}watersmeet run {file}")


@app.command()
def connectors(
    names: Annotated[
        list[str] | None, typer.Argument(help="kafka, delta, iceberg, avro: fetch their jars.", show_default=False)
    ] = None,
    verbose: Verbose = False,
) -> None:
    """List the connectors for the running Spark; with names, fetch their jars and print the files, for --jars."""
    with _exit_codes(verbose):
        import pyspark

        from watersmeet.pipeline.connectors import CONNECTORS, coordinates, jars_of, none_for

        if names:
            from watersmeet.pipeline.jars import fetch

            print(",".join(str(file) for file in fetch(jars_of(names, pyspark.__version__))))
            return
        for name in CONNECTORS:
            jars = coordinates(name, pyspark.__version__)
            print(f"{name:8} {' '.join(jars) if jars else none_for(name, pyspark.__version__)}")


@app.command()
def explain(
    pipeline: PipelineFile, master: Master = None, remote: Remote = None, conf: Conf = None, verbose: Verbose = False
) -> None:
    """Print what a pipeline would do: streams, columns, partitions, memory shares, the operator's choices."""
    with _exit_codes(verbose) as guard:
        from watersmeet.pipeline.explain import explain as explain_pipeline

        loaded = guard.load(pipeline, conf)
        with _session(loaded, master, remote, conf, verbose) as session:
            print(explain_pipeline(loaded, session))


@app.command()
def state(directory: StateArgument, as_json: AsJson = False, plot: Plot = None, verbose: Verbose = False) -> None:
    """Show what a join holds: rows and bytes per partition, input and tier."""
    with _exit_codes(verbose):
        from watersmeet.pipeline import report

        if plot is not None:
            with extra("plots", "watersmeet state --plot"):
                from watersmeet.pipeline import plots

        found = report.find_state(directory)
        if as_json:
            _print_lines(report.state_rows(found))
        else:
            _console().print(report.state_table(found))
        if plot is not None:
            _saved(plots.save(plots.plot_state(found), plot))


@app.command()
def why(
    directory: StateArgument,
    key: Annotated[
        list[str],
        typer.Option(
            "--key", help="The key; repeated for a composite one. \\N is a null where nulls match.", show_default=False
        ),
    ],
    of: Annotated[str | None, typer.Option("--input", help="Only the rows of this input.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows.")] = 1000,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say for each row of a key that a join holds when it came and what it waits for."""
    with _exit_codes(verbose):
        from watersmeet.pipeline import report

        reasons = report.why(report.find_state(directory), key, of, limit)
        if as_json:
            _print_lines([reason.as_dict() for reason in reasons])
            return
        for reason in reasons:
            print(reason.sentence)
        if not reasons:
            print(f"no row with the key {', '.join(key)} is held: none has come, or all have left")
        elif len(reasons) == limit:
            print(f"these are the first {limit} rows; --limit shows more")


@app.command()
def rescale(
    directory: StateArgument,
    partitions: Annotated[int, typer.Option(min=1, help="The new number of partitions.", show_default=False)],
    verbose: Verbose = False,
) -> None:
    """Divide the state of a stopped join into another number of partitions."""
    with _exit_codes(verbose):
        from watersmeet.pipeline import report

        done = report.rescale(report.find_state(directory), partitions)
        if done.before == done.partitions:
            print(f"the state has {done.partitions} partitions already")
        elif done.version is None:
            print(f"{done.before} partitions become {done.partitions}; no batch has run yet")
        else:
            after = f"{done.rows:,} rows after batch {done.version}"
            print(f"{done.before} partitions have become {done.partitions}: {after}")


@app.command()
def metrics(
    directory: StateArgument,
    as_json: AsJson = False,
    plot: Plot = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest batches.")] = None,
    verbose: Verbose = False,
) -> None:
    """Show what a join did, batch by batch: rows, results, state, time and decisions."""
    with _exit_codes(verbose):
        from watersmeet.pipeline import report

        if plot is not None:
            with extra("plots", "watersmeet metrics --plot"):
                from watersmeet.pipeline import plots

        found = report.find_state(directory)
        if as_json:
            rows = report.metrics_rows(found)
            _print_lines(rows[-last:] if last else rows)
        else:
            _console().print(report.metrics_table(found, last))
        if plot is not None:
            _saved(plots.save(plots.plot_metrics(report.history_of(found), directory), plot))


@app.command("ui")
def show(
    directories: Annotated[
        list[str], typer.Argument(metavar="DIR...", help="State directories of joins, running or finished.")
    ],
    host: Host = LOOPBACK,
    port: Port = 0,
    token: Token = None,
    verbose: Verbose = False,
) -> None:
    """Show joins in the browser: what flows, what is held, what was decided and what is wrong. Ctrl-C ends it."""
    with _exit_codes(verbose):
        _need_ui("watersmeet ui")
        from watersmeet.view.board import Board
        from watersmeet.view.server import PageServer

        with PageServer(Board.of(directories), host=host, port=port, token=token) as page:
            print(page.url, flush=True)
            with suppress(KeyboardInterrupt):
                page.wait()


@app.command("report")
def save_report(
    directories: Annotated[list[str], typer.Argument(metavar="DIR...", help="State directories of joins.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("report.html"),
    verbose: Verbose = False,
) -> None:
    """Save what `watersmeet ui` shows as one HTML file that needs no network."""
    with _exit_codes(verbose):
        from watersmeet.view.board import Board
        from watersmeet.view.report import write_report

        print(f"report in {write_report(Board.of(directories), output)}")


def _need_ui(who: str) -> None:
    with extra("ui", who):
        import watersmeet.view.server  # noqa: F401


@app.command()
def calibrate(
    path: Annotated[
        Path | None, typer.Option(help="Where to keep the costs; by default in the user's cache directory.")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Measure what the window join's kernels cost on this machine, and keep it: `algorithm="auto"` decides by it."""
    with _exit_codes(verbose):
        from watersmeet.calibration.kept_costs import calibrate as measure_costs
        from watersmeet.calibration.kept_costs import default_path
        from watersmeet.calibration.window import FAMILY, measure

        costs = measure_costs({FAMILY: measure}, path)[FAMILY]
        if as_json:
            print(json.dumps(costs))
            return
        for name, cost in costs.items():
            print(f"{name:10} {cost:12,.1f} ns per {'call' if name.endswith('call') else 'row'}")
        print(f"kept in {path or default_path()}")


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(context: typer.Context) -> None:
    """Reproduce the experiments of the papers behind the joins."""
    with _exit_codes(verbose=False), extra("lab", "watersmeet lab"):
        from watersmeet.lab.cli import app as lab_app

    lab_app(args=context.args, prog_name="watersmeet lab")


class _Guard:
    """Knows the secrets of the pipeline once it is loaded, for whatever must be printed."""

    def __init__(self) -> None:
        from watersmeet.pipeline.secrets import Secrets

        self.secrets = Secrets()

    def load(self, file: Path, conf: list[str] | None, *, draft: bool = False) -> LoadedPipeline:
        from watersmeet.pipeline import config

        loaded = config.draft(file) if draft else config.load(file)
        for name, value in _settings(conf).items():
            loaded.secrets.note(name, value)
        self.secrets = loaded.secrets
        return loaded


@contextmanager
def _exit_codes(verbose: bool) -> Iterator[_Guard]:
    """Every failure as a short message without secrets, and the exit code that belongs to it."""
    guard = _Guard()
    try:
        yield guard
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if verbose:
            detail = getattr(error, "detail", "")
            print(guard.secrets.redact(f"{traceback.format_exc()}{detail}"), file=sys.stderr)
        elif isinstance(error, WatersmeetError):
            print(guard.secrets.redact(str(error)), file=sys.stderr)
        else:
            from watersmeet.pipeline.build import first_lines

            print(guard.secrets.redact(f"{type(error).__name__}: {first_lines(error)}"), file=sys.stderr)
            print("--verbose shows the full trace.", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, PlanError) else 1) from None


@contextmanager
def _session(
    loaded: LoadedPipeline, master: str | None, remote: str | None, conf: list[str] | None, verbose: bool
) -> Iterator[SparkSession]:
    """The session of a command. One of Spark Connect is closed at the end: the server outlives this process."""
    from watersmeet.pipeline.session import start_session

    if master and remote:
        raise typer.BadParameter("give --master or --remote, not both", param_hint="--remote")
    session = start_session(loaded, master=master, remote=remote, conf=_settings(conf), verbose=verbose)
    try:
        yield session
    finally:
        if remote:
            session.stop()


def _settings(conf: list[str] | None) -> dict[str, str]:
    settings = {}
    for item in conf or []:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--conf needs name=value, found {name!r} without a value")
        settings[name.strip()] = value.strip()
    return settings


def _stop_on_signals() -> threading.Event:
    """Ctrl-C and a polite kill ask the run to stop; a second Ctrl-C ends it at once.

    A terminal or `timeout` may send one and the same signal to the process and to its group: what follows at once is
    not a second one.
    """
    stop = threading.Event()
    first = 0.0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if not stop.is_set():
            first = now
            print("stopping after the micro-batch under way ...", file=sys.stderr, flush=True)
            stop.set()
        elif now - first > SAME_SIGNAL_SECONDS:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return stop


def _console() -> Console:
    """The terminal as wide as it is; elsewhere wide enough that no table is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


def _print_lines(rows: list[dict[str, object]]) -> None:
    for row in rows:
        print(json.dumps(row, default=str))


def _saved(path: Path) -> None:
    print(f"picture in {path}")
