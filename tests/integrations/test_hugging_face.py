"""Datasets and the Trainer of Hugging Face, with penstock as it is."""

import json
import re
from itertools import chain
from pathlib import Path

import pytest

import penstock as ps

pytestmark = pytest.mark.integrations

PAGE = (Path(__file__).parents[2] / "docs" / "torch.md").read_text(encoding="utf-8")
#: the recipe of the page: its classes, and how they are used
RECIPE, RUN = re.findall(
    r"^```\n(.*?)^```$", PAGE.split("### Trainer of transformers", 1)[1], re.DOTALL | re.MULTILINE
)[:2]


def numbers(datasets, n=1000):
    return datasets.Dataset.from_dict({"x": list(range(n))})


def flat(batches):
    return list(chain.from_iterable(batches))


@pytest.fixture(autouse=True)
def _no_monitor(monkeypatch):
    """Progress bars start a thread that stays."""
    tqdm = pytest.importorskip("tqdm")
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)


def values(loader):
    return [batch["x"].tolist() for batch in loader]


def resumed(make, batches):
    """What is left after so many batches, by the run itself and by another that loads its state."""
    with ps.from_torch(make(), batch_size=10).loader() as loader:
        reading = iter(loader)
        for _ in range(batches):
            next(reading)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = values(reading)
    with ps.from_torch(make(), batch_size=10).loader(state=state) as loader:
        return rest, values(loader), values(loader)


def test_an_iterable_dataset_is_resumed_by_its_own_state():
    datasets = pytest.importorskip("datasets")
    rest, again, second = resumed(lambda: numbers(datasets).to_iterable_dataset(num_shards=4), 50)
    assert again == rest
    assert sum(map(len, second)) == 1000


def test_a_shuffle_buffer_that_forgets_is_read_again():
    datasets = pytest.importorskip("datasets")

    def make():
        return numbers(datasets).to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=50)

    rest, again, second = resumed(make, 50)
    assert again == rest
    assert sorted(flat(second)) == list(range(1000))
    assert second[0] != rest[0]  # set_epoch() was called


def test_a_map_style_dataset_is_read_many_rows_at_a_time():
    datasets = pytest.importorskip("datasets")
    dataset = numbers(datasets, 100).with_format("torch")
    with ps.from_torch(dataset, batch_size=8, shuffle=True, rng=None).loader() as loader:
        assert sorted(flat(values(loader))) == list(range(100))


@pytest.fixture
def trained(tmp_path):
    """Trains a small model with the recipe of docs/torch.md; returns the labels of each step."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    names = {"transformers": transformers, "json": json, "Path": Path, "ps": ps}
    exec(RECIPE, names)
    x = torch.arange(32.0)[:, None]
    data = ps.from_arrays({"x": x / 32, "labels": x}).shuffle().batch(8)

    def train(checkpoint=None, stop_at=None, **arguments):
        seen = []

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(1, 1)

            def forward(self, x, labels):
                seen.append(labels[:, 0].tolist())
                predicted = self.linear(x)
                return {"loss": torch.nn.functional.mse_loss(predicted, labels), "logits": predicted}

        class Stop(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **rest):
                control.should_training_stop = state.global_step == stop_at

        names["arguments"] = transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=3, report_to=[], use_cpu=True, disable_tqdm=True,
            ignore_data_skip=True, save_steps=2, **arguments,
        )  # fmt: skip
        names["model"], names["data"], names["checkpoint"] = Model(), data, checkpoint
        names["callbacks"] = [Stop()]
        exec(RUN, names)
        return seen, names["trainer"].state.global_step

    return train


def test_the_trainer_takes_a_loader_and_its_epochs(trained):
    seen, steps = trained()
    epochs = [seen[first : first + 4] for first in range(0, 12, 4)]
    assert steps == 12
    assert all(sorted(flat(epoch)) == list(range(32)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_trainer_resumes_in_the_middle_of_an_epoch_with_the_remaining_batches(trained, tmp_path, accumulated):
    given = {"gradient_accumulation_steps": accumulated}
    whole, steps = trained(**given)
    stopped, _ = trained(stop_at=3, **given)
    rest, again = trained(checkpoint=tmp_path / "checkpoint-2", **given)
    assert stopped == whole[: 3 * accumulated]
    assert rest == whole[2 * accumulated :]
    assert again == steps


def test_accelerate_cannot_put_a_loader_of_its_own_in_place_of_ours():
    accelerate = pytest.importorskip("accelerate")
    torch = pytest.importorskip("torch")
    accelerate.PartialState(cpu=True)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(8))

    for dataset in ([1, 2, 3], Stream()):
        with ps.from_torch(dataset, batch_size=2).loader() as loader, pytest.raises(ValueError, match="workers"):
            accelerate.skip_first_batches(loader.torch(), 1)
