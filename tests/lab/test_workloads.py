"""The generators have the distributions they state, and the same seed gives the same data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from watersmeet.lab import workloads as w


@pytest.mark.parametrize(("pattern", "ratio"), [("harmony", 1.0), ("reverse", 5.0)])
def test_relations_follow_the_pattern_and_the_speeds(pattern: w.Pattern, ratio: float) -> None:
    table = w.relations(100_000, pattern, ratio, "reliable", domain=1000)
    inputs, keys = table["input"].to_numpy(), table["key"].to_numpy()
    assert np.mean(inputs == 0) == pytest.approx(ratio / (1 + ratio), abs=0.01)
    for index, shares in enumerate(w.partition_shares(pattern)):
        found = np.bincount(keys[inputs == index] % w.PARTITIONS, minlength=w.PARTITIONS) / np.sum(inputs == index)
        assert np.abs(found - shares).max() < 0.01
    assert np.all(np.diff(table["time"].to_numpy()) == 1000)
    assert keys.min() >= 0
    assert keys.max() < 1000


def test_harmony_and_reverse_mirror_each_other() -> None:
    first, second = w.partition_shares("harmony")
    assert first.sum() == pytest.approx(1.0)
    assert second is first
    assert w.partition_shares("reverse")[1].tolist() == first[::-1].tolist()


def test_zipf_gaps_take_the_papers_14_000_seconds() -> None:
    gaps = w.zipf_gaps(200_000, np.random.default_rng(0))
    assert (gaps.min(), gaps.max()) == (1, 30)
    assert gaps.mean() * 2_000_000 / 1000 == pytest.approx(14_000, rel=0.03)
    counts = np.bincount(gaps)[1:]
    assert counts[0] / counts[9] == pytest.approx(10**1.07, rel=0.1)


def test_suspensions_are_the_long_gaps_whatever_a_row_stands_for() -> None:
    gaps = w.zipf_gaps(20_000, np.random.default_rng([4, 1]))
    assert w.suspensions(20_000, seed=4).num_rows == int((gaps > 25).sum())
    few = w.suspensions(200, seed=4, stands_for=100)
    assert few.num_rows == int((gaps > 25).sum())
    assert np.all(few["end"].to_numpy() > few["begin"].to_numpy() - 1)
    assert few["end"].to_numpy()[-1] == pytest.approx(w.suspensions(20_000, seed=4)["end"].to_numpy()[-1] / 100, abs=1)
    rows = w.relations(200, "harmony", 1.0, "unreliable", domain=100, seed=4, stands_for=100)
    assert rows["time"].to_numpy()[-1] == int(gaps[:19_900].sum()) * 1000 // 100


def test_the_share_of_suspensions_is_that_of_the_long_gaps() -> None:
    gaps = w.zipf_gaps(200_000, np.random.default_rng(0))
    assert w.suspension_share() == pytest.approx(np.mean(gaps > 25), rel=0.03)


def test_alternating_rates_change_every_quarter() -> None:
    times = w.alternating(5, 15)(100_000, np.random.default_rng(0))
    counts = np.histogram(times, np.linspace(0, w.DURATION, 17))[0]
    assert counts[1] / counts[4] == pytest.approx(3.0, rel=0.1)  # the fast quarter takes an eighth of the time


def test_a_sinusoid_swings_four_times() -> None:
    times = w.sinusoidal(200_000, np.random.default_rng(0))
    counts = np.histogram(times, np.linspace(0, w.DURATION, 33))[0].astype(float)
    spectrum = np.abs(np.fft.rfft(counts - counts.mean()))
    assert int(np.argmax(spectrum)) == 4
    assert counts.max() / counts.mean() == pytest.approx(1.9, abs=0.1)


@pytest.mark.parametrize("bias", [0.2, 0.8])
def test_a_b_model_splits_every_stretch_alike(bias: float) -> None:
    times = w.b_model(bias)(200_000, np.random.default_rng(3))
    assert np.mean(times < w.DURATION / 2) == pytest.approx(bias, abs=0.01)  # the first half, as printed
    for parts in (2, 4, 8):
        counts = np.histogram(times, np.linspace(0, w.DURATION, parts + 1))[0].reshape(-1, 2)
        shares = counts.max(axis=1) / counts.sum(axis=1)
        assert np.abs(shares - 0.8).max() < 0.02


def test_common_keys_give_the_papers_selectivity() -> None:
    streams = [w.stream(w.DATASETS["V"], index, 0.1)["key"].to_numpy() for index in range(3)]
    common = [np.bincount(keys[keys < 100], minlength=100) for keys in streams]
    assert int((common[0] * common[1] * common[2]).sum()) == pytest.approx(
        10**5, rel=0.01
    )  # |MJoin| = 10^6 at full size
    assert not set(streams[0][streams[0] > 1000]) & set(streams[1])


def test_news_records_stop_at_their_punctuation() -> None:
    for order in ("ordered", "random"):
        workload = w.news(50, 20, order)  # type: ignore[arg-type]
        keys = workload.records["key"].to_numpy()
        for item, after in enumerate(workload.punctuated_after):
            assert not np.any(keys[after:] == item)
            block = keys[after - 20 : after]
            assert block.min() >= item
            assert block.max() < item + 10
        assert sorted(workload.items["key"].to_pylist()) == list(range(50))
    assert w.news(50, 20, "ordered").items["key"].to_pylist() == list(range(50))


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
def test_zipf_keys_have_their_skew(skew: float) -> None:
    keys = w.zipf_keys(np.random.default_rng(1), skew, 1000, 200_000)
    counts = np.sort(np.bincount(keys, minlength=1000))[::-1]
    ranks = np.array([10, 300])
    slope = np.log(counts[ranks[0]] / counts[ranks[1]]) / np.log((ranks[1] + 1) / (ranks[0] + 1))
    assert slope == pytest.approx(skew, abs=0.12)


def test_weather_has_its_shape() -> None:
    master, stream = w.weather_keys(50_000, 1), w.weather_keys(50_000, 2)
    assert master.min() >= 0
    assert master.max() < w.LONGITUDES
    hot = np.argsort(np.bincount(master, minlength=w.LONGITUDES))[-20:]
    assert np.isin(stream, hot).mean() > 0.1  # hot in one, hot in the other


def test_the_same_seed_gives_the_same_rows_and_files_keep_their_order(tmp_path: Path) -> None:
    table = w.relations(1000, "harmony", 1.0, "unreliable", domain=100, seed=4)
    assert table.equals(w.relations(1000, "harmony", 1.0, "unreliable", domain=100, seed=4))
    assert not table.equals(w.relations(1000, "harmony", 1.0, "unreliable", domain=100, seed=5))
    paths = w.write(table, tmp_path / "rows", files=7)
    read = [row for path in paths for row in pq.read_table(path)["time"].to_pylist()]
    assert read == table["time"].to_pylist()
