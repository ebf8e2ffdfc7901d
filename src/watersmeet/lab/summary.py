"""The first page of the report: what each paper promised, what held here, what did not, what to use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from watersmeet.lab.experiment import GRADES, Outcome
from watersmeet.lab.registry import PAPERS
from watersmeet.lab.store import Result


@dataclass(frozen=True)
class Paper:
    """A paper in a few sentences: the problem, the promise, what to use of it, and what was tried beyond it.

    The idea that was tried comes with the experiment that compares it with the paper's best: what came of it is taken
    from there.
    """

    problem: str
    promise: str
    use: str
    idea: str
    tried_in: str


BEYOND = "Beyond the paper"  # the title of an experiment of our own begins so

SUMMARY: dict[str, Paper] = {
    "rpj": Paper(
        "Two finite inputs arrive over a network and do not fit into memory.",
        "Evict the rows least likely to match next, and work on the most productive part of the disk while the network "
        "is silent: more results early, and cheaper ones.",
        '`progressive_join(policy="rpj")`. Where disk work counts, add `flush="long-run"` (ours, not the paper\'s): '
        "most of the early results for less disk work.",
        "optimal flush that leaves no short runs on disk",
        "rpj/long-run",
    ),
    "drivers": Paper(
        "Several inputs arrive in batches and are joined in memory.",
        "Choose which input's buffer to process next by its expected output: a fifth less time, and most results in "
        "the "
        "first half of it.",
        'The default, `driver="output_size"`. Any order that drains whole buffers saves the same time; the choice '
        "of the buffer decides only how early results come.",
        "the largest buffer first, which probes tables that the others have not been added to",
        "drivers/largest",
    ),
    "windows": Paper(
        "Two streams are joined over sliding windows, perhaps faster than the machine can follow.",
        "Choose hash or nested loops for each direction, and divide too little CPU or memory by a model.",
        '`algorithm="auto"`, which decides by measured costs, and `on_overload="shed"` or `"shrink"`.',
        "the choice by measured costs while the join runs",
        "windows/auto",
    ),
    "punctuations": Paper(
        "Streams carry promises such as: no more rows with this key.",
        "Purge what the promises make useless, in the background: less memory, and less time.",
        "`punctuated_join` for its memory: the state is what is still open. Do not expect it to be faster.",
        "the rows to purge found by their key, in place of a scan of the state",
        "punctuations/fig11",
    ),
    "ssbj": Paper(
        "A fast stream is joined with a table on disk that is larger than memory.",
        "Cache the rows of hot keys in the memory that their waiting rows would take: 7 to 8 times MESHJOIN's service "
        "rate.",
        'The default, `policy="aligned"` (ours, not the paper\'s): chunks by key hash.',
        "chunks that are ranges of the key's hash, so that a row waits for one chunk and not for all",
        "ssbj/fig5a",
    ),
}


def introduction(results: Sequence[Result]) -> list[str]:
    """One page for newcomers, in Markdown; which figures held is taken from the verdicts."""
    lines = [
        "# The lab",
        "",
        "Watersmeet's joins come from five papers. The lab repeats the experiments of these papers on the very",
        "operators that Spark runs, and lets a rule in code judge whether what the paper says is what happens here.",
        "A rule is fixed beside its claim, and for every part of every rule there is a test with data that it rejects.",
        f"{_counted(results)}",
        "",
    ]
    for group, citation in PAPERS.items():
        mine = [result for result in results if result.experiment.group == group]
        if not mine:
            continue
        paper = SUMMARY[group]
        lines += [
            f"**{citation.split(':')[0]}.** {paper.problem}",
            "",
            f"- Promised: {paper.promise}",
            f"- Held here: {_named(mine, 'agrees') or 'nothing so far'}.{_more(mine)}",
            f"- Tried beyond it: {paper.idea}. {_came_of_it(paper, mine)}",
            f"- Use: {paper.use}",
            "",
        ]
    scales = sorted({result.scale for result in results})
    return [
        *lines,
        "How it is done: operators run in process, without Spark. Where a paper's axis is time, the clock is virtual, "
        "so",
        "that a curve is the same on every machine; where a figure is about CPU time, it is measured. `make lab` runs",
        "all at small scale and refreshes this folder (valid results at a larger scale stay). `watersmeet lab run all "
        "--scale",
        "paper` takes the papers' sizes, shows the time left, and goes on where it was interrupted. With `--outdated` "
        "it",
        "runs what has no valid result, with `--clock virtual` what may run beside other work, with `--clock measured` "
        "what",
        "needs the machine for itself. Mistakes that we found in the papers are in [errata](errata.md), values that "
        "only",
        "experiments compare in [options](options.md). The table below has the scale of every run: "
        f"{', '.join(scales)}.",
        "What paper scale is, and where it is less than the paper's size, is said with each experiment.",
    ]


def _counted(results: Sequence[Result]) -> str:
    """How many experiments have which grade."""
    counts = Counter(result.verdict.outcome for result in results)
    told = ", ".join(f"{grade}: {counts[grade]}" for grade in GRADES if counts[grade])
    return f"There are {len(results)} experiments ({told})."


def _came_of_it(paper: Paper, mine: Sequence[Result]) -> str:
    """What the experiment says in which the idea was tried."""
    found = [result for result in mine if result.experiment.id == paper.tried_in and result.findings]
    if not found:
        return f"To be run: {paper.tried_in}."
    link = f"[{paper.tried_in}](#{paper.tried_in.replace('/', '')})"
    return f"{found[0].experiment.lesson(found[0].findings.numbers)} ({link})" if found[0].findings else link


def _more(mine: Sequence[Result]) -> str:
    said: tuple[tuple[Outcome, str], ...] = (
        ("partly", "Held in part"),
        ("differs", "Did not hold"),
        ("not reproducible here", "Cannot be reproduced here"),
        ("outdated", "To be run again"),
    )
    return "".join(f" {words}: {names}." for outcome, words in said if (names := _named(mine, outcome)))


def _named(mine: Sequence[Result], outcome: Outcome) -> str:
    """The experiments of a grade, by what they show and what the paper calls them; ours are not the paper's."""
    titles = [r.experiment.title.split(": ", 1) for r in mine if r.verdict.outcome == outcome]
    return "; ".join(f"{what} ({where})" for where, what in titles if where != BEYOND)
