"""from_torch: datasets and DataLoaders of torch as pipelines. Worker processes: test_torch_workers.py."""

import json
import random
import threading
import warnings

import numpy as np
import pytest
from tests.cases import for_each
from tests.later import Later

import penstock as ps
from penstock.testing import check_resume

torch = Later("torch")
data = Later("torch.utils.data")
sets = Later("tests.frameworks.torch_data")


def plain(batch):
    """A batch as something that `==` compares."""
    if isinstance(batch, torch.Tensor):
        return (str(batch.dtype), batch.tolist())
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plain(value) for value in batch]
    return batch


def same(loader, **options):
    """The batches of a DataLoader, which are those that penstock makes of it."""
    theirs = [plain(batch) for batch in loader]
    with ps.from_torch(loader).loader(**options) as ours:
        assert [plain(batch) for batch in ours] == theirs
    return theirs


@for_each("options", [{}, {"workers": 3}, {"inline": True}])
def test_batches_are_those_of_the_data_loader(options):
    same(data.DataLoader(sets.Squares(), batch_size=6), **options)
    same(data.DataLoader(sets.Squares(), batch_size=6, drop_last=True), **options)
    same(data.DataLoader(sets.Squares()), **options)
    same(data.DataLoader(sets.Squares(), batch_size=None), **options)
    same(data.DataLoader(sets.Squares(), 4, collate_fn=lambda samples: [one["y"] for one in samples]), **options)
    same(data.DataLoader(sets.Squares(), 3, sampler=[5, 1, 7, 7]), **options)
    same(data.DataLoader(sets.Squares(), 3, sampler=sets.Evens(20)), **options)
    same(data.DataLoader(sets.Squares(), batch_sampler=[[1, 2], [3], [4, 5, 6]]), **options)
    same(data.DataLoader(sets.Squares(), batch_sampler=data.BatchSampler(sets.Evens(20), 4, True)), **options)
    same(data.DataLoader(data.Subset(sets.Squares(), [3, 1, 2]), 2), **options)
    same(data.DataLoader(data.ConcatDataset([sets.Squares(3), sets.Squares(4)]), 2), **options)
    same(data.DataLoader(sets.Count(), batch_size=6), **options)
    same(data.DataLoader(sets.Count(), batch_size=6, drop_last=True), **options)
    same(data.DataLoader(sets.Count(), batch_size=None), **options)


def test_a_dataset_takes_the_arguments_of_a_data_loader():
    dataset = sets.Squares(10)
    for given in ({"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_sampler": [[0, 1], [2]]}, {}):
        theirs = data.DataLoader(
            dataset, **{"batch_size": None, **given} if "batch_sampler" not in given else given
        )
        assert list(map(plain, ps.from_torch(dataset, **given))) == list(map(plain, theirs))
    assert len(ps.from_torch(dataset, batch_size=4)) == 3
    assert sorted(int(x["y"]) for x in ps.from_torch(dataset, shuffle=True)) == [n * n for n in range(10)]


@for_each("options", [{}, {"workers": 2}])
def test_single_samples_are_those_of_the_dataset_and_our_ops_batch_them(options):
    class Pairs(sets.Count):
        def __iter__(self):
            return ((torch.tensor([n]), n) for n in range(4))

    numbers = torch.arange(4)
    for dataset in (list(Pairs()), data.TensorDataset(numbers[:, None], numbers), Pairs()):
        samples = ps.from_torch(dataset, **options)
        epoch = list(samples.loader(inline=True))
        assert {type(sample) for sample in epoch} == {tuple}
        with samples.batch(2).to("cpu").loader(inline=True) as loader:
            x, y = zip(*loader, strict=True)
        assert torch.cat(x).shape == (len(epoch), 1)
        assert torch.cat(y).tolist() == torch.cat(x).flatten().tolist() == [int(n) for _, n in epoch]


