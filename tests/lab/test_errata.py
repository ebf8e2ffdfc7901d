"""The papers' slips, each shown by doing what is printed beside what must be meant. The list is docs/lab/errata.md."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from watersmeet.join.flush_policies import OptimalFlush
from watersmeet.lab.experiment import no_progress
from watersmeet.lab.rpj_examples import FIRST_MERGE, figure_2
from watersmeet.lab.window_splits import FIG8
from watersmeet.lab.workloads import DATASETS, PARTITIONS, partition_shares
from watersmeet.multiway.driver_policies import POLICIES, Situation, choose
from watersmeet.multiway.slices import Slice
from watersmeet.progressive.expected import ExpectedResults, dd_cost
from watersmeet.semistream.cache import ENTRY_BYTES
from watersmeet.semistream.cost_model import CostModel, Workload
from watersmeet.window.cost_model import (
    Stream,
    Weights,
    direction_cost,
    full_join_costs,
    hash_cost,
    loop_cost,
    output_rate,
)

ROOT = Path(__file__).parents[2]
ERRATA = ROOT / "docs/lab/errata.md"


def test_every_erratum_names_a_test_that_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)(?:\[[^`]*\])?`", ERRATA.read_text())
    rows = [line for line in ERRATA.read_text().splitlines() if line.startswith("|") and "---" not in line]
    assert len(named) >= len([row for row in rows if not row.startswith("| where")]) >= 25
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), (path, name)


# -- RPJ -----------------------------------------------------------------------------------------------------------


def test_figure_4_counts_down_n_flush_and_not_n_part() -> None:
    sizes = np.full((2, 2), 10)
    probabilities = np.array([[0.35, 0.25], [0.10, 0.30]])
    # As printed the loop runs while n_part > 0, which nothing changes: every bucket leaves.
    printed, n_part, n_flush = 0, 2, 15
    for flat in np.argsort(probabilities, axis=None):
        if n_part > 0:
            index, bucket = divmod(int(flat), 2)
            size = int(sizes[1 - index, bucket])
            printed += min(size, max(n_flush, 0)) if size >= n_flush > 0 else size
            n_flush -= size
    meant = sum(victim.amount or 10 for victim in OptimalFlush().choose(sizes, probabilities, 15))
    assert meant == 15
    assert printed > 15


Stay = tuple[int, int]  # a row's time in memory


def reported_by_md_task(first: Stay, second: Stay, tasks: list[int], *, printed: bool) -> bool:
    """Fig. 7, lines 6 to 8: whether an md-task of R1 in memory has reported a pair; as printed T[c1] is compared."""
    return any(first[0] <= t <= first[1] and (tasks[-1] if printed else t) > second[1] for t in tasks)


def test_figure_7_compares_the_time_of_the_same_md_task() -> None:
    # The first row is in memory until 10, the second comes at 12: no md-task has both, and a dd-task owes the pair.
    first, second, tasks = (0, 10), (12, 15), [5, 20]
    assert not reported_by_md_task(first, second, tasks, printed=False)
    assert reported_by_md_task(first, second, tasks, printed=True)  # lost
    assert reported_by_md_task((8, 10), (1, 6), [9], printed=False)  # one that was reported indeed


def test_the_reverse_pattern_mirrors_j_at_21() -> None:
    first, second = partition_shares("reverse")
    assert all(second[j - 1] == first[21 - j - 1] for j in range(1, PARTITIONS + 1))
    assert 20 - PARTITIONS == 0  # as printed, P(20 - j) asks for a partition 0 at j = 20, and never for partition 20


def test_the_hash_function_has_values_from_0_to_19() -> None:
    assert sorted({value % 20 for value in range(1, 10_001)}) == list(range(20))  # printed: 1 to n_part


def test_records_of_ten_bytes_hold_no_timestamps() -> None:
    assert 1000 * 1024 // 10 == 102_400  # the paper's 100k records
    assert 1000 * 1024 // (10 + 2 * 4) < 57_000  # with ATS and DTS of four bytes each


def test_figure_2_reports_what_meets_on_disk_for_the_first_time() -> None:
    merged = figure_2("tiny", no_progress).numbers["merge 1"]
    assert list(merged) == [str(pair) for pair in FIRST_MERGE]
    assert "(1, 10)" not in merged  # printed; these have join values 1 and 3


def test_case_2_subtracts_what_was_on_disk_when_the_row_came() -> None:
    expected = ExpectedResults(1)
    expected.arrived(0, np.array([1]), np.array([5]), batch=1)  # a row comes; five of the other input are on disk
    on_disk_now = 9
    assert expected.memory[0, 0] - on_disk_now < 0  # as printed Er becomes negative
    expected.flushed(0, 0, np.array([1], np.int32))
    assert expected.memory[0, 0] == 0


def test_merging_passes_are_the_logarithm_of_the_runs() -> None:
    # A page of each input, in a run of each: as printed log_f 1 = 0 passes cost nothing.
    assert dd_cost((1, 1), (1, 1), fan_in=8, random_cost=10.0) == 40.0


# -- drivers -------------------------------------------------------------------------------------------------------


def test_the_second_stream_of_datasets_v_and_vi_has_100_000_rows() -> None:
    for name in ("V", "VI"):
        sizes, shares = DATASETS[name].sizes, DATASETS[name].shares
        # 1000 common keys: |S1 join S2| over |S1| |S2| is printed as 10^-5.
        common = [size * share for size, share in zip(sizes, shares, strict=True)]
        assert common[0] * common[1] / 1000 / (sizes[0] * sizes[1]) == pytest.approx(1e-5)
        assert common[0] * common[1] * common[2] / 1000**2 == pytest.approx(1e6)
        # With the printed 10^9 rows the same matches would be a selectivity of 10^-9.
        assert common[0] * common[1] / 1000 / (sizes[0] * 1e9) == pytest.approx(1e-9)


def test_the_selectivities_of_datasets_i_to_iv_are_of_the_whole_join() -> None:
    sizes, shares = DATASETS["I"].sizes, DATASETS["I"].shares
    common = [size * share for size, share in zip(sizes, shares, strict=True)]
    results = common[0] * common[1] * common[2] / 1000**2
    assert results / np.prod(np.array(sizes, float)) == pytest.approx(5e-12)  # sigma_MJoin
    assert results / sizes[0] == pytest.approx(5.0)  # sigma_S by Table 1's definition, results per row


def test_with_equal_selectivities_the_consumption_rate_drains_buffers_in_a_fixed_order() -> None:
    class Equal:
        of_join = 1e-6

        def of_inputs(self) -> np.ndarray:
            return np.ones(3)

    queues = [[Slice(0, np.arange(5))], [Slice(0, np.arange(5))], [Slice(0, np.arange(5))]]
    order = []
    waiting, last = [5, 5, 5], -1
    while any(waiting):
        last, _ = choose(
            POLICIES["consumption_rate"](),
            Situation(queues, list(waiting), [1, 1, 1], last, Equal()),  # type: ignore[arg-type]
        )
        order.append(last)
        waiting[last] = 0
    assert order == [0, 1, 2]  # whole buffers: no round robin, which would take one row of each in turn


# -- window joins --------------------------------------------------------------------------------------------------


def test_an_arrival_probes_a_window_that_may_hold_expired_rows() -> None:
    """The three steps literally: an arrival of A invalidates A, and probes B as it is."""
    window = 10
    literal, right = 0, 0
    rows = [("B", time) for time in range(10)] + [("A", 100)]  # B falls silent, then an A comes
    kept: dict[str, list[int]] = {"A": [], "B": []}
    for name, time in rows:
        other = "B" if name == "A" else "A"
        literal += len(kept[other])
        right += sum(abs(time - t) <= window for t in kept[other])
        kept[name] = [t for t in kept[name] if t >= time - window] + [time]
    assert (literal, right) == (10, 0)


def test_sixty_seconds_of_rows_never_leave_a_window_of_sixty_seconds() -> None:
    times = np.linspace(0, 60, 6000)
    assert not np.any(times[-1] - times > 60)  # so windows must be filled before anything is measured


def test_the_selectivities_of_figure_8_are_one_over_the_domain() -> None:
    keys = FIG8.load.keys
    assert 1 / keys == 0.02
    # Rates of 5 and 5 with windows of 9 and 1 s: Eq. 10 gives 5 results a second with 0.02 for both, as it must for an
    # equijoin, whose selectivity is the same from either side (printed: 0.02 and 0.08).
    assert pytest.approx(FIG8.strategies["equal"][1]) == 0.02 * 5 * 5 * (9 + 1)


def test_the_sum_of_the_rates_is_not_what_a_service_rate_limits() -> None:
    """Fig. 8's windows: splits of one sum take different work, and by work no split of NNJ beats another."""
    splits = [(Stream(x, 9, 50), Stream(10 - x, 1, 50)) for x in (2.0, 5.0)]
    unequal, equal = (full_join_costs(*split) for split in splits)
    assert unequal["HH"] < 0.8 * equal["HH"]
    per_work = [output_rate(*split) / full_join_costs(*split)["NN"] for split in splits]
    assert per_work[0] == pytest.approx(per_work[1], rel=0.05)


