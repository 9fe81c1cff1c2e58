"""What people write with torch's DataLoader, and the same with penstock: both are run, and compared.

Batches must be equal, down to dtypes, where nothing is random; elsewhere each side delivers the samples it must,
in an order that is new in every epoch.
"""

import itertools
import random
import typing

import numpy as np
import pytest
from tests.later import Later

import penstock as ps

torch = Later("torch")
data = Later("torch.utils.data")
sets = Later("tests.integrations.torch_data")

pytestmark = [
    pytest.mark.usefixtures("warm_processes"),
    # What torch says on a machine with few CPUs, and without a GPU.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning"),
]

#: what its workers import, see `warm_processes`
PRELOAD = ("torch", "torch.utils.data")


class Point(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


def plain(batch):
    """A batch as something that `==` compares, dtypes included."""
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype), batch.tolist()
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch), [plain(value) for value in batch]
    if isinstance(batch, (list, tuple)):
        return [plain(value) for value in batch]
    return batch


def epoch_of(batches):
    return [plain(batch) for batch in batches]


def once(pipeline, **options):
    """One epoch of a pipeline."""
    with pipeline.loader(**options) as loader:
        return epoch_of(loader)


def labels(batches):
    return [int(x) for images, _ in batches for x in images[:, 0, 0]]


# ---------------------------------------------------------------------- batches


def test_01_batches_of_tuples():
    old = data.DataLoader(sets.Images(), batch_size=6)
    new = ps.from_torch(sets.Images(), batch_size=6)
    assert once(new) == epoch_of(old)
    assert len(new) == len(old) == 4


def test_02_a_last_batch_that_is_short_is_dropped():
    old = data.DataLoader(sets.Images(), batch_size=6, drop_last=True)
    new = ps.from_torch(sets.Images(), batch_size=6, drop_last=True)
    assert once(new) == epoch_of(old)
    assert len(new) == len(old) == 3


def test_03_batches_of_dicts():
    samples = [{"x": torch.ones(2) * n, "n": n, "part": {"f": n / 2}, "name": f"s{n}"} for n in range(5)]
    old = data.DataLoader(samples, batch_size=2)
    new = ps.from_torch(samples, batch_size=2)
    assert once(new) == epoch_of(old)


def test_04_named_tuples_stay_named_tuples():
    samples = [Point(np.float32(n), np.arange(n, n + 2)) for n in range(5)]
    old = data.DataLoader(samples, batch_size=2)
    new = ps.from_torch(samples, batch_size=2)
    assert once(new) == epoch_of(old)


def test_05_tensors_in_memory():
    x, y = torch.randn(20, 3), torch.arange(20)
    old = data.DataLoader(data.TensorDataset(x, y), batch_size=8)
    new = ps.from_torch(data.TensorDataset(x, y), batch_size=8)
    assert once(new) == epoch_of(old)
    native = ps.from_arrays(x, y).batch(8)  # the same as one read for each batch
    assert [plain(list(batch)) for batch in native] == epoch_of(old)


def test_06_a_collate_function_that_pads():
    def pad(samples):
        lengths = torch.tensor([len(one) for one in samples])
        return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True), lengths

    old = data.DataLoader(sets.Sentences(), batch_size=4, collate_fn=pad)
    new = ps.from_torch(sets.Sentences(), batch_size=4, collate_fn=pad)
    assert once(new) == epoch_of(old)
    native = ps.from_torch(sets.Sentences()).batch(4, pad=0)
    assert epoch_of(native) == [padded for padded, _ in epoch_of(old)]


def test_07_samples_that_stay_a_list():
    old = data.DataLoader(sets.Sentences(), batch_size=4, collate_fn=list)
    new = ps.from_torch(sets.Sentences()).batch(4, collate=list)
    assert once(new) == epoch_of(old)


