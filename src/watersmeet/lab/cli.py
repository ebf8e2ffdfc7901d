"""`watersmeet lab`: list, run and report the papers' experiments."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from watersmeet.errors import OptionError
from watersmeet.lab.campaign import Campaign, due, shown
from watersmeet.lab.parts import kept_in
from watersmeet.lab.registry import EXPERIMENTS, PAPERS, select
from watersmeet.lab.report import build
from watersmeet.lab.store import Result, run, verdicts

app = typer.Typer(help="Reproduce the experiments of the papers behind the joins.", no_args_is_help=True)
COLOURS = {"agrees": "green", "partly": "cyan", "differs": "yellow", "not reproducible here": "red", "outdated": "dim"}


class ScaleName(StrEnum):
    """How large an experiment is run."""

    tiny = "tiny"
    small = "small"
    paper = "paper"


class ClockName(StrEnum):
    """Whether CPU time is measured."""

    virtual = "virtual"
    measured = "measured"


Out = Annotated[Path, typer.Option(help="The folder of data, figures and verdicts.")]
DEFAULT_OUT = Path("docs/lab")


@app.command("list")
def list_command(out: Out = DEFAULT_OUT) -> None:
    """Every experiment: figure or table, the claim, the last verdict."""
    known = verdicts(out)
    table = Table("experiment", "what", "claim", "last verdict", title_justify="left", show_lines=False)
    for group, citation in PAPERS.items():
        table.add_section()
        table.add_row(f"[bold]{group}[/bold]", f"[dim]{citation.split(':')[0]}[/dim]")
        for experiment in EXPERIMENTS.values():
            if experiment.group == group:
                last = known.get(experiment.id)
                shown = f"{last['outcome']} ({last['scale']})" if last else "not run"
                table.add_row(experiment.id, experiment.title, experiment.claim, shown)
    Console().print(table)


@app.command("run")
def run_command(
    names: Annotated[list[str], typer.Argument(help="An experiment (rpj/fig8), a paper (rpj), or all.")],
    scale: Annotated[
        ScaleName,
        typer.Option(
            help="small: about a minute per figure; paper: the paper's sizes where that is affordable, "
            "up to an hour per figure; tiny: for tests."
        ),
    ] = ScaleName.small,
    out: Out = DEFAULT_OUT,
    clock: Annotated[
        ClockName | None,
        typer.Option(
            help="virtual: only experiments that other work on the machine cannot change; measured: only those with "
            "CPU time in them, for which the machine must be idle."
        ),
    ] = None,
    outdated: Annotated[
        bool, typer.Option("--outdated", help="Only what has no valid result at this scale or a larger one.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also what has a valid result at a larger scale, which is else kept.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, even if such a run was interrupted.")] = False,
) -> None:
    """Run experiments; write data, figure and verdict. A run that was interrupted goes on where it was."""
    console = Console()
    try:
        named = select(names)
    except OptionError as error:
        Console(stderr=True).print(str(error), markup=False)
        raise typer.Exit(2) from None
    measured = None if clock is None else clock is ClockName.measured
    chosen = due(named, out, scale.value, measured=measured, outdated=outdated, replace=replace)
    if not chosen:
        console.print("nothing to run: every result is valid, at this scale or a larger one", markup=False)
        return
    if kept := len(due(named, out, scale.value, measured=measured, replace=True)) - len(
        due(named, out, scale.value, measured=measured)
    ):
        console.print(f"{kept} kept that were run at a larger scale (--replace runs them, too)", markup=False)
    campaign = Campaign.of(out, scale.value, chosen, fresh=fresh)
    if campaign.seconds:
        console.print(
            f"{len(campaign.seconds)} of {len(campaign.names)} were done before the interruption", markup=False
        )
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress, kept_in(campaign.folder):
        for experiment in [one for one in chosen if one.id in campaign.left]:
            task = progress.add_task(experiment.id, total=None, left="")
            begun = monotonic()

            def advance(
                done: int, total: int, task: TaskID = task, id_: str = experiment.id, begun: float = begun
            ) -> None:
                left = campaign.seconds_left(id_, done / max(total, 1), monotonic() - begun)
                progress.update(task, completed=done, total=total, left=shown(left))

            advance(0, 1)
            result = run(experiment, scale.value, out, advance)
            seconds = monotonic() - begun
            campaign.done(experiment.id, seconds)
            progress.remove_task(task)
            _say(console, result)
            console.print(f"  {campaign.told(seconds)}", markup=False)


@app.command("report")
def report_command(out: Out = DEFAULT_OUT) -> None:
    """Build the report page from what was run."""
    Console().print(f"report: {build(out)}", markup=False, soft_wrap=True)


def _say(console: Console, result: Result) -> None:
    colour = COLOURS[result.verdict.outcome]
    console.print(f"[bold]{result.experiment.id}[/bold] [{colour}]{result.verdict.outcome}[/{colour}]", soft_wrap=True)
    console.print(f"  {result.verdict.why}", markup=False)
