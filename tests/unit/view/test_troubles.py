"""Each trouble is named where it is and nowhere else, with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.troubled_joins import fan_out, healthy, hot_key, late_rows, silent_input, small_budget

from watersmeet.view.reading import JoinReader
from watersmeet.view.snapshot import Snapshot
from watersmeet.view.troubles import Facts, InputFacts, troubles


def found_in(folder: Path) -> list[dict[str, Any]]:
    reader = JoinReader(folder)
    reader.refresh()
    found: list[dict[str, Any]] = Snapshot(reader).document()["troubles"]
    return found


@pytest.mark.parametrize(
    ("make", "title", "words"),
    [
        (hot_key, "One key has half of all rows of orders", "Key 7 has about 50 % of the 3,000 rows of orders"),
        (silent_input, "payments is silent", "on payments, in 12 batches in which orders had rows"),
        (fan_out, "Fan-out of 10,000: key 42 multiplies", "gives about 10,000 results"),
        (
            late_rows,
            "Late rows on payments",
            "110 of the newest 1,200 rows of payments (9.2 %) came behind the watermark",
        ),
        (small_budget, "The budget is too small", "lie on disk"),
    ],
)
def test_an_injected_trouble_is_named(make: Callable[[Path], Path], title: str, words: str, tmp_path: Path) -> None:
    found = found_in(make(tmp_path / "join"))
    named = [one for one in found if one["title"].startswith(title)]
    assert len(named) == 1, [one["title"] for one in found]
    assert words in named[0]["sentence"]
    assert len({one["id"] for one in found}) == len(found)


def test_a_healthy_join_has_none(tmp_path: Path) -> None:
    assert found_in(healthy(tmp_path / "join")) == []


def titles(**facts: Any) -> list[str]:
    return [one["title"] for one in troubles(Facts("progressive", **{"running": True, **facts}))]


def test_the_thresholds() -> None:
    def top(share: float, rows: int = 1000) -> list[str]:
        return titles(inputs=(InputFacts("a", rows=rows, top=(("k", share),)),))

    assert top(0.19) == []
    assert top(0.2) == ["One key has 20 % of all rows of a"]
    assert top(0.9, rows=99) == [], "of few rows one key may have many"
    assert titles(partition_rows=(300, 100, 100, 100)) == ["Partition 0 has 2.0 times the mean"]
    assert titles(partition_rows=(290, 100, 100, 110)) == []
    assert titles(unbounded=True, growth=1e6, full_in=3 * 3600.0) == ["Nothing bounds the state"]
    assert titles(unbounded=True, growth=1e6, full_in=3 * 3600.0, running=False) == []
    assert titles(unbounded=True, growth=1.0, full_in=8 * 86400.0) == []
    assert titles(batch_seconds=4.0, usual_seconds=1.0) == ["Batches have become slower"]
    assert titles(batch_seconds=3.9, usual_seconds=1.0) == []
    assert titles(inputs=(InputFacts("a", rows=200, null_keys=10),)) == ["5.0 % of a have no key"]
    assert titles(violations={"a": 3}, repeats=1) == ["a breaks its promises", "A source does not replay"]
    assert titles(inputs=(InputFacts("a", shed=5),)) == ["Rows of a are lost to overload"]
    assert titles(overloads=2, budget=10) == ["The budget is too small"]


def test_silence_is_trouble_only_beside_rows_of_others() -> None:
    def silent(**facts: Any) -> list[str]:
        given = {"rows": 5, "silent_seconds": 20.0, "silent_batches": 4, **facts}
        return titles(inputs=(InputFacts("a", **given), InputFacts("b", rows=5)))

    assert silent() == ["a is silent"]
    assert silent(ended=True) == []
    assert silent(silent_seconds=9.9) == []
    assert silent(silent_batches=2) == []


def test_a_hot_key_can_be_spread() -> None:
    def advice(family: str, hot_keys: str = "off") -> list[str]:
        hot = (InputFacts("a", rows=1000, top=(("k", 0.5),)),)
        return [one["advice"] for one in troubles(Facts(family, running=True, inputs=hot, hot_keys=hot_keys))]

    assert 'hot_keys="auto"' in advice("window")[0]
    assert 'hot_keys="auto"' in advice("punctuated")[0]
    assert "hot_keys" not in advice("semi_stream")[0], "it has no such option"
    assert advice("window", "auto") == []


def test_late_rows_without_any_use() -> None:
    def late(too_late: int) -> str:
        came = (InputFacts("a", rows=100, recent_rows=100, late=20, too_late=too_late),)
        return str(troubles(Facts("window", running=True, inputs=came))[0]["sentence"])

    assert late(0).endswith("All were joined with what is left.")
    assert late(7).endswith("7 of them found nothing left to match.")
    assert late(20).endswith("All of them found nothing left to match.")


def test_the_worst_comes_first() -> None:
    few = (InputFacts("a", rows=10, null_keys=10),)
    found = troubles(Facts("progressive", running=True, repeats=1, partition_rows=(900, 10, 10), inputs=few))
    assert [one["level"] for one in found] == ["bad", "warning", "note"]


def test_a_failure_is_told_once() -> None:
    said = "pipeline p: expected the query to run, found none. Starting it again goes on where it stopped."
    (found,) = troubles(Facts("window", running=False, failure=said))
    assert found["sentence"] == "pipeline p: expected the query to run, found none."
    assert found["advice"] == "Starting it again goes on where it stopped."
