"""Transfers to CUDA, on a device that does everything as late as it may; and on a real one, where there is one."""

import threading

import numpy as np
import pytest

import penstock as ps


@pytest.fixture
def fake(monkeypatch):
    pytest.importorskip("torch")
    from tests.devices.fake_cuda import FakeTorch

    from penstock.devices import torch as ours

    made = FakeTorch()
    monkeypatch.setattr(ours, "import_torch", lambda name: made)
    return made


def numbers(n, width=50_000):
    """Batches of 4 that are large enough for memory that is used again."""
    return ps.from_sequence(range(n)).map(lambda x: np.full(width, x, np.float32)).batch(4)


def step_on(fake, batch, seen):
    """A training step: work on the device that reads the batch when its stream gets there."""
    plain = batch.as_subclass(fake.Tensor)
    fake.cuda.current_stream().put("step", lambda: seen.append(plain[:, 0].tolist()))


def test_steps_see_their_batches_though_the_device_lags_behind(fake):
    seen = []
    with numbers(120).to("cuda").loader() as loader:
        for batch in loader:
            step_on(fake, batch, seen)
    fake.device_state.run()
    assert seen == [list(range(first, first + 4)) for first in range(0, 120, 4)]


def test_pinned_memory_is_used_again_and_only_after_its_copy(fake):
    seen = []
    with numbers(400).to("cuda", depth=3).loader(epochs=1) as loader:  # so that no other epoch is begun
        for batch in loader:
            step_on(fake, batch, seen)
        stats = loader.stats()
    fake.device_state.run()
    assert seen == [list(range(first, first + 4)) for first in range(0, 400, 4)]
    assert stats["to.bytes"] == 400 * 50_000 * 4
    # One buffer for each of the depth + 1 batches whose copies may be under way, and one being filled.
    assert 0 < stats["to.pinned_bytes"] <= fake.device_state.pinned_bytes <= (3 + 2) * 1024 * 1024


def test_the_training_loop_never_waits_on_the_host(fake):
    with numbers(200).to("cuda").loader() as loader:
        for batch in loader:
            step_on(fake, batch, [])
            fake.device_state.run(3)
        waited = {who for what, who in fake.device_state.log if what == "host waits"}  # before `close`, which waits
    assert threading.current_thread().name not in waited


def test_the_next_batch_is_copied_while_a_step_runs(fake):
    from tests.devices.fake_cuda import Event

    with numbers(40).to("cuda").loader() as loader:
        batches = iter(loader)
        next(batches)
        stream = fake.cuda.current_stream()
        over = Event(stream)  # a step that takes until the test says so
        stream.wait_event(over)
        second = next(batches)  # the host does not wait for the step
        fake.device_state.run()
        assert second.as_subclass(fake.Tensor)[:, 0].tolist() == [4, 5, 6, 7]
        seen = []
        step_on(fake, second, seen)
        fake.device_state.run()
        assert seen == []  # the step on it waits for the first one
        over.happened = True
        fake.device_state.run()
        assert seen == [[4, 5, 6, 7]]


def test_memory_is_not_given_back_before_the_step_that_uses_it(fake):
    with numbers(40).to("cuda").loader() as loader:
        for batch in loader:
            assert fake.device_state.used_on[batch.data_ptr()][-1] is fake.cuda.current_stream()


def test_ops_behind_to_run_in_the_transfer_worker_on_its_stream(fake):
    where = set()

    def look(batch):
        where.add((threading.current_thread().name, fake.cuda.current_stream().name))
        return batch

    with numbers(40).to("cuda:1").map(look).loader() as loader:
        for batch in loader:
            step_on(fake, batch, [])
        here = fake.cuda.current_stream().name
    assert {stream for _, stream in where} == {"side cuda:1"}
    assert len({thread for thread, _ in where}) == 1
    assert threading.current_thread().name not in {thread for thread, _ in where}
    assert here == "default"


def test_inline_the_copy_is_waited_for_by_the_current_stream(fake):
    seen = []
    with numbers(40).to("cuda").loader(inline=True) as loader:
        for batch in loader:
            assert fake.cuda.current_stream().name == "default"
            step_on(fake, batch, seen)
    fake.device_state.run()
    assert seen == [list(range(first, first + 4)) for first in range(0, 40, 4)]
    assert numbers(8).to("cuda").peek()[0].is_cuda


