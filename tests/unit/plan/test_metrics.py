"""The list of metrics against what the joins really emit: all conformance cases, and the few things they never do."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.cases import CASES
from tests.conformance.sampling import LEADING, SOAK
from tests.conformance.test_spreading import deciding, plan_of, spreads

from watersmeet.engine.registry import OPERATORS, build
from watersmeet.join.operator import Operator, advance
from watersmeet.plan import JoinPlan, OutputColumn
from watersmeet.plan.metrics import EVENTS, FAMILIES, METRICS, REASONS, STAGES, Metrics, add_up, metric_of, page
from watersmeet.punctuated.promises.patterns import Pattern, punctuation_table
from watersmeet.punctuated.propagation import COLUMN, punctuation_type
from watersmeet.state.directory import StateDir
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore
from watersmeet.testing import Arrival, Script, batch_of, make_plan
from watersmeet.testing.arrivals import KEYS
from watersmeet.testing.cases import Case
from watersmeet.testing.punctuations import truthful_script
from watersmeet.testing.spreading import run_spread

FAMILY = {operator: family for family, operators in FAMILIES.items() for operator in operators}
PAGE = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
HELD = ("held_rows", "resident_rows", "resident_bytes", "spilled_rows", "spilled_bytes", "runs")
LABELS = {"reason": set(REASONS), "method": {"hash", "loop"}, "stage": set(STAGES)}
# Any join may have so many decisions in a batch, but to see it of one will do.
OF_ANY = {"events_not_recorded"}


def one_left(key: int, **said: list[Pattern]) -> Arrival:
    tables = {name: punctuation_table(KEYS, [[pattern] for pattern in patterns]) for name, patterns in said.items()}
    return Arrival({"left": [(key, 0, "")], "right": [(key, 0, "")]}, punctuations=tables)


def many(name: str, keys: int, rows: int) -> dict[str, list[tuple[Any, ...]]]:
    return {name: [(i % keys, i, "") for i in range(rows)]}


def further() -> Iterator[tuple[JoinPlan, Script]]:
    """What no conformance case does: promises broken and propagated, late rows, hot keys, very many decisions."""
    said = OutputColumn(pa.field("said", punctuation_type(["k0"], KEYS)), "left", COLUMN)
    plan = make_plan("punctuated", options={"propagate": "said", "buckets": 4})
    yield replace(plan, output=(*plan.output, said)), truthful_script(1, batches=14)
    plan = make_plan("punctuated", tuning={"on_violation": "drop"})
    yield plan, [one_left(1, right=[Pattern.value(1)]), one_left(1)]
    timed = {"window": [10, 10], "lateness": 0, "time_columns": ["_p0", "_p0"]}
    plan = make_plan("promised_window", options=timed, tuning={"on_violation": "drop"})
    yield plan, [one_left(1, right=[Pattern.value(1)]), one_left(1)]
    options = {"window": 10, "lateness": 0, "time": {"a": "_p0", "b": "_p0"}}
    rows = [{"a": [(1, 100, "")], "b": [(1, 100, "")]}, {"a": [(1, 95, ""), (1, 3, ""), (1, None, "")]}]
    yield make_plan("mjoin", ("a", "b"), options), [Arrival(each) for each in rows]
    yield make_plan("mjoin", ("a", "b")), [Arrival({**many("a", 1, 1100), **many("b", 1, 1100)})]
    small = {"memory_rows": 10, "page_rows": 4}
    plan = make_plan("rpj", options={"policy": "rpj", "buckets": 256}, tuning=small)
    yield plan, [Arrival({**many("left", 999, 999), **many("right", 999, 999)})]


@dataclass
class Seen:
    """All that was emitted, by family."""

    names: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    events: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    counted: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    set_to: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong_gauges: list[str] = field(default_factory=list)

    def run_spread(self, case: Case, folder: Path) -> None:
        """In several partitions, with hot keys: what is known of them is kept with the versions."""
        plan, directory = plan_of(case), StateDir(folder)
        script = case.random_script(1, batch_rows=20, batches=12, keys=4)
        with deciding(1):
            for number, _ in enumerate(run_spread(plan, script, directory)):
                for partition in range(plan.partitions):
                    last = PartitionStore(directory, partition).manifest(number).history[-1]
                    self.names[FAMILY[plan.operator]].update(last["counters"])
                    self.events[FAMILY[plan.operator]] += last["events"]

    def run(self, plan: JoinPlan, script: Script) -> None:
        operator, family = build(plan, MemorySpace()), FAMILY[plan.operator]
        for number, arrival in enumerate(script):
            finished = operator.finished
            for _ in advance(operator, batch_of(plan, number, arrival)):
                pass
            self.names[family].update(operator.metrics.counters)
            self.events[family] += operator.metrics.events
            if not finished:
                self.wrong_gauges += wrong_gauges(operator)


def wrong_gauges(operator: Operator) -> Iterator[str]:
    """Inputs of which the gauges that all joins have are missing or do not agree with the accounts."""
    for name in {spec.name for spec in operator.plan.inputs} | {store.input for store in operator.row_stores()}:
        held, resident, _, spilled, *_ = (operator.metrics.counters.get(f"{gauge}.{name}", -1) for gauge in HELD)
        if not held == resident + spilled == operator.accounts.held(name):
            yield f"{operator.name} {name}: {held} held, {resident} resident, {spilled} spilled"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    found = Seen()
    count, gauge = Metrics.count, Metrics.gauge

    def counting(self: Metrics, name: str, amount: float = 1) -> None:
        found.counted[name].append(amount)
        count(self, name, amount)

    def gauging(self: Metrics, name: str, value: float) -> None:
        found.set_to[name].append(value)
        gauge(self, name, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Metrics, "count", counting)
        patch.setattr(Metrics, "gauge", gauging)
        for number, case in enumerate(CASES if SOAK else [*LEADING, *CASES[::8]]):
            found.run(case.plan(), case.random_script(number, batch_rows=(7, 20)[number % 2], batches=9))
        for plan, script in further():
            found.run(plan, script)
        for operator in ("symmetric", "window", "mjoin", "punctuated", "semi_stream"):
            case = next(case for case in CASES if case.operator == operator and spreads(case))
            found.run_spread(case, tmp_path_factory.mktemp(operator))
        for name in ("symmetric, full, where", "window-full, HN"):  # which vote on rows of hot keys
            case = next(case for case in CASES if case.name == name)
            found.run_spread(case, tmp_path_factory.mktemp(f"voting-{case.operator}"))
    return found


def pairs_emitted(seen: Seen) -> set[tuple[str, str]]:
    return {(metric_of(name).name, family) for family, names in seen.names.items() for name in names}


def test_every_operator_belongs_to_a_family() -> None:
    assert set(FAMILY) == set(OPERATORS)


def test_every_name_is_in_the_list(seen: Seen) -> None:
    names = {name for names in seen.names.values() for name in names}
    assert {name for name in names if name.partition(".")[0] not in METRICS} == set()
    inputs = {spec.name for case in CASES for spec in case.plan().inputs} | {"master"}
    for name in names:
        metric = metric_of(name)
        labels = name.split(".")[1:]
        assert len(labels) == len(metric.labels), name
        for label, value in zip(metric.labels, labels, strict=True):
            assert value in LABELS.get(label, {value} if label == "promise" else inputs), name


def test_the_joins_that_emit_a_metric_are_those_in_the_list(seen: Seen) -> None:
    listed = {(metric.name, family) for metric in METRICS.values() for family in metric.families}
    emitted = pairs_emitted(seen)
    assert emitted - listed == set(), "emitted, but not in the list"
    assert {(name, family) for name, family in listed - emitted if name not in OF_ANY} == set(), (
        "listed, but never seen"
    )
    assert {name for name, _ in emitted} >= OF_ANY


def test_counters_grow_and_gauges_are_set(seen: Seen) -> None:
    for name, amounts in seen.counted.items():
        assert metric_of(name).kind == "counter", f"{name} is counted, and listed as a gauge"
        assert min(amounts) >= 0, f"{name} goes down"
    for name in seen.set_to:
        assert metric_of(name).kind == "gauge", f"{name} is set, and listed as a counter"


def test_every_reason_to_leave_is_seen(seen: Seen) -> None:
    names = {name for names in seen.names.values() for name in names}
    assert {name.split(".")[2] for name in names if name.startswith("left.")} == set(REASONS)


def test_all_joins_report_what_they_hold(seen: Seen) -> None:
    assert seen.wrong_gauges == []


def test_events_are_those_in_the_list(seen: Seen) -> None:
    said = "choice"  # by whoever runs the join, see tests/unit/engine/test_choices.py
    listed = {(event.kind, family) for event in EVENTS.values() for family in event.families if event.kind != said}
    assert {(event["kind"], family) for family, events in seen.events.items() for event in events} == listed
    optional = defaultdict(set)
    for events in seen.events.values():
        for event in events:
            kind, fields = EVENTS[event["kind"]], set(event) - {"kind"}
            assert set(kind.fields) <= fields <= {*kind.fields, *kind.optional}, event
            optional[kind.kind] |= fields - set(kind.fields)
    assert {kind: found for kind, found in optional.items() if found != set(EVENTS[kind].optional)} == {}


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "the list of metrics has changed: run `make reference`"


def test_the_page_has_every_name_type_and_join() -> None:
    rows = re.findall(r"^\| `(\w+)[^`]*` \| (counter|gauge) \| .* \| ([\w, ]+) \| (?:sum|max|min) \|$", page(), re.M)
    joins = {name: tuple(FAMILIES) if where == "all" else tuple(where.split(", ")) for name, _, where in rows}
    assert {name: (kind, joins[name]) for name, kind, _ in rows} == {
        name: (metric.kind, metric.families) for name, metric in METRICS.items()
    }


def test_partitions_are_combined_as_the_list_says() -> None:
    total: dict[str, float] = {}
    add_up(total, {"runs_probed": 1, "held_rows.left": 10, "delay_max": 3, "version": 2, "of another release": 1})
    add_up(total, {"runs_probed": 2, "held_rows.left": 20, "delay_max": 1, "version": 1, "of another release": 1})
    assert total == {"runs_probed": 3, "held_rows.left": 30, "delay_max": 3, "version": 1, "of another release": 2}
