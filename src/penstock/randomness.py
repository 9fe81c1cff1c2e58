"""Random numbers that depend on what they are for, never on who draws them or when.

* `derive` turns any parts (seed, epoch, the op's key) into a 128-bit key by hashing.
* `permute` is a keyed bijection on ``range(n)``: the place of any one index costs the same as of
  any other, nothing is stored.
* `uniform` is one number in [0, 1) per position, each computed alone; `exponential` one from 0 upwards.
* `Draws` is one numpy Generator that is re-keyed for every sample; making one costs 20 times more.

The integer hash is our own: numpy does not promise that its Generator methods give the same
numbers in every version, and the order of an epoch must not change with an upgrade.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Float64s = NDArray[np.float64]
Words = NDArray[Any]

_ROUNDS = 6
#: Up to here the order is a sorted table of hashes, which costs no more. A network of six rounds is a little
#: uneven over so small a square: with millions of keys one sees it below 1000, and not at 2000 any more.
_SMALL = 2048
#: so few positions cost less in plain numbers than numpy's calls do
_FEW = 8
#: positions taken through the network at once, so that they stay in the processor's cache
_STRETCH = 32768
#: a side above which 16 bits are too coarse for a shift: some would come up twice as often as others
_COARSE = 4096


def derive(*parts: int | str) -> int:
    """A 128-bit key from `parts`.

    The parts are kept apart, so that seed 0 of epoch 1 is not seed 1 of epoch 0.

    >>> derive(0, 1) == derive(1, 0)
    False
    """
    from hashlib import blake2b  # takes long, and what neither draws nor shuffles does without

    # Every part begins with a letter, so a separator inside one, doubled, is told from one between two.
    text = "\x1f".join(f"{type(part).__name__[0]}{part}".replace("\x1f", "\x1f\x1f") for part in parts)
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest(), "little")


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
    # No two hashes are equal, so any way to sort them gives the same order.
    hashes = _mixed(np.arange(n, dtype=np.uint64), key, _WIDE)
    return np.argsort(hashes).astype(np.int64)


def permute(positions: Int64s, n: int, key: int) -> Int64s:
    """Where each of `positions`, all in ``range(n)``, goes under the permutation that `key` names.

    >>> sorted(permute(np.arange(10), 10, key=7).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if n <= _SMALL:
        return _small_table(n, key)[positions]
    keys = _round_keys(key)
    if len(positions) <= _FEW:
        return np.array([_place(position, n, keys) for position in positions.tolist()], dtype=np.int64)
    out = np.empty(len(positions), dtype=np.int64)
    for start in range(0, len(positions), _STRETCH):
        out[start : start + _STRETCH] = _places(positions[start : start + _STRETCH], n, keys)
    return out


def _places(positions: Int64s, n: int, keys: tuple[int, ...]) -> Words:
    width = _NARROW if n < 2**32 else _WIDE
    out = _network(positions.astype(width[0]), n, keys, width)
    # The network permutes a rectangle a little larger than n. A value that lands outside goes
    # through again until it is inside, which keeps the whole a bijection on range(n).
    outside = np.flatnonzero(out >= n)
    while len(outside) > _FEW:
        out[outside] = _network(out[outside], n, keys, width)
        outside = outside[out[outside] >= n]
    for number in outside.tolist():
        out[number] = _place(int(out[number]), n, keys)
    return out


def _sides(n: int) -> tuple[int, int]:
    """The columns and rows of the smallest near-square that holds `n`."""
    columns = math.isqrt(n - 1) + 1
    return columns, (n - 1) // columns + 1


def _network(values: Words, n: int, keys: tuple[int, ...], width: Any) -> Words:
    """A Feistel network over pairs (left < columns, right < rows), in place where it can be.

    In every round one side is shifted by a hash of the other: ``(left + hash(right)) mod columns``.
    """
    word, half, (a, times_b, c, times_d, _) = width
    columns, rows = _sides(n)
    exact = word is np.uint32 and columns > _COARSE
    left: Words = values // word(rows)
    right = values - left * word(rows)
    sides = (left, right, word(columns)), (right, left, word(rows))
    shift, spare = np.empty_like(left), np.empty_like(left)
    for number, key in enumerate(keys):
        moved, by, modulus = sides[number % 2]
        np.bitwise_xor(by, word(key & np.iinfo(word).max), out=shift)
        np.right_shift(shift, word(a), out=spare)
        shift ^= spare
        shift *= word(times_b)
        np.right_shift(shift, word(c), out=spare)
        shift ^= spare
        shift *= word(times_d)
        # The hash is scaled to the modulus by its upper bits, not reduced: no division.
        if exact:
            np.bitwise_and(shift, word(0xFFFF), out=spare)
            spare *= modulus
            spare >>= word(half)
        shift >>= word(half)
        shift *= modulus
        if exact:
            shift += spare
        shift >>= word(half)
        moved += shift
        # Where no reduction is due the subtraction wraps to a huge number, and the minimum keeps the sum.
        np.subtract(moved, modulus, out=shift)
        np.minimum(moved, shift, out=moved)
    left *= word(rows)
    left += right
    return left


def _place(position: int, n: int, keys: tuple[int, ...]) -> int:
    """The same for one position in plain numbers, until it is inside."""
    word, half, (a, times_b, c, times_d, _) = _NARROW if n < 2**32 else _WIDE
    mask = (1 << 2 * half) - 1
    columns, rows = _sides(n)
    coarse = 0 if word is np.uint32 and columns > _COARSE else half
    while True:
        left, right = divmod(position, rows)
        for number, key in enumerate(keys):
            by, modulus = (left, rows) if number % 2 else (right, columns)
            mixed = (by ^ key) & mask
            mixed = (mixed ^ mixed >> a) * times_b & mask
            mixed = (mixed ^ mixed >> c) * times_d & mask
            shift = (mixed >> coarse) * modulus >> (2 * half - coarse)
            if number % 2:
                right = (right + shift) % rows
            else:
                left = (left + shift) % columns
        position = left * rows + right
        if position < n:
            return position


def uniform(positions: Int64s, key: int) -> Float64s:
    """A number in [0, 1) for each of `positions`, the same for the same key on every machine.

    >>> uniform(np.array([7, 0, 7]), key=1).round(3).tolist()
    [0.082, 0.49, 0.082]
    """
    return (hashed(positions, key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hashed(positions: Int64s, key: int) -> Words:
    """A 64-bit number for each of `positions`, the same for the same key on every machine."""
    hashes = _mixed(positions.astype(np.uint64), key, _WIDE)
    # Once more with the other half of the key: positions are near each other, and so few of their bits differ.
    return _mixed(hashes, key >> 64, _WIDE)


def exponential(positions: Int64s, key: int) -> Float64s:
    """A number for each of `positions`, exponentially distributed with mean 1, the same on every machine.

    >>> exponential(np.array([7, 0, 7]), key=1).round(3).tolist()
    [0.086, 0.673, 0.086]
    """
    return -_log(1.0 - uniform(positions, key))


def _log(values: Float64s) -> Float64s:
    """The natural logarithm by sums and products alone; libraries differ in its last digit.

    >>> bool(np.allclose(_log(np.array([1e-9, 0.3, 1.0])), np.log([1e-9, 0.3, 1.0]), rtol=1e-15, atol=0))
    True
    """
    fraction, exponent = np.frexp(values)
    low = fraction < 0.7071067811865476
    fraction = np.where(low, fraction * 2, fraction)
    ratio = (fraction - 1) / (fraction + 1)
    square = ratio * ratio
    series: Float64s = np.zeros_like(ratio)
    for odd in range(23, 0, -2):
        series = series * square + 1 / odd
    logarithm: Float64s = 2 * ratio * series + (exponent - low) * 0.6931471805599453
    return logarithm


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
