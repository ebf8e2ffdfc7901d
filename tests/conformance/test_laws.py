"""Every operator against every law."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.cases import CASES
from tests.conformance.sampling import LEADING, dealt, every_case, examples, hard_types
from watersmeet.engine.registry import OPERATORS, build
from watersmeet.join.binary import BinaryJoin
from watersmeet.join.operator import Operator, OperatorState, advance, resume, saved
from watersmeet.semistream.semi_stream_join import SemiStreamJoin
from watersmeet.state.directory import StateDir
from watersmeet.state.space import MemorySpace
from watersmeet.state.store import PartitionStore
from watersmeet.testing import Arrival, Script, accounting, batch_of, ending_script, run_in_memory, run_stored
from watersmeet.testing.arrivals import Row
from watersmeet.testing.cases import Case
from watersmeet.testing.harness import Outcome, rows_of
from watersmeet.testing.keys import ALL_KEYS, COMPOSITE, FLOATS, INTEGERS, STRINGS, Keys

SHAPES = {
    "small domain": {"keys": 3},
    "large domain": {"keys": 1000},
    "skewed": {"keys": 50, "skew": 0.7},
    "one key": {"keys": 1},
    "all null": {"null_share": 1.0},
    "wide payload": {"width": 3000},
    "always busy": {"idle_share": 0.0},
    "mostly idle": {"idle_share": 0.8, "batches": 20},
}


def test_every_operator_has_a_case() -> None:
    assert {case.operator for case in CASES} == set(OPERATORS)


def assert_alike(one: Outcome, other: Outcome, law: str) -> None:
    """The same rows in every batch, and the same state after it."""
    assert one.per_batch == other.per_batch, law
    assert one.digests == other.digests, law


@every_case
@settings(max_examples=examples(5))
@given(
    seed=st.integers(0, 2**32),
    batch_rows=st.sampled_from([1, 2, 7, 50]),
    batches=st.integers(1, 14),
    keys=hard_types,
)
def test_exactly_once_in_any_order_and_from_saved_state(
    case: Case, seed: int, batch_rows: int, batches: int, keys: Keys
) -> None:
    """Row order within a batch does not matter, and saved state is the whole state: both at once, to run each script
    twice and not five times. If that fails, each alone says which law is broken."""
    case = case.with_keys(keys)
    plan, script = case.plan(), case.random_script(seed, batch_rows=batch_rows, batches=batches)
    permuted = [arrival.permuted(seed) for arrival in script]
    kept = run_in_memory(plan, script)
    assert kept.rows == case.expected(script)
    disturbed = run_in_memory(plan, permuted, reload=True)
    if (kept.per_batch, kept.digests) != (disturbed.per_batch, disturbed.digests):
        assert_alike(kept, run_in_memory(plan, permuted), "row order within a batch matters")
        assert_alike(kept, run_in_memory(plan, script, reload=True), "saved state is not the whole state")
        assert_alike(kept, disturbed, "saved state depends on the order of rows")


# Rows that are left out of the state because others make them useless must not be missed by any row that comes later.
EXACT = [case for case in CASES if case.by_batch and (case in LEADING or "crowded" in case.name)]


@pytest.mark.parametrize("case", EXACT, ids=str)
@settings(max_examples=examples(6))
@given(seed=st.integers(0, 2**32), batch_rows=st.sampled_from([1, 2, 7]), keys=hard_types, end=st.booleans())
def test_every_row_at_the_earliest_moment(case: Case, seed: int, batch_rows: int, keys: Keys, end: bool) -> None:
    case = case.with_keys(keys)
    script = case.random_script(seed, batch_rows=batch_rows, batches=10, end=end)
    assert run_in_memory(case.plan(), script).per_batch == case.expected_by_batch(script)


@dealt("shape", list(SHAPES), others=2)
def test_exactly_once_for_awkward_keys(case: Case, shape: str) -> None:
    for seed in range(2):
        script = case.random_script(seed, **SHAPES[shape])
        assert run_in_memory(case.plan(), script).rows == case.expected(script)


@dealt("keys", [keys for keys in ALL_KEYS if keys is not INTEGERS], others=2)
def test_exactly_once_for_every_type_of_key(case: Case, keys: Keys) -> None:
    case = case.with_keys(keys)
    script = case.random_script(3, batch_rows=9, idle_share=0.1)
    assert run_in_memory(case.plan(), script).rows == case.expected(script)


@dealt("keys", [INTEGERS, STRINGS, COMPOSITE, FLOATS], others=2)
def test_hash_collisions_never_yield_a_wrong_row(case: Case, keys: Keys) -> None:
    case = case.with_keys(keys)
    script = case.random_script(2)
    assert run_in_memory(case.colliding_plan(), script, constant_hash=True).rows == case.expected(script)


@dealt("keys", [INTEGERS, STRINGS, COMPOSITE])
def test_restarted_after_every_batch_and_with_every_batch_repeated(case: Case, keys: Keys, tmp_path: str) -> None:
    """Both attempts of a batch load the version before it from disk."""
    case = case.with_keys(keys)
    script = case.random_script(1, batches=12)
    stored = run_stored(case.plan(), script, StateDir(tmp_path), repeat=True)
    assert stored.per_batch == run_in_memory(case.plan(), script).per_batch
    assert PartitionStore(StateDir(tmp_path), 0).manifest(len(script) - 1).repeats == 0  # all states alike


@every_case
def test_nothing_arrives_at_all(case: Case) -> None:
    script = [Arrival(time=number) for number in range(3)]
    assert run_in_memory(case.plan(), script).rows == Counter()


@every_case
def test_one_input_stays_empty(case: Case) -> None:
    # Without an end an oracle of the whole does not know which rows are certain to be unmatched.
    script = case.random_script(5, end=case.how != "inner" and case.by_batch is None)
    for empty in case.inputs:
        thinned = [
            Arrival({**arrival.rows, empty: []}, arrival.time, arrival.ended, arrival.punctuations)
            for arrival in script
        ]
        assert run_in_memory(case.plan(), thinned).rows == case.expected(thinned)


@every_case
def test_input_tables_are_not_modified(case: Case) -> None:
    plan = case.plan()
    script = case.random_script(11)
    for number, arrival in enumerate(script):
        batch, copy = batch_of(plan, number, arrival), batch_of(plan, number, arrival)
        run_in_memory(plan, [arrival])
        assert {name: table.to_pylist() for name, table in batch.rows.items()} == {
            name: table.to_pylist() for name, table in copy.rows.items()
        }


def run_checked(case: Case, script: Script) -> list[Counter[Row]]:
    """Every law of accounting after every batch, and the answer. Returns the rows of each batch."""
    plan = case.plan()
    operator, found = build(plan, MemorySpace()), list[Counter[Row]]()
    emitted = accounting.Emitted(plan) if isinstance(operator, BinaryJoin) else None
    for number, arrival in enumerate(script):
        rows = rows_of(advance(operator, batch_of(plan, number, arrival)))
        found.append(rows)
        accounting.check(operator, script, number + 1)
        if emitted and isinstance(operator, BinaryJoin):
            emitted.check(operator, arrival, rows)
    assert sum(found, Counter()) == case.expected(script)
    return found


@dealt("keys", [INTEGERS, STRINGS])
def test_every_row_is_held_or_has_left_for_a_reason(case: Case, keys: Keys) -> None:
    for seed, batch_rows in enumerate((3, 20)):
        script = case.with_keys(keys).random_script(seed, batch_rows=batch_rows, batches=12)
        run_checked(case.with_keys(keys), script)


OTHERS = [case for case in CASES if case not in LEADING]


@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_a_variation_of_a_join_type(case: Case, tmp_path: str) -> None:
    """Inputs that end one after the other: the accounts after every batch, and a restart after every batch. Repeated
    batches of all variations are in the fault simulation."""
    number = OTHERS.index(case)
    keys, batch_rows = [(INTEGERS, 9), (STRINGS, 12), (COMPOSITE, 3)][number % 3]
    case = case.with_keys(keys)
    script = case.random_script(number, batch_rows=batch_rows, batches=10, end=False)
    ends = ending_script(script, case.inputs, number % 7)
    found = run_checked(case, ends)
    stored = run_stored(case.plan(), ends, StateDir(tmp_path))
    assert stored.per_batch == found
    if case.by_batch:
        assert found == case.expected_by_batch(ends)


@every_case
@pytest.mark.parametrize("silent", [False, True], ids=["with rows", "without rows"])
def test_the_end_of_an_input_acts_in_its_own_batch(case: Case, silent: bool) -> None:
    for seed in range(2):
        script = case.random_script(seed, batch_rows=9, batches=10, end=False)
        run_checked(case, ending_script(script, case.inputs, seed, silent=silent))


@every_case
def test_to_settle_loses_no_row(case: Case) -> None:
    """Runs are rewritten without their dead rows: what is alive stays, and the accounts agree."""
    plan, script = case.plan(), case.random_script(4, batch_rows=12, batches=18)  # until rows expire
    operator, space = build(plan, MemorySpace()), MemorySpace()
    for number, arrival in enumerate(script):
        for _ in advance(operator, batch_of(plan, number, arrival)):
            pass
        copy = build(plan, space)
        resume(copy, saved(operator))
        before = [accounting.contents(store) for store in copy.row_stores()]
        if isinstance(copy, SemiStreamJoin):
            for generation in filter(None, (*copy.draining, copy.current)):
                generation.compact(number)
        else:
            for store in copy.row_stores():
                store.settle(tight=True)
                store.compact()
        assert [accounting.contents(store) for store in copy.row_stores()] == before
        for store in copy.row_stores():
            accounting.check_store(store)
            if not store.spilled:  # what is on disk is not rewritten
                assert store.held == sum(accounting.contents(store).values())
        accounting.check_rows(copy, {name: accounting.came(script, number + 1, name) for name in case.inputs})


@every_case
def test_to_save_changes_nothing(case: Case) -> None:
    plan, script = case.plan(), case.random_script(6, batch_rows=12, batches=10)
    never, thrice = build(plan, MemorySpace()), build(plan, MemorySpace())
    for number, arrival in enumerate(script):
        batch = batch_of(plan, number, arrival)
        assert rows_of(advance(never, batch)) == rows_of(advance(thrice, batch))
        for _ in range(3):
            saved(thrice)
        assert never.metrics.as_dict() == thrice.metrics.as_dict()
        assert never.accounts.save() == thrice.accounts.save()


@every_case
def test_a_batch_is_forgotten_at_its_end(case: Case) -> None:
    """No cycle keeps an operator: its rows, and the files that it has mapped, would stay until the cycle is found."""
    plan, script = case.plan(), case.random_script(8, batch_rows=12, batches=10)
    gc.disable()
    try:
        operator, space = build(plan, MemorySpace()), MemorySpace()
        for number, arrival in enumerate(script):
            rows_of(advance(operator, batch_of(plan, number, arrival)))
            before, operator = weakref.ref(operator), _resumed(build(plan, space), saved(operator))
            assert before() is None, f"batch {number}"
    finally:
        gc.enable()


def _resumed(operator: Operator, state: OperatorState) -> Operator:
    resume(operator, state)
    return operator
