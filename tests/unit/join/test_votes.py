"""Votes on rows that lie in several partitions, and the judgement."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from watersmeet.columns.contents import identities
from watersmeet.join.votes import Judge, ballot_schema, by_home, judged, no_votes, vote_names

ROWS = pa.schema([("k", pa.int64()), ("name", pa.string())])
HOME = 2


def candidate(number: int, count: int) -> list[tuple[object, ...]]:
    return [(number, f"row {number}", by_home(HOME), number, -number)] * count


def matched(number: int, by: int, count: int) -> list[tuple[object, ...]]:
    return [(None, None, by, number, -number)] * count


def table(votes: list[tuple[object, ...]]) -> pa.Table:
    columns = [list(column) for column in zip(*votes, strict=True)] if votes else [[]] * 5
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, ballot_schema(ROWS), strict=True)], ballot_schema(ROWS)
    )


def emitted(votes: list[tuple[object, ...]]) -> Counter[int]:
    return Counter(judged(table(votes)).column("k").to_pylist())


def test_a_candidate_is_emitted_unless_it_has_matched_elsewhere() -> None:
    votes = candidate(1, 1) + candidate(2, 1) + matched(2, 0, 1) + matched(3, 1, 1) + matched(4, HOME, 1)
    assert emitted(votes) == {1: 1}
    assert judged(table(candidate(1, 1))).to_pydict() == {"k": [1], "name": ["row 1"]}
    assert judged(table([])).schema == ROWS


def test_of_equal_rows_those_have_matched_that_came_first() -> None:
    """One of three has matched at home, two elsewhere: the third one is emitted."""
    assert emitted(candidate(1, 2) + matched(1, HOME, 1) + matched(1, 0, 2) + matched(1, 5, 1)) == {1: 1}
    assert emitted(candidate(1, 1) + matched(1, HOME, 1) + matched(1, 0, 1)) == {1: 1}, "the one that home has matched"
    assert emitted(candidate(1, 2) + matched(1, 0, 1) + matched(1, 3, 1)) == {1: 1}, "the same one, by both"


@pytest.mark.parametrize("seed", range(20))
def test_any_votes_in_any_order(seed: int) -> None:
    """Rows 0 to n - 1 of each content came in this order, and each partition has matched the first ones."""
    rng = random.Random(seed)
    votes: list[tuple[object, ...]] = []
    alone: Counter[int] = Counter()
    for number in range(rng.randrange(12)):
        rows = rng.randrange(1, 4)
        found = {one: rng.randrange(rows + 1) if rng.random() < 0.5 else 0 for one in range(4)}
        votes += candidate(number, rows - found[HOME])
        for one, count in found.items():
            votes += matched(number, one, count)
        alone[number] = rows - max(found.values())
    rng.shuffle(votes)
    assert emitted(votes) == +alone
    judge = Judge()
    results = pa.table({"k": [7, 8], "name": ["a", None]}, schema=ROWS)
    came = [*no_votes(results, 3).to_batches(), *table(votes).to_batches(max_chunksize=3)]
    rng.shuffle(came)
    passed = [one for batch in came for one in judge.results(batch)]
    assert pa.Table.from_batches(passed, ROWS) == results
    if votes:
        assert Counter(judge.verdict().column("k").to_pylist()) == +alone


def test_results_go_through_untouched() -> None:
    results = pa.table({"k": [7, 8], "name": ["a", None]}, schema=ROWS)
    [batch] = no_votes(results, 3).to_batches()
    [passed] = Judge().results(batch)
    assert passed.column(0).buffers()[1].address == batch.column(0).buffers()[1].address
    assert not Judge().verdict().num_rows


def test_votes_have_names_of_their_own() -> None:
    assert vote_names(["K", "_VOTE_HIGH", "__vote_x"]) == ["___vote_by", "___vote_high", "___vote_low"]


def test_identities_tell_contents_apart() -> None:
    """Nulls, nesting and the order of columns all count; where a row lies does not."""
    columns = {
        "numbers": pa.array([0, None, 1, 1 << 62], pa.int64()),
        "small": pa.array([0, None, 1, -1], pa.int8()),
        "floats": pa.array([0.0, None, -0.0, float("nan")]),
        "texts": pa.array(["", None, "a", "b"]),
        "bytes": pa.array([b"", None, b"a", b"a" * 100]),
        "lists": pa.array([[], None, [None], [[1], [2]]], pa.list_(pa.list_(pa.int64()))),
        "maps": pa.array([[], None, [("a", 1)], [("a", None)]], pa.map_(pa.string(), pa.int64())),
        "structs": pa.array([{"a": None}, None, {"a": 0}, {"a": 1}], pa.struct([("a", pa.int64())])),
        "decimals": pa.array([0, None, 1, 2], pa.decimal128(20, 2)),
        "flags": pa.array([False, None, True, True]),
        "times": pa.array([0, None, 1, 2], pa.timestamp("us", "UTC")),
        "days": pa.array([0, None, 1, 2], pa.date32()),
    }
    for name, column in columns.items():
        for half in identities([column]):
            assert len(set(half.tolist())) == (3 if name == "flags" else 4), name
        first, second = identities([column])
        assert not set(first.tolist()) & set(second.tolist()), name
        moved = pa.chunked_array([column.slice(2), column.slice(1, 2)])
        assert identities([moved])[0].tolist() == [*first[2:].tolist(), *first[1:3].tolist()], name
    one, other = pa.array(["ab", "a"]), pa.array(["c", "bc"])
    assert len(set(identities([one, other])[0].tolist())) == 2
    assert identities([one, other])[0].tolist() != identities([other, one])[0].tolist()
