"""Sizes, durations, and messages of wrong options."""

from datetime import timedelta
from typing import ClassVar

import pytest

from watersmeet.errors import OptionError
from watersmeet.multiway.options import MultiwayOptions
from watersmeet.plan.options import Duration, Options, Size, parse_duration, parse_size
from watersmeet.progressive.options import ProgressiveOptions
from watersmeet.punctuated.options import PunctuatedOptions
from watersmeet.semistream.options import SemiStreamOptions
from watersmeet.window.options import WindowOptions

TABLE = {"master": "m", "path": "p"}


class Sample(Options):
    TUNING: ClassVar[frozenset[str]] = frozenset({"pages"})

    memory: Size = 100
    window: Duration = 0
    pages: int = 8


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1 B", 1),
        ("256 MB", 256 * 10**6),
        ("64MiB", 64 * 2**20),
        (" 1.5 gib ", 3 * 2**29),
        ("2 TB", 2 * 10**12),
        (7, 7),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "duration"),
    [("60 s", 60 * 10**6), ("1 second", 10**6), ("10 minutes", 600 * 10**6), ("500ms", 500_000), ("2 h", 7200 * 10**6),
     ("1 day", 86400 * 10**6), ("3 us", 3), (5, 5)],
)  # fmt: skip
def test_durations(text: object, duration: int) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "MB", "10", "-1 MB", "1 parsec", "1 MB 2 KB", "1e3 MB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as '256 MB' or '64 MiB'"):
        parse_size(text)


def test_identity_and_tuning_share_the_options() -> None:
    options = Sample.checked("join", memory="1 kB", window="1 s", pages=3)
    assert options.identity() == {"memory": 1000, "window": 1_000_000}
    assert options.tuning() == {"pages": 3}
    assert Sample(**options.identity(), **options.tuning()) == options


def test_a_wrong_value() -> None:
    with pytest.raises(OptionError) as error:
        Sample.checked("window_join", window="soon")
    assert str(error.value) == (
        "window_join: expected a valid value for window, found 'soon' ('soon' is not a duration such as '60 s' or "
        "'10 min'). Correct window; the reference lists what it may be."
    )


def test_options_that_do_not_go_together() -> None:
    """The sentence names those that do not, and leaves the others alone."""
    with pytest.raises(OptionError) as error:
        MultiwayOptions.checked("multiway_join", optional=["b", "b"])
    assert str(error.value) == (
        "multiway_join: expected options that go together, found some that do not: optional names an input twice. "
        "Change one of them; the reference says what each may be."
    )
    assert error.value.option is None


def test_an_unknown_option() -> None:
    with pytest.raises(OptionError) as error:
        Sample.checked("window_join", memry="1 MB")
    assert str(error.value) == (
        "window_join: expected one of the options memory, window, pages, found option 'memry'. Did you mean 'memory'?"
    )
    with pytest.raises(OptionError, match=r"found option 'zzz'\. Remove it\.$"):
        Sample.checked("window_join", zzz=1)


@pytest.mark.parametrize(
    ("options", "in_force", "without_effect"),
    [
        (ProgressiveOptions(), [], ["policy", "flush", "buckets", "memory"]),
        (
            ProgressiveOptions(memory="64 MB"),
            ["policy", "flush", "buckets", "memory"],
            ["memory_rows", "distinct_keys"],
        ),
        (
            WindowOptions(window="1 s"),
            ["window", "algorithm"],
            ["lateness", "shedding", "memory_split", "service_rate"],
        ),
        (WindowOptions(window="1 s", time="t", on_overload="shed"), ["lateness", "shedding"], ["memory_split"]),
        (WindowOptions(window="1 s", on_overload="shrink", memory="1 MB"), ["shedding", "memory_split"], []),
        (MultiwayOptions(), ["driver", "max_results"], ["window", "lateness", "slices"]),
        (MultiwayOptions(driver="timestamp", window="1 s", time={"a": "t"}), ["window", "lateness", "slices"], []),
        (PunctuatedOptions(), ["purge", "on_violation", "buckets"], ["purge_after", "idle_pages", "constraints"]),
        (PunctuatedOptions(purge="batch", memory="9 MB"), ["purge_after", "buckets", "idle_pages"], []),
        (SemiStreamOptions(master="m", path="p"), ["policy", "switching_factor"], []),
        (SemiStreamOptions(master="m", path="p", policy="mesh"), ["policy"], ["switching_factor"]),
    ],
)
def test_options_with_an_effect(options: Options, in_force: list[str], without_effect: list[str]) -> None:
    found = options.effective()
    assert found.keys() >= set(in_force)
    assert not found.keys() & set(without_effect)
    assert None not in found.values()


