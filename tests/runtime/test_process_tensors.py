"""Tensors go through worker processes as they are. All that makes a worker import torch is here."""

import random

import numpy as np
import pytest
from tests.runtime.test_process_data import ROUTES, check_route, same

import penstock as ps

pytestmark = pytest.mark.usefixtures("warm_processes")

#: what its workers import, see `warm_processes`
PRELOAD = ("torch",)

#: rows of a batch
N = 4


@pytest.fixture(scope="module")
def pool(warm_processes):
    """One for all tests: torch takes long to import."""
    pytest.importorskip("torch")
    with ps.Processes(2) as pool:
        list(ps.from_sequence(range(100)).map(same, on=pool))
        yield pool


def test_tensors_arrive_as_they_were(pool):
    pytest.importorskip("torch")
    for route in ROUTES:
        check_route("tensors", route, pool)


def test_sparse_tensors_arrive_as_they_were(pool):
    torch = pytest.importorskip("torch")
    eye = torch.eye(3).to_sparse()
    for pipeline in (ps.from_iterable([eye]), ps.from_sequence([eye])):
        (found,) = pipeline.map(same, on=pool)
        assert found.layout is torch.sparse_coo
        assert torch.equal(found.to_dense(), torch.eye(3))


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, of types on their way in
def test_tensors_are_of_one_kind_however_they_were_batched(pool):
    torch = pytest.importorskip("torch")
    names = ("bool", "uint8", "uint16", "int64", "float16", "bfloat16", "float32", "float8_e5m2", "complex64")
    for name in names:
        column = torch.arange(2 * N).reshape(N, 2).to(getattr(torch, name))
        rows = ps.from_arrays({"x": column})
        ways = {
            "one read": rows.batch(N),
            "through a map": rows.map(same).batch(N),
            "rows of a sequence": ps.from_sequence(list(rows)).batch(N),
            "in a process": rows.map(same, on=pool).batch(N),
        }
        for way, pipeline in ways.items():
            batch = next(iter(pipeline))["x"]
            assert (type(batch), batch.dtype, batch.shape) == (torch.Tensor, column.dtype, (N, 2)), (name, way)
            assert torch.equal(batch.view(torch.uint8), column.view(torch.uint8)), (name, way)
            batch[0] = 0  # the user's own
    large = ps.from_sequence(range(8)).map(lambda x: torch.full((50_000,), x, dtype=torch.bfloat16), on=pool)
    kept = list(large.batch(2))
    assert [batch[:, -1].tolist() for batch in kept] == [[0, 1], [2, 3], [4, 5], [6, 7]]

    grown = ps.from_sequence(range(2)).map(lambda x: torch.ones(3, requires_grad=True), on=pool)
    assert [sample.requires_grad for sample in grown] == [True, True]
    computed = ps.from_sequence(range(2)).map(lambda x: torch.ones(3, requires_grad=True) * 2, on=pool)
    with pytest.raises(ps.PenstockError, match=r"map\(lambda\) gave a Tensor for sample 0 .*\.detach\(\)"):
        list(computed)
    word = torch.arange(3).to(torch.uint16)
    closed = ps.from_sequence(range(2)).map(lambda x: int(word[2]) + x, on=pool)
    assert list(closed) == [2, 3]


def test_a_torch_data_set_is_a_sequence_in_processes_too(pool):
    data = pytest.importorskip("torch.utils.data")
    torch = pytest.importorskip("torch")
    dataset = data.TensorDataset(torch.arange(20).reshape(10, 2), torch.arange(10))
    with ps.from_sequence(dataset).shuffle().batch(4).loader(on=pool) as loader:
        for batch, y in loader:
            assert (batch[:, 0] == 2 * y).all()


def test_all_three_global_generators_are_seeded_per_sample_in_processes_too(pool):
    torch = pytest.importorskip("torch")

    def three(x):
        return random.random(), float(np.random.random()), torch.rand(1, dtype=torch.float64).item()

    numbers = ps.from_sequence(range(30))
    here = list(numbers.map(three, rng="global"))
    assert len({value for three in here for value in three}) == 90
    assert list(numbers.map(three, rng="global", on=pool)) == here
