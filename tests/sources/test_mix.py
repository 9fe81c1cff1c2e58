"""mix: several pipelines as one, in exact proportions."""

import json
import math
import pickle
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from itertools import count, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import for_each
from tests.helpers import (
    ASYNC,
    BACKGROUND,
    DEFAULTED,
    FOUR,
    INLINE,
    THREADS,
    TWO_PROCESSES,
    any_workers,
    few_layouts,
    few_threads,
    until_error,
)
from tests.random_examples import examples
from tests.sources.mix_joints import Fake, flat, started, steps, told_apart

import penstock as ps
from penstock.ops.op import Key


def tagged(name, n, stream=False):
    """A pipeline of samples (name, 0) .. (name, n - 1)."""
    samples = [(name, number) for number in range(n)]
    return ps.from_iterable(lambda: samples) if stream else ps.from_sequence(samples)


def by_name(samples):
    return Counter(name for name, _ in samples)


def assert_proportions(samples, weights):
    """At every prefix each name has its share, rounded down or up."""
    exact = {name: Fraction(str(weight)) for name, weight in weights.items()}
    total, had = sum(exact.values()), Counter()
    for k, (name, _) in enumerate(samples, start=1):
        had[name] += 1
        assert all(abs(had[one] - weight * k / total) < 1 for one, weight in exact.items())


# ---------------------------------------------------------------------- proportions


@any_workers
@for_each("weights", [{"a": 0.7, "b": 0.3}, {"a": 1, "b": 1.009}, {"a": 5, "b": 1, "c": 2}])
def test_every_prefix_has_the_proportions_of_the_weights(layout, weights):
    pipeline = ps.mix({name: (tagged(name, 150), weight) for name, weight in weights.items()})
    for epoch in layout.epochs(pipeline, 2):
        assert_proportions(epoch, weights)
        for name in weights:
            own = [number for other, number in epoch if other == name]
            assert own == list(range(len(own)))
    assert len(epoch) == len(pipeline)


@examples(15)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 40),
            st.one_of(st.integers(1, 9), st.floats(0.01, 100), st.sampled_from([1, 1.009, 0.1])),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 100),
)
def test_proportions_and_length_of_first_for_any_weights_and_lengths(parts, seed):
    weights = {str(number): weight for number, (_, weight, _) in enumerate(parts)}
    made = [(tagged(str(number), n, stream), weight) for number, (n, weight, stream) in enumerate(parts)]
    samples = INLINE.run(ps.mix(made), seed)
    assert_proportions(samples, weights)
    known = [(tagged(str(number), n), weight) for number, (n, weight, _) in enumerate(parts)]
    assert len(samples) == len(ps.mix(known))
    total = sum(Fraction(str(weight)) for weight in weights.values())
    assert len(samples) == min(math.floor(n * total / Fraction(str(weight))) for n, weight, _ in parts)


@examples(15)
@given(st.lists(st.tuples(st.integers(1, 25), st.integers(1, 9), st.booleans()), min_size=1, max_size=5))
def test_length_of_all_and_cycle_for_any_weights_and_lengths(parts):
    made = [(tagged(str(number), n, stream), weight) for number, (n, weight, stream) in enumerate(parts)]
    known = [(tagged(str(number), n), weight) for number, (n, weight, _) in enumerate(parts)]
    samples = INLINE.run(ps.mix(made, stop="all"))
    assert sorted(samples) == sorted((str(number), i) for number, (n, _, _) in enumerate(parts) for i in range(n))
    assert len(ps.mix(known, stop="all")) == len(samples)
    samples = INLINE.run(ps.mix(made, stop="cycle"))
    assert_proportions(samples, {str(number): weight for number, (_, weight, _) in enumerate(parts)})
    total = sum(weight for _, weight, _ in parts)
    assert len(ps.mix(known, stop="cycle")) == len(samples)
    assert len(samples) == max(math.ceil(Fraction(n * total, weight)) for n, weight, _ in parts)
    for number, (n, _, _) in enumerate(parts):
        own = [i for name, i in samples if name == str(number)]
        assert len(own) >= n
        assert own == list(islice((i for _ in count() for i in range(n)), len(own)))