def test_with_rows_in_order_of_time_nested_loops_never_win() -> None:
    """Eq. 3 scans a bucket for every row that expires; the oldest row is the first one of its bucket."""
    probing = Stream(10, 60, 10)
    for rate in (10.0, 70.0, 100.0, 1000.0, 1e6):
        stored = Stream(rate, 60, 10)
        bucket = stored.bucket_rows
        at_the_head = direction_cost(probing, stored, probe=bucket, insert=1, invalidate=1, weight=Weights().hash)
        assert at_the_head < loop_cost(probing, stored)
        assert (hash_cost(probing, stored) > loop_cost(probing, stored)) == (rate >= 70)


# -- SSBJ ----------------------------------------------------------------------------------------------------------


class Algorithm1:
    """Algorithm 1 as printed, tuple by tuple; `by_key` as line 40 is printed, else as it must be meant."""

    def __init__(self, master: list[list[int]], *, v_r: float, by_key: bool = False) -> None:
        self.master, self.v_r, self.by_key = master, v_r, by_key
        self.waiting: dict[int, list[int]] = defaultdict(list)  # H_S
        self.queue: list[list[tuple[int, int]]] = []  # Q
        self.s_count: Counter[int] = Counter()
        self.f_count: Counter[int] = Counter()
        self.cache: dict[int, int] = {}  # H_R: master rows per key
        self.switched: Counter[int] = Counter()  # s_B
        self.results: Counter[tuple[int, int]] = Counter()  # of a stream row and its key
        self.step = self.rows = 0

    def loop(self, keys: list[int]) -> None:
        """Lines 3 to 51."""
        cycle = self.step // len(self.master) + 1
        if self.step % len(self.master) == 0 and cycle % 3 == 0:
            self.cache.update(self.switched)
            self.switched.clear()
            self.s_count.clear()
        self.queue.append([])
        for key in keys:
            if key in self.cache:
                self.results[self.rows, key] += self.cache[key]
                self.f_count[key] += 1
            else:
                self.waiting[key].append(self.rows)
                self.queue[-1].append((self.rows, key))
            self.rows += 1
        for key in self.master[self.step % len(self.master)]:
            self._passes(key, cycle)
        if len(self.queue) >= len(self.master):
            for row, key in self.queue.pop(0):
                if self.by_key:
                    self.waiting[key] = []
                else:
                    self.waiting[key].remove(row)
        if cycle % 10 == 0:  # lines 42 to 51
            for key in list(self.cache):
                if self.cache[key] * self.v_r >= self.f_count[key] / 10:
                    del self.cache[key]
                self.f_count[key] = 0
        self.step += 1

    def _passes(self, key: int, cycle: int) -> None:
        """Lines 25 to 38 for one master row."""
        if not self.waiting.get(key):
            return
        self.results.update((row, key) for row in self.waiting[key])
        if cycle % 3 == 1:
            self.s_count[key] += 1
        elif cycle % 3 == 2 and len(self.waiting[key]) > self.s_count[key] * self.v_r:
            self.switched[key] += 1

    def run(self, stream: list[list[int]]) -> int:
        """How many of the rows that are finished have not the results they should have."""
        for keys in stream:
            self.loop(keys)
        have = Counter(key for chunk in self.master for key in chunk)
        finished = [key for keys in stream[: -len(self.master)] for key in keys]
        return sum(self.results[row, key] != have[key] for row, key in enumerate(finished))


