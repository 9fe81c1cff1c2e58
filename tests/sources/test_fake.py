"""fake: samples made up on the spot."""

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import INLINE, any_workers

import penstock as ps


@any_workers
def test_fake_samples_have_the_shape_and_dtype_asked_for(layout):
    spec = {"x": ((4, 3), "uint8"), "y": ((), "float32"), "z": (((2,), "bool"), ((1,), np.int16))}
    samples = layout.run(ps.fake(spec, 10).map(lambda s: s, **layout.place))
    assert len(samples) == 10
    for sample in samples:
        assert (sample["x"].shape, sample["x"].dtype) == ((4, 3), "uint8")
        assert (np.shape(sample["y"]), np.asarray(sample["y"]).dtype) == ((), "float32")
        first, second = sample["z"]
        assert (first.shape, first.dtype, second.dtype) == ((2,), "bool", "int16")


@any_workers
def test_random_samples_depend_on_their_index_alone(layout):
    pipeline = ps.fake(((8,), "float64"), 20, constant=False)
    first, second = layout.epochs(pipeline.map(lambda s: s.tolist(), **layout.place), 2)
    assert first == second == [s.tolist() for s in INLINE.run(pipeline)]
    assert len(set(map(tuple, first))) == 20
    assert all(0 <= value < 1 for sample in first for value in sample)


def test_constant_samples_are_all_the_same_and_cannot_be_changed():
    samples = list(ps.fake(((3,), "uint8"), 5, constant=True))
    assert [s.tolist() for s in samples] == [[0, 0, 0]] * 5
    with pytest.raises(ValueError, match="read-only"):
        samples[0] += 1


def test_fake_samples_batch_and_shuffle():
    batches = list(ps.fake({"x": ((2, 2), "float32")}, 10).shuffle().batch(4))
    assert [batch["x"].shape for batch in batches] == [(4, 2, 2), (4, 2, 2), (2, 2, 2)]
    assert batches[0]["x"].dtype == "float32"


def test_its_length_is_known_and_has_a_default():
    assert len(ps.fake(((3,), "uint8"), 5)) == 5
    assert len(ps.fake(((3,), "uint8"))) == 1000


@for_each(
    "spec",
    [5, "uint8", (), [], ((3,), "no-such"), ((3,), "U5"), ((3,), object), {"x": 5}, None, ((-1,), "uint8")],
)
def test_a_spec_that_describes_nothing_is_refused_where_it_is_written(spec):
    with pytest.raises(ps.PlanError):
        ps.fake(spec, 3)


@for_each("length", [-1, 1.5, True, None])
def test_a_length_that_is_no_count_is_refused(length):
    with pytest.raises(ps.PlanError, match="length"):
        ps.fake(((3,), "uint8"), length)
