"""Frequent keys and fan-out: estimates from samples, the same whatever the join is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.troubled_joins import nulls_match

from watersmeet.columns.arrow import HASH, hash_keys
from watersmeet.engine.hot_keys import KEEP, SAMPLE, KeyWatch, key_text
from watersmeet.engine.runtime import run_batch
from watersmeet.join.operator import Batch
from watersmeet.plan import JoinPlan, OutputColumn
from watersmeet.state.directory import StateDir
from watersmeet.state.history import metrics_history, newest_manifests
from watersmeet.testing.arrivals import Arrival, batch_of, make_plan


def rows(keys: list[int]) -> pa.Table:
    column = pa.array(keys, pa.int64())
    return pa.table({HASH: pa.array(hash_keys([column]), pa.uint64()), "_k0": column, "_p0": column})


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32()])
def test_times_that_python_does_not_have(kind: pa.DataType) -> None:
    """Spark has timestamps and dates beyond the years 1 to 9999."""
    raw = pa.int64() if kind.bit_width == 64 else pa.int32()
    far, near = np.iinfo(raw.to_pandas_dtype()).max, 0
    column = pa.array([far, far, near], raw).cast(kind)
    table = pa.table({HASH: pa.array(hash_keys([column]), pa.uint64()), "_k0": column, "_p0": column})
    watch = KeyWatch(make_plan("symmetric"), {}, Batch(0, rows={"left": table}))
    top = watch.save()["rows"]["left"]["top"]
    assert sorted(top.values()) == [1, 2]
    assert "1970" not in max(top, key=top.__getitem__)


def watched(plan: JoinPlan | None = None, before: dict[str, Any] | None = None, **keys: list[int]) -> KeyWatch:
    """What has seen a batch with these rows; one on each input if none are given."""
    tables = {name: rows(found) for name, found in (keys or {"left": [1], "right": [1]}).items()}
    return KeyWatch(plan or make_plan("symmetric"), before or {}, Batch(0, rows=tables))


def results(keys: list[int]) -> pa.Table:
    return pa.table({"k0": pa.array(keys, pa.int64())})


def test_a_key_with_half_of_the_rows_is_found_with_its_share() -> None:
    random = np.random.default_rng(1)
    keys = np.concatenate([np.full(50_000, 7), random.integers(0, 10**9, 50_000)])
    random.shuffle(keys)
    watch = watched(left=keys.tolist())
    saved = watch.save()["rows"]["left"]
    assert saved["seen"] == 100_000
    assert saved["top"].keys() == {"7"}, "keys that are rare in the sample are not listed"
    assert saved["top"]["7"] == pytest.approx(50_000, rel=0.1)
    assert watch.estimates()["hottest_share.left"] == pytest.approx(0.5, abs=0.05)


def test_the_first_batches_and_one_in_sixteen_are_looked_at_and_add_up() -> None:
    saved: dict[str, Any] = {}
    looked = []
    for number in range(100):
        watch = watched(before=saved, right=[5, 1000 + 2 * number, 1001 + 2 * number])
        looked += [number] if watch.is_watching else []
        assert bool(watch.estimates()) == watch.is_watching
        saved = watch.save()
    assert looked == [0, 1, 2, 3, *range(16, 100, 16)]
    found = saved["rows"]["right"]
    assert found["seen"] == 3 * len(looked)
    assert max(found["top"].items(), key=lambda item: item[1]) == ("5", len(looked))
    assert len(found["top"]) == 1 + 2 * len(looked) <= KEEP


def test_of_many_frequent_keys_the_most_frequent_are_kept() -> None:
    keys = [key for key in range(KEEP + 10) for _ in range(key + 2)]
    assert watched(left=keys).save()["rows"]["left"]["top"] == {str(key): key + 2 for key in range(10, KEEP + 10)}


def test_batches_without_rows_do_not_count() -> None:
    idle = KeyWatch(make_plan("symmetric"), {"batches": 8}, Batch(0))
    idle.emitted(results([1]))
    assert (idle.is_watching, idle.save(), idle.estimates()) == (False, {"batches": 8}, {})


def test_fan_out_is_counted_by_key() -> None:
    watch = watched()
    watch.emitted(results([1] * 90 + list(range(100, 199))))
    watch.emitted(results([1] * 10))
    found = watch.estimates()
    assert found["fan_out_max"] == 100
    assert found["fan_out_p90"] == 1
    assert found["fan_out_p99"] == 1
    assert found["fan_out_mean"] == pytest.approx(199 / 100)
    saved = watch.save()["results"]
    assert saved == {"seen": 199, "top": {"1": 100}}


def test_of_very_many_results_a_sample_is_counted() -> None:
    watch = watched()
    watch.emitted(results([3] * (10 * SAMPLE) + [4] * (30 * SAMPLE)))
    saved = watch.save()["results"]
    assert saved["seen"] == 40 * SAMPLE
    assert saved["top"] == {"4": 30 * SAMPLE, "3": 10 * SAMPLE}
    assert watch.estimates()["fan_out_max"] == 30 * SAMPLE


def test_an_output_without_the_key_has_no_keys_of_results() -> None:
    plan = make_plan("symmetric")
    bare = JoinPlan(plan.operator, plan.inputs, (OutputColumn(pa.field("a", pa.int64()), "left", "_p0"),))
    watch = watched(bare)
    watch.emitted(pa.table({"a": [1, 2]}))
    assert watch.save()["results"] == {"seen": 2, "top": {}}
    assert watch.estimates().keys() == {"hottest_share.left", "hottest_share.right"}


def test_several_key_columns_are_one_key() -> None:
    plan = make_plan("symmetric", keys=(pa.int64(), pa.string()))
    watch = KeyWatch(plan, {}, batch_of(plan, 0, Arrival({"left": [(1, "a", 0, "")]})))
    watch.emitted(pa.table({"k0": [1, 1, 1], "k1": ["a", "b", "b"]}))
    assert watch.save()["results"]["top"] == {"1, b": 2, "1, a": 1}


def test_a_null_that_matches_is_shown_as_one() -> None:
    plan = nulls_match(make_plan("symmetric", keys=(pa.int64(), pa.bool_())))
    came = {"left": [(0, True, 1, ""), (0, True, 2, ""), (0, False, 3, "")]}
    watch = KeyWatch(plan, {}, batch_of(plan, 0, Arrival(came)))
    watch.emitted(results([None, None, None, 0]))  # type: ignore[list-item]
    saved = watch.save()
    assert saved["rows"]["left"]["top"] == {r"\N": 2, "0": 1}
    assert saved["results"]["top"] == {r"\N": 3, "0": 1}
    assert watch.estimates()["fan_out_max"] == 3


def test_long_keys_are_cut_and_stay_apart() -> None:
    first, second = key_text(("x" * 100,)), key_text(("x" * 99 + "y",))
    assert first != second
    assert len(first) < 75


def test_a_join_keeps_them_beside_its_versions(tmp_path: Path) -> None:
    plan, directory = make_plan("symmetric"), StateDir(tmp_path)
    directory.create()
    digests = []
    for run in ("one", "two"):  # the second attempt of the batch, with its rows in another order
        left = [(7, i, "") for i in range(5)] + [(i, i, "") for i in range(3)]
        arrival = Arrival({"left": left if run == "one" else left[::-1], "right": [(7, 0, "")]})
        list(run_batch(plan, directory, 0, batch_of(plan, 0, arrival), run_id=run))
        (manifest,) = newest_manifests(directory)
        digests.append(manifest.digest)
    assert digests[0] == digests[1]
    assert manifest.keys["rows"]["left"]["top"]["7"] == 5
    assert manifest.keys["results"] == {"seen": 5, "top": {"7": 5}}
    (entry,) = metrics_history(directory, manifest)
    assert entry["estimates"]["fan_out_max"] == 5
    assert entry["estimates"]["hottest_share.left"] == 5 / 8
    assert entry["run"] == "one", "what the first attempt wrote may have been read"
