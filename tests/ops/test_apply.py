"""apply, and pipelines as values: immutable, comparable, printable, portable."""

import inspect
import pickle

import cloudpickle
import pytest
from tests.cases import for_each

import penstock as ps


def double(x):
    return 2 * x


def doubled(pipeline):
    return pipeline.map(double)


def test_apply_takes_an_op_value_or_a_function_of_the_pipeline():
    source = ps.from_sequence([1, 2, 3])
    assert list(source.apply(ps.ops.Map(double))) == list(source.apply(doubled)) == [2, 4, 6]
    (batch,) = source.apply(doubled).apply(ps.ops.Batch(2)).apply(ps.ops.Take(1))
    assert batch.tolist() == [2, 4]


@for_each("thing", [5, None, "map", object()])
def test_apply_refuses_what_is_neither(thing):
    with pytest.raises(ps.PlanError, match="apply takes an op"):
        ps.from_sequence([1]).apply(thing)


def test_the_function_must_return_a_pipeline():
    with pytest.raises(ps.PlanError, match="must return a Pipeline"):
        ps.from_sequence([1]).apply(list)


def test_a_pipeline_is_never_changed_by_its_methods():
    source = ps.from_sequence([1, 2, 3])
    source.map(double).batch(2).shuffle(window=2)
    assert list(source) == [1, 2, 3]
    assert source.ops == ()


def test_pipelines_of_one_source_with_equal_ops_are_equal():
    source = ps.from_sequence([1, 2, 3])
    assert source.map(double).batch(2) == source.map(double).batch(2)
    assert hash(source.map(double)) == hash(source.map(double))
    assert source.batch(2) != source.batch(3)
    assert source != ps.from_sequence([1, 2, 3]).batch(2)
    assert source != [1, 2, 3]


def test_an_op_cannot_be_changed():
    with pytest.raises(AttributeError):
        ps.ops.Batch(2).size = 3


def test_a_pipeline_can_be_sent_to_another_process():
    pipeline = ps.from_sequence([1, 2, 3]).map(double).filter(bool).shuffle(window=2, seed=1).batch(2, collate=list)
    assert list(pickle.loads(pickle.dumps(pipeline))) == list(pipeline)
    factor = 3
    pipeline = ps.from_iterable(lambda: range(3)).map(lambda x: factor * x, workers=2)
    assert list(pickle.loads(cloudpickle.dumps(pipeline))) == [0, 3, 6]


def test_a_pool_is_sent_as_its_description():
    with ps.Threads(2) as pool:
        pipeline = ps.from_sequence([1, 2, 3]).map(double, on=pool)
        assert list(pipeline) == [2, 4, 6]
        sent = pickle.loads(pickle.dumps(pipeline))
    assert list(sent) == [2, 4, 6]
    sent.ops[0].on.close()


def test_a_pipeline_is_true_even_if_it_is_empty():
    assert ps.from_sequence([])


def test_the_repr_names_source_and_ops():
    pipeline = ps.from_sequence([1]).map(double).filter(lambda x: x).take(3).batch(2, drop_last=True)
    assert repr(pipeline) == "from_sequence(list of 1).map(double).filter(lambda).take(3).batch(2, drop_last)"


@for_each(
    "method, op",
    [
        ("map", ps.ops.Map),
        ("filter", ps.ops.Filter),
        ("flat_map", ps.ops.FlatMap),
        ("tap", ps.ops.Tap),
        ("batch", ps.ops.Batch),
        ("unbatch", ps.ops.Unbatch),
        ("shuffle", ps.ops.Shuffle),
        ("repeat", ps.ops.Repeat),
        ("take", ps.ops.Take),
        ("skip", ps.ops.SkipFirst),
        ("epoch", ps.ops.Epoch),
        ("cache", ps.ops.Cache),
        ("prefetch", ps.ops.Prefetch),
    ],
)
def test_a_method_has_the_arguments_and_defaults_of_its_op(method, op):
    def shape(callable_):
        parameters = inspect.signature(callable_).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters if p.name != "self"]

    assert shape(getattr(ps.Pipeline, method)) == shape(op)
    assert getattr(ps.Pipeline, method).__doc__ == op.__doc__
