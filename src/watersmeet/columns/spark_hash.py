"""Spark's hash of a single key that is an integer, forwards and backwards.

Backwards: xxhash64 of eight bytes is a bijection, so a key of 64 bits need not travel beside its hash. It saves a
column of the shuffle and of every transfer to Python for the most common kind of key. Forwards: which partition a key
that has not come would go to.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from watersmeet.columns.arrow import Hashes

_PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_SEED = 42  # Spark's
_START, _START_INT = (np.uint64((_SEED + _PRIMES[4] + width) % 2**64) for width in (8, 4))
_ADDED = np.uint64(_PRIMES[3])
_PRIME_1, _PRIME_2, _PRIME_3 = (np.uint64(prime) for prime in _PRIMES[:3])
_INVERSE_1, _INVERSE_2, _INVERSE_3 = (np.uint64(pow(prime, -1, 2**64)) for prime in _PRIMES[:3])


def hash_of_long(keys: npt.NDArray[np.int64]) -> Hashes:
    """xxhash64 of keys that Spark holds in eight bytes: long, timestamp, decimals of up to 18 digits.

    >>> hash_of_long(np.array([1])).view(np.int64).tolist()
    [-7001672635703045582]
    """
    h = keys.view(np.uint64) * _PRIME_2
    h = _rotate_right(h, 64 - 31) * _PRIME_1
    h = _rotate_right(h ^ _START, 64 - 27) * _PRIME_1 + _ADDED
    return _finished(h)


def hash_of_int(keys: npt.NDArray[np.int64]) -> Hashes:
    """xxhash64 of keys that Spark holds in four bytes: int and shorter, date.

    >>> hash_of_int(np.array([1])).view(np.int64).tolist()
    [-6698625589789238999]
    """
    h = (keys.view(np.uint64) & np.uint64(0xFFFFFFFF)) * _PRIME_1
    h = _rotate_right(h ^ _START_INT, 64 - 23) * _PRIME_2 + _PRIME_3
    return _finished(h)


def _finished(h: Hashes) -> Hashes:
    h ^= h >> np.uint64(33)
    h *= _PRIME_2
    h ^= h >> np.uint64(29)
    h *= _PRIME_3
    h ^= h >> np.uint64(32)
    return h


def key_of_hash(hashes: Hashes) -> npt.NDArray[np.int64]:
    """The 64-bit integers whose xxhash64 (with Spark's seed) these are.

    >>> key_of_hash(np.array([-7001672635703045582 % 2**64], dtype=np.uint64)).tolist()
    [1]
    """
    h = hashes ^ (hashes >> np.uint64(32))
    h *= _INVERSE_3
    h ^= (h >> np.uint64(29)) ^ (h >> np.uint64(58))
    h *= _INVERSE_2
    h ^= h >> np.uint64(33)
    h -= _ADDED
    h *= _INVERSE_1
    h = _rotate_right(h, 27)
    h ^= _START
    h *= _INVERSE_1
    h = _rotate_right(h, 31)
    h *= _INVERSE_2
    return h.view(np.int64)


def _rotate_right(values: Hashes, bits: int) -> Hashes:
    return (values >> np.uint64(bits)) | (values << np.uint64(64 - bits))
