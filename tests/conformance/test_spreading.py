"""Keys may become hot, hotter and cold between any two batches: the answer stays the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watersmeet.engine.guests
import watersmeet.engine.hot_tables
import watersmeet.engine.placement
import watersmeet.engine.spreading
from tests.conformance.cases import CASES
from tests.conformance.cases.semistream import with_table_of
from tests.conformance.sampling import SOAK, examples, hard_types
from tests.conformance.test_divisions import script_of
from tests.faults.memory_dir import MemoryDir
from watersmeet.columns.arrow import hash_keys
from watersmeet.engine.guests import copied_keys
from watersmeet.engine.heat import Heat
from watersmeet.engine.inheritance import bring_up
from watersmeet.engine.placement import Place
from watersmeet.engine.registry import build, operator_class
from watersmeet.engine.spreading import candidates, empty
from watersmeet.errors import StateMismatchError
from watersmeet.join.join_type import JOIN_TYPES
from watersmeet.plan import JoinPlan
from watersmeet.plan.hot_table import HotKey, HotTable, home_of
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore
from watersmeet.testing import accounting, arrivals
from watersmeet.testing.arrivals import Row
from watersmeet.testing.cases import Case
from watersmeet.testing.keys import Keys
from watersmeet.testing.spreading import run_spread

PARTITIONS = 6


def spreads(case: Case) -> bool:
    """What is dropped is a matter of each partition: there is no answer that all share."""
    return bool(operator_class(case.operator).splits(case.plan())) and case.account is None


def promises(case: Case) -> bool:
    """Whether inputs say what will not come."""
    return operator_class(case.operator).has_promises


def _policy(case: Case) -> object:
    """Policies of a semi-stream join read the table in different ways, and each kind of promise purges in its own."""
    if case.operator == "semi_stream":
        return case.options["policy"]
    kinds = sorted(one["kind"] for one in case.options.get("constraints", ()))
    return (*kinds, "memory" in case.tuning, "quota" in case.tuning) if promises(case) else None


def _kind(case: Case) -> object:
    """What makes a difference to rows of both inputs in several partitions: what is on disk, windows, conditions."""
    return case.operator, case.condition is None, "disk" in case.name, "between" in case.name, case.options.get("flush")


def apart(case: Case) -> Case:
    """A join with a table: parts of the table belong to one partition of the join, so that others must ask for them."""
    return with_table_of(case, PARTITIONS * (1 + len(case.name) % 2)) if case.operator == "semi_stream" else case


ALL = [apart(case) for case in CASES if spreads(case)]
# Of each operator every join type gets random scripts, and one case the other checks.
DECIDED = ALL if SOAK else list({(case.operator, case.how, _policy(case)): case for case in ALL}.values())
ONCE = ALL if SOAK else list({(case.operator, _policy(case)): case for case in ALL}.values())
# Joins that emit rows of a copied input by themselves.
GRIDS = [case for case in ALL if operator_class(case.operator).divides_both(case.plan())]
SOME_GRIDS = GRIDS if SOAK else list({_kind(case): case for case in GRIDS}.values())
PROMISED = [case for case in ALL if promises(case)]
SHARED = [case for case in DECIDED if operator_class(case.operator).witnessed(case.plan())]


def plan_of(case: Case) -> JoinPlan:
    return replace(case.plan(), partitions=PARTITIONS, hot_keys=True)


class Whim:
    """Decides at random, within what a table may do: a grid grows by lines and, if both inputs may be divided, by
    columns; those without rows may leave; the home is its first place, the split input never changes and is one that
    the home has had if it must. For the same arguments it decides the same."""

    def __init__(self, seed: int) -> None:
        self.seed, self.spread, self.retired, self.witnessed, self.grids, self.grown = seed, 0, 0, 0, 0, 0

    def __call__(
        self,
        before: HotTable,
        heats: Sequence[Heat],
        splits: Collection[str],
        witnessed: Collection[str],
        *,
        both: bool,
    ) -> HotTable:
        rng = random.Random(f"{self.seed} {before.to_json()} {[heat.to_json() for heat in heats]}")
        known = dict.fromkeys(number for heat in heats for number in heat.keys)
        found = {}
        for number in dict.fromkeys([*before.keys, *known]):
            key = before.keys.get(number)
            offered = {key.split: key.witness} if key else candidates(number, heats, splits, witnessed)
            if not offered or (key is None and rng.random() < 0.4):
                continue
            split = rng.choice(sorted(offered))
            place = Place.of(key, home_of(number, len(heats)))
            stale = {one for one in (key.stale if key else ()) if number in heats[one].guests}
            if key is not None:
                place = self._without_some(key, place, split, splits, heats, rng)
                stale |= set(key.holders) - place.holders
            place = self._with_more(place, stale, len(heats), rng, both=both)
            lines, columns = place.shape
            places = (
                place.grid,
                place.ages,
                (0,) if rng.random() < 0.3 else tuple(rng.choices(range(lines), k=rng.randint(1, 4))),
                (0,) if rng.random() < 0.3 else tuple(rng.choices(range(columns), k=rng.randint(1, 4))),
            )
            found[number] = HotKey(number, split, *places, tuple(sorted(stale)), witness=offered[split])
            self.witnessed += found[number].is_spread and split in witnessed
            self.spread += found[number].is_spread
            self.grids += min(lines, columns) > 1
        return HotTable(found)

    def _without_some(
        self,
        key: HotKey,
        place: Place,
        split: str,
        splits: Collection[str],
        heats: Sequence[Heat],
        rng: random.Random,
    ) -> Place:
        other = next((name for name in splits if name != split), "")
        lines = empty(key, key.grid, key.lines, split, heats)
        columns = empty(key, tuple(zip(*key.grid, strict=True)), key.columns, other, heats)
        gone = [[at for at in found if rng.random() < 0.7] for found in (lines, columns)]
        self.retired += sum(map(len, gone))
        return place.without(*gone)

    def _with_more(
        self, place: Place, stale: Collection[int], partitions: int, rng: random.Random, *, both: bool
    ) -> Place:
        for _ in range(rng.choice([0, 0, 1, 3])):
            free = [one for one in range(partitions) if one not in stale and one not in place.holders]
            rng.shuffle(free)
            lines, columns = place.shape
            if both and rng.random() < 0.5 and lines <= len(free):
                self.grown += columns > 1 or lines > 1
                place = place.with_column(free[:lines])
            elif columns <= len(free):
                self.grown += columns > 1
                place = place.with_line(free[:columns])
        return place


@contextmanager
def deciding(seed: int) -> Iterator[Whim]:
    whim = Whim(seed)
    decided = patch.object(watersmeet.engine.hot_tables, "decide", whim)
    with decided, patch.object(watersmeet.engine.guests, "LOOK_EVERY", 1):
        yield whim


def test_holders_that_need_no_copies_are_let_go() -> None:
    case = next(case for case in ALL if case.operator == "window" and case.how == "inner")
    with deciding(3) as whim:
        list(run_spread(plan_of(case), script_of(case, 3, batch_rows=20, batches=40, keys=4), MemoryDir({})))
    assert whim.retired > 10


@pytest.mark.parametrize("case", SOME_GRIDS, ids=str)
def test_pairs_of_a_grid_are_found_once(case: Case) -> None:
    """Grids of every shape, which grow while rows are in them."""
    grids = grown = retired = 0
    for seed, batch_rows in enumerate([4, 12, 12, 40]):
        script = script_of(case, seed, batch_rows=batch_rows, batches=12, keys=4)
        with deciding(seed) as whim:
            found: Counter[Row] = sum(run_spread(plan_of(case), script, MemoryDir({})), Counter())
        assert found == case.expected(script)
        grids, grown, retired = grids + whim.grids, grown + whim.grown, retired + whim.retired
    assert min(grids, grown) > 20
    assert retired > 5 or not case.options.get("window")


def test_rows_of_a_grid_are_shown_once() -> None:
    """A row is shown by one partition, whatever became of the grid since it came."""
    case = next(case for case in GRIDS if case.operator == "symmetric")
    plan = plan_of(case)
    for seed in range(4):
        script, directory = script_of(case, seed, batch_rows=12, batches=10, keys=4, end=False), MemoryDir({})
        with deciding(seed) as whim:
            list(run_spread(plan, script, directory))
        assert whim.grids
        for spec in plan.inputs:
            shown = copies = 0
            for partition in range(PARTITIONS):
                operator = build(plan, MemorySpace())
                manifest = bring_up(operator, PartitionStore(directory, partition), len(script), "in-process", "x")
                hidden = copied_keys(manifest.hot, spec.name)
                hashes = [
                    part.hashes for one in operator.row_stores() if one.input == spec.name for part in one.parts()
                ]
                shown += sum(int((~np.isin(some, hidden)).sum()) for some in hashes)
                copies += operator.accounts.copied.get(spec.name, 0)
            assert shown == sum(row[0] is not None for arrival in script for row in arrival.rows.get(spec.name, ()))
            assert copies


def test_only_joins_that_tell_of_nothing_but_pairs_have_grids() -> None:
    assert {case.how for case in GRIDS} == {"inner"}
    both = {"symmetric", "rpj", "hmj", "xjoin", "window", "punctuated", "promised_window"}
    assert {case.operator for case in GRIDS} == both
    plain = [case for case in ALL if case.how == "inner" and case not in GRIDS]
    assert {case.operator for case in plain} == {"mjoin", "semi_stream", "punctuated", "promised_window"}
    ones = [[one["kind"] for one in case.options["constraints"]] for case in plain if promises(case)]
    assert all("one_to_many" in kinds for kinds in ones)


def test_what_promises_leave_to_divide() -> None:
    """The preserved input, if that is not the one on which keys are unique; those by which pairs are found."""
    found = {case.name.partition(", ")[2]: operator_class(case.operator).splits(case.plan()) for case in PROMISED}
    assert {how for how in JOIN_TYPES if any(name.startswith(how) for name in found)} == JOIN_TYPES.keys() - {"full"}
    assert found["many-to-many"] == found["inner, punctuations"] == ("left", "right")
    assert found["one-to-many"] == found["inner, one-to-many"] == found["right, one-to-many"] == ("right",)
    assert found["left, many-to-one"] == found["left_semi, many-to-one"] == found["left_anti, disk"] == ("left",)
    for name in ("one-to-one", "left, one-to-many", "right, many-to-one", "left_anti, clustered"):
        assert name not in found


@pytest.mark.parametrize("policy", ["aligned", "ssbj"])
def test_keys_beside_a_table_are_forgotten_when_nothing_waits_for_them(policy: str) -> None:
    """A key is kept as long as the cache has it: what it says must come true in the next version of the table."""
    case = next(case for case in ALL if case.name == f"semi_stream-{policy}-inner, refresh")
    script, directory = script_of(case, 3, batch_rows=20, batches=30, keys=8), MemoryDir({})
    known: set[tuple[int, str]] = set()
    forgotten = 0
    answer: Counter[Row] = Counter()
    with deciding(3):
        for number, found in enumerate(run_spread(plan_of(case), script, directory)):
            answer += found
            manifests = [PartitionStore(directory, partition).manifest(number) for partition in range(PARTITIONS)]
            now = {(one.partition, key) for one in manifests for key in one.hot["guests"]}
            forgotten += len(known - now)
            known = now
    assert forgotten > 3
    assert answer == case.expected(script)


@pytest.mark.parametrize("case", SHARED, ids=str)
def test_rows_of_the_copied_input_are_told_of_once(case: Case) -> None:
    chosen = 0
    for seed in range(2):
        script = script_of(case, seed, batch_rows=12, batches=10, keys=5)
        with deciding(seed) as whim:
            found: Counter[Row] = sum(run_spread(plan_of(case), script, MemoryDir({})), Counter())
        assert found == case.expected(script)
        chosen += whim.witnessed
    assert chosen


@pytest.mark.parametrize(
    "name",
    ["symmetric", "symmetric, full", "punctuated, many-to-many", "symmetric, full, where", "window-full, HN"],
)
def test_keys_that_share_a_hash_never_give_a_wrong_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home of a key has a row of the split input; one of another key with the same hash may be elsewhere only. And
    what was promised of that one might not be known where it comes. Votes are on rows, whatever their keys' hash."""
    case = next(case for case in ALL if case.name == name)
    monkeypatch.setattr(arrivals, "hash_keys", lambda columns: hash_keys([pc.bit_wise_and(columns[0], 1)]))
    refused = 0
    for seed in range(8):
        script = script_of(case, seed, batch_rows=5, batches=10, keys=12)
        script = [replace(arrival, punctuations={}) for arrival in script]
        with deciding(seed):
            try:
                found: Counter[Row] = sum(run_spread(plan_of(case), script, MemoryDir({})), Counter())
            except StateMismatchError as error:
                refused += "two keys with the hash" in str(error)
                continue
        assert found == case.expected(script)
    assert bool(refused) == (name in ("symmetric, full", "punctuated, many-to-many"))


