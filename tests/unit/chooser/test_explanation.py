"""What is said of a join: its bounds, its unmatched rows, its reasons; before and after it has run."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from watersmeet.chooser.bounds import bounds
from watersmeet.chooser.decide import Choice
from watersmeet.chooser.explanation import explained
from watersmeet.chooser.matching import matching
from watersmeet.chooser.observed import Observed
from watersmeet.chooser.story import STORY_FILE, Side, Story, record_story, recorded_story
from watersmeet.chooser.tuning import choices
from watersmeet.chooser.unmatched import unmatched
from watersmeet.errors import CorruptStateError
from watersmeet.plan.hot_table import HotKey, HotTable
from watersmeet.state.directory import StateDir, seal
from watersmeet.state.identity import register_broadcast

MINUTE = 60_000_000
LEFT, RIGHT = Side("left", 48), Side("right", 40)
WAIT = "say how long rows wait for each other (within), what"
KINDS = "promises (unique, clustered, ordered, ends)"


def story(operator: str, how: str = "inner", inputs: tuple[Side, ...] = (LEFT, RIGHT), **options: Any) -> Story:
    return Story("join", operator, how, "k", inputs, options, 2)


def window(how: str = "inner", **options: Any) -> Story:
    usual = {"window": [30 * MINUTE, 0], "time": ["a", "b"], "lateness": 10_000_000}
    return story("window", how, **{**usual, **options})


def texts(made: Story, rates: dict[str, float] | None = None) -> list[str]:
    return [bound.text for bound in bounds(made, rates or {})]


def warnings(made: Story) -> list[str | None]:
    return [bound.warning for bound in bounds(made, {})]


def test_nothing_bounds_two_streams() -> None:
    plain = story("symmetric")
    assert texts(plain)[0] == "grows with the input: about 48 bytes a row, 4.1 GB a day at 1,000 rows/s"
    assert texts(plain, {"right": 10.0})[1] == "grows with the input: about 40 bytes a row, 34.6 MB a day at 10 rows/s"
    assert warnings(plain) == [
        f"nothing bounds the rows held of left: {WAIT} right {KINDS}, or end right (end_input)",
        f"nothing bounds the rows held of right: {WAIT} left {KINDS}, or end left (end_input)",
    ]


def test_a_budget_bounds_memory_alone() -> None:
    limited = story("rpj", memory=256_000_000)
    assert texts(limited)[0].endswith(
        "4.1 GB a day at 1,000 rows/s; in memory no more than 256.0 MB for all inputs, the rest on disk"
    )
    assert all(warnings(limited))


@pytest.mark.parametrize("how", ["left_semi", "left_anti"])
def test_semi_and_anti_joins_keep_left_rows_until_they_match_and_keys(how: str) -> None:
    for operator in ("symmetric", "punctuated"):
        left, right = texts(story(operator, how, constraints=[]))
        assert left.startswith("they leave when they match; what never does grows with the input: about 48 bytes")
        assert right.startswith("grows with its distinct keys: about 40 bytes")
        left_warning, right_warning = warnings(story(operator, how, constraints=[]))
        assert str(left_warning).startswith("rows of left that match nothing stay: ")
        assert str(right_warning).startswith("nothing bounds the rows held of right: ")
    _, right = texts(replace(story("symmetric", how), where="left.a < right.b"))
    assert right.startswith("grows with its distinct keys and columns of the condition: about 40 bytes")
    left, right = texts(window(how))
    assert left.endswith(" rows/s; sooner, when they match")
    assert right.endswith(" rows/s")


def test_an_open_interval_bounds_one_side() -> None:
    left, right = warnings(window(window=[None, 0]))
    assert left == (
        f"nothing bounds the rows held of left: give the interval both ends (within), say what right {KINDS}, or end "
        "right (end_input)"
    )
    assert right is None
    promised = replace(window(window=[None, 0]), inputs=(LEFT, replace(RIGHT, punctuated=True)))
    assert warnings(promised) == [None, None]
    assert texts(promised)[0] == "they leave when right promises to send no more of their key (its punctuations)"


def test_a_window_bounds_each_side_by_the_other_clock() -> None:
    assert texts(window()) == [
        "until the time of right is 30 min past theirs, and 10 s for late rows: about 1,810,000 rows, 86.9 MB, at "
        "1,000 rows/s",
        "until the time of left is 0 s past theirs, and 10 s for late rows: about 10,000 rows, 400.0 kB, at 1,000 "
        "rows/s",
    ]
    assert warnings(window()) == [None, None]
    (arrival, _) = texts(window(time=None), {"left": 2.0})
    assert arrival == "until the time of right is 30 min past theirs: about 3,600 rows, 172.8 kB, at 2 rows/s"


def test_an_interval_after_zero_lets_right_rows_wait_for_nothing() -> None:
    later = window("full", window=[10 * MINUTE, -5 * MINUTE])
    _, right = texts(later)
    assert right == (
        "until the time of left is 5 min before theirs, and 10 s for late rows: about 0 rows, 0 bytes, at 1,000 rows/s"
    )
    _, when = unmatched(later)
    assert when.startswith("right: when the time of left is 5 min before theirs, and 10 s for late rows, or when")


def test_many_streams() -> None:
    three = (Side("a", 48), Side("b", 48), Side("c", 48))
    assert warnings(story("mjoin", inputs=three))[2] == (
        "nothing bounds the rows held of c: give within (and time), or end the other inputs (end_input)"
    )
    assert list(unmatched(story("mjoin", inputs=three, optional=["c"]))) == [
        "combinations without a row of c: only when that input has ended (end_input)"
    ]
    bounded = story("mjoin", inputs=three, window=MINUTE, lateness=0, optional=["b"])
    assert list(unmatched(bounded)) == [
        "combinations without a row of b: when its time is 1 min past theirs, or when it has ended (end_input)"
    ]
    assert (
        texts(bounded)[0] == "until all other times are 1 min past theirs: about 60,000 rows, 2.9 MB, at 1,000 rows/s"
    )


def test_rows_of_optional_inputs_are_held_for_a_window_longer() -> None:
    three = (Side("a", 48), Side("b", 48), Side("c", 48, shown="clicks"))
    one = story("mjoin", inputs=three, window=MINUTE, lateness=30_000_000, optional=["b"])
    assert texts(one)[1] == (
        "until all other times are 1 min past theirs, and that of b 2 min past theirs, and 30 s for late rows: about "
        "150,000 rows, 7.2 MB, at 1,000 rows/s"
    )
    two = story("mjoin", inputs=three, window=MINUTE, lateness=0, optional=["b", "c"])
    assert [bound.rows for bound in bounds(two, {"c": 10.0})] == [60_000, 120_000, 1_200]
    assert texts(two)[2].startswith(
        "until all other times are 1 min past theirs, and those of b and clicks 2 min past theirs: about 120,000 rows"
    )


@pytest.mark.parametrize(
    ("constraints", "punctuated", "left", "warned"),
    [
        ([], True, "they leave when right promises to send no more of their key (its punctuations)", False),
        (
            [{"kind": "clustered", "input": "right"}, {"kind": "ordered", "input": "right"}],
            False,
            "they leave when right promises to send no more of their key (the end of each cluster and the order of its "
            "keys)",
            False,
        ),
        (
            [{"kind": "one_to_many", "one": "right"}],
            True,
            "they leave when they match, since a key is unique in right, or when right promises to send no more of "
            "their key (its punctuations)",
            False,
        ),
        (
            [{"kind": "one_to_many", "one": "right"}],
            False,
            "they leave when they match, since a key is unique in right; what never does grows with the input: about "
            "48 bytes a row, 4.1 GB a day at 1,000 rows/s",
            True,
        ),
        # What the left input says of itself ends rows of the right one, not its own.
        (
            [{"kind": "clustered", "input": "left"}, {"kind": "one_to_many", "one": "left"}],
            False,
            "grows with the input: about 48 bytes a row, 4.1 GB a day at 1,000 rows/s",
            True,
        ),
    ],
)
def test_promises_of_the_other_input(
    constraints: list[dict[str, str]], punctuated: bool, left: str, warned: bool
) -> None:
    made = story("punctuated", inputs=(LEFT, replace(RIGHT, punctuated=punctuated)), constraints=constraints)
    assert texts(made)[0] == left
    assert (warnings(made)[0] is not None) == warned


def test_a_window_and_promises() -> None:
    promised = replace(
        window("left", constraints=[{"kind": "one_to_many", "one": "right"}]),
        operator="promised_window",
        inputs=(LEFT, replace(RIGHT, punctuated=True)),
    )
    left, right = texts(promised)
    assert left.endswith(
        " rows/s; sooner, when they match, since a key is unique in right or when right promises to send no more "
        "of their key (its punctuations)"
    )
    assert right.endswith("at 1,000 rows/s")
    (when,) = unmatched(promised)
    assert (
        "for late rows, or when the one row of their key has come from right and was no match, or when right has "
        "promised to send no more of their key, or when right has ended"
    ) in when
    taken_back = replace(promised, options={**promised.options, "on_violation": "keep"})
    assert "unique" not in texts(taken_back)[0]
    assert "the one row" not in next(iter(unmatched(taken_back)))
    assert list(choices("window", {"constraints": []})) == [], "rows with promises are always kept by hash"


def test_a_table_is_bounded_by_its_memory() -> None:
    made = story("semi_stream", inputs=(Side("stream", 48),), max_delay=10, memory=64_000_000)
    assert texts(made) == ["no longer than 10 micro-batches; rows that wait and the cache of the table share 64.0 MB"]
    at_once = replace(made, options={**made.options, "max_delay": 1})
    assert texts(at_once) == ["no row waits; the cache of the table has 64.0 MB"]
    assert list(unmatched(replace(at_once, how="left"))) == ["stream: in their own micro-batch"]
    assert list(unmatched(replace(made, how="left_anti"))) == ["stream: within 10 micro-batches"]


def test_unmatched_rows_come_when_it_is_certain() -> None:
    assert list(unmatched(story("symmetric"))) == []
    assert list(unmatched(story("symmetric", "full"))) == [
        "left: only when right has ended (end_input)",
        "right: only when left has ended (end_input)",
    ]
    assert list(unmatched(story("symmetric", "left_semi"))) == ["left: a row is emitted once, at its first match"]
    assert list(unmatched(window("left"))) == [
        "left: when the time of right is 30 min past theirs, and 10 s for late rows, or when right has ended "
        "(end_input); while right is silent its time stands still (idle_timeout would let it go on)"
    ]
    (late,) = unmatched(window("right", idle_timeout=MINUTE))
    assert late.endswith("; once left is silent for 1 min, its time follows right's")
    said = story("punctuated", "left", (LEFT, replace(RIGHT, punctuated=True)), constraints=[])
    assert list(unmatched(said)) == [
        "left: when right has promised to send no more of their key, or when right has ended (end_input)"
    ]
    unique = story("punctuated", "left", constraints=[{"kind": "one_to_many", "one": "right"}])
    assert list(unmatched(unique)) == ["left: only when right has ended (end_input)"]
    assert list(unmatched(replace(unique, where="left.a < right.b"))) == [
        "left: when the one row of their key has come from right and was no match, or when right has ended (end_input)"
    ]


def test_the_whole_text() -> None:
    reason = Choice("join", "window", "within says how long rows wait")
    made = replace(window("left"), choices=(reason,)).named({"left": "orders", "right": "payments"})
    assert str(explained(made, None, {"left": 100.0, "right": 1.0})) == (
        "window join of orders and payments on k, how='left', 2 partitions\n"
        "chosen\n"
        "  join: window, because within says how long rows wait\n"
        "rows match\n"
        "  if the time of payments less that of orders is between 0 s and 30 min\n"
        "  late rows, more than 10 s behind their input's newest time, are joined with what is still held, and "
        "counted\n"
        "rows are held (at the rates given)\n"
        "  orders: until the time of payments is 30 min past theirs, and 10 s for late rows: about 181,000 rows, "
        "8.7 MB, at 100 rows/s\n"
        "  payments: until the time of orders is 0 s past theirs, and 10 s for late rows: about 10 rows, 400 bytes, at "
        "1 rows/s\n"
        "unmatched rows are emitted\n"
        "  orders: when the time of payments is 30 min past theirs, and 10 s for late rows, or when payments has ended "
        "(end_input); while payments is silent its time stands still (idle_timeout would let it go on)\n"
        "cost\n"
        "  known once it has run; wm.explain_window_join(rates=...) tells it for rates you expect"
    )


def test_a_join_by_its_own_function_was_called() -> None:
    text = str(explained(story("symmetric"), None))
    assert "  join: progressive, because join was called" in text
    assert "rows are held (at 1,000 rows/s, since no rates are known yet)" in text
    assert "  warning: nothing bounds the rows held of left" in text


def test_what_makes_a_match() -> None:
    assert list(matching(story("symmetric"))) == []
    told = replace(story("symmetric"), where="left.price <= right.limit", nulls_match=("region", "shop"))
    assert list(matching(told)) == [
        "a null in region and shop matches a null",
        "where left.price <= right.limit",
    ]
    assert list(matching(window(late="drop", window=[10 * MINUTE, -5 * MINUTE]))) == [
        "if the time of right less that of left is between 5 min and 10 min",
        "late rows, more than 10 s behind their input's newest time, are dropped, and counted",
    ]
    assert list(matching(window(time=None, window=[MINUTE, MINUTE]))) == [
        "if the time of right less that of left is between -1 min and 1 min"
    ]
    for waits, words in (([None, 0], "at least 0 s"), ([0, None], "at most 0 s"), ([None, 7], "at least -7 us")):
        assert next(matching(window(window=waits))) == f"if the time of right less that of left is {words}"
    three = (Side("a", 48), Side("b", 48), Side("c", 48))
    many = story("mjoin", inputs=three, window=MINUTE, lateness=0, time={"a": "t"}, late="join")
    assert list(matching(many)) == [
        "if the first and the last of them are at most 1 min apart",
        "late rows, more than 0 s behind their input's newest time, are joined with what is still held, and counted",
    ]


def test_the_cost_of_a_table_is_that_of_its_own_chunks() -> None:
    def made(chunk_rows: int) -> Story:
        table = {"rows": 1_000_000, "nbytes": 100_000_000, "chunk_rows": chunk_rows, "layout": "hash"}
        told = story("semi_stream", inputs=(Side("stream", 48),), max_delay=10, memory=64_000_000, policy="aligned")
        return replace(told, table=table)

    assert "1,000,000 master rows in 10 chunks" in str(explained(made(100_000), None))
    assert "1,000,000 master rows in 100 chunks" in str(explained(made(10_000), None))


def test_a_story_of_an_older_release_has_no_condition(tmp_path: Path) -> None:
    directory, made = StateDir(tmp_path), window()
    told = {name: value for name, value in asdict(made).items() if name not in ("where", "nulls_match")}
    directory.publish(STORY_FILE, seal({"story": told}))
    assert recorded_story(directory) == made


def test_a_story_is_kept_beside_the_state(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    assert recorded_story(directory) is None
    made = replace(window(), choices=(Choice("join", "window", "why"),), table={"rows": 3}, nulls_match=("k",))
    record_story(directory, made)
    written = (tmp_path / STORY_FILE).stat().st_mtime_ns
    record_story(directory, made)
    assert (tmp_path / STORY_FILE).stat().st_mtime_ns == written, "the same story is not written again"
    assert recorded_story(directory) == made
    (tmp_path / STORY_FILE).write_bytes(b"{}\n{}\n")
    with pytest.raises(CorruptStateError):
        recorded_story(directory)


TABLE = {"rows": 1_000_000, "chunk_rows": 100_000, "partitions": 2, "layout": "hash"}


@pytest.mark.parametrize(("how", "unmatched"), [("inner", []), ("left", ["clicks: at once, in their own micro-batch"])])
def test_a_broadcast_join_holds_nothing(tmp_path: Path, how: str, unmatched: list[str]) -> None:
    directory = StateDir(str(tmp_path))
    register_broadcast("join", directory, "stream", how)
    made = replace(
        story("broadcast", how, (Side("stream", 48, shown="clicks"),)), partitions=0, table={"columns": ["k"]}
    )
    record_story(directory, made)
    found = explained(made, directory, {"stream": 100.0}, like=directory)
    assert recorded_story(directory) == made
    assert str(found).splitlines()[0] == f"broadcast join of clicks and a table on k, how='{how}'"
    assert (found.observed, found.warnings, found.unmatched) == (None, [], unmatched)
    assert [bound.rows for bound in found.bounds] == [0]
    assert "rows are held\n  clicks: none: every row is joined in its own micro-batch\n" in str(found)
    assert "the table\n  is read by the first micro-batch and kept in Spark's cache" in str(found)
    assert str(found).endswith("grows with its rows, and with the table, which Spark broadcasts anew")


def test_choices_of_a_semi_stream_join() -> None:
    def made(given: dict[str, Any], **known: Any) -> dict[str, tuple[str, str]]:
        return {one.what: (one.value, one.why) for one in choices("semi-stream", given, **known)}

    assert made({}, table=TABLE) == {
        "policy": ("aligned", "the table is in chunks by the hash of the key: a row waits for one chunk"),
        "max_delay": (
            "1",
            "the table has about 5 chunks in each partition: all of it can be read in a micro-batch, so that no row "
            "waits",
        ),
    }
    large = made({}, table={**TABLE, "rows": 40_000_000, "layout": "arrival"})
    assert large["policy"][0] == "mesh"
    assert large["max_delay"] == (
        "10", "the table has about 200 chunks in each partition: 20 of them are read in a micro-batch"
    )  # fmt: skip
    assert made({})["max_delay"] == ("10", "the size of the table is known once it is prepared")
    assert made({"max_delay": 4}, table=TABLE)["max_delay"] == ("4", "it was given")
    assert made({}, table=TABLE, earlier={"policy": "mesh", "max_delay": 7}) == {
        "policy": ("mesh", "the join has run with it"),
        "max_delay": ("7", "the join has run with it"),
    }


def test_choices_that_are_made_while_a_join_runs() -> None:
    budgeted = [("policy", "rpj"), ("flush", "classes")]
    assert [(one.what, one.value) for one in choices("progressive", {"memory": "1 MB"})] == budgeted
    pinned = choices("progressive", {"memory": "1 MB", "policy": "xjoin"})
    assert [(one.what, one.value) for one in pinned] == [("policy", "xjoin")], "it has a way of its own"
    assert list(choices("progressive", {})) == [], "without a budget no policy decides anything"
    assert [(one.what, one.value) for one in choices("multiway", {})] == [("driver", "output_size")]
    assert list(choices("punctuated", {})) == []


def test_hot_keys() -> None:
    assert "hot keys" not in str(explained(story("symmetric"), None))
    made = story("symmetric", how="left", hot_keys=["left"])
    told = str(explained(made, None)).splitlines()
    assert told[told.index("hot keys") + 1] == (
        "  spread over partitions when they make more than 20 % of a partition's mean work: rows of left are divided, "
        "those of the other input copied"
    )
    both = str(explained(story("symmetric", hot_keys=["left", "right"], hot_grids=True), None))
    assert "rows of left or right are divided, those of the other input copied; or both, where that is less" in both
    table = HotTable.of(
        [
            HotKey(1, "left", ((0,), (1,), (3,)), ((0, 1, 2), (0,)), (0, 1, 1), share=0.5, text="7"),
            HotKey(2, "left", ((0,), (1,)), ((0, 1), (0,)), (0,), share=0.01, text="8"),
            HotKey(3, "right", ((0, 1), (2, 3), (4, 5)), ((0, 2, 3), (0, 1)), (0, 1, 2), (0, 1), share=0.3, text="9"),
        ]
    )
    told = str(replace(explained(made, None), observed=Observed(hot=table))).splitlines()
    assert told[told.index("hot keys") + 2 :][:3] == [
        "  7: 50.0 % of the work, left divided among 2 of 3 partitions that have it",
        "  9: 30.0 % of the work, right and left divided by 3 x 2 of 6 partitions that have it",
        "  8: 1.0 % of the work, cooled down, 2 partitions that have it",
    ]


def test_a_vote_of_the_partitions() -> None:
    options = {"window": [60_000_000, 60_000_000], "time": ["at", "at"], "lateness": 5_000_000, "hot_votes": True}
    text = str(explained(story("window", how="full", hot_keys=["left", "right"], **options), None))
    assert "on copied rows that match nothing all partitions decide together" in text
    assert "two micro-batches later, or when right has ended (end_input)" in text
    assert "idle_timeout" not in text