def script(steps: int = 36) -> tuple[list[list[int]], list[list[int]]]:
    """A stream and a master table of twelve keys."""
    rng = np.random.default_rng(4)
    master = [rng.integers(0, 12, 6).tolist() for _ in range(4)]
    return [rng.integers(0, 12, 5).tolist() for _ in range(steps)], master


NO_CACHE = 1e9  # the weight of a master row with which none is worth caching


def test_algorithm_1_caches_parts_of_a_key() -> None:
    stream, master = script()
    assert Algorithm1(master, v_r=NO_CACHE).run(stream) == 0  # MESHJOIN is exact
    printed = Algorithm1(master, v_r=1.0)
    assert printed.run(stream) > 0
    have = Counter(key for chunk in master for key in chunk)
    assert any(rows < have[key] for key, rows in printed.cache.items())


def test_a_key_that_is_first_seen_while_switching_always_passes_line_33() -> None:
    """Line 29 counts its master rows in the cycle before, in which nothing of it waits: the count is 0."""
    printed = Algorithm1([[1, 2], [3, 4]], v_r=NO_CACHE)
    for number in range(6):
        printed.loop([1] if number == 2 else [])  # the second cycle switches
    assert printed.cache == {1: 1}


def test_the_inequality_leaves_out_what_a_waiting_row_and_an_entry_take() -> None:
    """By Eq. 1 a waiting row takes f v_S + v_P, and an entry of the cache is not free: the best set of keys differs."""
    load, rate = Workload(1000, 120, 20, chunk_rows=100), 50
    weights = 1 / np.arange(1, 1001)
    waiting = rate * load.chunks * weights / weights.sum()
    held = np.concatenate([[0.0], np.cumsum(waiting)])
    cached = np.arange(1001)
    memory = cached * (120 + ENTRY_BYTES) + (held[-1] - held) * (20 + load.waiting_overhead)
    printed = int((waiting * 20 > 120).sum())
    assert int(memory.argmin()) == CostModel(load, "ssbj").at(rate).cached_keys != printed