def test_08_a_dataset_that_makes_its_own_batches():
    class Batches(data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.arange(index, index + 4)

    old = data.DataLoader(Batches(), batch_size=None)
    new = ps.from_torch(Batches()).to("cpu")
    assert once(new) == once(ps.from_torch(old)) == epoch_of(old)


def test_09_a_dataset_that_is_given_all_indices_of_a_batch():
    class Table(data.Dataset):
        rows = torch.arange(20) * 10

        def __len__(self):
            return 20

        def __getitem__(self, indices):
            return self.rows[indices]

    sampler = data.BatchSampler(data.SequentialSampler(Table()), 6, drop_last=False)
    old = data.DataLoader(Table(), sampler=sampler, batch_size=None)
    new = ps.from_torch(Table(), sampler=sampler)
    assert once(new) == epoch_of(old)


# ---------------------------------------------------------------------- orders


def test_10_shuffle_is_new_in_every_epoch():
    old = data.DataLoader(sets.Images(), batch_size=4, shuffle=True)
    olds = [labels(old) for _ in range(3)]
    with ps.from_torch(sets.Images(), batch_size=4, shuffle=True).loader(seed=1) as loader:
        news = [labels(loader) for _ in range(3)]
    for epochs in (olds, news):
        assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 3


def test_11_an_order_that_can_be_had_again():
    def old():
        return labels(data.DataLoader(sets.Images(), 4, shuffle=True, generator=torch.Generator().manual_seed(3)))

    def new():
        with ps.from_torch(sets.Images(), batch_size=4, shuffle=True).loader(seed=3) as loader:
            return labels(loader)

    assert old() == old()
    assert new() == new()


def test_12_a_random_split():
    def split():
        return data.random_split(sets.Images(), [0.7, 0.3], generator=torch.Generator().manual_seed(0))

    for old, new in zip(split(), split(), strict=True):
        assert once(ps.from_torch(new, batch_size=4)) == epoch_of(data.DataLoader(old, batch_size=4))
    train, check = ps.from_torch(sets.Images()).split([0.7, 0.3])  # or ours, the same on every machine
    assert (len(train), len(check)) == (14, 6)


def test_13_a_subset_in_random_order():
    old = data.DataLoader(sets.Images(), 4, sampler=data.SubsetRandomSampler([1, 3, 5, 7, 9]))
    new = ps.from_torch(sets.Images(), batch_size=4, sampler=data.SubsetRandomSampler([1, 3, 5, 7, 9]))
    with new.loader() as loader:
        assert sorted(labels(loader)) == sorted(labels(old)) == [1, 3, 5, 7, 9]


def test_14_rare_classes_as_often_as_others():
    weights = torch.tensor([10.0 if n < 2 else 1.0 for n in range(20)])
    sampler = data.WeightedRandomSampler(weights, num_samples=1900)
    old = labels(data.DataLoader(sets.Images(), 100, sampler=sampler))
    with ps.from_torch(sets.Images(), batch_size=100, sampler=sampler).loader() as loader:
        new = labels(loader)
    for drawn in (old, new):
        assert len(drawn) == 1900
        assert 850 < sum(n < 2 for n in drawn) < 1150  # 20 of 38 parts are 1000


def test_15_a_sampler_of_ones_own():
    class ByLength(data.Sampler):
        def __init__(self, lengths):
            self.lengths = lengths

        def __iter__(self):
            return iter(sorted(range(len(self.lengths)), key=self.lengths.__getitem__))

        def __len__(self):
            return len(self.lengths)

    sampler = ByLength(sets.Sentences.lengths)
    old = data.DataLoader(sets.Sentences(), batch_size=2, sampler=sampler, collate_fn=list)
    new = ps.from_torch(sets.Sentences(), batch_size=2, sampler=sampler, collate_fn=list)
    assert once(new) == epoch_of(old)


def test_16_a_batch_sampler_that_groups_by_length():
    short = [i for i, n in enumerate(sets.Sentences.lengths) if n < 4]
    long = [i for i, n in enumerate(sets.Sentences.lengths) if n >= 4]
    batches = [short[:3], short[3:], long[:2], long[2:]]
    old = data.DataLoader(sets.Sentences(), batch_sampler=batches, collate_fn=list)
    new = ps.from_torch(sets.Sentences(), batch_sampler=batches, collate_fn=list)
    assert once(new) == epoch_of(old)
    assert len(new) == len(old) == 4


def test_17_a_distributed_sampler_and_its_epochs():
    def ranks(read, epoch):
        return sorted(n for rank in range(2) for n in read(rank, epoch))

    def old(rank, epoch):
        sampler = data.DistributedSampler(sets.Images(16), num_replicas=2, rank=rank, shuffle=True)
        sampler.set_epoch(epoch)
        return labels(data.DataLoader(sets.Images(16), 4, sampler=sampler))

    def new(rank, epoch):
        sampler = data.DistributedSampler(sets.Images(16), num_replicas=2, rank=rank, shuffle=True)
        with ps.from_torch(data.DataLoader(sets.Images(16), 4, sampler=sampler)).loader() as loader:
            loader.set_epoch(epoch)
            return labels(loader)

    for epoch in range(2):
        assert ranks(old, epoch) == ranks(new, epoch) == list(range(16))
    for read in (old, new):
        assert read(0, 0) != read(0, 1)


# ---------------------------------------------------------------------- workers


def test_18_worker_processes():
    old = data.DataLoader(sets.Images(), batch_size=4, num_workers=2)
    new = ps.from_torch(sets.Images(), batch_size=4, workers=2)
    assert once(new) == epoch_of(old)


def test_19_workers_that_stay():
    old = data.DataLoader(sets.Images(), batch_size=4, num_workers=2, persistent_workers=True, prefetch_factor=4)
    olds = [epoch_of(old) for _ in range(3)]
    with ps.from_torch(old).loader() as loader:
        assert [epoch_of(loader) for _ in range(3)] == olds


def who(samples):
    return [sample[1] for sample in samples], np.random.rand(), random.random()


def seed_worker(worker_id):
    """As torch's page on reproducibility has it."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def test_20_worker_init_fn_that_seeds():
    def run(make):
        return [[one[1:] for one in epoch_of(make())] for _ in range(2)]

    def old():
        generator = torch.Generator().manual_seed(0)
        return data.DataLoader(
            sets.Images(), 5, num_workers=2, worker_init_fn=seed_worker, generator=generator, collate_fn=who
        )

    def new():
        return once(
            ps.from_torch(sets.Images(), batch_size=5, workers=2, worker_init_fn=seed_worker, collate_fn=who),
            seed=0,
        )

    for first, second in (run(old), run(new)):
        assert first == second
        assert len({x for batch in first for x in batch}) == 8


def test_21_batches_in_any_order():
    old = data.DataLoader(sets.Images(), batch_size=4, num_workers=2, in_order=False)
    with ps.from_torch(old).loader() as loader:
        assert sorted(map(plain, loader)) == sorted(map(plain, old))


def test_22_pinned_memory():
    old = data.DataLoader(sets.Images(), batch_size=4, pin_memory=True)
    assert once(ps.from_torch(old)) == epoch_of(old)


# ---------------------------------------------------------------------- iterable datasets


def test_23_an_iterable_dataset():
    old = data.DataLoader(sets.Range(3, 14), batch_size=4)
    new = ps.from_torch(sets.Range(3, 14), batch_size=4)
    assert once(new) == epoch_of(old)


def test_24_workers_that_divide_an_iterable_dataset_by_get_worker_info():
    old = data.DataLoader(sets.Range(3, 14), num_workers=2, batch_size=2)
    new = ps.from_torch(sets.Range(3, 14), workers=2, batch_size=2)
    assert once(new) == epoch_of(old)


def divide(worker_id):
    """As torch's documentation has it: the dataset of this worker becomes its part."""
    info = data.get_worker_info()
    dataset = info.dataset
    start, end = dataset.start, dataset.end
    each = -(-(end - start) // info.num_workers)
    dataset.start = start + worker_id * each
    dataset.end = min(dataset.start + each, end)


def test_25_workers_that_divide_an_iterable_dataset_by_worker_init_fn():
    old = data.DataLoader(sets.Plain(3, 14), num_workers=2, worker_init_fn=divide)
    new = ps.from_torch(sets.Plain(3, 14), workers=2, worker_init_fn=divide, batch_size=1)
    assert once(new) == epoch_of(old)


def test_26_chained_and_concatenated_datasets():
    chained = data.ChainDataset([sets.Range(0, 3), sets.Range(10, 14)])
    assert once(ps.from_torch(chained, batch_size=2)) == epoch_of(data.DataLoader(chained, batch_size=2))
    joined = data.ConcatDataset([sets.Images(3), sets.Images(4)])
    assert once(ps.from_torch(joined, batch_size=2)) == epoch_of(data.DataLoader(joined, batch_size=2))


# ---------------------------------------------------------------------- loops


def test_27_a_loop_over_epochs():
    def train(loader):
        return [[plain(batch) for batch in loader] for epoch in range(3)]

    old = data.DataLoader(sets.Images(), batch_size=6)
    with ps.from_torch(old).loader() as loader:
        assert train(loader) == train(old)


def test_28_a_loop_over_steps_that_never_ends():
    def endless(loader):
        while True:
            yield from loader

    old = data.DataLoader(sets.Images(), batch_size=6)
    with ps.from_torch(old).loader() as loader:
        assert epoch_of(itertools.islice(endless(loader), 10)) == epoch_of(itertools.islice(endless(old), 10))
        loader.set_epoch(0)
        steps = [plain(batch) for _, batch in loader.steps(10)]  # the same, and it resumes its numbers
        assert steps == epoch_of(itertools.islice(endless(old), 10))


def test_29_the_first_batch_alone():
    old = data.DataLoader(sets.Images(), batch_size=6)
    with ps.from_torch(old).loader() as loader:
        assert plain(next(iter(loader))) == plain(next(iter(old)))
    assert plain(ps.from_torch(old).peek()[0]) == plain(next(iter(old)))


def test_30_two_loaders_side_by_side():
    one, other = data.DataLoader(sets.Images(), 6), data.DataLoader(sets.Sentences(), 3, collate_fn=list)
    both = ps.zip(ps.from_torch(one), ps.from_torch(other))
    assert epoch_of(both) == epoch_of(zip(one, other, strict=False))


def test_31_the_rest_of_an_epoch():
    old = data.DataLoader(sets.Images(), batch_size=4)
    with ps.from_torch(old).loader() as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
    with ps.from_torch(old).loader(state=state) as loader:
        assert epoch_of(loader) == epoch_of(itertools.islice(old, 2, None))