def test_batches_that_overtake_each_other_keep_the_samples_of_the_sampler():
    later = threading.Event()

    class Late(sets.Squares):
        def __getitem__(self, index):
            assert index or later.wait(30)
            if index == 15:  # another batch has been made by then
                later.set()
            return index

    theirs = data.DataLoader(Late(), batch_size=4, in_order=False)
    with ps.from_torch(theirs).loader(on="thread", workers=2) as loader:
        found = [batch.tolist() for batch in loader]
        assert loader.torch().collate_fn is data.default_collate
    assert found.index([0, 1, 2, 3]) > 0
    assert sorted(found) == [batch.tolist() for batch in theirs]


def test_random_orders_are_new_in_each_epoch_and_the_same_for_a_seed():
    loaders = {
        "shuffle": data.DataLoader(sets.Squares(), 4, shuffle=True),
        "subset": data.DataLoader(sets.Squares(), 4, sampler=data.SubsetRandomSampler([1, 3, 5, 7, 9, 11, 13])),
        "part": data.DataLoader(sets.Squares(), 4, sampler=data.RandomSampler(sets.Squares(), num_samples=9)),
        "more": data.DataLoader(sets.Squares(), 4, sampler=data.RandomSampler(sets.Squares(), num_samples=50)),
        "replaced": data.DataLoader(sets.Squares(), 4, sampler=data.RandomSampler(sets.Squares(), True, 30)),
        "weights": data.DataLoader(sets.Squares(), 4, sampler=data.WeightedRandomSampler([0] * 10 + [1] * 10, 30)),
    }
    for name, loader in loaders.items():
        pipeline = ps.from_torch(loader)
        runs = []
        for _ in range(2):
            with pipeline.loader(seed=3) as ours:
                runs.append([[y for batch in ours for y in batch["y"].tolist()] for _ in range(2)])
        (first, second), again = runs
        assert [first, second] == again, name
        assert first != second, name
        assert len(first) == len(second) == len(loader.sampler), name
        theirs = {y for batch in loader for y in batch["y"].tolist()}
        if name in ("shuffle", "subset"):
            assert sorted(first) == sorted(second) == sorted(theirs)
        if name == "more":
            assert all(first.count(n * n) in (2, 3) for n in range(20))
        if name == "weights":
            assert min(first) >= 100


def test_a_sampler_with_a_generator_follows_the_seed_and_the_epoch():
    class Own(data.RandomSampler):
        pass

    sampler = Own(sets.Squares())
    with ps.from_torch(data.DataLoader(sets.Squares(), 5, sampler=sampler)).loader(seed=1) as loader:
        first, second = ([y for batch in loader for y in batch["y"].tolist()] for _ in range(2))
    with ps.from_torch(data.DataLoader(sets.Squares(), 5, sampler=sampler)).loader(seed=1) as loader:
        assert [y for batch in loader for y in batch["y"].tolist()] == first != second
    assert sampler.generator is None
    check_resume(ps.from_torch(data.DataLoader(sets.Squares(), 5, sampler=sampler)))


def test_a_sampler_that_draws_from_global_generators_gets_a_warning():
    class Global(data.Sampler):
        def __iter__(self):
            yield from torch.randperm(4).tolist()

        def __len__(self):
            return 4

    with pytest.warns(
        RuntimeWarning, match=r"the sampler Global draws from the global generator of torch.*attribute"
    ):
        list(ps.from_torch(data.DataLoader(sets.Squares(), sampler=Global())))


def test_a_distributed_sampler_is_a_shard():
    seen = []
    for rank in range(2):
        sampler = data.DistributedSampler(sets.Squares(16), num_replicas=2, rank=rank, shuffle=True)
        with ps.from_torch(data.DataLoader(sets.Squares(16), 4, sampler=sampler)).loader() as loader:
            loader.torch().sampler.set_epoch(3)
            seen += [y for batch in loader for y in batch["y"].tolist()]
    assert sorted(seen) == [n * n for n in range(16)]


