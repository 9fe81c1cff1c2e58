"""from_torch on worker processes: seeds, worker functions, parts of iterable datasets.

Their workers import torch.
"""

import random

import pytest
from tests.later import Later

import penstock as ps

torch = Later("torch")
data = Later("torch.utils.data")
sets = Later("tests.integrations.torch_worker_data")

pytestmark = pytest.mark.usefixtures("warm_processes")

#: what its workers import, see `warm_processes`
PRELOAD = ("torch", "torch.utils.data")


def tell(worker):
    sets.WhoReads.told = 100 + worker


def note_seed(worker):
    sets.Meeting.seeded = torch.initial_seed()


def fail(worker):
    raise ValueError(f"no device for worker {worker}")


def add_noise(samples):
    """A collate function that draws."""
    return [sample[0] for sample in samples], random.random()


def listed(loader):
    return [[x.tolist() if isinstance(x, torch.Tensor) else x for x in batch] for batch in loader]


def test_samples_are_seeded_and_do_not_depend_on_the_number_of_workers():
    before = random.getstate()
    runs = []
    for workers in (1, 2):
        loader = data.DataLoader(sets.Noisy(), 5, shuffle=True, num_workers=workers)
        with ps.from_torch(loader).loader(seed=4) as ours:
            runs.append([listed(ours) for _ in range(2)])
    with ps.from_torch(data.DataLoader(sets.Noisy(), 5, shuffle=True)).loader(seed=4, inline=True) as ours:
        runs.append([listed(ours) for _ in range(2)])
    assert runs[0] == runs[1] == runs[2]
    first, second = (sorted(zip(*epoch[0][:2], strict=True)) for epoch in runs[0])
    assert first != second
    with ps.from_torch(sets.Noisy(), batch_size=5, shuffle=True, workers=2).loader(seed=5) as ours:
        assert listed(ours) != runs[0][0]
    assert random.getstate() == before


def test_a_collate_function_that_draws_is_seeded_too():
    runs = []
    for workers in (1, 2):
        with ps.from_torch(sets.Noisy(), batch_size=2, collate_fn=add_noise, workers=workers).loader(
            seed=1
        ) as loader:
            runs.append(list(loader))
    assert runs[0] == runs[1]
    assert len({drawn for _, drawn in runs[0]}) == 12


def test_workers_know_which_they_are_and_were_told_so_first():
    with ps.from_torch(sets.WhoReads(), workers=2, worker_init_fn=tell).loader() as loader:
        found = list(loader)
    assert [one[0] for one in found] == list(range(40))
    assert {tuple(one[1:]) for one in found} <= {(worker, 2, True, 100 + worker) for worker in range(2)}
    assert data.get_worker_info() is None
    assert sets.WhoReads.told is None


@pytest.mark.parametrize("rng", ["global", None])
def test_each_worker_begins_with_a_seed_of_its_own(tmp_path, rng):
    dataset = sets.Meeting(tmp_path)
    with ps.from_torch(dataset, workers=2, worker_init_fn=note_seed, rng=rng).loader() as loader:
        found = list(loader)
    seeds = {worker: (told, seeded) for worker, told, seeded, _ in found}
    assert set(seeds) == {0, 1}
    assert all(told == seeded for told, seeded in seeds.values())
    assert seeds[0] != seeds[1]
    assert len({drawn for *_, drawn in found}) == 8


@pytest.mark.parametrize("make", [lambda: sets.WhoReads(), lambda: sets.Sharded(5)])
def test_an_exception_in_worker_init_fn_says_where_it_was_raised(make):
    with (
        ps.from_torch(make(), workers=2, worker_init_fn=fail).loader() as loader,
        pytest.raises(ValueError, match="no device for worker") as caught,
    ):
        list(loader)
    assert any("in worker_init_fn(" in note for note in caught.value.__notes__)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on few CPUs
@pytest.mark.parametrize("options", [{"batch_size": 4, "drop_last": True}, {"batch_size": None}])
def test_parts_of_an_iterable_dataset_come_as_from_a_data_loader(options):
    loader = data.DataLoader(sets.Sharded(23), num_workers=3 if options.get("drop_last") else 2, **options)
    theirs = [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]
    with ps.from_torch(loader).loader() as ours:
        for _ in range(2):
            assert [x.tolist() if isinstance(x, torch.Tensor) else x for x in ours] == theirs
    with ps.from_torch(loader).loader(inline=True) as ours:
        assert [x.tolist() if isinstance(x, torch.Tensor) else x for x in ours] == theirs
    assert data.get_worker_info() is None


def test_parts_of_an_iterable_dataset_that_draws_are_seeded_and_resumed():
    pipeline = ps.from_torch(sets.NoisyStream(21), batch_size=2, workers=2)
    with pipeline.loader(seed=2) as loader:
        batches = iter(loader)
        first = listed([next(batches) for _ in range(4)])
        state = loader.state_dict()
        rest = listed(batches)
    with pipeline.loader(seed=2, state=state) as loader:
        assert listed(loader) == rest
    with pipeline.loader(seed=2, inline=True) as loader:
        assert listed(loader) == first + rest
