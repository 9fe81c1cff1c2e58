"""Lightning's Trainer and Fabric, and Accelerate, with a loader as their data loader."""

import pytest
from tests.later import Later

import penstock as ps

torch = Later("torch")

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]  # theirs

SAMPLES = 32


def pipeline():
    x = torch.arange(float(SAMPLES))[:, None]
    return ps.from_arrays({"x": x / SAMPLES, "y": x}).shuffle().batch(4).to("cpu")


def numbers(batch):
    return [int(y) for y in batch["y"][:, 0]]


def module(lightning, seen):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)

        def training_step(self, batch, number):
            seen.append(numbers(batch))
            return torch.nn.functional.mse_loss(self.linear(batch["x"]), batch["y"])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def trainer(lightning, tmp_path, **options):
    return lightning.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def test_the_trainer_reads_a_new_order_in_each_epoch(tmp_path):
    lightning = pytest.importorskip("lightning")
    seen = []
    with pipeline().loader(seed=1) as loader:
        trainer(lightning, tmp_path, max_epochs=3, enable_checkpointing=False).fit(
            module(lightning, seen), loader.torch()
        )
    epochs = [[n for batch in seen[first : first + 8] for n in batch] for first in range(0, 24, 8)]
    assert all(sorted(epoch) == list(range(SAMPLES)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    with pipeline().loader(seed=1) as loader:
        assert [[n for batch in loader for n in numbers(batch)] for _ in range(3)] == epochs


def test_a_checkpoint_in_the_middle_of_an_epoch_is_resumed_exactly(tmp_path):
    lightning = pytest.importorskip("lightning")
    whole, first, rest = [], [], []
    with pipeline().loader(seed=1) as loader:
        trainer(lightning, tmp_path, max_epochs=2, enable_checkpointing=False).fit(
            module(lightning, whole), loader.torch()
        )
    keep = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=5, save_top_k=-1)
    with pipeline().loader(seed=1) as loader:
        trainer(lightning, tmp_path, max_steps=11, callbacks=[keep]).fit(module(lightning, first), loader.torch())
    saved = sorted(tmp_path.glob("*step=10.ckpt"))
    assert len(saved) == 1
    with pipeline().loader(seed=1) as loader:
        trainer(lightning, tmp_path, max_epochs=2, enable_checkpointing=False).fit(
            module(lightning, rest), loader.torch(), ckpt_path=saved[0]
        )
    assert first == whole[:11]
    assert rest == whole[10:]


def test_fabric_takes_a_loader_as_it_is(tmp_path):
    lightning = pytest.importorskip("lightning")
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    model = torch.nn.Linear(1, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pipeline().loader(seed=1) as loader:
        for _ in range(2):
            seen = []
            for batch in loader:
                fabric.backward(torch.nn.functional.mse_loss(model(batch["x"]), batch["y"]))
                optimizer.step()
                seen += numbers(batch)
            assert sorted(seen) == list(range(SAMPLES))
        fabric.save(tmp_path / "saved", {"model": model, "loader": loader.state_dict()})
    saved = fabric.load(tmp_path / "saved")
    with pipeline().loader(seed=1, state=saved["loader"]) as loader:
        next(iter(loader))
        assert loader.epoch == 2


def test_accelerate_leaves_a_loader_as_it_is():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    with pipeline().loader(seed=1) as loader:
        model = torch.nn.Linear(1, 1)
        model, optimizer, ours = accelerator.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), loader.torch()
        )
        for _ in range(2):
            seen = []
            for batch in ours:
                accelerator.backward(torch.nn.functional.mse_loss(model(batch["x"]), batch["y"]))
                optimizer.step()
                seen += numbers(batch)
            assert sorted(seen) == list(range(SAMPLES))