def test_reads_that_fail_are_skipped_or_called_again():
    class Broken(data.Dataset):
        tries = 0

        def __len__(self):
            return 6

        def __getitem__(self, index):
            if index == 2:
                raise OSError("gone")
            if index == 4:
                Broken.tries += 1
                if Broken.tries == 1:
                    raise OSError("busy")
            return index

    with ps.from_torch(Broken(), batch_size=2, on_error=ps.Retry(1, 0)).loader() as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [3, 4], [5]]
        (record,) = loader.errors()
    assert (record.index, record.op) == (2, "read(Broken)")
    with pytest.raises(OSError, match="gone") as caught:
        list(ps.from_torch(Broken()))
    assert any(
        "read(Broken) at test_from_torch.py" in note and "sample 2" in note for note in caught.value.__notes__
    )


def test_several_samples_are_read_in_one_call_where_nothing_is_seeded():
    class Many(sets.Squares):
        calls = 0

        def __getitems__(self, indices):
            Many.calls += 1
            return [self[index] for index in indices]

    plainly = [n * n for n in range(64)]
    with ps.from_torch(Many(64), rng=None).loader() as loader:
        assert [one["y"] for one in loader] == plainly
    assert 0 < Many.calls < 64
    Many.calls = 0
    assert [one["y"] for one in ps.from_torch(Many(64))] == plainly
    assert Many.calls == 0


# ---------------------------------------------------------------------- random numbers


def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def test_inline_draws_are_seeded_for_each_sample_and_the_generators_put_back():
    before = states()
    runs = []
    for _ in range(2):
        with ps.from_torch(sets.Noisy(), batch_size=3).loader(seed=5, inline=True) as loader:
            runs.append([[plain(batch) for batch in loader] for _ in range(2)])
        random.random()
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]
    random.setstate(before[0])
    assert states() == before


def test_nothing_is_seeded_in_a_thread_and_draws_there_get_a_warning():
    before = states()
    with pytest.warns(RuntimeWarning, match=r"read\(Noisy\) draws from the global generator of Python's random"):
        list(ps.from_torch(sets.Noisy()))
    assert states() != before  # the dataset's own draws
    random.setstate(before[0])
    np.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = states()
        list(ps.from_torch(sets.Squares(), batch_size=2))
        assert states() == before


def test_an_iterable_that_draws_is_seeded_inline_and_warned_of_in_a_thread():
    class Draws(data.IterableDataset):
        def __iter__(self):
            for _ in range(5):
                yield torch.rand(()).item()

    before = states()
    with ps.from_torch(Draws(), batch_size=2).loader(seed=1, inline=True) as loader:
        first, second = ([batch.tolist() for batch in loader] for _ in range(2))
    with ps.from_torch(Draws(), batch_size=2).loader(seed=1, inline=True) as loader:
        assert [batch.tolist() for batch in loader] == first != second
    assert states() == before
    with pytest.warns(RuntimeWarning, match=r"from_torch\(Draws\) draws from the global generator of torch"):
        list(ps.from_torch(Draws()))


# ---------------------------------------------------------------------- resume


def test_resume_is_exact():
    check_resume(ps.from_torch(data.DataLoader(sets.Squares(), 4, shuffle=True)), epochs=1, every=2)
    check_resume(ps.from_torch(data.DataLoader(sets.Squares(), 4, sampler=sets.Evens(20))), epochs=1)
    check_resume(ps.from_torch(sets.Count(), batch_size=3), epochs=1, every=3)
    check_resume(ps.from_torch(sets.Stateful(50), batch_size=3), epochs=1, every=4)
    check_resume(ps.from_torch(sets.OfIterators(), batch_size=7).shuffle(window=3), epochs=1, every=4)


