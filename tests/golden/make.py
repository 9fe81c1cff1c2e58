"""Makes orders.json: what shuffles and draws have to be, on every Python and numpy, in every release.

Nothing of penstock or numpy is used: this is the definition, in plain integers and hashlib, and slow. What it
gives may change only with a release that says so, since it changes the order of everybody's epochs:

    python tests/golden/make.py
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("orders.json")

SIZES = [1, 2, 7, 255, 256, 257, 1000, 2048, 2049, 65_536, 10**6, 2**24, 2**24 + 1]
SIZES += [10**8, 10**9, 2**32 - 1, 2**32, 2**33, 10**12]
FIRST = 20
KEYS = [0, 1, 2**128 - 1, 0x0123456789ABCDEF_FEDCBA9876543210]
PARTS: list[list[int | str]] = [
    [],
    [0],
    [0, 1],
    [1, 0],
    ["0", 1],
    [-1],
    [2**200],
    ["shuffle", 1, 2, "x"],
    ["a", "b"],
    ["a\x1fsb"],
    ["Wörter", "語"],
]


def derive(*parts: int | str) -> int:
    """Blake2b of the parts, each after a letter for its type, parted by a control character."""
    letters = {int: "i", str: "s"}
    text = "\x1f".join((letters[type(part)] + str(part)).replace("\x1f", "\x1f\x1f") for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def mixed(value: int, bits: int) -> int:
    """The finalizer of MurmurHash3 for 32 or 64 bits, up to its last step."""
    if bits == 32:
        steps = [(16, 0x85EBCA6B), (13, 0xC2B2AE35)]
    else:
        steps = [(33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)]
    for step, times in steps:
        value = (value ^ value >> step) * times % 2**bits
    return value


def places(positions: range, n: int, key: int) -> list[int]:
    """Up to 2048 the order of hashes, above a network of six rounds over a near-square."""
    if n <= 2048:
        hashes = [mixed(i ^ key % 2**64, 64) for i in range(n)]
        order = sorted(range(n), key=lambda i: hashes[i] ^ hashes[i] >> 33)
        return [order[position] for position in positions]
    return [through_the_network(position, n, key) for position in positions]


def through_the_network(position: int, n: int, key: int) -> int:
    columns = math.isqrt(n - 1) + 1
    rows = -(-n // columns)
    while True:
        left, right = divmod(position, rows)
        for number in range(6):
            round_key = derive(key, number)
            if number % 2 == 0:
                left = (left + shift(right, round_key, columns, n)) % columns
            else:
                right = (right + shift(left, round_key, rows, n)) % rows
        position = left * rows + right
        if position < n:
            return position


def shift(by: int, key: int, modulus: int, n: int) -> int:
    """A hash of `by`, scaled to the modulus."""
    bits = 32 if n < 2**32 else 64
    value = mixed(by ^ key % 2**bits, bits)
    # 2**24 samples make a square of 4096; above, half the bits would be too few to choose a shift evenly.
    if bits == 64 or n <= 2**24:
        return (value >> bits // 2) * modulus >> bits // 2
    return value * modulus >> bits


def raw_draws(key: int, position: int, sub: int, count: int) -> list[int]:
    """Words of Philox 4x64-10: the op's key, and a counter that starts at the sample's position."""
    word = 2**64
    out: list[int] = []
    block = 0
    while len(out) < count:
        block += 1
        a, b, c, d = block, position, sub, 0
        low, high = key % word, key >> 64
        for _ in range(10):
            left, right = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
            a, b, c, d = (right // word) ^ b ^ low, right % word, (left // word) ^ d ^ high, left % word
            low, high = (low + 0x9E3779B97F4A7C15) % word, (high + 0xBB67AE8584CAA73B) % word
        out += [a, b, c, d]
    return out[:count]


def shuffled(n: int, seed: int, epoch: int) -> list[int]:
    """``from_sequence(range(n)).shuffle()`` in one epoch of a loader."""
    return places(range(min(n, FIRST)), n, derive("shuffle", seed, epoch, "shuffle"))


def windowed(n: int, window: int, seed: int, epoch: int) -> list[int]:
    """The same with ``shuffle(window)``."""
    key = derive("window", seed, epoch, "shuffle")
    out: list[int] = []
    for start in range(0, n, window):
        out += sorted(range(start, min(start + window, n)), key=lambda place: turn(place, key))
    return out


def turn(place: int, key: int) -> int:
    """What decides when the sample at `place` leaves its block: two hashes, by the two halves of the key."""
    for half in (key, key >> 64):
        place = mixed(place ^ half % 2**64, 64)
        place ^= place >> 33
    return place


def ends(order: list[int]) -> list[int]:
    return order if len(order) <= 2 * FIRST else order[:FIRST] + order[-FIRST:]


def drawn(seed: int, epoch: int, n: int) -> list[list[int]]:
    """The first raw words of each sample in ``map(fn, rng=True, name="op")``."""
    return [raw_draws(derive("rng", seed, epoch, "op"), position, 0, 2) for position in range(n)]


def golden() -> dict[str, Any]:
    runs = [(seed, epoch) for seed in (0, 1, 2**40) for epoch in (0, 1)]
    return {
        "derive": [[parts, hex(derive(*parts))] for parts in PARTS],
        "permute": [
            {"n": n, "key": hex(key), "first": places(range(min(n, FIRST)), n, key)} for n in SIZES for key in KEYS
        ],
        "shuffle": [
            {"n": n, "seed": seed, "epoch": epoch, "first": shuffled(n, seed, epoch)}
            for n in (10, 300, 10**6, 10**9)
            for seed, epoch in runs
        ],
        "window": [
            {"n": n, "window": window, "seed": seed, "epoch": epoch, "ends": ends(windowed(n, window, seed, epoch))}
            for n, window in ((12, 5), (30, 30), (2060, 2055))
            for seed, epoch in runs[:4]
        ],
        "raw_draws": [
            {"key": hex(key), "position": position, "sub": sub, "words": raw_draws(key, position, sub, 6)}
            for key in KEYS
            for position, sub in ((0, 0), (1, 0), (2**40, 7), (3, 2**64 - 1))
        ],
        "rng": [{"seed": seed, "epoch": epoch, "words": drawn(seed, epoch, 4)} for seed, epoch in runs],
    }


def main() -> None:
    parts = golden()
    lines = [
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]"
        for name, entries in parts.items()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
