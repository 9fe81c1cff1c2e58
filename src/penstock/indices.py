"""Schemes of indices: which samples of a source to use, for ``indices=`` of any source that can be indexed.

Every function gives int64 arrays, the same ones for the same arguments on every machine and in every version.

>>> train, check = split(10, [0.8, 0.2])
>>> len(train), len(check), sorted([*train, *check]) == list(range(10))
(8, 2, True)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.checks import any_number, whole_number
from penstock.errors import PlanError
from penstock.randomness import derive, permute

__all__ = ["balanced_weights", "class_lists", "complement", "interleave", "k_fold", "split"]

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


def split(
    n: int, fractions: Sequence[float], *, seed: int = 0, labels: Iterable[Any] | None = None
) -> list[Int64s]:
    """Divide `n` samples at random into parts of these fractions, which share no sample and leave none out.

    The fractions add up to 1, and the size of a part is less than one sample off its fraction. With
    `labels`, one per sample, every class is divided in these fractions (a stratified split). Each part
    is in ascending order.

    >>> [part.tolist() for part in split(5, [0.6, 0.4], seed=1)]
    [[0, 2, 4], [1, 3]]
    >>> [part.tolist() for part in split(6, [0.5, 0.5], labels="aabbcc")]
    [[1, 2, 4], [0, 3, 5]]
    """
    n = whole_number(n, "split(n)")
    seed = any_number(seed, "split(seed=)")
    shares = _shares(fractions)
    parts: list[list[Int64s]] = [[] for _ in shares]
    #: by how much each part is behind its share so far, so that many small classes add up to the right sizes
    owed = [0.0] * len(shares)
    for number, group in enumerate(_groups(n, labels, "split")):
        wanted = [share * len(group) + debt for share, debt in zip(shares, owed, strict=True)]
        sizes = _rounded(wanted, len(group))
        owed = [want - size for want, size in zip(wanted, sizes, strict=True)]
        order = _shuffled(group, derive("split", seed, number))
        for part, piece in zip(parts, np.split(order, np.cumsum(sizes)[:-1]), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def k_fold(
    n: int, k: int, *, seed: int | None = None, labels: Iterable[Any] | None = None
) -> list[tuple[Int64s, Int64s]]:
    """`k` ways to divide `n` samples into those to train on and those to test on; each is tested once.

    The samples to test on are consecutive, and the last folds larger where `k` does not divide `n`. With a
    `seed` they are drawn at random. With `labels`, one per sample, every class is dealt out to the folds
    as evenly as it goes.

    >>> [(train.tolist(), test.tolist()) for train, test in k_fold(4, 2)]
    [([2, 3], [0, 1]), ([0, 1], [2, 3])]
    >>> [len(test) for _, test in k_fold(10, 3, seed=0)]
    [3, 3, 4]
    >>> [test.tolist() for _, test in k_fold(6, 2, labels="aaaabb")]
    [[1, 3, 5], [0, 2, 4]]
    """
    n = whole_number(n, "k_fold(n)")
    k = whole_number(k, "k_fold(k)", least=2)
    if k > n:
        raise PlanError(f"k_fold: {k} folds of {n} samples would leave some empty; use at most {n} folds")
    groups = _groups(n, labels, "k_fold")
    if seed is not None:
        seed = any_number(seed, "k_fold(seed=)")
        groups = [_shuffled(group, derive("k_fold", seed, number)) for number, group in enumerate(groups)]
    order = np.concatenate(groups)
    if labels is None:
        tests = np.split(order, [fold * n // k for fold in range(1, k)])
    else:
        # Dealt like cards, and the last fold first: that one gets the card that is left over.
        tests = [order[k - 1 - fold :: k] for fold in range(k)]
    return [(complement(test, n), np.sort(test)) for test in tests]


def complement(indices: Iterable[int], n: int) -> Int64s:
    """The samples of `n` that are not in `indices`, in ascending order.

    >>> complement([3, 0], 5).tolist()
    [1, 2, 4]
    """
    n = whole_number(n, "complement(n)")
    chosen = _whole(indices, "complement")
    outside = chosen[(chosen < 0) | (chosen >= n)]
    if outside.size:
        raise PlanError(f"complement: index {outside[0]} is outside of {n} samples")
    left = np.ones(n, dtype=bool)
    left[chosen] = False
    return np.flatnonzero(left).astype(np.int64)


def class_lists(labels: Iterable[Any]) -> dict[Any, Int64s]:
    """The samples of each class, in ascending order; the classes in the order in which they first appear.

    >>> {label: found.tolist() for label, found in class_lists("abba").items()}
    {'a': [0, 3], 'b': [1, 2]}
    """
    classes, codes = _coded(labels)
    ends = np.cumsum(np.bincount(codes, minlength=len(classes)))
    lists = np.split(np.argsort(codes, kind="stable").astype(np.int64), ends[:-1]) if classes else []
    return dict(zip(classes, lists, strict=True))


def interleave(lists: Iterable[Iterable[int]] | Mapping[Any, Iterable[int]]) -> Int64s:
    """One index of each list in turn; a list that has come to its end is left out. Takes `class_lists` too.

    >>> interleave([[0, 1, 2], [10], [20, 21]]).tolist()
    [0, 10, 20, 1, 21, 2]
    >>> interleave(class_lists("aaabb")).tolist()
    [0, 3, 1, 4, 2]
    """
    given = lists.values() if isinstance(lists, Mapping) else lists
    columns = [_whole(one, "interleave") for one in given]
    if not columns:
        return np.empty(0, dtype=np.int64)
    turns = np.concatenate([np.arange(len(column)) for column in columns])
    return np.concatenate(columns)[np.argsort(turns, kind="stable")]


def balanced_weights(labels: Iterable[Any]) -> Float64s:
    """One weight per sample that gives every class the same share; they add up to 1.

    >>> balanced_weights("aab").tolist()
    [0.25, 0.25, 0.5]
    """
    classes, codes = _coded(labels)
    counts = np.bincount(codes, minlength=len(classes))
    return 1.0 / (len(classes) * counts[codes]) if classes else np.empty(0)


# ---------------------------------------------------------------------- what is given


def _shares(fractions: Sequence[float]) -> list[float]:
    try:
        shares = [float(fraction) for fraction in fractions]
    except (TypeError, ValueError):
        raise PlanError(f"split: fractions are numbers such as [0.9, 0.1], got {fractions!r}") from None
    total = sum(shares)
    if not all(share >= 0 for share in shares) or not abs(total - 1) <= 1e-6:
        raise PlanError(
            f"split: fractions are not negative and add up to 1, got {shares}, which add up to {total:g}; "
            "put what is to be left out into a part of its own"
        )
    return shares


def _groups(n: int, labels: Iterable[Any] | None, what: str) -> list[Int64s]:
    if labels is None:
        return [np.arange(n, dtype=np.int64)]
    groups = list(class_lists(labels).values())
    count = sum(map(len, groups))
    if count != n:
        raise PlanError(f"{what}: labels= has {count} labels for {n} samples; give one per sample")
    return groups or [np.empty(0, dtype=np.int64)]


def _coded(labels: Iterable[Any]) -> tuple[list[Any], Int64s]:
    """The classes in the order in which they first appear, and the number of the class of each sample."""
    if isinstance(labels, (Mapping, set, frozenset)):
        raise PlanError(f"labels are one per sample in their order, got a {type(labels).__name__}; give a list")
    if hasattr(labels, "__array__"):
        array = np.asarray(labels)
        if array.ndim != 1:
            raise PlanError(
                f"labels are one per sample, got an array of shape {array.shape}; of one-hot rows, "
                "give labels.argmax(axis=1)"
            )
        if array.dtype.kind in "biuUS":
            return _coded_array(array)
        labels = array.tolist()
    numbers: dict[Any, int] = {}
    try:
        values = list(labels)
        if any(hasattr(kind, "item") for kind in set(map(type, values))):
            # A tensor of one number is hashed by its identity, and every sample would be a class.
            values = [value.item() if hasattr(value, "item") else value for value in values]
        codes = [numbers.setdefault(value, len(numbers)) for value in values]
    except (TypeError, ValueError) as exc:
        raise PlanError(f"labels are one per sample, each a string or a number: {exc}") from None
    strange = next((value for value in numbers if value != value), None)
    if strange is not None:
        raise PlanError(f"the label of sample {codes.index(numbers[strange])} is {strange!r}, which is no class")
    return list(numbers), np.array(codes, dtype=np.int64)


def _coded_array(array: NDArray[Any]) -> tuple[list[Any], Int64s]:
    """The same for an array that numpy can sort, which is faster."""
    classes, first, inverse = np.unique(array, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    places = np.empty(len(classes), dtype=np.int64)
    places[order] = np.arange(len(classes))
    return classes[order].tolist(), places[inverse.reshape(-1)]


def _whole(indices: Iterable[int], what: str) -> Int64s:
    """Indices as an array."""
    if not isinstance(indices, Iterable):
        raise PlanError(f"{what} takes indices in a list or an array, got {indices!r}")
    try:
        array = np.asarray(indices if hasattr(indices, "__array__") else list(indices))
    except ValueError as exc:
        raise PlanError(f"{what} takes indices in a list or an array: {exc}") from None
    if array.size and (array.ndim != 1 or array.dtype.kind not in "iu"):
        raise PlanError(f"{what} takes indices in a list or an array, got {array.dtype} {array.shape}")
    return array.astype(np.int64).reshape(-1)


# ---------------------------------------------------------------------- arithmetic


def _shuffled(group: Int64s, key: int) -> Int64s:
    return group[permute(np.arange(len(group)), len(group), key)] if len(group) else group


def _rounded(wanted: list[float], total: int) -> list[int]:
    """Whole numbers that add up to `total`, each as near to what is wanted as that allows."""
    sizes = [max(int(want), 0) for want in wanted]
    while (missing := total - sum(sizes)) != 0:
        step = 1 if missing > 0 else -1
        # A hair of tolerance: of parts that want the same, the first gets it, whatever the rounding of floats.
        able = [number for number, size in enumerate(sizes) if step > 0 or size]
        most = max(step * (wanted[number] - sizes[number]) for number in able)
        chosen = next(number for number in able if step * (wanted[number] - sizes[number]) > most - 1e-6)
        sizes[chosen] += step
    return sizes
