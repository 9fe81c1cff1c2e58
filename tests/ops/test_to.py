"""to: batches as tensors or arrays, on a device."""

import dataclasses
import time
import typing
from collections import OrderedDict, defaultdict
from functools import partial

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import any_layout

import penstock as ps
from penstock.devices.device import Device, Transfer
from penstock.testing import check_resume

#: bytes of a batch that comes in memory which is used again
LARGE = 200_000


class Pair(typing.NamedTuple):
    image: typing.Any
    label: typing.Any


@dataclasses.dataclass
class Example:
    x: typing.Any
    name: str


def large(number):
    return np.full(LARGE, number % 251, np.uint8)


@any_layout
def test_to_changes_nothing_in_the_stream(layout):
    pipeline = ps.from_sequence(range(100)).map(layout.fn(lambda x: x * 2), **layout.place).batch(7)
    plain = [[batch.tolist() for batch in epoch] for epoch in layout.epochs(pipeline, 2)]
    assert [[batch.tolist() for batch in epoch] for epoch in layout.epochs(pipeline.to("numpy"), 2)] == plain


def test_tensors_look_at_the_memory_of_arrays():
    torch = pytest.importorskip("torch")
    array = np.arange(6.0)
    (tensor,) = ps.from_iterable([array]).to("cpu")
    assert type(tensor) is torch.Tensor
    tensor[0] = 7
    assert array[0] == 7
    (array,) = ps.from_iterable([tensor]).to("numpy")
    assert type(array) is np.ndarray
    array[1] = 8
    assert tensor[1] == 8


def test_a_batch_of_tensors_is_the_users_own_though_the_arrays_were_read_only():
    pytest.importorskip("torch")
    data = np.arange(6).reshape(3, 2)
    for pipeline in (ps.from_arrays(data).to("cpu"), ps.from_arrays(data).batch(2).to("cpu")):
        for batch in pipeline:
            batch += 1
    assert data.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_any_tree_is_moved_and_what_is_no_number_stays():
    torch = pytest.importorskip("torch")
    tree = {
        "pair": Pair(np.zeros(2), np.int64(3)),
        "example": Example(np.ones(2), "a"),
        "ragged": [np.zeros(1), np.zeros(2)],
        "text": ["a", "b"],
        "bytes": b"x",
        "number": 3,
        "time": np.array(["2026-11-18"], "datetime64[D]"),
        "objects": np.array([None, "a"], object),
        "words": np.array(["a", "b"]),
        "none": None,
    }
    (moved,) = ps.from_iterable([tree]).to("cpu")
    assert isinstance(moved["pair"], Pair)
    assert isinstance(moved["example"], Example)
    tensors = [moved["pair"].image, moved["example"].x, *moved["ragged"]]
    assert all(type(one) is torch.Tensor for one in tensors)
    for name in ("text", "bytes", "number", "time", "objects", "words", "none"):
        assert moved[name] is tree[name], name
    assert moved["pair"].label is tree["pair"].label


@for_each("kind", [OrderedDict, partial(defaultdict, list)])
def test_a_dict_of_a_kind_of_its_own_remains_one(kind):
    torch = pytest.importorskip("torch")
    tree = kind(x=np.zeros(2), name="a")
    (moved,) = ps.from_iterable([tree]).to("cpu")
    assert type(moved) is type(tree)
    assert (type(moved["x"]), moved["name"]) == (torch.Tensor, "a")
    assert type(tree["x"]) is np.ndarray


def test_numpy_has_no_sparse_arrays():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"no arrays of the layout torch.sparse_coo.*x\.to_dense\(\)"):
        list(ps.from_iterable([torch.eye(2).to_sparse()]).to("numpy"))


def test_arrays_that_torch_cannot_look_at_are_copied():
    torch = pytest.importorskip("torch")
    for array in (np.arange(4)[::-1], np.arange(4, dtype=">i4"), np.broadcast_to(np.int64(3), (2, 2))):
        (tensor,) = ps.from_iterable([array]).to("cpu")
        assert type(tensor) is torch.Tensor
        assert tensor.tolist() == array.tolist()
    flat = np.zeros((2, 0, 3), np.float16)
    (tensor,) = ps.from_iterable([flat]).to("cpu")
    assert (tuple(tensor.shape), tensor.dtype) == ((2, 0, 3), torch.float16)