def test_the_flush_policy_in_force_has_a_name() -> None:
    assert ProgressiveOptions(memory="64 MB", policy="hmj").effective()["flush"] == "adaptive"


@pytest.mark.parametrize("wrong", [60, 0.5, 60.0])
def test_a_number_is_no_duration_where_a_user_writes_one(wrong: float) -> None:
    with pytest.raises(OptionError, match=rf"a number has no unit; write for example '{wrong:g} s'") as caught:
        WindowOptions.checked("window_join", window=(wrong, "0 s"))
    assert caught.value.option == "window"
    with pytest.raises(OptionError, match="no unit"):
        ProgressiveOptions.checked("progressive_join", memory="1 MB", idle_after=wrong)


@pytest.mark.parametrize("given", [{"window": True}, {"window": "1 s", "time": "at", "lateness": False}])
def test_true_is_no_duration(given: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=r"(True|False) is not a duration such as '60 s' or '10 min'") as caught:
        WindowOptions.checked("window_join", **given)
    assert caught.value.option == list(given)[-1]


def test_a_duration_may_be_a_timedelta() -> None:
    times = {"window": (timedelta(minutes=1), "2 s"), "lateness": timedelta(seconds=3)}
    options = WindowOptions.checked("window_join", time="at", **times)
    assert (options.window, options.lateness) == ((60_000_000, 2_000_000), 3_000_000)


def test_a_plan_carries_microseconds() -> None:
    options = WindowOptions.checked("window_join", window="60 s")
    assert WindowOptions(**options.identity(), **options.tuning()) == options


@pytest.mark.parametrize(
    ("model", "given", "unused"),
    [
        (ProgressiveOptions, {"policy": "hmj"}, "policy"),
        (ProgressiveOptions, {"buckets": 7}, "buckets"),
        (WindowOptions, {"window": "1 s", "lateness": "1 s"}, "lateness"),
        (MultiwayOptions, {"lateness": "1 s"}, "lateness"),
        (MultiwayOptions, {"slices": 3}, "slices"),
        (PunctuatedOptions, {"purge_after": 3}, "purge_after"),
        (SemiStreamOptions, {"policy": "mesh", "switching_factor": 2.0}, "switching_factor"),
    ],
)
def test_an_option_without_effect_is_refused(model: type[Options], given: dict[str, object], unused: str) -> None:
    with pytest.raises(OptionError, match=f"{unused}=.*, which has none with the others as they are") as caught:
        model.checked("join", TABLE if model is SemiStreamOptions else None, **given)
    assert caught.value.option == unused
    assert f"found {unused}={given[unused]!r}," in str(caught.value)  # as the user wrote it


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (
            ProgressiveOptions,
            {"memory": "1 MB", "policy": "rpj-md"},
            "should be 'rpj', 'xjoin', 'xjoin-fresh' or 'hmj'",
        ),
        (ProgressiveOptions, {"memory": "1 MB", "policy": "rjp"}, "should be 'rpj', 'xjoin', 'xjoin-fresh' or 'hmj'"),
        (ProgressiveOptions, {"memory_rows": 3}, "expected one of the options memory, policy, flush, .*'memory_rows'"),
        (WindowOptions, {"window": "1 s", "shedding": "rate"}, "expected one of the options window, .*'shedding'"),
        (WindowOptions, {"window": "1 s", "memory_split": "left"}, "expected one of the options .*'memory_split'"),
        (SemiStreamOptions, {"version": 3}, "expected one of the options policy, memory, .*'version'"),
    ],
)
def test_what_serves_experiments_is_not_offered(model: type[Options], given: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        model.checked("join", TABLE if model is SemiStreamOptions else None, **given)
    assert caught.value.option in given
    assert "rpj-dd" not in str(caught.value)


def test_a_plan_may_have_what_serves_experiments() -> None:
    assert ProgressiveOptions(policy="rpj-md", memory_rows=3).operator == "rpj"
    assert WindowOptions(window=1, on_overload="shed", shedding="rate").shedding == "rate"
