"""Schemes of indices: parts are disjoint and complete, folds even, classes divided alike, and always the same."""

from collections import Counter

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock import indices


def lists(arrays):
    return [array.tolist() for array in arrays]


def assert_divides(parts, n):
    assert sorted(np.concatenate(parts).tolist()) == list(range(n))
    assert all(part.dtype == np.int64 for part in parts)
    assert all(np.all(np.diff(part) > 0) for part in parts)


# ---------------------------------------------------------------------- split


@for_each("labelled", [False, True])
@for_each("n", [0, 1, 2, 7, 100, 1001])
@for_each("fractions", [[1], [0.9, 0.1], [1 / 3] * 3, [0.5, 0, 0.5], [0.1] * 10])
def test_parts_share_no_sample_leave_none_out_and_are_less_than_one_off_their_size(n, fractions, labelled):
    labels = [number % 7 for number in range(n)] if labelled else None
    parts = indices.split(n, fractions, seed=2, labels=labels)
    assert_divides(parts, n)
    assert all(abs(len(part) - fraction * n) < 1 for part, fraction in zip(parts, fractions, strict=True))


def test_a_stratified_split_divides_every_class():
    labels = ["cat"] * 500 + ["dog"] * 50 + ["emu"] * 10
    counts = [Counter(labels[i] for i in part) for part in indices.split(560, [0.8, 0.2], labels=labels)]
    assert counts == [{"cat": 400, "dog": 40, "emu": 8}, {"cat": 100, "dog": 10, "emu": 2}]


def test_many_classes_of_one_sample_still_add_up_to_the_fractions():
    assert [len(part) for part in indices.split(1000, [0.9, 0.1], labels=range(1000))] == [900, 100]


def test_a_seed_gives_the_same_indices_today_and_tomorrow():
    assert lists(indices.split(12, [0.5, 0.25, 0.25], seed=3)) == [[1, 2, 3, 7, 8, 9], [0, 5, 10], [4, 6, 11]]
    assert [test.tolist() for _, test in indices.k_fold(10, 3, seed=5)] == [[0, 1, 6], [3, 4, 9], [2, 5, 7, 8]]


def test_seeds_divide_differently():
    assert len({tuple(indices.split(100, [0.5, 0.5], seed=seed)[0]) for seed in range(20)}) == 20


@for_each(
    "fractions", [[0.5, 0.6], [0.9], [], [-0.5, 1.5], [float("nan"), 1], "ab", 0.5, None, [None, 1], [0.5, "x"]]
)
def test_fractions_that_are_none_are_refused(fractions):
    with pytest.raises(ps.PlanError, match="split: fractions"):
        indices.split(10, fractions)


@for_each("scheme", ["split", "k_fold"])
def test_labels_of_another_number_are_refused_with_both_numbers(scheme):
    with pytest.raises(ps.PlanError, match=f"{scheme}: .* 9 labels for 10 samples"):
        getattr(indices, scheme)(10, *([[0.5, 0.5]] if scheme == "split" else [2]), labels=[1] * 9)


# ---------------------------------------------------------------------- k-fold


@for_each("n, k, sizes", [(10, 3, [3, 3, 4]), (10, 5, [2] * 5), (11, 4, [2, 3, 3, 3]), (2, 2, [1, 1])])
@for_each("seed", [None, 0, 7])
def test_every_sample_is_tested_once_and_trained_on_otherwise(n, k, sizes, seed):
    folds = indices.k_fold(n, k, seed=seed)
    assert [len(test) for _, test in folds] == sizes
    assert_divides([test for _, test in folds], n)
    for train, test in folds:
        assert_divides([train, test], n)


