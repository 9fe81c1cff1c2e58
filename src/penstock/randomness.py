"""Random numbers that depend on what they are for, never on who draws them or when.

* `derive` turns any parts (seed, epoch, the op's key) into a 128-bit key by hashing.
* `permute` is a keyed bijection on ``range(n)``: the place of any one index costs the same as of
  any other, nothing is stored.
* `Draws` is one numpy Generator that is re-keyed for every sample; making one costs 20 times more.

The integer hash is our own: numpy does not promise that its Generator methods give the same
numbers in every version, and the order of an epoch must not change with an upgrade.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Draws", "derive", "permute"]

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Words = NDArray[Any]

_ROUNDS = 6
#: below this a sorted table of hashes is both exactly uniform and faster than the network
_SMALL = 256


def derive(*parts: int | str) -> int:
    """A 128-bit key from `parts`.

    The parts are kept apart, so that seed 0 of epoch 1 is not seed 1 of epoch 0.

    >>> derive(0, 1) == derive(1, 0)
    False
    """
    text = "\x1f".join(f"{type(part).__name__[0]}{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


#: (dtype, bits of a half, shifts and multipliers of the hash) for domains below 2**32 and above
_NARROW = (np.uint32, 16, (16, 0x85EBCA6B, 13, 0xC2B2AE35, 16))
_WIDE = (np.uint64, 32, (33, 0xFF51AFD7ED558CCD, 33, 0xC4CEB9FE1A85EC53, 33))


def _mixed(values: Words, key: int, width: Any) -> Words:
    """A keyed finalizer: every input bit reaches every output bit. A new array."""
    word, _, (a, times_b, c, times_d, e) = width
    out: Words = values ^ word(key & np.iinfo(word).max)
    out ^= out >> word(a)
    out *= word(times_b)
    out ^= out >> word(c)
    out *= word(times_d)
    out ^= out >> word(e)
    return out


@lru_cache(maxsize=64)
def _round_keys(key: int) -> tuple[int, ...]:
    return tuple(derive(key, number) & (2**64 - 1) for number in range(_ROUNDS))


@lru_cache(maxsize=16)
def _small_table(n: int, key: int) -> Int64s:
    hashes = _mixed(np.arange(n, dtype=np.uint64), key, _WIDE)
    return np.argsort(hashes, kind="stable").astype(np.int64)


def permute(positions: Int64s, n: int, key: int) -> Int64s:
    """Where each of `positions` goes under the permutation of ``range(n)`` that `key` names.

    >>> sorted(permute(np.arange(10), 10, key=7).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if n <= _SMALL:
        return _small_table(n, key)[positions]
    keys = _round_keys(key)
    width = _NARROW if n < 2**32 else _WIDE
    out = _network(positions.astype(width[0]), n, keys, width)
    # The network permutes a rectangle a little larger than n. A value that lands outside goes
    # through again until it is inside, which keeps the whole a bijection on range(n).
    outside = np.flatnonzero(out >= n)
    while outside.size:
        out[outside] = _network(out[outside], n, keys, width)
        outside = outside[out[outside] >= n]
    return out.astype(np.int64)


def _network(values: Words, n: int, keys: tuple[int, ...], width: Any) -> Words:
    """A Feistel network over pairs (left < columns, right < rows) with columns * rows just above n."""
    columns = math.isqrt(n - 1) + 1
    rows = (n - 1) // columns + 1
    left, right = np.divmod(values, width[0](rows))
    for number, key in enumerate(keys):
        if number % 2 == 0:
            left = _shifted(left, right, columns, key, width)
        else:
            right = _shifted(right, left, rows, key, width)
    left *= width[0](rows)
    left += right
    return left


def _shifted(moved: Words, by: Words, modulus: int, key: int, width: Any) -> Words:
    """``(moved + hash(by)) mod modulus`` without a division: the hash is scaled, not reduced."""
    word, half, _ = width
    shift = _mixed(by, key, width)
    shift >>= word(half)
    shift *= word(modulus)
    shift >>= word(half)
    shift += moved
    # Where no reduction is due the subtraction wraps to a huge number, and the minimum keeps the sum.
    reduced: Words = np.minimum(shift, shift - word(modulus))
    return reduced


class Draws:
    """One Generator, re-keyed for every sample. Valid until the next `at`.

    >>> draws = Draws()
    >>> first = draws.at(derive("demo"), 5).integers(1000)
    >>> other = draws.at(derive("demo"), 6).integers(1000)
    >>> bool(first == draws.at(derive("demo"), 5).integers(1000))
    True
    """

    __slots__ = ("_bits", "_counter", "_key", "_state", "generator")

    def __init__(self) -> None:
        self._bits: Any = np.random.Philox(0)
        self.generator = np.random.Generator(self._bits)
        self._state: dict[str, Any] = dict(self._bits.state)
        inner = {name: part.copy() for name, part in self._state["state"].items()}
        self._state["state"] = inner
        self._counter: UInt64s = inner["counter"]
        self._key: UInt64s = inner["key"]

    def at(self, key: int, position: int, sub: int = 0) -> np.random.Generator:
        """The generator for one sample: the key is the op's, the counter starts at the position."""
        self._key[0] = key & 0xFFFFFFFFFFFFFFFF
        self._key[1] = key >> 64
        counter = self._counter
        counter[0] = 0
        counter[1] = position
        counter[2] = sub
        self._bits.state = self._state
        return self.generator
