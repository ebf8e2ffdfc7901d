"""What the window join does besides joining: expiry, late rows, structures, overload, and the account of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.engine.registry import build
from watersmeet.join.operator import Batch, advance, resume, saved
from watersmeet.plan import JoinPlan
from watersmeet.state.space import MemorySpace
from watersmeet.testing.arrivals import make_plan, table_of
from watersmeet.window.window_join import WindowJoin

SECOND = 1_000_000


def plan(window: Any = (10, 10), lateness: float = 0, **tuning: Any) -> JoinPlan:
    options = {
        "window": [round(length * SECOND) for length in window],
        "lateness": round(lateness * SECOND),
        "time_columns": ["_p0", "_p0"],
    }
    return make_plan("window", options=options, payload=(pa.int64(),), tuning=tuning)


class Driver:
    """Feeds rows of (key, seconds) to an operator."""

    def __init__(self, made: JoinPlan) -> None:
        operator = build(made, MemorySpace())
        assert isinstance(operator, WindowJoin)
        self.plan, self.operator, self.number = made, operator, 0

    def send(self, left: Sequence[tuple[int, float]] = (), right: Sequence[tuple[int, float]] = ()) -> int:
        """One batch; returns how many results it gave."""
        rows = {
            name: table_of(self.plan.input(name), [(key, round(at * SECOND)) for key, at in some])
            for name, some in (("left", left), ("right", right))
        }
        batch = Batch(self.number, (self.number + 1) * SECOND, rows)
        self.number += 1
        return sum(table.num_rows for table in advance(self.operator, batch))

    def counter(self, name: str) -> float:
        return self.operator.metrics.counters.get(name, 0)


def test_both_edges_of_both_windows_are_inside() -> None:
    driver = Driver(plan((10, 5)))
    driver.send(left=[(1, 100)])
    assert driver.send(right=[(1, 110), (1, 110.000001), (1, 95), (1, 94.999999)]) == 2


def test_a_late_row_is_counted_and_meets_what_must_still_be_there() -> None:
    driver = Driver(plan((10, 10), lateness=5))
    driver.send(left=[(1, 100)], right=[(1, 84.9), (1, 85)])
    driver.send(left=[(1, 90)])  # ten seconds behind, five are allowed
    assert driver.counter("late.left") == 1
    # Right rows are needed from 100 - 5 - 10 on: the one at 85 is met, the one at 84.9 is gone.
    assert driver.operator.metrics.rows_out == 1
    assert driver.operator.clock.newest["left"] == 100 * SECOND


def test_each_window_expires_by_the_other_input_alone() -> None:
    driver = Driver(plan((10, 10)))
    driver.send(left=[(1, 0)], right=[(1, 0)])
    for at in range(20, 100, 20):
        driver.send(right=[(1, at)])  # the left input is silent
    assert driver.counter("held_rows.left") == 0
    assert driver.counter("held_rows.right") == 5  # left rows near time 0 may still come
    assert driver.send(left=[(1, 0)]) == 1


class Unreadable:
    """Rows that nobody may ask for."""

    rows = 1

    def table(self) -> pa.Table:
        raise AssertionError("an expired run was read")

    page = table


def test_an_expired_run_is_dropped_unread() -> None:
    driver = Driver(plan((10, 10), algorithm="HH"))
    for at in range(12):
        driver.send(left=[(key, at) for key in range(50)], right=[(99, at)])
    store = driver.operator.stores["left"]
    old = [run for run in store.runs if run.time_to is not None and run.time_to < 4 * SECOND]
    assert old
    for run in old:
        object.__setattr__(run, "data", Unreadable())
    driver.send(right=[(99, 20)])
    assert driver.counter("runs_expired.left") >= len(old)


@pytest.mark.parametrize("algorithm", ["HH", "NN"])
@pytest.mark.parametrize("shape", ["steady", "bursts"])
def test_memory_holds_the_live_window_and_a_quarter_more(algorithm: str, shape: str) -> None:
    driver = Driver(plan((10, 10), lateness=1, algorithm=algorithm))
    rng = np.random.default_rng(1)
    stored: list[np.ndarray[Any, Any]] = []
    for number in range(60):
        count = 40 if shape == "steady" else (800 if number % 9 == 0 else 3)
        left = [(int(k), float(t)) for k, t in zip(rng.integers(0, 99, count), number + rng.random(count), strict=True)]
        driver.send(left=left, right=[(0, number + 0.5)])
        stored.append(np.array([at for _, at in left]))
        live = int(np.count_nonzero(np.concatenate(stored) >= number + 0.5 - 1 - 10))
        assert live <= driver.operator.stores["left"].rows <= 1.25 * live
    assert driver.operator.stores["left"].rows < 0.7 * sum(len(times) for times in stored)


def test_auto_indexes_what_is_probed_and_leaves_the_rest_as_it_comes() -> None:
    costs = {"arrange": 50.0, "index": 50.0, "filter": 2.0, "order": 30.0, "probe": 10.0, "call": 100.0, "narrow": 0.0}
    driver = Driver(
        plan(
            (50, 50),
            costs={**costs, "scan_call": 100.0, "scan_run": 0.0, "arrange_call": 0.0, "merge_call": 0.0, "merge": 1.0},
        )
    )
    events: list[str] = []
    for number in range(30):
        few = [(key, number) for key in range(5)]
        driver.send(left=[(key % 100, number) for key in range(400)], right=few if number >= 10 else ())
        if number == 9:  # nobody has probed the left window so far
            assert driver.operator.choices["left"].method == "loop"
            assert not any(run.order == "hash" for run in driver.operator.stores["left"].runs)
        events += [event["kind"] for event in driver.operator.metrics.events if event.get("input") == "left"]
    assert "index" in events
    assert driver.counter("cost_ns.left.hash") > 0
    assert driver.counter("cost_ns.left.loop") > 0


def test_many_probes_make_auto_choose_hash() -> None:
    driver = Driver(plan((500, 500)))
    for number in range(12):
        rows = [(key % 40, number) for key in range(3000)]
        driver.send(left=rows, right=rows[:300])
    assert driver.counter("uses_hash.left") == 1
    assert any(run.order == "hash" for run in driver.operator.stores["left"].runs)


def test_what_does_not_fit_goes_to_disk_and_is_still_met() -> None:
    exact, squeezed = Driver(plan((50, 50), algorithm="HN")), Driver(plan((50, 50), algorithm="HN", memory=4000))
    for number in range(30):
        left, right = [(key, number) for key in range(20)], [(key, number) for key in range(0, 20, 3)]
        assert exact.send(left, right) == squeezed.send(left, right)
        assert sum(store.nbytes for store in squeezed.operator.stores.values()) <= 4000
    assert any(run.tier == "spilled" for run in squeezed.operator.stores["left"].runs)


def test_shrinking_stays_within_memory_and_serves_the_slower_input_first() -> None:
    driver = Driver(plan((50, 50), on_overload="shrink", memory=6000))
    for number in range(60):
        driver.send([(key, number + key / 10) for key in range(2)], [(key, number + key / 100) for key in range(30)])
        assert sum(store.nbytes for store in driver.operator.stores.values()) <= 6000
    assert driver.counter("effective_window_us.left") == 50 * SECOND
    assert driver.counter("effective_window_us.right") < 10 * SECOND
    assert driver.counter("left.right.shrunk") > 0
    assert 0.3 < driver.counter("expected_loss_share.shrunk") < 0.5
    assert driver.operator.overload.account["shrunk.right"] > 1000


def test_shedding_leaves_the_slower_input_alone_and_says_what_it_costs() -> None:
    driver = Driver(plan((10, 10), on_overload="shed", service_rate=200.0))
    for number in range(5):
        driver.send([(key, number) for key in range(20)], [(key, number) for key in range(1000)])
    assert driver.counter("left.left.shed") == 0
    assert driver.counter("shed_share.right") == pytest.approx(0.82, abs=0.05)
    assert driver.counter("expected_loss_share.shed") == pytest.approx(0.82, abs=0.01)
    assert driver.counter("expected_results_lost") > 0
    assert driver.operator.overload.account["shed.right"] == pytest.approx(4 * 820, rel=0.05)  # not in the first batch


def test_the_service_rate_comes_from_recorded_batches() -> None:
    driver = Driver(plan((10, 10), on_overload="shed"))
    rows = [(key, 0) for key in range(500)]
    driver.send(rows, rows)
    state = saved(driver.operator)
    busy = {"rows_in": {"left": 500, "right": 500}, "counters": {}, "timings": {"load": 0.1, "join": 4.9}}
    for history, shed in (([], 0), ([busy], 800)):
        again = Driver(driver.plan)
        again.number = 1
        resume(again.operator, replace(state, history=history))
        again.send(rows, rows)
        assert again.counter("left.left.shed") + again.counter("left.right.shed") == pytest.approx(shed, rel=0.1)


def test_an_input_that_ends_empties_the_other_window() -> None:
    driver = Driver(plan())
    driver.send(left=[(1, 0)], right=[(1, 0)])
    driver.operator.ended["right"] = 0
    driver.send(left=[(1, 1)])
    assert [run.label for run in driver.operator.save().runs] == ["right"]