@for_each(
    "make, reads", [(lambda: sets.Stateful(), lambda d: d.read), (lambda: sets.OfIterators(), lambda d: len(d.log))]
)
def test_an_iterable_that_says_where_it_stands_is_not_read_again_from_its_beginning(make, reads):
    with ps.from_torch(make(), batch_size=5).loader() as loader:
        batches = iter(loader)
        for _ in range(16):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
    fresh = make()
    with ps.from_torch(fresh, batch_size=5).loader(state=state) as loader:
        rest = [batch.tolist() for batch in loader]
        assert rest == [list(range(first, first + 5)) for first in range(80, 100, 5)]
        assert reads(fresh) < 20 + 16 + 1
        assert next(iter(loader)).tolist() == [0, 1, 2, 3, 4]


def test_a_state_dict_that_is_no_plain_data_is_reported_and_read_again():
    class Odd(sets.Stateful):
        def state_dict(self):
            return {"at": self.at, "where": object()}

    def saved():
        with ps.from_torch(Odd(), batch_size=5).loader() as loader:
            batches = iter(loader)
            for _ in range(8):
                next(batches)
            return loader.state_dict()

    with pytest.warns(RuntimeWarning, match=r"state_dict\(\) of Odd cannot be part of a saved state"):
        state = saved()
    fresh = Odd()
    fresh.n = 45
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ps.from_torch(fresh, batch_size=5).loader() as loader:
            loader.load_state_dict(state, strict=False)
            assert [batch.tolist() for batch in loader] == [[40, 41, 42, 43, 44]]


def test_draws_of_an_iterable_are_the_same_after_a_resume():
    class Draws(sets.Stateful):
        def __iter__(self):
            offset = random.random()
            for number in super().__iter__():
                yield number, offset > 2, float(torch.rand(()))

    before = states()
    with ps.from_torch(Draws(60), batch_size=5).loader(seed=1, inline=True) as loader:
        batches = iter(loader)
        for _ in range(8):
            next(batches)
        state = loader.state_dict()
        rest = [plain(batch) for batch in batches]
    with ps.from_torch(Draws(60), batch_size=5).loader(seed=1, inline=True, state=state) as loader:
        assert [plain(batch) for batch in loader] == rest
    assert states() == before


# ---------------------------------------------------------------------- what is refused


def test_what_cannot_be_kept_is_refused_with_the_reason():
    with pytest.raises(ps.PlanError, match=r"DataLoader\(timeout=5\) bounds .*\.loader\(timeout_s=5\)"):
        ps.from_torch(data.DataLoader(sets.Squares(), timeout=5))
    with pytest.raises(ps.PlanError, match=r"multiprocessing_context=\) has no effect here"):
        ps.from_torch(data.DataLoader(sets.Squares(), num_workers=1, multiprocessing_context="fork"))
    with pytest.raises(
        ps.PlanError, match=r"sampler= chooses samples by their number, and Count can only be iterated"
    ):
        ps.from_torch(sets.Count(), sampler=[1])
    with pytest.raises(ps.PlanError, match="sampler option is mutually exclusive with shuffle"):
        ps.from_torch(sets.Squares(), batch_size=2, shuffle=True, sampler=[1])
    for size in (0, -1, "2", 2.0, True):
        with pytest.raises(ps.PlanError, match=rf"batch_size=\) takes a whole number, at least 1, got {size!r}"):
            ps.from_torch(sets.Squares(), batch_size=size)
    with pytest.raises(ps.PlanError, match=r"shuffle=True\): list is empty: its len\(\) is 0\. Check the path"):
        ps.from_torch([], batch_size=2, shuffle=True)
    with pytest.raises(ps.PlanError, match=r"on_error=, timeout_s=\) are for reads of single samples"):
        ps.from_torch(sets.Count(), on_error="skip")
    with pytest.raises(ps.PlanError, match="takes a Dataset, an IterableDataset or a DataLoader of torch, got int"):
        ps.from_torch(3)
    with pytest.raises(ps.PlanError, match="takes 'global' or None"):
        ps.from_torch(sets.Squares(), rng=True)
    with pytest.raises(TypeError, match="takes batch_size from the DataLoader"):
        ps.from_torch(data.DataLoader(sets.Squares()), batch_size=3)


