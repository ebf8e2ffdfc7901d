"""SSBJ (Naeem, Weber, Lutteroth), Theorem 3: at high rates SSBJ is a join in main memory, and MESHJOIN needs more."""

from __future__ import annotations

from watersmeet.lab.experiment import Check, Experiment, Findings, Numbers, Panel, Progress, Scale, Series
from watersmeet.lab.ssbj_runs import POLICIES, Table, steady
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


EXPERIMENTS = [
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
