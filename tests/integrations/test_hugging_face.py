"""Datasets and the Trainer of Hugging Face, with penstock as it is."""

import json
from itertools import chain

import pytest

import penstock as ps

pytestmark = pytest.mark.integrations


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


def test_the_trainer_takes_a_loader_and_its_epochs(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)

        def forward(self, x, labels):
            seen.append(labels[:, 0].tolist())
            predicted = self.linear(x)
            return {"loss": torch.nn.functional.mse_loss(predicted, labels), "logits": predicted}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return self.penstock.torch()

    seen = []
    x = torch.arange(32.0)[:, None]
    data = ps.from_arrays({"x": x / 32, "labels": x}).shuffle().batch(8)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=3,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=Model(), args=arguments)
    with data.loader(seed=0) as loader:
        trainer.penstock = loader
        trainer.train()
    epochs = [seen[first : first + 4] for first in range(0, 12, 4)]
    assert trainer.state.global_step == 12
    assert all(sorted(flat(epoch)) == list(range(32)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
