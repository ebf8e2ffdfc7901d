"""Optional inputs: what is refused, what is counted, what is kept, and what is written in a pipeline file."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.engine.registry import build
from watersmeet.errors import FanOutError, OptionError
from watersmeet.join.operator import Operator, advance
from watersmeet.multiway.options import MultiwayOptions, required_inputs
from watersmeet.multiway.origins import owed
from watersmeet.pipeline.config import from_dict
from watersmeet.state.space import MemorySpace
from watersmeet.testing import Arrival, batch_of, make_plan
from watersmeet.testing.arrivals import Row
from watersmeet.testing.harness import rows_of


def mjoin(inputs: str, optional: str, window: int | None = None, **tuning: Any) -> Operator:
    options: dict[str, Any] = {"optional": list(optional), "buckets": 2}
    if window is not None:
        options |= {"window": window, "lateness": 0, "time": dict.fromkeys(inputs, "_p0")}
    plan = make_plan("mjoin", tuple(inputs), options, payload=(pa.int64(),), tuning={"page_rows": 4, **tuning})
    return build(plan, MemorySpace())


def run(operator: Operator, number: int, ended: str = "", **rows: list[Row]) -> Counter[Row]:
    return rows_of(advance(operator, batch_of(operator.plan, number, Arrival(rows, ended=frozenset(ended)))))


def lacking(operator: Operator) -> dict[str, int]:
    counters = operator.metrics.counters.items()
    return {name: int(n) for name, n in counters if name.startswith(("absent.", "unmatched.")) and n}


def test_names_are_checked() -> None:
    assert required_inputs("x", (), ["a", "b"]) == ["a", "b"]
    assert required_inputs("x", ("a",), ["a", "b"]) == ["b"]
    with pytest.raises(OptionError, match=r"x: expected optional to name some of the inputs a, b, and not all of them"):
        required_inputs("x", ("a", "b"), ["a", "b"])
    with pytest.raises(OptionError, match=r"found optional=\['clickz'\]\. Did you mean 'clicks'\?"):
        required_inputs("x", ("clickz",), ["clicks", "buys"])
    with pytest.raises(OptionError, match="There is no input 'returns': correct it or leave it out"):
        required_inputs("x", ("returns",), ["a", "b"])
    plan = make_plan("mjoin", ("a", "b"))
    with pytest.raises(OptionError, match="and not all of them"):
        MultiwayOptions(optional=("a", "b")).check_plan("multiway_join", plan)


def test_a_name_alone_is_a_list_of_one() -> None:
    assert MultiwayOptions.checked("multiway_join", optional="returns").optional == ("returns",)
    assert MultiwayOptions.checked("multiway_join", optional=["a", "b"]).optional == ("a", "b")
    with pytest.raises(OptionError, match="optional names an input twice"):
        MultiwayOptions.checked("multiway_join", optional=["a", "a"])
    with pytest.raises(OptionError, match="a valid value for optional") as caught:
        MultiwayOptions.checked("multiway_join", optional=7)
    assert caught.value.option == "optional"


def test_a_window_within_a_budget_is_refused_with_the_reason() -> None:
    written = {"optional": ["b"], "window": "1 min", "memory": "1 GB"}
    with pytest.raises(OptionError, match="rows on disk are found by their key only; leave one of the three out"):
        MultiwayOptions.checked("multiway_join", {"time": {"a": "_p0", "b": "_p0"}}, **written)


def test_optional_inputs_are_part_of_the_identity() -> None:
    assert MultiwayOptions(optional=("b",)).identity()["optional"] == ["b"]
    assert "optional" not in MultiwayOptions(optional=("b",)).tuning()


def test_what_lacks_an_input_is_counted_once_by_its_proof() -> None:
    operator = mjoin("abc", "cb")
    found = run(operator, 0, a=[(1, 1), (2, 2), (None, 3)], b=[(1, 4)], c=[(None, 5)])
    assert found == Counter([(None, 3, None, None)])
    assert lacking(operator) == {"absent.b": 1, "absent.c": 1, "unmatched.a.null_key": 1}
    assert run(operator, 1, ended="c") == Counter([(1, 1, 4, None)])
    assert lacking(operator) == {"absent.c": 1, "unmatched.a.ended": 1}
    assert run(operator, 2, a=[(1, 6)], b=[(2, 7)]) == Counter([(1, 6, 4, None), (2, 2, 7, None)])
    assert run(operator, 3, a=[(3, 8)], ended="ab") == Counter([(3, 8, None, None)])
    assert lacking(operator) == {"absent.b": 1, "absent.c": 1, "unmatched.a.ended": 1}


def test_rows_without_a_key_are_in_no_combination_of_two_required_inputs() -> None:
    operator = mjoin("abc", "c")
    assert not run(operator, 0, a=[(None, 1)], b=[(None, 2)], ended="abc")
    assert operator.accounts.left["a"] == {"null_key": 1}


def test_the_window_is_a_proof_of_its_own() -> None:
    operator = mjoin("ab", "b", window=2)
    assert not run(operator, 0, a=[(1, 5)], b=[(1, 7), (2, 7)])[(1, 5, None)]
    assert run(operator, 1, a=[(2, 4)], b=[(1, 8)]) == Counter([(2, 4, None)])
    assert lacking(operator) == {"absent.b": 1, "unmatched.a.expired": 1}
    assert run(operator, 2, a=[(2, 9)], ended="b") == Counter([(2, 9, 7)])
    assert run(operator, 3, a=[(3, 9)]) == Counter([(3, 9, None)])
    assert lacking(operator) == {"absent.b": 1, "unmatched.a.ended": 1}


def test_rows_of_an_optional_input_are_kept_until_it_ends() -> None:
    operator = mjoin("ab", "b")
    run(operator, 0, a=[(1, 1), (2, 2)], ended="a")
    assert run(operator, 1, b=[(1, 3)]) == Counter([(1, 1, 3)])
    assert operator.accounts.held("b") == 1
    assert run(operator, 2, ended="b") == Counter([(2, 2, None)])
    assert operator.finished


def test_too_many_results_without_an_input_are_an_error() -> None:
    for window in (None, 5):
        operator = mjoin("abc", "c", window=window, max_results=99)
        rows = {name: [(1, 1)] * 10 for name in "ab"}
        assert not run(operator, 0, **rows)
        with pytest.raises(FanOutError, match="at most max_results=99"):
            run(operator, 1, ended="c")


@pytest.mark.parametrize("limit", [8, 15, 16])
def test_combinations_that_are_out_do_not_count_twice(limit: int) -> None:
    """All rows drive twice in this batch: when they come, and as the horizon passes them."""
    operator = mjoin("ab", "b", window=100, max_results=limit)
    assert run(operator, 0, a=[(1, 10)] * 8, b=[(1, 50), (2, 200)]) == Counter({(1, 10, 50): 8})


def test_results_of_a_batch_count_together_whether_or_not_they_lack_an_input() -> None:
    enough, few = (mjoin("ab", "b", window=100, max_results=limit) for limit in (10, 9))
    rows: dict[str, list[Row]] = {"a": [(1, 10)] * 8, "b": [(1, 50), (2, 200)]}
    assert not run(enough, 0, a=[(3, 10)] * 2) + run(few, 0, a=[(3, 10)] * 2)
    assert run(enough, 1, **rows) == Counter({(1, 10, 50): 8, (3, 10, None): 2})
    with pytest.raises(FanOutError, match=r"max_results=9 .* 1 more that lack an optional input"):
        run(few, 1, **rows)


def test_stored_rows_that_a_horizon_passes_count_only_if_they_lack_an_input() -> None:
    """Each batch is within the limit; the horizon passes the rows of both at once."""
    operator = mjoin("abc", "c", window=100, max_results=8)
    assert run(operator, 0, a=[(1, 10)] * 8, b=[(1, 10)], c=[(1, 50)]).total() == 8
    assert run(operator, 1, a=[(1, 12)] * 8).total() == 8
    assert run(operator, 2, a=[(2, 20)], b=[(2, 20)], c=[(3, 300)]) == Counter([(2, 20, 20, None)])


def test_combinations_that_wait_are_refused_before_they_are_looked_at() -> None:
    operator = mjoin("abcd", "cd", window=10**9, max_results=10**6)
    rows: dict[str, list[Row]] = {name: [(1, 1)] * 10**4 for name in "ab"}
    run(operator, 0, c=[(2, 10**9)])
    with pytest.raises(FanOutError, match=r"1e\+08 more combinations to build"):
        run(operator, 1, **rows)


def test_a_single_generation_that_is_older_than_an_end_is_merged_in_silence() -> None:
    operator = mjoin("ab", "b", memory=1, idle_pages=100)
    keys = range(8)
    assert run(operator, 0, a=[(key, key) for key in keys], b=[(5, 50), (6, 60)]) == Counter([(5, 5, 50), (6, 6, 60)])
    assert not run(operator, 1, a=[(None, 9)])[(0, 0, None)]
    assert operator.metrics.counters["spilled_rows.a"] == 8
    assert not run(operator, 2)  # all within the generation has been reported
    assert operator.metrics.counters.get("buckets_merged", 0) == 0
    run(operator, 3, ended="b", a=[(None, 9)])
    assert run(operator, 4) == Counter([(key, key, None) for key in keys if key not in (5, 6)])
    assert not run(operator, 5)
    assert not run(operator, 6, ended="a")


def test_the_terms_of_keys_that_lack_an_input() -> None:
    """Every combination of rows of two generations, and those within one that was not reported."""
    tables = [[pa.table({"at": np.arange(2)}), pa.table({"at": np.arange(3)})] for _ in range(3)]
    across = [term.tables for term in owed(tables, lacking={1})]
    assert [[sum(t.num_rows for t in mine) for mine in term] for term in across] == [[2, 0, 3], [3, 0, 2]]
    within = [term.tables for term in owed(tables, {1, 2}, [0, 1])]
    assert [[sum(t.num_rows for t in mine) for mine in term] for term in within] == [[2, 0, 0], [3, 0, 0]]


def test_a_pipeline_file_names_them() -> None:
    source = {"format": "parquet", "path": "x", "schema": "k long"}
    join = {"operator": "multiway", "inputs": ["a", "b"], "on": "k", "optional": ["b"]}
    data = {"name": "p", "sources": {"a": source, "b": source}, "join": join, "sink": {"format": "noop"}}
    options = from_dict(data).pipeline.join.options
    assert isinstance(options, MultiwayOptions)
    assert options.optional == ("b",)
