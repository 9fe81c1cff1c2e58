"""from_torch with datasets, keys and samplers that torch's DataLoader takes and few people write."""

import pytest
from tests.cases import for_each
from tests.later import Later

import penstock as ps

torch = Later("torch")
data = Later("torch.utils.data")
sets = Later("tests.frameworks.torch_odd_data")


class Lengthless:
    def __getitem__(self, index):
        return index * 10


def delivered(loader):
    with ps.from_torch(loader).loader() as ours:
        return [batch if isinstance(batch, list) else batch.tolist() for batch in ours]


@for_each(
    "keys",
    [[3, 0, 2], (1, 1), range(1, 4), [-1, -4, 0], [("a", 1), ("b", 2), ("c", 3)], ["x", "y"], [1.5], [7], [True]],
)
def test_a_dataset_gets_the_keys_of_a_sampler_as_they_are(keys):
    loader = data.DataLoader(sets.Echo(), batch_size=2, sampler=keys)
    assert delivered(loader) == list(loader)


@for_each("keys", [[("a", 1), ("b", 2)], [-1, 0, 1]])
def test_keys_that_are_no_positions_are_resumed_exactly(keys):
    pipeline = ps.from_torch(sets.Echo(), sampler=keys, batch_size=1)
    with pipeline.loader() as loader:
        first = next(iter(loader))
        state = loader.state_dict()
    with pipeline.loader(state=state) as loader:
        assert [first, *loader] == [[repr(key)] for key in keys]


def test_a_dataset_without_a_length_is_read_by_its_sampler():
    assert delivered(data.DataLoader(Lengthless(), batch_size=2, sampler=[3, 1, 2])) == [[30, 10], [20]]
    assert delivered(data.DataLoader(Lengthless(), batch_sampler=[[3], [1, 2]])) == [[30], [10, 20]]
    with ps.from_torch(Lengthless(), sampler=[4], batch_size=1).loader() as loader:
        assert [batch.tolist() for batch in loader] == [[40]]


def test_a_dataset_without_a_length_and_without_a_sampler_is_refused():
    pytest.importorskip("torch")
    with pytest.raises(ps.PlanError, match="no __len__, so nobody knows its last sample; add __len__"):
        ps.from_torch(Lengthless(), batch_size=2)
    with pytest.raises(ps.PlanError, match="no __len__"):
        ps.from_torch(data.DataLoader(Lengthless(), batch_size=2))


@for_each("rng", ["global", None])
def test_a_dataset_that_reads_only_several_at_once_is_read(rng):
    with ps.from_torch(data.DataLoader(sets.OnlySeveral(), batch_size=2), rng=rng).loader() as loader:
        assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30], [40]]


def test_a_sampler_that_can_be_iterated_once_is_refused():
    for option in ({"sampler": iter([1, 2])}, {"batch_sampler": (pair for pair in [[0, 1]])}):
        with pytest.raises(ps.PlanError, match="can be iterated only once, and each epoch iterates it; give a"):
            ps.from_torch(sets.Echo(), **option)


def test_a_sampler_that_counts_its_epochs_itself_gets_a_warning():
    with ps.from_torch(sets.Echo(), sampler=sets.Counting()).loader(inline=True) as loader:
        with pytest.warns(RuntimeWarning, match=r"Counting changes its attribute 'epoch'.*set_epoch\(epoch\)"):
            first = list(loader)
        with pytest.warns(RuntimeWarning, match="Counting"):
            assert list(loader) == first


def test_a_sampler_that_is_told_the_epoch_gives_a_new_order_in_each():
    with ps.from_torch(sets.Echo(), sampler=sets.Told()).loader(inline=True) as loader:
        assert list(loader) != list(loader)


class Restarting:
    """A sampler that is its own iterator, and begins anew whenever it is iterated."""

    def __iter__(self):
        self.keys = [0, 1, 2]
        return self

    def __next__(self):
        if not self.keys:
            raise StopIteration
        return self.keys.pop()


def test_a_sampler_that_is_its_own_iterator_is_iterated_in_each_epoch():
    with ps.from_torch(sets.Echo(), sampler=Restarting()).loader() as loader:
        assert list(loader) == list(loader) == ["2", "1", "0"]


def test_a_data_loader_with_an_iteration_of_its_own_is_refused():
    with pytest.raises(ps.PlanError, match="Scaled has an __iter__ of its own, which from_torch would not call"):
        ps.from_torch(sets.Scaled([1, 2]))


def test_what_is_no_dataset_is_refused_with_the_next_step():
    with pytest.raises(ps.PlanError, match=r"got the class Echo: write Echo\("):
        ps.from_torch(sets.Echo)
    with pytest.raises(ps.PlanError, match=r"a generator can be iterated only once.*from_iterable"):
        ps.from_torch(number for number in range(3))


def test_a_weight_for_a_sample_that_is_not_there_is_refused():
    sampler = data.WeightedRandomSampler([1.0] * 5, 3)
    with pytest.raises(ps.PlanError, match="has 5 weights, and Echo has 4 samples; give it one weight for each"):
        ps.from_torch(sets.Echo(), sampler=sampler)


def test_an_iterator_of_a_data_loader_is_refused():
    with pytest.raises(ps.PlanError, match=r"can be iterated only once.*give the DataLoader itself"):
        ps.from_torch(iter(data.DataLoader(sets.Echo())))


@for_each("workers", [None, 2])
@for_each(
    "given, said",
    [
        ({"batch_size": 0}, r"batch_size=\) takes a whole number, at least 1, got 0"),
        ({"batch_size": 2.5}, r"batch_size=\) takes a whole number, at least 1, got 2.5"),
        ({"drop_last": True}, "drops a short last batch; give batch_size= too"),
        ({"collate_fn": 3}, r"collate_fn=\) takes a function, got 3"),
        ({"worker_init_fn": "seed"}, r"worker_init_fn=\) takes a function, got 'seed'"),
    ],
)
def test_wrong_arguments_for_an_iterable_dataset_are_refused_before_it_runs(workers, given, said):
    with pytest.raises(ps.PlanError, match=said):
        ps.from_torch(sets.Numbers(), workers=workers, **given)


@for_each("given, asked", [({"sampler": [1, 99]}, "99"), ({"batch_sampler": [[1], [0, 99]]}, "[0, 99]")])
def test_an_error_names_the_key_that_a_sampler_asked_for(given, asked):
    with pytest.raises(IndexError, match="out of range") as caught:
        list(ps.from_torch(sets.Distances(), **given))
    assert f"the sampler asked for {asked}" in caught.value.__notes__


@for_each("drop_last", [False, True])
@for_each("size", [7, 8, 9])
def test_a_distributed_sampler_without_shuffle_gives_each_rank_the_batches_of_torch(drop_last, size):
    samples = list(range(size))
    for rank in range(3):
        sampler = data.DistributedSampler(samples, 3, rank, shuffle=False, drop_last=drop_last)
        loader = data.DataLoader(samples, batch_size=2, sampler=sampler)
        with ps.from_torch(loader).loader() as ours:
            assert [batch.tolist() for batch in ours] == [batch.tolist() for batch in loader]
            assert len(ours) == len(loader)
