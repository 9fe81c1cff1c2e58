"""ps.watch, over loaders of ours and of others."""

import json
import time

import pytest

import penstock as ps
from penstock.measuring.watch import Waits


def test_everything_passes_through():
    watched = ps.watch(range(5))
    assert list(watched) == [0, 1, 2, 3, 4]
    assert len(watched) == 5
    assert watched.waits.batches == 5
    assert watched.waits.epochs == 1


def test_waits_and_steps_are_told_apart():
    def slow():
        for number in range(6):
            time.sleep(0.02)
            yield number

    waits = ps.watch(slow())
    for _ in waits:
        pass
    assert waits.wait_share > 0.8
    assert waits.waits.first_batch_s >= 0.02
    assert waits.waits.wait_s >= 0.1
    assert "waited" in str(waits)

    fed = ps.watch(range(6))
    for _ in fed:
        time.sleep(0.02)
    assert fed.wait_share < 0.2
    assert fed.waits.step_s >= 0.12


def test_passes_add_up_and_their_beginnings_are_counted():
    class Cold:
        def __iter__(self):
            time.sleep(0.02)
            return iter(range(3))

    watched = ps.watch(Cold())
    for _ in range(3):
        list(watched)
    waits = watched.waits
    assert (waits.batches, waits.epochs) == (9, 3)
    assert waits.epoch_start_s >= 0.04
    assert "first batches of 2 later epochs" in str(waits)


def test_a_break_counts_what_was_read():
    watched = ps.watch(range(100))
    for number in watched:
        if number == 3:
            break
    assert watched.waits.batches == 4


def test_an_exception_of_the_loader_is_not_touched():
    def breaks():
        yield 1
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        list(ps.watch(breaks()))


def test_a_loader_of_ours():
    with ps.from_sequence(range(20)).batch(4).loader() as loader:
        watched = ps.watch(loader)
        assert sum(len(batch) for batch in watched) == 20
    assert watched.waits.batches == 5


def test_a_torch_data_loader():
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(list(range(20)), batch_size=4)
    watched = ps.watch(loader)
    assert sum(int(batch.sum()) for batch in watched) == sum(range(20))
    assert len(watched) == 5
    assert watched.waits.batches == 5
    assert 0 <= watched.wait_share <= 1


def test_what_is_said():
    waits = Waits(101, 1, 0.5, 2.0, 2.0, 0.0, 0.1)
    assert waits.wait_share == 0.5
    assert "waited 50 % of its time" in str(waits)
    assert "It gets 25 batches/s; with a loader that is never late it would get 50 batches/s." in str(waits)
    assert "training step limits" in str(Waits(101, 1, 0.5, 0.02, 4.0, 0.0, 0.01))
    assert "read some more" in str(Waits(1, 1, 0.5, 0.0, 0.0, 0.0, 0.0))
    assert json.loads(json.dumps(waits.to_dict()))["wait_share"] == 0.5