def test_line_40_deletes_by_tuple() -> None:
    stream, master = script()
    assert Algorithm1(master, v_r=NO_CACHE, by_key=False).run(stream) == 0
    assert Algorithm1(master, v_r=NO_CACHE, by_key=True).run(stream) > 0


def test_keys_without_master_rows_never_reach_line_33() -> None:
    """Lines 25 to 33 run over master rows, so that the absence the text promises to cache is never decided."""
    printed = Algorithm1([[1, 2], [3, 4]], v_r=0.1)
    printed.run([[99, 1]] * 18)
    assert 1 in printed.cache
    assert 99 not in printed.cache
    assert printed.waiting[99]


def test_line_8_evicts_in_every_loop_of_the_tenth_cycle() -> None:
    """The flag holds for all loops of a cycle, while line 49 resets the counts in the first of them."""
    printed = Algorithm1([[1, 2], [3, 4]], v_r=0.1)
    sizes = []
    for _ in range(10 * 2):
        printed.loop([1] * 50)
        sizes.append(len(printed.cache))
    assert sizes[-1] == 1  # 50 hits in every loop
    resting = Algorithm1([[1, 2], [3, 4]], v_r=0.1)
    for number in range(10 * 2):
        resting.loop([1] * 50 if number < 10 * 2 - 1 else [])
    assert not resting.cache  # 900 hits since it was cached, none in the last loop: evicted


def test_equation_6_sets_rows_per_second_equal_to_bytes_per_second() -> None:
    """The memory that a rate needs is what must be solved for: more memory serves more rows, not so many bytes."""
    model = CostModel(Workload(1_000_000, 120, 20), "ssbj")
    point = model.for_memory(20e6)
    assert point.memory == pytest.approx(20e6, rel=1e-3)
    printed = point.memory / point.loop_seconds  # Eq. 6's right side, bytes per second
    assert printed > 20 * point.service_rate


def test_equation_2_leaves_out_the_failed_probe_of_rows_that_wait() -> None:
    model = CostModel(Workload(1_000_000, 120, 20, skew=0.0), "mesh")
    one, two = model.at(1000), model.at(2000)
    per_row = (two.loop_seconds - one.loop_seconds) / 1000
    assert per_row >= model.costs.wait - 1e-12  # timed from a row's coming to its results: the failed probe is in it
    assert model.costs.wait > model.costs.hit + model.costs.look_up
