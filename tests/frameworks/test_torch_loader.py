"""loader.torch(): what code finds that expects a DataLoader of torch."""

import copy
import pickle

import numpy as np
import pytest
from tests.frameworks.test_from_torch import plain
from tests.later import Later

import penstock as ps

torch = Later("torch")
data = Later("torch.utils.data")
sets = Later("tests.frameworks.torch_data")


def test_the_loader_says_where_the_attributes_of_a_data_loader_are():
    with ps.from_torch(sets.Squares(), batch_size=2).loader() as loader:
        for name in ("dataset", "batch_size", "drop_last", "sampler", "collate_fn", "num_workers"):
            assert hasattr(loader.torch(), name)
            with pytest.raises(AttributeError, match=rf"{name}', which .* has; .*loader\.torch\(\)"):
                getattr(loader, name)
        with pytest.raises(AttributeError, match=r"no attribute 'epok'$"):
            loader.epok  # noqa: B018
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=r"cannot be copied .*; make another one from its pipeline"):
                copied(loader)


def test_a_torch_loader_has_the_attributes_of_a_data_loader():
    theirs = {name for name in dir(data.DataLoader(sets.Squares())) if not name.startswith("_")}
    with ps.from_torch(sets.Squares(), batch_size=2).loader().torch() as ours:
        assert theirs - set(dir(ours)) <= {"check_worker_number_rationality"}
    with pytest.raises(ps.PenstockError, match="the loader is closed"):
        list(ours)


def test_a_loader_looks_like_a_data_loader():
    dataset = sets.Squares()
    with ps.from_torch(data.DataLoader(dataset, 6, shuffle=True, drop_last=True)).loader(seed=2) as loader:
        ours = loader.torch()
        assert len(ours) == 3
        assert (ours.dataset, ours.batch_size, ours.drop_last) == (dataset, 6, True)
        assert ours.collate_fn is data.default_collate
        epochs = []
        for epoch in range(2):
            ours.sampler.set_epoch(epoch)
            epochs.append([plain(batch) for batch in ours])
        ours.sampler.set_epoch(0)
        assert [plain(batch) for batch in ours] == epochs[0] != epochs[1]
        state = ours.state_dict()
        ours.load_state_dict(state)
    with ps.from_torch(data.DataLoader(dataset, 6, shuffle=True)).loader(seed=2) as loader:
        ours = loader.torch()
        iter(ours)  # an iterator that nobody reads begins no epoch
        second = iter(ours)
        ours.sampler.set_epoch(0)
        next(second)
        assert (loader.epoch, loader.batch_index) == (0, 1)
    for theirs in (data.DataLoader(dataset, 6, drop_last=True), data.DataLoader(dataset, 6, sampler=[3, 1, 2])):
        with ps.from_torch(theirs).loader() as loader:
            assert len(loader.torch().sampler) == len(theirs.sampler)  # samples, and not batches
    rows = np.arange(10)
    with ps.from_arrays(rows).batch(4).to("cpu").loader() as loader:
        assert (loader.torch().batch_size, len(loader.torch()), len(loader.torch().sampler)) == (4, 3, 10)
    with ps.from_arrays(rows).repeat().batch(4).take(2).loader() as loader, pytest.raises(ps.LengthUnknown):
        len(loader.torch().sampler)
    with ps.from_sequence([1]).loader() as loader:
        assert loader.torch().batch_size is None
        assert loader.torch().dataset == [1]
