"""resample: draws by weight or class, the same for any layout; and schemes that ops make together."""

import math
from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import INLINE, any_workers, few_layouts, plain

import penstock as ps
from penstock import ops
from penstock.ops.op import Key
from penstock.testing import check_op

#: classes of 2, 3 and 5 samples
LABELS = "aabbbccccc"


def ten():
    return ps.from_sequence(range(10))


def by_epoch(epoch):
    return [1 if number % 3 == epoch % 3 else 0 for number in range(10)]


WAYS = {
    "weights": lambda p: p.resample(range(10), n=300),
    "weights, each once": lambda p: p.resample(range(10), replace=False),
    "balance": lambda p: p.resample(balance=LABELS, n=300),
    "balance, each once": lambda p: p.resample(balance=LABELS, replace=False),
    "weights by epoch": lambda p: p.resample(by_epoch),
    "balance by epoch": lambda p: p.resample(balance=lambda epoch: [n // (epoch + 1) for n in range(10)]),
}
any_way = for_each("way", WAYS.values())


def near(count, n, share):
    """Within 4.5 standard deviations of a share of n draws."""
    return abs(count - n * share) < 4.5 * math.sqrt(n * share * (1 - share))


# ---------------------------------------------------------------------- the same stream


@any_workers
@any_way
def test_what_is_drawn_is_the_same_for_any_layout(layout, way):
    pipeline = way(ten()).map(lambda x: x * 2, **layout.place).batch(7)
    assert plain(layout.epochs(pipeline, 3)) == plain(INLINE.epochs(way(ten()).map(lambda x: x * 2).batch(7), 3))


@any_way
def test_a_draw_depends_on_its_position_alone_and_not_on_what_is_asked_for_with_it(way):
    (op,) = way(ten()).ops
    order, key = op.order(), Key(5, "resample")
    n = order.length(10)
    whole = order.trace(1, np.arange(n), 10, key)[1]
    for positions in (np.arange(n)[::-1], np.arange(0, n, 3), np.array([n - 1]), np.array([0, 0])):
        assert op.order().trace(1, positions, 10, key)[1].tolist() == whole[positions].tolist()


@any_way
def test_epochs_and_seeds_and_ops_have_draws_of_their_own(way):
    streams = [tuple(drawn) for seed in range(3) for drawn in INLINE.epochs(way(ten()), 3, seed)]
    assert len(set(streams)) == 9
    (op,) = way(ten()).ops
    first, second = (op.order().trace(0, np.arange(3), 10, Key(0, name))[1] for name in ("resample", "resample#2"))
    assert op.given is by_epoch or first.tolist() != second.tolist()


def test_a_seed_draws_the_same_today_and_tomorrow():
    assert INLINE.run(ten().resample(range(10))) == [7, 9, 5, 9, 8, 5, 9, 4, 5, 5]
    assert INLINE.run(ten().resample(balance=LABELS)) == [4, 8, 0, 5, 7, 0, 8, 1, 0, 0]
    assert INLINE.run(ten().resample(range(10), replace=False)) == [7, 8, 9, 5, 2, 4, 6, 3, 1]
    assert INLINE.run(ten().resample(balance=LABELS, replace=False)) == [0, 7, 2, 1, 8, 4, 9, 3, 5, 6]


@for_each("options", [{}, {"replace": False, "n": 5}])
@for_each("kind", ["weights", "balance"])
def test_it_keeps_the_contract_of_an_op(kind, options):
    check_op(ops.Resample(**{kind: lambda epoch: range(1, 10)}, **options), range(9))


# ---------------------------------------------------------------------- by weight


@few_layouts
def test_samples_are_drawn_as_often_as_they_weigh(layout):
    weights = np.array([0, 1, 2, 3, 0, 4])
    drawn = Counter(layout.run(ps.from_sequence(range(6)).resample(weights, n=20_000)))
    assert all(near(drawn[number], 20_000, weight / 10) for number, weight in enumerate(weights) if weight)
    assert set(drawn) == {1, 2, 3, 5}


def test_a_source_larger_than_a_block_is_drawn_from_end_to_end():
    n = 40_000
    drawn = np.concatenate(INLINE.run(ps.from_arrays(np.arange(n)).resample(np.arange(n)).batch(1000)))
    assert len(drawn) == n
    # The mean of numbers that weigh what they are is two thirds of the largest.
    assert abs(drawn.mean() / n - 2 / 3) < 0.01


@for_each("scale", [1e-300, 1.0, 1e308])
def test_only_the_proportions_count(scale):
    pipeline = ten().resample(np.arange(10) / 10 * scale)
    assert INLINE.run(pipeline) == INLINE.run(ten().resample(range(10)))


def test_truths_and_tensors_are_weights():
    assert set(ten().resample([True, False] * 5, n=100)) == {0, 2, 4, 6, 8}
    torch = pytest.importorskip("torch")
    assert set(ten().resample(torch.tensor([0.0] * 9 + [1.0]))) == {9}


def test_each_once_by_weight_is_a_draw_after_the_other_among_those_left():
    weights = [1, 2, 3]
    source = ps.from_sequence(range(3)).resample(weights, replace=False, n=2)
    firsts = Counter(tuple(INLINE.run(source, seed)) for seed in range(200))
    for (a, b), count in firsts.items():
        assert a != b
        assert near(count, 200, weights[a] / 6 * weights[b] / (6 - weights[a]))
    assert len(firsts) == 6


def test_each_once_leaves_out_what_has_no_weight():
    pipeline = ten().resample([0, 1] * 5, replace=False)
    assert len(pipeline) == 5
    assert sorted(pipeline) == [1, 3, 5, 7, 9]


def test_a_weight_next_to_nothing_comes_last():
    drawn = INLINE.run(ps.from_sequence(range(4)).resample([1e-308, 1e308, 1e308, 1e-308], replace=False))
    assert set(drawn[:2]) == {1, 2}
    assert sorted(drawn) == [0, 1, 2, 3]


# ---------------------------------------------------------------------- by class


@few_layouts
def test_three_classes_over_10_000_draws_have_3_333_each(layout):
    drawn = Counter(LABELS[number] for number in layout.run(ten().resample(balance=LABELS, n=10_000)))
    assert all(near(drawn[label], 10_000, 1 / 3) for label in "abc")


def test_samples_of_classes_of_2_3_and_5_have_a_6th_a_9th_and_a_15th():
    for pipeline in (
        ten().resample(balance=LABELS, n=30_000),
        ten().resample(ps.indices.balanced_weights(LABELS), n=30_000),
    ):
        drawn = Counter(INLINE.run(pipeline))
        for number, share in enumerate(ps.indices.balanced_weights(LABELS)):
            assert near(drawn[number], 30_000, share)


def test_each_once_classes_take_turns():
    for drawn in INLINE.epochs(ten().resample(balance=LABELS, replace=False), 5):
        assert sorted(drawn) == list(range(10))
        rounds = [drawn[0:3], drawn[3:6], drawn[6:8], drawn[8:9], drawn[9:]]
        assert [sorted(LABELS[number] for number in one) for one in rounds] == [
            *(["a", "b", "c"], ["a", "b", "c"]),
            *(["b", "c"], ["c"], ["c"]),
        ]


def test_each_once_an_epoch_of_so_many_rounds_is_balanced_exactly_and_takes_others_the_next_time():
    epochs = INLINE.epochs(ten().resample(balance=LABELS, replace=False, n=6), 20)
    assert all(Counter(LABELS[number] for number in drawn) == {"a": 2, "b": 2, "c": 2} for drawn in epochs)
    assert set(chain(*epochs)) == set(range(10))


# ---------------------------------------------------------------------- by epoch


@few_layouts
def test_a_function_gives_every_epoch_weights_of_its_own(layout):
    for epoch, drawn in enumerate(layout.epochs(ten().resample(by_epoch, n=50), 4)):
        assert set(drawn) == {number for number in range(10) if number % 3 == epoch % 3}


def test_a_function_is_called_once_per_epoch_in_one_process():
    called = []

    def weights(epoch):
        called.append(epoch)
        return np.ones(2000)

    with ps.from_sequence(range(2000)).resample(weights).map(abs, workers=4).loader(epochs=3) as loader:
        for _, samples in loader.epochs(3):
            list(samples)
    assert sorted(called) == [0, 1, 2]


@few_layouts
@for_each("kind", ["weights", "balance"])
def test_an_error_of_the_function_is_the_users_own_and_names_op_and_epoch(layout, kind):
    def broken(epoch):
        raise KeyError(f"no such epoch: {epoch}")

    with pytest.raises(KeyError, match="no such epoch: 0") as caught:
        layout.run(ten().resample(**{kind: broken}))
    assert any(f"resample({kind}=broken) at " in note and "epoch 0" in note for note in caught.value.__notes__)


@few_layouts
@for_each(
    "given, why",
    [([1] * 9, "9 numbers, but 10 samples"), ([-1] * 10, "negative"), (None, "NoneType"), ([0] * 10, "all are 0")],
)
def test_what_a_function_returns_is_checked(layout, given, why):
    with pytest.raises(ps.PlanError, match=f"of epoch 0, from lambda, .*{why}"):
        layout.run(ten().resample(lambda epoch: given))


def test_a_function_that_leaves_too_few_is_refused_with_both_numbers():
    with pytest.raises(ps.PlanError, match=r"cannot draw 10 of 5 samples .* give n=5"):
        INLINE.run(ten().resample(lambda epoch: [0, 1] * 5, replace=False))
    assert len(INLINE.run(ten().resample(lambda epoch: [0, 1] * 5, replace=False, n=5))) == 5


# ---------------------------------------------------------------------- with other ops


@for_each("n", [0, 1, 7, 25])
def test_an_epoch_has_as_many_draws_as_asked_for(n):
    pipeline = ten().resample(range(10), n=n)
    assert len(pipeline) == len(list(pipeline)) == n
    assert len(ten().resample(range(10))) == 10


@any_way
def test_it_may_stand_behind_a_map_and_another_order(way):
    drawn = INLINE.run(way(ten().shuffle().map(lambda x: x + 100)).shuffle())
    assert set(drawn) <= set(range(100, 110))
    assert len(drawn) == len(way(ten()))


def test_each_pass_of_a_repeat_draws_anew():
    drawn = INLINE.run(ten().resample(range(10), n=20).repeat(3))
    passes = [tuple(drawn[start : start + 20]) for start in (0, 20, 40)]
    assert len(set(passes)) == 3
    assert passes == list(map(tuple, INLINE.epochs(ten().resample(range(10), n=20), 3)))


def test_a_sample_that_is_drawn_twice_is_augmented_twice():
    pipeline = ps.from_sequence([0]).resample([1], n=50).map(lambda x, rng: rng.random(), rng=True)
    assert len(set(INLINE.run(pipeline))) == 50


def test_an_empty_source_has_no_draws():
    nothing = ps.from_sequence([])
    for pipeline in (nothing.resample([]), nothing.resample(balance=[]), nothing.resample([], n=5)):
        assert len(pipeline) == 0
        assert list(pipeline) == []


def test_later_changes_to_the_weights_do_not_change_the_pipeline():
    weights = np.array([1.0, 0.0])
    pipeline = ps.from_sequence("ab").resample(weights, n=50)
    weights[:] = 0, 1
    assert set(pipeline) == {"a"}


def test_ops_with_equal_weights_are_equal():
    assert ops.Resample([1, 2]) == ops.Resample(np.array([1, 2]))
    assert hash(ops.Resample([1, 2])) == hash(ops.Resample(np.array([1, 2])))
    assert ops.Resample(balance="aab") == ops.Resample(balance=[5, 5, 6])
    assert ops.Resample(by_epoch) == ops.Resample(by_epoch)
    different = [
        ops.Resample([1, 2]),
        ops.Resample([1, 3]),
        ops.Resample([1, 2], n=1),
        ops.Resample([1, 2], replace=False),
        ops.Resample(balance=[1, 2]),
        ops.Resample(by_epoch),
        ops.Take(3),
    ]
    assert all(a != b for number, a in enumerate(different) for b in different[number + 1 :])


def test_it_says_what_it_draws_by():
    labels = [
        ten().resample(range(10)).ops[0].label,
        ten().resample(balance=LABELS, replace=False, n=4).ops[0].label,
        ten().resample(by_epoch).ops[0].label,
    ]
    assert labels == [
        "resample(weights=10 numbers)",
        "resample(balance=3 classes, n=4, replace=False)",
        "resample(weights=by_epoch)",
    ]


# ---------------------------------------------------------------------- refusals


@for_each(
    "weights, why",
    [
        ([-1, 1], "not negative, got -1.0 for sample 0"),
        ([1, float("nan")], "finite numbers .* got nan for sample 1"),
        ([float("inf"), 1], "finite"),
        ([0, 0], "2 weights and all are 0"),
        (["1", "2"], "one number per sample"),
        ([[1], [2]], r"\(2, 1\)"),
        ([1, [2]], "one number per sample"),
        ([None, 1], "one number per sample"),
        ([1j, 1], "one number per sample"),
        ({0: 1}, "one number per sample"),
        ("ab", "one number per sample"),
        (3, "got int"),
    ],
)
def test_what_is_no_weight_is_refused(weights, why):
    with pytest.raises(ps.PlanError, match=rf"resample\(weights=\).*{why}"):
        ps.from_sequence("ab").resample(weights)


@for_each("labels", [np.eye(2), [[1], [2]], {1, 2}, {1: 2}, 5, [float("nan")]])
def test_what_is_no_label_is_refused(labels):
    with pytest.raises(ps.PlanError, match=r"resample\(balance=\)"):
        ps.from_sequence("ab").resample(balance=labels)


@for_each("kind", ["weights", "balance"])
@for_each("count", [0, 9, 11])
def test_another_number_than_the_samples_is_refused_with_both_numbers_before_anything_runs(kind, count):
    pipeline = ten().resample(**{kind: [1] * count})
    for look in (pipeline.explain, pipeline.loader, pipeline.__len__):
        with pytest.raises(ps.PlanError, match=rf"resample\({kind}=\) has {count} .*, but 10 samples come to it"):
            look()


def test_one_of_weights_and_balance_is_needed():
    for arguments, got in (({}, "neither"), ({"weights": [1], "balance": [1]}, "both")):
        with pytest.raises(ps.PlanError, match=f"weights= .* or balance= .* got {got}"):
            ten().resample(**arguments)


@for_each("options", [{"n": -1}, {"n": True}, {"n": 1.5}, {"replace": "no"}, {"replace": None}])
def test_what_is_no_count_and_no_truth_is_refused(options):
    with pytest.raises(ps.PlanError, match="resample"):
        ten().resample([1] * 10, **options)


@pytest.mark.parametrize("arguments", [{"weights": [0, 1] * 5, "n": 6}, {"balance": LABELS, "n": 11}])
def test_more_than_there_are_cannot_be_drawn_once_each(arguments):
    with pytest.raises(ps.PlanError, match=r"cannot draw (6 of 5|11 of 10) samples .* replace=True"):
        ten().resample(replace=False, **arguments).loader()


@for_each(
    "make",
    [
        lambda: ps.from_iterable(lambda: range(10)),
        lambda: ten().filter(bool),
        lambda: ten().batch(2),
        lambda: ten().repeat(),
        lambda: ps.zip(ten()),
    ],
)
def test_without_random_access_it_is_refused_with_the_remedy(make):
    with pytest.raises(ps.PlanError, match="right behind the source"):
        make().resample([1] * 10).loader()


# ---------------------------------------------------------------------- schemes that ops make together


def batches(pipeline, layout=INLINE):
    return [batch.tolist() for batch in layout.run(pipeline)]


@few_layouts
def test_wrapped_repeats_50_samples_by_20_three_times_are_8_batches(layout):
    wrapped = batches(ps.from_arrays(np.arange(50)).repeat(3).batch(20), layout)
    assert [len(batch) for batch in wrapped] == [20] * 7 + [10]
    assert wrapped[2] == [*range(40, 50), *range(10)]
    assert list(chain(*wrapped)) == list(range(50)) * 3


@few_layouts
def test_a_last_batch_can_be_filled_from_the_beginning(layout):
    full = batches(ps.from_arrays(np.arange(50)).repeat().take(160).batch(20), layout)
    assert [len(batch) for batch in full] == [20] * 8
    assert full[-1] == [*range(40, 50), *range(10)]


@few_layouts
def test_shuffled_repeats_have_every_sample_once_per_pass_and_an_order_per_pass(layout):
    drawn = list(chain(*batches(ps.from_arrays(np.arange(50)).shuffle().repeat(3).batch(20), layout)))
    passes = [drawn[start : start + 50] for start in (0, 50, 100)]
    assert all(sorted(one) == list(range(50)) for one in passes)
    assert all(a != b for a, b in pairwise(passes))


@few_layouts
def test_epochs_of_3_over_1_to_5_keep_their_place(layout):
    assert layout.epochs(ps.from_sequence([1, 2, 3, 4, 5]).epoch(3), 3) == [[1, 2, 3], [4, 5, 1], [2, 3, 4]]


@few_layouts
def test_batches_in_sequence_and_shuffled(layout):
    source = ps.from_arrays(np.arange(10))
    assert batches(source.batch(4), layout) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    shuffled = batches(source.shuffle().batch(4), layout)
    assert [len(batch) for batch in shuffled] == [4, 4, 2]
    assert sorted(chain(*shuffled)) == list(range(10)) != list(chain(*shuffled))


@few_layouts
def test_a_short_last_batch_is_kept_dropped_or_an_error(layout):
    def full(batch):
        if len(batch) != 4:
            raise ValueError(f"a batch of {len(batch)}")

    source = ps.from_arrays(np.arange(10))
    assert [len(batch) for batch in layout.run(source.batch(4))] == [4, 4, 2]
    assert [len(batch) for batch in layout.run(source.batch(4, drop_last=True))] == [4, 4]
    with pytest.raises(ValueError, match="a batch of 2"):
        layout.run(source.batch(4).tap(full))


@few_layouts
def test_one_class_after_the_other_by_interleaved_lists(layout):
    order = ps.indices.interleave(ps.indices.class_lists(LABELS))
    drawn = layout.run(ps.from_sequence(LABELS, indices=order))
    assert "".join(drawn) == "abcabcbccc"