def test_the_order_is_new_in_every_epoch_and_for_every_seed():
    pipeline = ps.mix({"a": tagged("a", 50), "b": tagged("b", 50)})
    orders = [tuple(name for name, _ in epoch) for seed in (0, 1) for epoch in INLINE.epochs(pipeline, 2, seed)]
    assert len(set(orders)) == 4


def test_the_order_of_the_dict_does_not_matter():
    a, b = tagged("a", 40), tagged("b", 60)
    assert INLINE.run(ps.mix({"a": (a, 2), "b": (b, 3)})) == INLINE.run(ps.mix({"b": (b, 3), "a": (a, 2)}))


@pytest.mark.parametrize("step", [2, 4])
def test_what_is_taken_at_regular_steps_holds_every_component(step):
    samples = INLINE.run(ps.mix({"a": tagged("a", 500), "b": tagged("b", 500)}))
    for offset in range(step):
        assert min(by_name(samples[offset::step]).values()) > 0.4 * 1000 / step


# ---------------------------------------------------------------------- the same stream


@pytest.mark.usefixtures("warm_pool")
@for_each("stop", ["first", "all", "cycle"])
def test_the_stream_is_the_same_for_any_layout(stop):
    def build(one):
        def draw(sample, rng):
            return sample, rng.random()

        a = tagged("a", 40).shuffle().map(one.fn(lambda s: s), name="same", **one.place).map(draw, rng=True)
        b = tagged("b", 25, stream=True).filter(lambda s: s[1] % 5).shuffle(window=4).map(draw, rng=True)
        c = tagged("c", 8).flat_map(lambda s: [s, s], workers=2).map(draw, rng=True)
        return (
            ps.mix({"a": (a, 3), "b": (b, 1.5), "c": c}, stop=stop)
            .map(lambda s, rng: (s, rng.random()), rng=True)
            .batch(7, collate=list)
        )

    expected = INLINE.epochs(build(INLINE), 2)
    for layout in (BACKGROUND, FOUR, DEFAULTED, ASYNC, TWO_PROCESSES):
        assert layout.epochs(build(layout), 2) == expected, layout


@few_layouts
def test_mixes_nest(layout):
    inner = ps.mix({"a": tagged("a", 40), "b": (tagged("b", 90), 2)}, stop="all")
    outer = ps.mix({"inner": (inner, 0.5), "a": (tagged("c", 10, stream=True), 0.5)}, stop="cycle")
    samples = layout.run(outer)
    assert samples == INLINE.run(outer)
    assert len(samples) == 260
    assert by_name(samples) == {"a": 40, "b": 90, "c": 130}


@few_layouts
def test_a_nested_mix_that_is_begun_again_has_a_new_order(layout):
    inner = ps.mix({"a": tagged("a", 20).shuffle(), "b": tagged("b", 20).shuffle()}, stop="cycle")
    samples = layout.run(ps.mix({"inner": inner, "c": tagged("c", 80)}, stop="cycle"))
    again = [sample for sample in samples if sample[0] != "c"]
    assert len(again) == 80
    assert sorted(again[:40]) == sorted(again[40:])
    assert again[:40] != again[40:]


@few_layouts
def test_ops_behind_a_mix_work_as_behind_any_source(layout):
    pipeline = ps.mix({"a": tagged("a", 40), "b": tagged("b", 40, stream=True)})
    samples = layout.run(pipeline)
    assert len(samples) == 80
    assert layout.run(pipeline.skip(3).take(5)) == samples[3:8]
    assert layout.run(pipeline.batch(9, collate=list)) == [samples[i : i + 9] for i in range(0, 80, 9)]
    assert sorted(layout.run(pipeline.shuffle(window=16))) == sorted(samples)
    assert sorted(layout.run(pipeline.repeat(2))) == sorted(samples * 2)
    zipped = layout.run(ps.zip(pipeline, pipeline))
    assert [left for left, _ in zipped] == samples
    assert Counter(layout.run(ps.concat(pipeline, pipeline))) == Counter(samples * 2)