def test_dtype_converts_floats_and_leaves_labels_alone():
    torch = pytest.importorskip("torch")
    sample = {"x": np.float64(1.5), "y": 3, "ok": True}
    for dtype in ("bfloat16", torch.bfloat16, "torch.bfloat16"):
        (batch,) = ps.from_sequence([sample] * 2).batch(2).to("cpu", dtype=dtype)
        assert (batch["x"].dtype, batch["y"].dtype, batch["ok"].dtype) == (torch.bfloat16, torch.int64, torch.bool)
    (batch,) = ps.from_sequence([sample] * 2).batch(2).to("numpy", dtype=np.float32)
    assert (batch["x"].dtype.name, batch["y"].dtype.name) == ("float32", "int64")


def test_an_object_that_knows_how_to_move_is_left_to_itself():
    torch = pytest.importorskip("torch")
    from torch.nn.utils.rnn import PackedSequence, pack_sequence

    packed = pack_sequence([torch.zeros(2), torch.zeros(1)])
    (found,) = ps.from_iterable([packed]).to("cpu")
    assert type(found) is PackedSequence
    assert torch.equal(found.batch_sizes, packed.batch_sizes)


#: of 602 batches
ROWS = 1204


def check_kept(library, kept_every=60):
    """A batch that is kept stays as it was while 600 others go through memory that is used again."""
    rows = (np.arange(ROWS) % 251).astype(np.uint8)[:, None] * np.ones((1, LARGE // 4), np.uint8)
    pipelines = {
        "blocks of worker processes": ps.from_sequence(range(ROWS)).map(large, on="process", workers=2).batch(2),
        "batches that are one read": ps.from_arrays(rows).batch(2),
    }
    for name, pipeline in pipelines.items():
        kept, addresses = [], set()
        with pipeline.to(library).loader() as loader:
            for number, batch in enumerate(loader):
                addresses.add(np.asarray(batch).__array_interface__["data"][0])
                if number % kept_every == 0:
                    kept.append((number, batch))
        for number, batch in kept:
            assert np.asarray(batch)[:, 0].tolist() == [2 * number % 251, (2 * number + 1) % 251], name
            assert (np.asarray(batch) == np.asarray(batch)[:, :1]).all(), name
        # Memory is used again, or this shows nothing.
        assert len(addresses) < 0.6 * ROWS / 2, (name, len(addresses))


@pytest.mark.usefixtures("warm_processes")
def test_a_tensor_that_is_kept_keeps_its_memory():
    pytest.importorskip("torch")
    check_kept("cpu")


@pytest.mark.integrations
@pytest.mark.usefixtures("warm_processes")
def test_an_array_of_jax_that_is_kept_keeps_its_memory():
    pytest.importorskip("jax")
    check_kept("jax")


@pytest.mark.integrations
def test_jax_gets_arrays_on_its_device():
    jax = pytest.importorskip("jax")
    sample = {"x": np.ones(3, np.float32), "name": "a", "y": 1}
    (batch,) = ps.from_sequence([sample] * 4).batch(4).to("jax", dtype="bfloat16")
    assert isinstance(batch["x"], jax.Array)
    assert batch["x"].dtype == jax.numpy.bfloat16
    assert batch["y"].tolist() == [1] * 4
    assert batch["name"] == ["a"] * 4
    device = jax.devices()[0]
    mesh = jax.sharding.Mesh(np.array([device]), ("data",))
    for where in (device, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")), "jax:0"):
        (batch,) = ps.from_arrays(np.ones((4, 2), np.float32)).batch(4).to(where)
        assert batch.devices() == {device}
    with pytest.raises(ps.PlanError, match=r"JAX has 1 devices here"):
        ps.from_arrays(np.ones(4)).to("jax:3").loader()
    torch = pytest.importorskip("torch")
    for tensor in (torch.ones(2), torch.ones(2, dtype=torch.bfloat16)):
        (moved,) = ps.from_iterable([tensor]).to("jax")
        assert moved.tolist() == [1, 1]
        (back,) = ps.from_iterable([moved]).to("cpu")  # by DLPack
        assert torch.equal(back, tensor)


def test_to_opens_a_stage_of_one_thread_and_the_workers_before_it_stay_as_they_are():
    pipeline = ps.from_sequence(range(8)).batch(2).to("numpy", depth=3).map(lambda x: x)
    with pipeline.loader(workers=4, epochs=1) as loader:
        plan = loader.explain().plan
        assert [(stage.label, stage.workers, stage.bound_samples) for stage in plan.stages] == [
            ("batch", 4, None),
            ("to+lambda", 1, 3),
        ]
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert loader.stats()["stage.to+lambda.samples"] == 4
    said = str(pipeline.explain())
    assert "to('numpy')" in said
    assert "at most 3 batches" in said


def test_a_transfer_that_limits_is_told_and_more_workers_are_not_advised():
    class Slow(Device):
        name = "slow"

        def transfer(self, dtype, depth):
            return Waits()

    class Waits(Transfer):
        def move(self, batch, own_thread):
            time.sleep(0.002)
            return batch

    with ps.from_arrays(np.zeros((800, 4))).batch(4).to(Slow()).loader(workers=2) as loader:
        for _ in loader:
            pass
        found = loader.diagnose()
    assert found.limiting == "to"
    assert "One thread moves batches to the device" in found.advice
    assert "→" not in found.advice


def test_prefetch_behind_to_says_how_many_are_kept_ready():
    plan = ps.from_sequence(range(8)).to("numpy").prefetch(5).explain().plan
    assert plan.root.bound_samples == 5


def test_resume_is_exact_and_a_state_fits_another_device():
    pipeline = ps.from_sequence(range(40)).shuffle().filter(lambda x: x % 3).batch(4)
    check_resume(pipeline.to("numpy", depth=3).map(lambda x: x + 1))
    check_resume(pipeline.to("numpy").shuffle(window=3))
    with pipeline.loader() as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [batch.tolist() for batch in batches]
    with pipeline.to("numpy").loader(state=state) as loader:
        assert [batch.tolist() for batch in loader] == rest


def test_to_keeps_the_length_and_pipelines_with_it_are_values():
    pipeline = ps.from_sequence(range(10)).batch(3).to("cuda", depth=4)
    assert len(pipeline) == 4
    assert pipeline == ps.Pipeline(pipeline.source, pipeline.ops)
    assert repr(pipeline).endswith(".batch(3).to('cuda')")
    assert pipeline.ops[-1] == ps.ops.To("cuda", depth=4) != ps.ops.To("cuda")


@for_each(
    "spec, said",
    [
        ("gpu", r"no device called 'gpu'.*did you mean 'cuda'\?"),
        ("GPU:1", r"no device called 'GPU:1'.*did you mean 'cuda:1'\?"),
        ("torch", r"did you mean 'cpu'\?"),
        ("Cuda", r"did you mean 'cuda'\?"),
        ("tpu", "there are: cpu, cuda, mps, numpy, jax"),
        ("", "no device called ''"),
        ("cuda:", r"a number is missing after the colon; write to\('cuda:0'\)"),
        ("cuda:x", r"devices of cuda are numbered from 0"),
        ("cuda:-1", r"devices of cuda are numbered from 0"),
        ("cpu:1", "torch has one CPU device"),
        ("mps:2", "one MPS device"),
        ("numpy:0", "numpy has one memory"),
        (None, "takes the name of a device.*got None"),
        (0, "takes the name of a device.*got 0 of type int"),
    ],
)
def test_a_device_that_does_not_exist_is_refused_where_it_is_written(spec, said):
    with pytest.raises(ps.PlanError, match=said):
        ps.from_sequence([1]).to(spec)


@for_each("depth", [0, -1, 1.5, True, None])
def test_a_depth_that_is_no_count_is_refused(depth):
    with pytest.raises(ps.PlanError, match=r"to\(depth=\)"):
        ps.from_sequence([1]).to("cpu", depth=depth)


def test_a_dtype_that_is_none_is_refused():
    with pytest.raises(ps.PlanError, match="takes a floating-point dtype of numpy"):
        ps.from_sequence([1]).to("numpy", dtype="int64")
    with pytest.raises(ps.PlanError, match="takes a dtype of torch or its name"):
        ps.from_sequence([1]).to("cpu", dtype=3.5)
    pytest.importorskip("torch")
    with pytest.raises(ps.PlanError, match=r"'int64'\): that is no floating-point dtype of torch"):
        ps.from_sequence([1]).to("cpu", dtype="int64").loader()


def test_mps_where_there_is_none_says_what_to_do():
    torch = pytest.importorskip("torch")
    if torch.backends.mps.is_available():
        pytest.skip("there is one")
    with pytest.raises(ps.PlanError, match=r"finds no MPS device here.*Use to\('cpu'\)"):
        ps.from_sequence([1]).to("mps").loader()


def test_tensors_come_out_of_an_isolated_loader():
    torch = pytest.importorskip("torch")
    with ps.from_arrays(np.arange(8)).batch(4).to("cpu").loader(isolate=True) as loader:
        assert all(type(batch) is torch.Tensor for batch in loader)
