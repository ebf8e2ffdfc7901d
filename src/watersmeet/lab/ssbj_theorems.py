"""SSBJ (Naeem, Weber, Lutteroth), what the paper argues without a figure.

Theorem 3: at high rates SSBJ is a join in main memory, and MESHJOIN needs more. Section 5: projection makes the cache
smaller.
"""

from __future__ import annotations

from watersmeet.lab.experiment import Check, Experiment, Findings, Numbers, Panel, Progress, Scale, Series
from watersmeet.lab.ssbj_runs import POLICIES, SIZES, TENTH, WIDTHS, Table, steady, table_for
from watersmeet.semistream.cache import ENTRY_BYTES

ROWS: dict[Scale, int] = {"tiny": 400, "small": 4000, "paper": 100_000}
CHUNKS = 4
# Rows of a step over those of R, without skew: a key's waiting rows outweigh its master rows from about 1 on.
RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
WHOLE = "R in memory"  # m_m: its rows, and an entry for every join value
TOLERANCE = 1.05


def theorem3(scale: Scale, progress: Progress) -> Findings:
    """Memory of both joins over the rate, beside that of R itself, by the bare inequality."""
    table = Table("synthetic", ROWS[scale], CHUNKS)
    numbers: Numbers = {}
    for place, rate in enumerate(RATES):
        progress(place, len(RATES))
        rows = round(rate * table.rows)
        found = {name: steady(table, POLICIES[name], rows, scale, skew=0.0, bare=True) for name in ("SSBJ", "MESHJOIN")}
        buffer = table.nbytes / table.chunks
        numbers[f"memory (MB) at {rate:g} |R| rows per step"] = {
            **{name: (one.memory - buffer) / 1e6 for name, one in found.items()},
            WHOLE: (table.nbytes + table.rows * ENTRY_BYTES) / 1e6,
        }
        numbers[f"answered by the cache at {rate:g} |R| rows per step"] = {"share": found["SSBJ"].hit_share}
    shown = [values for setting, values in numbers.items() if setting.startswith("memory")]
    series = {name: Series(list(RATES), [values[name] for values in shown]) for name in shown[0]}
    panel = Panel("", "stream rows per step (|R|)", "memory (MB)", series, log_y=True)
    return Findings([panel], numbers, ["no skew; waiting rows and cache, without the disk buffer, which both need"])


def judge(numbers: Numbers) -> list[Check]:
    """At the highest rate SSBJ takes no more than R does and answers all from the cache; MESHJOIN takes more."""
    last = f"{RATES[-1]:g} |R| rows per step"
    memory, share = numbers[f"memory (MB) at {last}"], numbers[f"answered by the cache at {last}"]["share"]
    return [
        Check(
            memory["MESHJOIN"] > memory[WHOLE], f"(a) MESHJOIN takes {memory['MESHJOIN'] / memory[WHOLE]:.2f} of m_m"
        ),
        Check(
            memory["SSBJ"] <= TOLERANCE * memory[WHOLE], f"(b) SSBJ takes {memory['SSBJ'] / memory[WHOLE]:.2f} of m_m"
        ),
        Check(share >= 0.99, f"(c) the cache answers {share:.1%} of the rows"),
    ]


ALL, NUMBER = "all columns", "one column of 8 bytes"
SAME_RATE = 1.5  # the master rows over the stream rows of a cycle


def projection(scale: Scale, progress: Progress) -> Findings:
    """The same stream against the same table, once with whole master rows in the output and once with one column."""
    table = table_for("synthetic", scale, TENTH[scale])
    rate = max(1, round(table.rows / table.chunks / SAME_RATE))
    numbers: Numbers = {}
    for place, (name, policy) in enumerate([("SSBJ", "ssbj"), ("aligned chunks", "aligned")]):
        progress(place, 2)
        found = {what: steady(table, policy, rate, scale, narrow=what == NUMBER) for what in (ALL, NUMBER)}
        buffer = table.nbytes / table.chunks
        numbers[f"{name}: memory (MB)"] = {what: (one.memory - buffer) / 1e6 for what, one in found.items()}
        numbers[f"{name}: {ANSWERED}"] = {what: one.hit_share for what, one in found.items()}
    _, chunks, cycles = SIZES[scale]
    note = (
        f"{table.rows:,} master rows of {WIDTHS['synthetic'][0]} bytes in {chunks} chunks, {cycles} cycles, skew 1, "
        f"{rate} stream rows per step; waiting rows and cache, without the disk buffer"
    )
    return Findings([], numbers, [note])


ANSWERED = "answered by the cache"


def judge_projection(numbers: Numbers) -> list[Check]:
    """With one column the cache answers more of the rows and the join takes less memory, for both joins."""
    checks = []
    for setting, values in numbers.items():
        holds = values[NUMBER] > values[ALL] if setting.endswith(ANSWERED) else values[NUMBER] < values[ALL]
        checks.append(Check(holds, f"{setting}: {values[ALL]:.3g} with {ALL}, {values[NUMBER]:.3g} with {NUMBER}"))
    return checks


def least_saved(numbers: Numbers) -> str:
    """What projection saves of SSBJ's memory."""
    memory = numbers["SSBJ: memory (MB)"]
    return f"SSBJ's memory with {NUMBER} over that with {ALL}: {memory[NUMBER] / memory[ALL]:.2f}"


EXPERIMENTS = [
    Experiment(
        id="ssbj/projection",
        title="Section 5: projection of the master rows",
        claim="If only the columns that the application needs are cached, the cache takes less memory.",
        rule="At the same rate, with one column of 8 bytes in the output in place of rows of 120 bytes: less memory, "
        "and "
        "a larger share of the rows answered by the cache, for SSBJ and for aligned chunks.",
        takeaway="Name the columns that are needed (master_columns=...), and select those of the stream before the "
        "join: "
        "rows wait with the columns that they came with.",
        clock="virtual",
        run=projection,
        judge=judge_projection,
        figure=least_saved,
        printed="no number; an argument",
        reason="Keys become cheaper to cache, so that more of them are; that may take as much as is saved.",
    ),
    Experiment(
        id="ssbj/theorem3",
        title="Theorem 3: SSBJ as a join in main memory",
        claim="At high rates MESHJOIN takes more memory than R, SSBJ at most that of R, with all of R in the cache.",
        rule="At the highest rate, m_m being the memory of R's rows and an entry for every join value: MESHJOIN takes "
        "more, "
        "SSBJ at most 1.05 of it, and the cache answers at least 99 % of the rows.",
        takeaway="A stream that is too fast for the disk makes the semi-stream join a join in main memory by itself.",
        clock="virtual",
        run=theorem3,
        judge=judge,
        figure=lambda numbers: (
            "SSBJ's memory over m_m at the highest rate: "
            f"{(v := numbers[f'memory (MB) at {RATES[-1]:g} |R| rows per step'])['SSBJ'] / v[WHOLE]:.2f}"
        ),
        printed="at most 1, by proof; no figure",
        reason="What is kept beside the rows weighs more in a small table.",
    ),
]
