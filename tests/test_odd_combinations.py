"""Combinations that are right in their parts and have been wrong together."""

import os
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps

LAYOUTS = [{"inline": True}, {}, {"workers": 4}]
any_layout = for_each("layout", LAYOUTS)


@any_layout
def test_a_cache_over_a_subset_keeps_each_sample_under_its_own_place(layout):
    data = ps.from_sequence([10, 11, 12, 13], indices=[1, 0, 3]).cache()
    with data.loader(**layout) as loader:
        assert [list(loader) for _ in range(3)] == [[11, 10, 13]] * 3


class Rows:
    """Forty numbers, read one by one or as an array; the fifth cannot be read."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if np.any(np.asarray(index) == 5):
            raise self.error
        return np.asarray(index)


@any_layout
def test_a_sample_skipped_by_an_accessor_is_the_only_one_that_is_lost(layout):
    with ps.from_arrays(Rows(ps.Skip("empty"))).batch(4).loader(epochs=1, **layout) as loader:
        assert np.concatenate(list(loader)).tolist() == [x for x in range(40) if x != 5]
        assert [record.index for record in loader.errors()] == [5]


@any_layout
def test_an_accessor_that_fails_on_one_of_a_batch_names_that_one(layout):
    with ps.from_arrays(Rows(OSError("bad block"))).shuffle().batch(4).loader(epochs=1, **layout) as loader:
        with pytest.raises(OSError, match="bad block"):
            list(loader)
        assert [record.index for record in loader.errors()] == [5]


@any_layout
def test_an_epoch_goes_on_past_a_pass_that_a_filter_empties(layout):
    source = ps.from_iterable(lambda: range(1))
    data = source.filter(lambda sample, info: info.epoch % 2 == 0, info=True).epoch(4)
    with data.loader(**layout) as loader:
        assert [list(loader) for _ in range(3)] == [[0] * 4] * 3


@any_layout
def test_the_index_is_right_in_every_pass_and_behind_a_flat_map(layout):
    looped = ps.from_sequence(range(6)).shuffle().filter(lambda x: True).repeat().flat_map(lambda x: [x])
    data = looped.map(lambda x, info: x == info.index, info=True).take(30)
    with data.loader(epochs=1, **layout) as loader:
        assert list(loader) == [True] * 30


def test_a_new_iteration_in_another_thread_ends_the_old_one():
    gate = threading.Event()

    def held(x):
        gate.wait(0.01)
        return x

    with ps.from_sequence(range(300)).map(held, workers=1).loader() as loader:
        old = iter(loader)
        next(old)
        rest: list[int] = []
        reading = threading.Thread(target=lambda: rest.extend(old))
        reading.start()
        with pytest.warns(RuntimeWarning, match="new iteration"):
            new = iter(loader)
        assert next(new) == 0
        gate.set()
        reading.join(30)
        assert not reading.is_alive()
        assert len(rest) < 299


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_pool_used_before_a_fork_starts_anew_in_the_child():
    with ps.Threads(2) as pool:
        data = ps.from_sequence(range(10)).map(abs, on=pool)
        assert list(data) == list(range(10))
        child = os.fork()
        if not child:
            code = 1
            try:
                code = 0 if list(data) == list(range(10)) else 1
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_epoch_that_close_cuts_short_does_not_look_whole():
    loader = ps.from_sequence(range(100)).loader()
    with pytest.raises(ps.PenstockError, match="closed while it was read"):
        for number, _ in enumerate(loader):
            if number == 3:
                loader.close()


@for_each("workers", [None, 1, 2])
def test_the_epoch_an_op_is_in_does_not_depend_on_its_stage(workers):
    passes = (
        ps.from_sequence(range(3)).map(abs, workers=1).map(lambda x, info: info.epoch, info=True, workers=workers)
    )
    assert list(passes.repeat(2)) == [0, 0, 0, 1, 1, 1]


def test_peek_draws_what_a_cache_would_keep():
    data = ps.from_sequence(range(4)).shuffle().map(lambda x, rng: (x, rng.random()), rng=True).cache()
    samples = dict(data)
    assert [data.peek(index=x) for x in range(4)] == [[(x, samples[x])] for x in range(4)]


@dataclass
class Halved:
    x: float
    y: int = field(init=False, default=3)

    def __post_init__(self):
        self.x = self.x / 2


def test_a_dataclass_is_batched_as_it_is_and_not_made_again():
    (batch,) = ps.from_sequence([Halved(8), Halved(4)]).batch(2)
    assert batch.x.tolist() == [4, 2]
    assert batch.y.tolist() == [3, 3]


# ---------------------------------------------------------------------- one kind of batch, whatever reads it


@for_each("dtype", ["U2", "S2", object])
def test_strings_and_objects_make_a_list_by_block_read_and_through_a_map(dtype):
    words = ps.from_arrays(np.array(["a", "bb", "c"], dtype=dtype)).shuffle()
    (direct,), (mapped,) = list(words.batch(3)), list(words.map(lambda word: word).batch(3))
    assert type(direct) is type(mapped) is list
    assert direct == mapped


def test_a_masked_array_is_refused_since_a_batch_would_lose_the_mask():
    with pytest.raises(ps.PlanError, match=r"array 0 is a masked array.*x\.filled"):
        ps.from_arrays(np.ma.array([1, 2], mask=[True, False]))


def test_an_index_that_would_hide_a_field_is_refused():
    with pytest.raises(ps.PlanError, match="rename yours"):
        ps.from_arrays({"index": np.arange(3)}, with_index=True)


@for_each(
    "kept",
    [np.zeros((2, 3)), [np.zeros(3)] * 2, [{"x": np.zeros(3)}] * 2, [(1, np.zeros(3))] * 2],
)
def test_what_a_sequence_keeps_cannot_be_written_to(kept):
    for sample in ps.from_sequence(kept):
        array = sample["x"] if isinstance(sample, dict) else sample[1] if isinstance(sample, tuple) else sample
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_arrays_behind_a_sample_of_another_kind_cannot_be_written_to_either():
    mixed = [None, *(np.zeros(2) for _ in range(200))]
    batches = ps.from_sequence(mixed).batch(4, collate=list)
    assert not any(item.flags.writeable for batch in batches for item in batch if item is not None)


def test_numpy_integers_are_numbers_everywhere():
    two = np.int64(2)
    pipeline = ps.from_sequence(range(8)).shuffle(seed=two).take(two * 3).map(abs, workers=two).batch(two)
    with pipeline.loader(seed=two, epochs=two) as loader:
        loader.set_epoch(np.int64(1))
        assert sum(len(batch) for batch in loader) == 6


def test_a_tensor_that_numpy_cannot_hold_is_batched_and_refused_where_arrays_are_made_of_it():
    torch = pytest.importorskip("torch")
    halves = ps.from_sequence([torch.zeros(2, dtype=torch.bfloat16)] * 2)
    (batch,) = halves.batch(2)
    assert (batch.shape, batch.dtype) == ((2, 2), torch.bfloat16)
    with pytest.raises(TypeError, match=r"x\.float\(\)"):
        list(halves.pack(4, key=0))


def test_nothing_is_begun_after_the_last_epoch():
    seen = []
    with ps.from_sequence(range(3)).map(seen.append, workers=1).loader(epochs=1) as loader:
        list(loader)
        loader.start()
    assert len(seen) == 3


def test_a_timeout_of_many_years_is_a_timeout():
    slow = ps.from_sequence(range(3)).map(lambda x: x, workers=1, timeout_s=1e12)
    with slow.loader(timeout_s=1e300) as loader:
        assert list(loader) == [0, 1, 2]