def test_without_a_seed_folds_are_consecutive():
    assert [test.tolist() for _, test in indices.k_fold(10, 3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]


@for_each("seed", [None, 3])
@for_each("counts", [[30, 20, 10], [7, 5, 3, 1], [1] * 10])
def test_folds_with_labels_have_every_class_as_evenly_as_it_goes(counts, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    folds = indices.k_fold(len(labels), 3, seed=seed, labels=labels)
    assert_divides([test for _, test in folds], len(labels))
    sizes = [len(test) for _, test in folds]
    assert sizes == sorted(sizes)
    assert max(sizes) - min(sizes) <= 1
    for label, count in enumerate(counts):
        assert {np.count_nonzero(labels[test] == label) for _, test in folds} <= {count // 3, -(-count // 3)}


@for_each("n, k", [(10, 1), (10, 0), (3, 4), (0, 2), (10, 2.5), (-1, 2)])
def test_folds_that_cannot_be_are_refused(n, k):
    with pytest.raises(ps.PlanError, match="k_fold"):
        indices.k_fold(n, k)


# ---------------------------------------------------------------------- complement


@for_each("chosen", [[], [3, 0], [0, 0, 4], range(5), {2, 1}, np.array([1], dtype=np.uint8)])
def test_a_subset_and_its_complement_are_disjoint_and_complete(chosen):
    left = indices.complement(chosen, 5)
    assert set(left.tolist()) == set(range(5)) - set(map(int, chosen))
    assert left.dtype == np.int64


def test_a_generator_of_indices_will_do():
    assert indices.complement((2 * i for i in range(3)), 6).tolist() == [1, 3, 5]


@for_each("chosen", [[5], [-1], [0.5], [True], ["a"], [[1], [2]], [[1], [2, 3]], None, 3])
def test_what_is_no_index_has_no_complement(chosen):
    with pytest.raises(ps.PlanError, match="complement"):
        indices.complement(chosen, 5)


# ---------------------------------------------------------------------- classes


@for_each(
    "labels",
    ["bab", ["b", "a", "b"], ("b", "a", "b"), np.array(["b", "a", "b"]), np.array(["b", "a", "b"], dtype=object)],
)
def test_classes_come_in_the_order_in_which_they_appear(labels):
    found = indices.class_lists(labels)
    assert list(found) == ["b", "a"]
    assert lists(found.values()) == [[0, 2], [1]]


def test_labels_of_unlike_types_stay_apart():
    assert list(indices.class_lists([1, "1", None, (2, 3), 1])) == [1, "1", None, (2, 3)]


def test_numbers_of_arrays_and_of_lists_are_the_same_classes():
    expected = {3: [0, 3], -1: [1], 7: [2]}
    for labels in (np.array([3, -1, 7, 3]), [3, -1, 7, 3], list(np.array([3, -1, 7, 3])), iter([3, -1, 7, 3])):
        assert {label: found.tolist() for label, found in indices.class_lists(labels).items()} == expected


def test_tensors_of_one_number_are_classes_by_their_number():
    torch = pytest.importorskip("torch")
    for labels in (torch.tensor([1, 0, 1]), list(torch.tensor([1, 0, 1]))):
        assert lists(indices.class_lists(labels).values()) == [[0, 2], [1]]


def test_no_labels_are_no_classes():
    assert indices.class_lists([]) == {}
    assert indices.class_lists(np.empty(0, dtype=int)) == {}


@for_each(
    "labels, why",
    [
        (np.eye(3), "argmax"),
        ([[1], [2]], "unhashable"),
        ({"a": 1}, "dict"),
        ({1, 2}, "set"),
        ([0.0, float("nan")], "sample 1 is nan"),
        (np.array([np.nan, 1.0]), "sample 0 is nan"),
        (5, "not iterable"),
    ],
)
def test_what_is_no_list_of_labels_is_refused(labels, why):
    with pytest.raises(ps.PlanError, match=why):
        indices.class_lists(labels)


def test_lists_take_turns_until_they_end():
    assert indices.interleave([[1], [2, 3], [4, 5, 6]]).tolist() == [1, 2, 4, 3, 5, 6]
    assert indices.interleave(indices.class_lists("aaabbc")).tolist() == [0, 3, 5, 1, 4, 2]
    assert indices.interleave([]).tolist() == indices.interleave([[], []]).tolist() == []


@for_each("wrong", [[["a"]], [[0.5]], [3], [np.eye(2)]])
def test_what_is_no_list_of_indices_takes_no_turns(wrong):
    with pytest.raises(ps.PlanError, match="interleave"):
        indices.interleave(wrong)


def test_weights_of_classes_of_2_3_and_5_samples_are_a_6th_a_9th_and_a_15th():
    assert indices.balanced_weights("aabbbccccc").tolist() == [1 / 6] * 2 + [1 / 9] * 3 + [1 / 15] * 5
    assert indices.balanced_weights([]).tolist() == []


# ---------------------------------------------------------------------- as indices= of a source


def test_a_scheme_says_which_samples_of_a_source_are_read():
    x = np.arange(10) * 10
    for train, test in indices.k_fold(10, 3):
        read = [*ps.from_arrays(x, indices=train), *ps.from_sequence(x, indices=test)]
        assert sorted(int(sample) for sample in read) == x.tolist()