@contextmanager
def feverish() -> Iterator[None]:
    """Thresholds so low that most keys are hot, and holders are taken whatever they cost."""
    low = {"ENTER": 0.01, "LEAVE": 0.005, "LEAST_LOAD": 0.0}
    worth = {"WORTH": 100.0, "SETTLED": 0.0, "UNEVEN": 100.0}
    with patch.multiple(watersmeet.engine.spreading, **low), patch.multiple(watersmeet.engine.placement, **worth):
        yield


@pytest.mark.parametrize("case", DECIDED, ids=str)
@settings(max_examples=examples(2))
@given(seed=st.integers(0, 2**32), batch_rows=st.sampled_from([2, 7, 30]), keys=hard_types)
def test_the_answer_does_not_depend_on_where_keys_are(case: Case, seed: int, batch_rows: int, keys: Keys) -> None:
    case = case.with_keys(keys)
    script = script_of(case, seed, batch_rows=batch_rows, batches=10)
    directory = MemoryDir({})
    with deciding(seed):
        found: Counter[Row] = sum(run_spread(plan_of(case), script, directory), Counter())
    assert found == case.expected(script)


@pytest.mark.parametrize("case", ONCE, ids=str)
def test_every_case_once_and_every_row_accounted_for(case: Case) -> None:
    for seed, batch_rows in enumerate([6, 25]):
        script = script_of(case, seed, batch_rows=batch_rows, batches=9, keys=4, end=False)
        directory, plan = MemoryDir({}), plan_of(case)
        with deciding(seed) as whim:
            list(run_spread(plan, script, directory))
        assert whim.spread
        came: Counter[str] = Counter()
        for partition in range(PARTITIONS):
            space = MemorySpace()
            space.partition = partition
            operator = build(plan, space)
            bring_up(operator, PartitionStore(directory, partition), len(script), "in-process", "x")
            for store in operator.row_stores():
                accounting.check_store(store)
            for spec in plan.inputs:
                held = sum(store.held for store in operator.row_stores() if store.input == spec.name)
                assert operator.accounts.held(spec.name) == held
                came[spec.name] += operator.accounts.came.get(spec.name, 0)
        for spec in plan.inputs:
            assert came[spec.name] == accounting.came(script, len(script), spec.name)


@pytest.mark.parametrize("case", ONCE, ids=str)
def test_the_answer_when_most_keys_are_hot(case: Case) -> None:
    for seed in range(2):
        script = script_of(case, seed, batch_rows=20, batches=8, keys=6)
        directory = MemoryDir({})
        with feverish():
            found: Counter[Row] = sum(run_spread(plan_of(case), script, directory), Counter())
        assert found == case.expected(script)
        table = HotTable.from_json(PartitionStore(directory, 0).manifest(len(script) - 1).hot["table"])
        assert table.keys
        assert any(len(key.grid[0]) > 1 for key in table.keys.values()) == (case in GRIDS)
