"""The rule of the generations against brute force: every combination that is owed in one term, and no other in any."""

from __future__ import annotations

from itertools import product

import pyarrow as pa
import pytest

from watersmeet.multiway.origins import owed, terms


@pytest.mark.parametrize("inputs", range(2, 17))
def test_there_are_two_terms_for_each_input_but_the_first(inputs: int) -> None:
    found = list(terms(inputs))
    assert len(found) == 2 * (inputs - 1)
    assert all(len(term) == inputs for term in found)


@pytest.mark.parametrize("inputs", range(2, 9))
def test_every_mixed_combination_is_in_one_term(inputs: int) -> None:
    for origins in product("MG", repeat=inputs):
        covering = [term for term in terms(inputs) if all(o in place for o, place in zip(origins, term, strict=True))]
        assert len(covering) == (len(set(origins)) > 1), origins


def generation(name: str, number: int, rows: int) -> pa.Table:
    return pa.table({"row": [f"{name}{number}.{row}" for row in range(rows)]})


@pytest.mark.parametrize("inputs", [2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_terms_of_several_generations_are_what_they_owe_each_other(inputs: int, seed: int) -> None:
    """Rows per input and generation as the seed says, none of some: all combinations but those of one generation."""
    generations = [
        [generation(chr(97 + i), number, (seed + 3 * i + 5 * number) % 3) for number in range(4)] for i in range(inputs)
    ]
    found = []
    for term in owed(generations):
        assert all(table.num_rows for tables in term.tables for table in tables)
        assert term.tables[term.driver] == [term.table]
        rows = [[value for table in tables for value in table["row"].to_pylist()] for tables in term.tables]
        found += product(*rows)
    everything = product(*([row for table in mine for row in table["row"].to_pylist()] for mine in generations))
    expected = [rows for rows in everything if len({row[1] for row in rows}) > 1]
    assert sorted(found) == sorted(expected)
    assert len(found) == len(set(found))


def test_one_generation_owes_nothing() -> None:
    assert not list(owed([[generation("a", 0, 2)], [generation("b", 0, 2)], [generation("c", 0, 2)]]))
