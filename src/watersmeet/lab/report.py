"""The report: one HTML page with everything in it, and a summary in Markdown for those who browse the repository."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

from watersmeet.lab.experiment import CLOCKS, GRADES, Experiment, Verdict
from watersmeet.lab.registry import EXPERIMENTS, PAPERS
from watersmeet.lab.store import Result, load, note
from watersmeet.lab.summary import introduction

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h2 { margin-top: 3rem; border-bottom: 2px solid #ddd } h3 { margin: 2.2rem 0 .4rem }
table { border-collapse: collapse; margin: .6rem 0; font-size: 13px }
td, th { border: 1px solid #ddd; padding: .2rem .6rem }
td { text-align: right } td:first-child, td:nth-child(2), th { text-align: left }
img { max-width: 100%; margin: .5rem 0 }
.verdict { padding: .4rem .8rem; border-left: 5px solid #999; background: #f6f6f6 }
.agrees { border-color: #2a7d2a } .partly { border-color: #b8a800 } .differs { border-color: #c77700 }
.small { color: #666; font-size: 13px }
nav td { text-align: left }
"""


def build(folder: Path) -> Path:
    """Write `index.html` and `README.md` from what is in the folder."""
    results = {id_: load(experiment, folder) for id_, experiment in EXPERIMENTS.items()}
    done = {id_: result for id_, result in results.items() if result is not None}
    folder.mkdir(parents=True, exist_ok=True)
    for result in done.values():
        note(result, folder)
    page = folder / "index.html"
    page.write_text(_page(done, folder))
    (folder / "README.md").write_text(_markdown(done, folder))
    return page


def numbers_table(result: Result) -> list[tuple[str, str, str, str]]:
    """(setting, series, the paper's number, ours) for all that either has."""
    if result.findings is None:
        return []
    paper, ours = result.experiment.paper, result.findings.numbers
    rows = []
    for setting, values in ours.items():
        for series, value in values.items():
            rows.append((setting, series, _shown(paper.get(setting, {}).get(series)), _shown(value)))
    return rows


def _shown(value: float | str | None) -> str:
    if value is None:
        return "no figure"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _page(done: dict[str, Result], folder: Path) -> str:
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>",
        f"<title>Watersmeet lab</title><style>{STYLE}</style><h1>Watersmeet lab</h1>",
        "<p>Every experiment of five papers, run on the operators that Spark runs. Each verdict is computed from "
        "the data by the rule shown with it.</p>",
        f"<ul>{''.join(f'<li><b>{grade}</b>: {text}</li>' for grade, text in GRADES.items())}</ul>",
        _overview(done),
    ]
    for group, citation in PAPERS.items():
        mine = [result for result in done.values() if result.experiment.group == group]
        if mine:
            parts.append(f"<h2 id='{group}'>{escape(citation)}</h2>")
            parts += [_section(result, folder) for result in mine]
    return "\n".join(parts) + "\n</html>\n"


def _overview(done: dict[str, Result]) -> str:
    rows = "".join(
        f"<tr><td><a href='#{id_}'>{id_}</a></td><td>{escape(result.experiment.title)}</td>"
        f"<td>{result.verdict.outcome}</td><td>{escape(result.verdict.figure)}</td><td>{result.scale}</td></tr>"
        for id_, result in done.items()
    )
    head = "".join(f"<th>{name}</th>" for name in ("experiment", "what", "verdict", "figure", "scale"))
    return f"<nav><table><tr>{head}</tr>{rows}</table></nav>"


def _section(result: Result, folder: Path) -> str:
    experiment, verdict = result.experiment, result.verdict
    image = folder / f"{experiment.id}.png"
    figure = ""
    if result.findings is not None and image.exists():
        encoded = base64.b64encode(image.read_bytes()).decode()
        figure = f"<img alt='{escape(experiment.title)}' src='data:image/png;base64,{encoded}'>"
    notes = "".join(f"<li>{escape(note)}</li>" for note in (result.findings.notes if result.findings else []))
    table = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in numbers_table(result)
    )
    head = "<tr><th>setting</th><th>series</th><th>paper</th><th>ours</th></tr>"
    return (
        f"<section><h3 id='{experiment.id}'>{experiment.id}: {escape(experiment.title)}</h3>"
        f"<p><b>Claim.</b> {escape(experiment.claim)}</p>{figure}"
        f"<p class='verdict {verdict.outcome.split()[0]}'><b>{verdict.outcome}</b>{escape(_decided(verdict))}.<br>"
        f"{escape(verdict.why)}<br>"
        f"<span class='small'>Rule: {escape(experiment.rule)}</span></p>"
        f"<p><b>What to take from it.</b> {escape(_lesson(result))}</p>"
        + (f"<details><summary>numbers</summary><table>{head}{table}</table></details>" if table else "")
        + f"<p class='small'>Scale {result.scale}; {escape(CLOCKS[experiment.clock])}.</p>"
        + (f"<ul class='small'>{notes}</ul>" if notes else "")
        + "</section>"
    )


def _decided(verdict: Verdict) -> str:
    """The figure that decides, if it is known."""
    return f": {verdict.figure}" if verdict.figure else ""


def _lesson(result: Result) -> str:
    return result.experiment.lesson(result.findings.numbers) if result.findings else ""


def _markdown(done: dict[str, Result], folder: Path) -> str:
    lines = [
        *introduction(list(done.values())),
        "",
        "## Every experiment",
        "",
        *(f"- **{grade}**: {text}" for grade, text in GRADES.items()),
        "",
        "The figure is the number that decides, with what the paper prints for it.",
        "",
        "| experiment | what | verdict | figure | scale |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| [{id_}](#{_anchor(result.experiment)}) | {result.experiment.title} | {result.verdict.outcome} | "
        f"{_cell(result.verdict.figure)} | {result.scale} |"
        for id_, result in done.items()
    ]
    for group, citation in PAPERS.items():
        mine = [result for result in done.values() if result.experiment.group == group]
        if mine:
            lines += ["", f"## {citation}"]
        for result in mine:
            lines += ["", *_markdown_section(result, folder)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text within a table of Markdown."""
    return text.replace("|", "\\|")


def _anchor(experiment: Experiment) -> str:
    """What GitHub makes of the heading."""
    return "".join(c for c in experiment.id.lower() if c.isalnum() or c in "-_")


def _markdown_section(result: Result, folder: Path) -> list[str]:
    experiment, verdict = result.experiment, result.verdict
    lines = [
        f"### {experiment.id}",
        "",
        f"{experiment.title}. {experiment.claim}",
        "",
        f"**{verdict.outcome}**{_decided(verdict)}.",
        "",
        verdict.why,
        "",
        f"Rule: {experiment.rule}",
        "",
    ]
    if result.findings is not None:
        lines += [
            f"What to take from it: {_lesson(result)}",
            "",
            f"Scale {result.scale}; {CLOCKS[experiment.clock]}.",
        ]
    notes = result.findings.notes if result.findings else []
    lines += ["", *(f"- {note}" for note in notes)] if notes else []
    if result.findings is not None and (folder / f"{experiment.id}.png").exists():
        lines += ["", f"![{experiment.title}]({experiment.id}.png)"]
    return lines