def test_no_more_than_depth_batches_are_on_the_device_ahead(fake):
    """The one in the loop's hands, and `depth` others."""
    for depth in (1, 2, 5):
        alive = []

        def note(batch, alive=alive):
            alive.append(batch)
            return batch

        read = 0
        most = 0
        with numbers(160, width=100).to("cuda", depth=depth).map(note).loader() as loader:  # made in no time
            for _ in loader:
                read += 1
                most = max(most, len(alive) - read)
        assert most <= depth


def test_only_tensors_are_moved(fake):
    sample = {"x": np.ones(3, np.float32), "name": "a", "n": 3, "when": np.datetime64("2026-11-18", "D")}
    (batch,) = ps.from_sequence([sample, sample]).batch(2).to("cuda")
    fake.device_state.run()
    assert batch["x"].is_cuda
    assert batch["x"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert batch["name"] == ["a", "a"]
    assert batch["n"].is_cuda
    assert batch["when"].dtype == np.dtype("datetime64[D]")


def test_a_tensor_that_requires_grad_is_copied_without_its_graph(fake):
    torch = pytest.importorskip("torch")
    (moved,) = ps.from_iterable([torch.ones(3, requires_grad=True)]).to("cuda")
    fake.device_state.run()
    assert not moved.requires_grad
    assert moved.tolist() == [1, 1, 1]


def test_tensors_keep_their_memory_format(fake):
    torch = pytest.importorskip("torch")
    images = torch.arange(96.0).reshape(2, 3, 4, 4).to(memory_format=torch.channels_last)
    gaps = torch.arange(6.0)[::2]
    moved, packed = ps.from_iterable([images, gaps]).to("cuda")
    fake.device_state.run()
    assert moved.is_contiguous(memory_format=torch.channels_last)
    assert (moved.tolist(), packed.tolist()) == (images.tolist(), [0, 2, 4])


def test_a_place_of_its_own_behind_to_is_refused(fake):
    with pytest.raises(ps.PlanError, match=r"map\(lambda\) behind to\('cuda'\) has a place of its own"):
        numbers(8).to("cuda").map(lambda x: x, workers=2).loader()
    with pytest.raises(ps.PlanError, match=r"put it behind the mix\(\), zip\(\) or concat\(\)"):
        ps.zip(numbers(8).to("cuda"), numbers(8)).loader()
    with pytest.raises(ps.PlanError, match=r"isolate=True.*leave to\(\) out"):
        numbers(8).to("cuda").loader(isolate=True)
    with pytest.raises(ps.PlanError, match=r"there are 2 CUDA devices here, 'cuda:0' to 'cuda:1'"):
        numbers(8).to("cuda:7").loader()


def test_cuda_is_the_current_device_of_the_thread_that_makes_the_loader(fake):
    names = set()

    def look(batch):
        names.add(fake.cuda.current_stream().name)
        return batch

    fake.cuda.set_device(1)
    with numbers(8).to("cuda").map(look).loader() as loader:
        list(loader)
    assert names == {"side cuda:1"}


def test_resume_is_exact_through_staging(fake):
    pipeline = numbers(80).to("cuda")
    whole = list(pipeline)
    with pipeline.loader() as loader:
        batches = iter(loader)
        for _ in range(7):
            next(batches)
        state = loader.state_dict()
    with pipeline.loader(state=state) as loader:
        rest = list(loader)
    fake.device_state.run()
    assert [one[:, 0].tolist() for one in rest] == [one[:, 0].tolist() for one in whole[7:]]


def test_without_a_gpu_the_error_says_what_to_do():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ps.PlanError, match=r"to\('cuda'\): torch .* sees no CUDA device.*to\('cpu'\)"):
        numbers(8).to("cuda").loader()
    assert "pinned memory" in numbers(8).to("cuda").explain()


@pytest.mark.gpu
def test_on_a_real_gpu_batches_arrive_as_they_were():
    torch = pytest.importorskip("torch")
    kept = []
    with numbers(4000).to("cuda").loader() as loader:
        for number, batch in enumerate(loader):
            assert batch.is_cuda
            if number % 50 == 0:
                kept.append((number, batch))
            torch.mm(batch[:, :1000], batch[:, :1000].T)
    for number, batch in kept:
        assert batch[:, -1].tolist() == list(range(4 * number, 4 * number + 4))
