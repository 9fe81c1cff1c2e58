"""Tensors go through worker processes as they are. All that makes a worker import torch is here."""

import pytest
from tests.runtime.test_process_data import ROUTES, check_route, same

import penstock as ps

pytestmark = pytest.mark.usefixtures("warm_processes")

#: what its workers import, see `warm_processes`
PRELOAD = ("torch",)


def test_tensors_arrive_as_they_were():
    pytest.importorskip("torch")
    with ps.Processes(2) as pool:  # one for all routes: torch takes long to import
        for route in ROUTES:
            check_route("tensors", route, pool)


def test_sparse_tensors_arrive_as_they_were():
    torch = pytest.importorskip("torch")
    eye = torch.eye(3).to_sparse()
    for pipeline in (ps.from_iterable([eye]), ps.from_sequence([eye])):
        (found,) = pipeline.map(same, on="process")
        assert found.layout is torch.sparse_coo
        assert torch.equal(found.to_dense(), torch.eye(3))
