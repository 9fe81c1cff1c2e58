"""A Lightning training that is killed twice, and ends with the same model as one that is not.

Lightning's checkpoints hold the state of `loader.torch()`. A new process continues from the newest checkpoint, in
the middle of an epoch: with the remaining samples, in the same order, with the same random augmentation.

    python examples/lightning_resume.py                    # trains, kills, resumes and compares
    python examples/lightning_resume.py --train FOLDER     # trains; continues if FOLDER has a checkpoint
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import tempfile
import warnings
from pathlib import Path
from typing import Any, TypedDict

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn

import penstock as ps

SAMPLES = 96
BATCH = 8  # 12 steps in an epoch
EPOCHS = 3
SAVE_EVERY = 5
#: steps after which the process is killed: both in the middle of an epoch, and steps after a checkpoint
KILLS = (8, 23)


class Summary(TypedDict):
    """What ``main`` returns."""

    kills: int
    first_steps: list[int]
    steps: int
    same_steps: bool
    same_model: bool
    losses: list[float]


def add_noise(x: Any, rng: np.random.Generator) -> Any:
    return x + rng.normal(0, 0.05, x.shape).astype(np.float32)


def make_pipeline() -> ps.Pipeline[Any]:
    x = np.linspace(-1, 1, SAMPLES, dtype=np.float32)[:, None]
    return ps.from_arrays(x, 3 * x + 1).shuffle().map(add_noise, key=0, rng=True).batch(BATCH).to("cpu")


class Line(lightning.LightningModule):
    """A straight line through the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        nn.init.zeros_(self.linear.weight)

    def training_step(self, batch: Any, number: int) -> Any:
        inputs, targets = batch
        return nn.functional.mse_loss(self.linear(inputs), targets)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.5)


class Report(Callback):
    """Appends each step to a file, and kills the process after one of them."""

    def __init__(self, steps: Path, kill_after: int | None) -> None:
        self.steps = steps
        self.kill_after = kill_after

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
        line = {"step": trainer.global_step, "inputs": batch[0].tolist(), "loss": outputs["loss"].item()}
        with self.steps.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if trainer.global_step == self.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)  # nothing is closed, saved or said


def newest(folder: Path) -> Path | None:
    """The checkpoint with the most steps."""
    return max(folder.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]), default=None)


def train(folder: Path, kill_after: int | None = None) -> None:
    """Train to the end, from the newest checkpoint if there is one."""
    checkpoints = ModelCheckpoint(folder, "{step}", every_n_train_steps=SAVE_EVERY, save_top_k=-1)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        callbacks=[checkpoints, Report(folder / "steps.jsonl", kill_after)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    torch.manual_seed(0)
    model = Line()
    with make_pipeline().loader(seed=1) as loader:
        trainer.fit(model, loader.torch(), ckpt_path=newest(folder))
    (folder / "model.json").write_text(json.dumps([one.item() for one in model.parameters()]))


def printed_to(folder: Path) -> Path:
    """The file with what the processes that trained in `folder` have printed."""
    return folder.with_suffix(".log")


def train_apart(folder: Path, kill_after: int | None) -> None:
    """What a process of its own does; it prints into a file, since Lightning prints much."""
    with printed_to(folder).open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    warnings.simplefilter("default")  # Lightning's own, also where the caller makes errors of warnings
    train(folder, kill_after)


def run(folder: Path, kill_after: int | None = None) -> list[dict[str, Any]]:
    """Train in a process of its own; the steps it made."""
    # Forked, since the import of Lightning takes seconds. This process has made no tensor and no loader.
    process = multiprocessing.get_context("fork").Process(target=train_apart, args=(folder, kill_after))
    process.start()
    process.join()
    wanted = 0 if kill_after is None else -signal.SIGKILL
    if process.exitcode != wanted:
        raise RuntimeError(
            f"the training ended with {process.exitcode} instead of {wanted}:\n{printed_to(folder).read_text()}"
        )
    log = folder / "steps.jsonl"
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    log.unlink()
    return steps


def demonstrate() -> Summary:
    """Train without a kill, then with two, and compare every step."""
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        whole.mkdir()
        killed.mkdir()
        golden = run(whole)
        runs = [run(killed, kill_after) for kill_after in (*KILLS, None)]
        models = [json.loads((one / "model.json").read_text()) for one in (whole, killed)]
    for steps in runs:
        print(f"a run made the steps {steps[0]['step']} to {steps[-1]['step']}")
    same_steps = all(steps == golden[steps[0]["step"] - 1 : steps[-1]["step"]] for steps in runs)
    same_model = models[0] == models[1]
    print(f"{len(KILLS)} kills; the same samples and losses: {same_steps}; the same model: {same_model}")
    return Summary(
        kills=len(KILLS),
        first_steps=[steps[0]["step"] for steps in runs],
        steps=runs[-1][-1]["step"],
        same_steps=same_steps,
        same_model=same_model,
        losses=[step["loss"] for step in golden],
    )


def main(arguments: list[str] | None = None) -> Summary | None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--train", metavar="FOLDER", type=Path, help="train, and keep the checkpoints there")
    parser.add_argument("--kill-after", metavar="STEP", type=int, help="kill the process after this step")
    given = parser.parse_args(arguments)
    if given.train is None:
        return demonstrate()
    given.train.mkdir(parents=True, exist_ok=True)
    train(given.train, given.kill_after)
    return None


if __name__ == "__main__":
    main()