def test_a_pipeline_may_be_a_component_twice():
    source = tagged("a", 10)
    assert Counter(INLINE.run(ps.mix([source, source]))) == Counter([("a", i) for i in range(10)] * 2)


@any_workers
def test_components_may_share_a_pool(layout):
    with ps.Threads(2) as pool:
        parts = [tagged(name, 30).map(lambda s: s, on=pool) for name in "abc"]
        assert by_name(layout.run(ps.mix(parts))) == {"a": 30, "b": 30, "c": 30}


@few_threads
def test_an_endless_component_ends_with_the_others_and_is_pulled_a_bounded_number_ahead(layout):
    pulled = 0

    def endless():
        nonlocal pulled
        for number in count():
            pulled += 1
            yield "e", number

    samples = layout.run(ps.mix({"e": ps.from_iterable(endless), "b": tagged("b", 20)}))
    assert by_name(samples) == {"e": 20, "b": 20}
    assert pulled < 20_000


@for_each("stop", ["first", "all", "cycle"])
@few_layouts
def test_a_failure_in_a_component_comes_at_its_turn(layout, stop):
    def run(one):
        bad = tagged("bad", 20).map(lambda s: (s[0], 1 // (s[1] - 9) * 0 + s[1]), **one.place)
        with ps.mix({"good": tagged("good", 30), "bad": bad}, stop=stop).loader(**one.loader) as loader:
            return until_error(loader, ZeroDivisionError)[0]

    seen = run(layout)
    assert by_name(seen)["bad"] in (8, 9)
    assert seen == run(INLINE)


@any_workers
@for_each("stop", ["first", "cycle"])
@for_each("first", ["ends", "fails"])
def test_where_one_has_ended_and_another_fails_it_does_not_matter_who_is_faster(layout, stop, first):
    def run(one):
        bad = tagged("bad", 20).map(lambda s: (s[0], 1 // (s[1] - 9) * 0 + s[1]), **one.place)
        nine = tagged("nine", 9, stream=True)
        parts = {"nine": nine, "bad": bad} if first == "ends" else {"bad": bad, "nine": nine}
        with ps.mix(parts, stop=stop).loader(**one.loader) as loader:
            seen = []
            try:
                for sample in loader:
                    seen.append(sample)
            except ZeroDivisionError:
                seen.append("failed")
            return seen

    assert run(layout) == run(INLINE)


@few_layouts
def test_a_sample_skipped_in_a_component_is_counted_and_the_next_takes_its_turn(layout):
    bad = tagged("a", 6).map(lambda s: (s[0], 1 // (s[1] - 2) * 0 + s[1]), on_error="skip", **layout.place)
    with ps.mix({"a": bad, "b": tagged("b", 9)}, stop="all").loader(epochs=1, **layout.loader) as loader:
        assert sorted(loader) == [("a", i) for i in (0, 1, 3, 4, 5)] + [("b", i) for i in range(9)]
        assert loader.stats()["errors"] == 1


# ---------------------------------------------------------------------- when it ends


@few_layouts
def test_first_ends_when_one_cannot_give_its_share(layout):
    pipeline = ps.mix({"a": (tagged("a", 10), 0.25), "b": (tagged("b", 99), 0.75)})
    assert by_name(layout.run(pipeline)) == {"a": 10, "b": 30}
    assert len(pipeline) == 40


@few_layouts
def test_all_goes_on_in_the_proportions_of_those_that_are_left(layout):
    weights = {"a": 4, "b": 1, "c": 1}
    parts = {"a": tagged("a", 10), "b": tagged("b", 40, stream=True), "c": tagged("c", 80)}
    samples = layout.run(ps.mix({name: (one, weights[name]) for name, one in parts.items()}, stop="all"))
    assert by_name(samples) == {"a": 10, "b": 40, "c": 80}
    last = {name: max(i for i, (other, _) in enumerate(samples) if other == name) for name in "abc"}
    assert last["a"] < last["b"] < last["c"] == 129
    assert_proportions(samples[: last["a"] + 1], weights)
    assert abs(by_name(samples[last["a"] + 1 : last["a"] + 41])["b"] - 20) <= 3
    assert by_name(samples[last["b"] + 3 :]).keys() == {"c"}


@any_workers
def test_cycle_begins_a_component_again_in_a_new_order(layout):
    pipeline = ps.mix(
        {"a": tagged("a", 30).shuffle(), "b": tagged("b", 10, stream=True).shuffle(window=10)}, stop="cycle"
    )
    epochs = layout.epochs(pipeline, 2)
    passes = []
    for samples in epochs:
        assert by_name(samples) == {"a": 30, "b": 30}
        own = [number for name, number in samples if name == "b"]
        passes += [tuple(own[at : at + 10]) for at in (0, 10, 20)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len(set(passes)) == 6


def test_draws_of_a_random_op_are_new_in_every_pass():
    draws = tagged("b", 2).map(lambda s, rng: (s[0], rng.random()), rng=True)
    samples = INLINE.run(ps.mix([draws, tagged("a", 20)], stop="cycle"))
    assert len({value for name, value in samples if name == "b"}) == 20


@few_layouts
def test_one_component_is_itself(layout):
    for stop in ("first", "all", "cycle"):
        pipeline = ps.mix({"a": (tagged("a", 7), 0.3)}, stop=stop)
        assert layout.epochs(pipeline, 2) == [[("a", i) for i in range(7)]] * 2
        assert len(pipeline) == 7


@few_layouts
@for_each("stream", [False, True])
def test_an_empty_component_ends_first_at_once_and_is_left_out_of_all(layout, stream):
    parts = {"a": tagged("a", 5), "none": tagged("none", 0, stream)}
    assert layout.epochs(ps.mix(parts), 2) == [[], []]
    assert layout.epochs(ps.mix(parts, stop="all"), 2) == [[("a", i) for i in range(5)]] * 2
    assert layout.run(ps.mix([parts["none"]], stop="all")) == []


def test_an_empty_component_that_should_begin_again_is_an_error_that_names_it():
    empty = {"known": tagged("none", 0), "stream": tagged("none", 0, stream=True)}
    empty["filtered"] = tagged("none", 5).filter(lambda s: False)
    for name, one in empty.items():
        for weight in (0.001, 1, 1000):
            pipeline = ps.mix({"a": tagged("a", 3), name: (one, weight)}, stop="cycle")
            with pytest.raises(ps.PlanError, match=f"component '{name}' has no samples.*stop='all'"):
                INLINE.run(pipeline)


@for_each("layout", [*THREADS])
def test_an_empty_component_of_known_length_is_found_before_anything_runs(layout):
    pipeline = ps.mix({"a": tagged("a", 3), "b": tagged("b", 0)}, stop="cycle")
    with pytest.raises(ps.PlanError, match="component 'b' has no samples"):
        layout.run(pipeline)


TEN, STREAM = tagged("x", 10), tagged("x", 10, stream=True)


@for_each(
    "stop, parts, length",
    [
        ("first", [TEN, TEN.take(4)], 8),
        ("first", [(TEN, 1), (TEN, 2)], 15),
        ("first", [TEN, TEN.repeat()], 20),
        ("first", [STREAM, TEN.take(0)], 0),
        ("all", [TEN, TEN.take(4)], 14),
        ("cycle", [TEN, TEN.take(4)], 20),
        ("cycle", [(TEN, 1), (TEN, 2)], 30),
    ],
)
def test_the_length_is_known_where_it_can_be(stop, parts, length):
    pipeline = ps.mix(parts, stop=stop)
    assert len(pipeline) == len(INLINE.run(pipeline)) == length


@for_each("stop", ["first", "all", "cycle"])
def test_an_unknown_or_endless_length_is_an_error(stop):
    with pytest.raises(ps.LengthUnknown, match="mix"):
        len(ps.mix([TEN, STREAM], stop=stop))
    with pytest.raises(ps.LengthUnknown, match="endless"):
        len(ps.mix([TEN.repeat(), TEN.repeat()], stop=stop))
    if stop != "first":
        with pytest.raises(ps.LengthUnknown, match="endless"):
            len(ps.mix([TEN, STREAM, TEN.repeat()], stop=stop))


# ---------------------------------------------------------------------- saving and going on


SHAPES = [
    {"a": (9, 1), "b": (5, 1)},
    {"a": (13, 0.7), "b": (4, 0.3)},
    {"a": (3, 5), "b": (20, 2), "c": (7, 1.5)},
    {"only": (6, 1)},
    {"a": (4, 1), "b": (0, 1), "c": (9, 3)},
]


def shaped(shape, stop):
    source = ps.mix({name: (TEN, weight) for name, (_, weight) in shape.items()}, stop=stop).source
    return source, {name: told_apart(name, n) for name, (n, _) in shape.items()}


CASES = [(shape, stop) for shape in SHAPES for stop in ("first", "all", "cycle")]
# An empty component cannot be begun again.
CASES.remove((SHAPES[-1], "cycle"))
each_case = for_each("shape, stop", CASES)


@each_case
def test_what_comes_does_not_depend_on_how_much_is_asked_for_or_has_arrived(shape, stop):
    source, samples = shaped(shape, stop)
    found = [
        flat(steps(*started(source, samples), most, arriving)) for most in (1, 2, 50) for arriving in (1, 3, 50)
    ]
    assert all(one == found[0] for one in found)


def test_the_state_is_small_and_says_what_was_drawn_of_each():
    source, samples = shaped({f"class {number}": (50, 1) for number in range(5)}, "cycle")
    joint, inputs = started(source, samples)
    running = steps(joint, inputs, 10, 10)
    for _ in range(10):
        next(running)
    saved = joint.save()
    assert sum(saved["drawn"].values()) == saved["next"]
    assert saved["passes"] == dict.fromkeys(samples, 0)
    assert len(json.dumps(saved)) < 1_000


def test_the_memo_counts_the_samples_of_each_component_over_all_epochs():
    source, samples = shaped({"a": (10, 3), "b": (10, 1)}, "first")
    memo = source.memo()
    for epoch in range(2):
        joint = source.joint(Key(0, "mix0"), epoch, memo)
        flat(steps(joint, [Fake(samples[name], epoch) for name in "ab"], 5, 5))
    assert memo.stats() == {"a.samples": 20, "b.samples": 6}


# ---------------------------------------------------------------------- what is accepted, and what is refused


def test_weights_may_be_left_out_and_lists_are_numbered():
    a, b = tagged("a", 10), tagged("b", 10)
    assert [name for name, _ in ps.mix([a, (b, 2)]).source.parts] == ["0", "1"]
    assert INLINE.run(ps.mix({"a": a, "b": b})) == INLINE.run(ps.mix({"a": (a, 0.5), "b": (b, 0.5)}))
    assert INLINE.run(ps.mix([a, b])) == INLINE.run(ps.mix({"0": (a, 3), "1": [b, 3]}))
    assert INLINE.run(ps.mix(one for one in (a, b))) == INLINE.run(ps.mix((a, b)))


@for_each(
    "seven",
    [0.7, Decimal("0.7"), Fraction(7, 10), np.float32(0.7), np.float64(0.7)],
)
def test_a_weight_is_what_was_written(seven):
    assert ps.mix({"a": (TEN, seven), "b": (TEN, Fraction(3, 10))}).source.weights == (
        Fraction(7, 10),
        Fraction(3, 10),
    )


def test_integers_of_any_kind_are_weights():
    assert ps.mix([(TEN, 2), (TEN, np.int8(2)), (TEN, 10**30)]).source.weights == (2, 2, 10**30)


@for_each("weight", [0, -1, -0.0, math.nan, math.inf, -math.inf, True, "0.7", None, 1j, [1], Decimal("nan")])
def test_a_weight_that_is_no_positive_number_is_refused(weight):
    with pytest.raises(ps.PlanError, match="the weight of 'b' must be a positive number"):
        ps.mix({"a": TEN, "b": (TEN, weight)})


@for_each("components", [{}, [], ()])
def test_no_components_are_refused(components):
    with pytest.raises(ps.PlanError, match="at least one pipeline"):
        ps.mix(components)


@for_each("components", [TEN, "ab", b"ab", 3, None])
def test_what_is_no_collection_is_refused_with_an_example(components):
    with pytest.raises(ps.PlanError, match=r"a dict of pipelines, or a list, got .*write mix"):
        ps.mix(components)


@for_each("one", [[1, 2], (0.7, TEN), range(3), "a", None, (TEN, 1, 2), (), (TEN,)])
def test_a_component_that_is_no_pipeline_is_refused_by_name(one):
    with pytest.raises(ps.PlanError, match=r"component 'b' must be a pipeline or \(pipeline, weight\), got"):
        ps.mix({"a": TEN, "b": one})


@for_each("name", [1, "", None, ("a",)])
def test_a_name_that_is_no_string_is_refused(name):
    with pytest.raises(ps.PlanError, match="names as strings"):
        ps.mix({"a": TEN, name: TEN})


@for_each("stop", ["last", "", None, True, ["first"]])
def test_another_stop_is_refused(stop):
    with pytest.raises(ps.PlanError, match="'first', 'all' or 'cycle'"):
        ps.mix([TEN], stop=stop)


def test_cycle_refuses_a_component_that_keeps_its_place_from_epoch_to_epoch():
    for one in (STREAM.epoch(3), ps.zip(STREAM.epoch(3)), ps.mix([STREAM.epoch(3)])):
        with pytest.raises(ps.PlanError, match=r"component 'b'.*epoch\(3\).*behind the mix"):
            ps.mix({"a": TEN, "b": one}, stop="cycle")
        assert ps.mix({"a": TEN, "b": one}, stop="all")
    assert len(INLINE.run(ps.mix([TEN, STREAM], stop="cycle").epoch(7))) == 7


def test_explain_and_repr_show_the_shares():
    assert repr(ps.mix({"a": (TEN, 2), "b": (TEN, 1)}).take(3)) == "mix(a 0.667, b 0.333).take(3)"
    assert "mix of 9" in repr(ps.mix([TEN] * 9))
    assert "mix(a 0.5, b 0.5)" in str(ps.mix({"a": TEN, "b": STREAM}).explain())


def test_a_mix_can_be_sent_to_another_process():
    pipeline = ps.mix({"a": (TEN, 0.7), "b": TEN.map(str)}, stop="all")
    assert FOUR.run(pickle.loads(pickle.dumps(pipeline))) == INLINE.run(pipeline)


# ---------------------------------------------------------------------- many components


def test_a_mix_over_classes_is_a_stratified_choice():
    labels = np.arange(400) % 7 % 5
    classes = {f"class {label}": np.flatnonzero(labels == label) for label in np.unique(labels)}
    source = ps.from_sequence
    balanced = ps.mix(
        {name: source(labels, indices=rows, with_index=True).shuffle() for name, rows in classes.items()},
        stop="cycle",
    )
    for batch in INLINE.run(balanced.batch(10, collate=list)):
        assert len(batch) < 10 or Counter(int(label) for _, label in batch) == dict.fromkeys(range(5), 2)


def test_forty_components():
    parts = {str(number): (tagged(str(number), 5 + number % 3), 1 + number % 4) for number in range(40)}
    for stop in ("first", "all", "cycle"):
        pipeline = ps.mix(parts, stop=stop)
        assert len(INLINE.run(pipeline)) == len(pipeline)