@for_each(
    "call, said",
    [
        (lambda p: p.loader(num_workers=4), r"loader\(\) has no argument 'num_workers'.*workers=n"),
        (lambda p: p.loader(batch_size=4), r"\.batch\(n\)"),
        (lambda p: p.loader(shuffle=True), r"\.shuffle\(\)"),
        (lambda p: p.loader(pin_memory=True), r"\.to\('cuda'\)"),
        (lambda p: p.map(len, num_workers=4), r"^map\(\) has no argument 'num_workers'.*workers=n"),
        (lambda p: p.shuffle(generator=1), r"^shuffle\(\) has no argument 'generator'.*loader\(seed=\.\.\.\)"),
        (lambda p: p.batch(batch_size=4), r"batch\(\) has no argument 'batch_size'"),
        (lambda p: p.batch(4, collate_fn=list), r"\.batch\(n, collate=fn\)"),
        (lambda p: ps.from_sequence([1], num_workers=2), "from_sequence"),
        (lambda p: ps.from_torch([1], num_workers=2), "DataLoader has; write workers=n$"),
        (lambda p: ps.from_torch([1], persistent_workers=True), "DataLoader has; leave it out: workers stay warm"),
        (lambda p: ps.from_torch([1], 2, True), r"write from_torch\(dataset, batch_size=2, shuffle=True\)"),
        (lambda p: p.loader(wokers=4), r"^loader\(\) has no argument 'wokers'; did you mean 'workers'\?$"),
        (lambda p: ps.from_torch([1], batchsize=2), "no argument 'batchsize'; did you mean 'batch_size'"),
        (lambda p: p.loader(frobnicate=4), r"^loader\(\) got an unexpected keyword argument 'frobnicate'"),
        (lambda p: p.map(len, frobnicate=4), r"^map\(\) got an unexpected keyword argument 'frobnicate'"),
    ],
)
def test_arguments_of_data_loader_get_an_error_that_names_ours(call, said):
    with pytest.raises(TypeError, match=said):
        call(ps.from_sequence(range(3)))


@for_each("rng", ["global", None])
@for_each("sample", [None, lambda size: torch.zeros(size)])
def test_what_the_default_collate_cannot_stack_gets_the_next_step(sample, rng):
    pytest.importorskip("torch")
    samples = [sample and sample(size) for size in (1, 2)]
    pipeline = ps.from_torch(samples, batch_size=2, rng=rng)
    with pytest.raises((TypeError, RuntimeError)) as caught, pipeline.loader(inline=True) as loader:
        list(loader)
    assert any("give collate_fn=, or leave batch_size= out" in note for note in caught.value.__notes__)


# ---------------------------------------------------------------------- from_sequence's own reads


def test_from_sequence_skips_and_retries_its_own_reads():
    class Holes:
        def __len__(self):
            return 6

        def __getitem__(self, index):
            if index == 3:
                raise KeyError(index)
            return index

    with ps.from_sequence(Holes(), on_error="skip").shuffle().batch(2).loader() as loader:
        assert sorted(x for batch in loader for x in batch.tolist()) == [0, 1, 2, 4, 5]
        assert [(one.index, one.op) for one in loader.errors()] == [(3, "read(Holes)")]
    with ps.from_sequence(Holes(), indices=[5, 3], on_error="skip", with_index=True).loader() as loader:
        assert list(loader) == [(5, 5)]
        assert [one.index for one in loader.errors()] == [3]
    frozen = ps.from_sequence([np.zeros(2)], on_error="skip").peek()[0]
    assert not frozen.flags.writeable


def test_a_read_of_from_sequence_that_takes_too_long_is_a_timeout():
    import threading

    release = threading.Event()

    class Slow:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            if index == 1:
                release.wait(60)
            return index

    try:
        with ps.from_sequence(Slow(), timeout_s=0.2).loader() as loader:
            with pytest.raises(ps.StageTimeout, match=r"read\(Slow\)"):
                list(loader)
            release.set()
    finally:
        release.set()
