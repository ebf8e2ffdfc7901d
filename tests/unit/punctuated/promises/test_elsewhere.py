"""Keys of other partitions between two promised ones: bridged where all of them are foreign, and nowhere else."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from watersmeet.columns.arrow import hash_keys
from watersmeet.columns.spark_hash import hash_of_int, hash_of_long
from watersmeet.punctuated.promises.codes import Bytes
from watersmeet.punctuated.promises.elsewhere import elsewhere
from watersmeet.punctuated.promises.punctuation import PunctuatedRange

Longs = npt.NDArray[np.int64]
HASHES = {pa.int64(): hash_of_long, pa.int32(): hash_of_int}


def table_of(keys: Longs, kind: pa.DataType) -> pa.Table:
    hashes = HASHES[kind](keys)
    order = np.argsort(hashes)
    return pa.table({"_hash": pa.array(hashes[order]), "_k0": pa.array(keys[order]).cast(kind)})


def own(keys: Longs, partition: int, partitions: int, kind: pa.DataType) -> Longs:
    return keys[HASHES[kind](keys).view(np.int64) % partitions == partition]


@pytest.mark.parametrize("kind", list(HASHES), ids=str)
@pytest.mark.parametrize("partitions", [2, 3, 200])
def test_keys_promised_in_order_are_one_interval(partitions: int, kind: pa.DataType) -> None:
    promises = PunctuatedRange("left", [kind], partitions)
    for batch in range(20):
        keys = own(np.arange(1000 * batch - 5000, 1000 * (batch + 1) - 5000), 1, partitions, kind)
        promises.add_punctuations(table_of(keys, kind), batch)
        assert len(promises) == 1
    beyond = own(np.arange(15_000, 16_000), 1, partitions, kind)
    assert not promises.find(table_of(beyond, kind)).any()


@pytest.mark.parametrize("seed", range(20))
def test_only_promised_keys_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    partitions = int(rng.choice([2, 3, 5, 64]))
    kind = [pa.int64(), pa.int32()][seed % 2]
    here = int(rng.integers(partitions))
    ends = (-(2**63), 2**63 - 1) if kind == pa.int64() else (-(2**31), 2**31 - 1)
    middle = np.arange(-400 * partitions, 400 * partitions)
    edges = [np.arange(ends[0], ends[0] + 50), np.arange(ends[1] - 50, ends[1]), np.array([ends[1]])]
    everything = own(np.concatenate([middle, *edges]), here, partitions, kind)
    promises = PunctuatedRange("left", [kind], partitions)
    promised: set[int] = set()
    shuffled = rng.permutation(everything)[: int(len(everything) * rng.uniform(0.5, 1))]
    for batch, keys in enumerate(np.array_split(shuffled, 12)):
        new = promises.add_punctuations(table_of(keys, kind), batch).points
        assert new is None or set(new.column("_k0").to_pylist()) == set(keys.tolist()) - promised
        promised |= set(keys.tolist())
        rows = table_of(everything, kind)
        found = promises.find(rows) > 0
        assert found.tolist() == [key in promised for key in rows.column("_k0").to_pylist()]


def test_keys_promised_in_turns_are_one_interval_in_the_end() -> None:
    promises = PunctuatedRange("left", [pa.int64()], 3)
    evens = own(np.arange(0, 3000, 2), 2, 3, pa.int64())
    promises.add_punctuations(table_of(evens, pa.int64()), 0)
    assert len(promises) > 100  # an odd key of this partition stands between most of them
    promises.add_punctuations(table_of(own(np.arange(1, 3000, 2), 2, 3, pa.int64()), pa.int64()), 1)
    assert len(promises) == 1


def test_hashes_of_another_kind_bridge_nothing() -> None:
    promises = PunctuatedRange("left", [pa.int64()], 2)
    keys = pa.array(np.arange(0, 100, 2))
    promises.add_punctuations(pa.table({"_hash": hash_keys([keys]), "_k0": keys}), 0)
    assert len(promises) == 50


def test_nothing_is_said_of_other_partitions_without_a_key_that_is_here() -> None:
    keys = own(np.arange(100), 1, 2, pa.int64())
    found = elsewhere(hash_of_long(keys), keys, 2)
    assert found is not None
    assert (found.partitions, found.here) == (2, 1)
    assert elsewhere(hash_of_long(keys), keys, 1) is None
    assert elsewhere(hash_of_long(keys[:0]), keys[:0], 2) is None
    assert elsewhere(hash_of_long(keys), Bytes(pa.array([b"x"] * len(keys))), 2) is None
