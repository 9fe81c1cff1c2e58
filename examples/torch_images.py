"""Train a small convolutional network in torch on a folder of images.

The script draws the folder itself: circles, squares and triangles of any size, place and colour. Threads decode and
augment the images while torch computes the step before; `split` keeps a fifth of the images for testing, and
`.to(DEVICE)` makes tensors, on the GPU if there is one.

    python examples/torch_images.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

import penstock as ps

SHAPES = ("circle", "square", "triangle")
IMAGES = 80
SIDE = 32
BATCH = 20
EPOCHS = 8
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Summary(TypedDict):
    """What ``main`` returns."""

    classes: list[str]
    steps: int
    losses: list[float]
    tested: int
    accuracy: float


def draw_images(folder: Path) -> None:
    """A folder for each shape, with PNGs of many sizes."""
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        (folder / shape).mkdir()
        for number in range(IMAGES):
            size, light = int(rng.integers(40, 80)), int(rng.integers(150, 256))
            image = Image.new("RGB", (size, size), (light, light, light))
            corner = rng.uniform(0.1, 0.3, 2) * size
            box = [*corner, *(corner + rng.uniform(0.4, 0.6) * size)]
            colour = tuple(rng.integers(0, 120, 3).tolist())
            pen = ImageDraw.Draw(image)
            if shape == "circle":
                pen.ellipse(box, fill=colour)
            elif shape == "square":
                pen.rectangle(box, fill=colour)
            else:
                pen.polygon([(box[0], box[3]), (box[2], box[3]), ((box[0] + box[2]) / 2, box[1])], fill=colour)
            image.save(folder / shape / f"{number:03}.png")


def to_channels_first(image: Any) -> Any:
    """Height, width, channels -> the channels first, as torch has it."""
    return np.ascontiguousarray(image.transpose(2, 0, 1))


def batches(images: ps.Pipeline[Any], train: bool) -> ps.Pipeline[Any]:
    """Decode and batch. Images for training come in a new order in each epoch, half of them mirrored."""
    data = images.shuffle() if train else images
    data = data.map(ps.decode_image(), key="image", workers=2).map(ps.image.resize((SIDE, SIDE)), key="image")
    if train:
        data = data.map(ps.image.flip(), key="image", rng=True)
    data = data.map(ps.image.normalize(), key="image").map(to_channels_first, key="image")
    return data.batch(BATCH).to(DEVICE)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (SIDE // 4) ** 2, len(SHAPES)),
    ).to(DEVICE)


def main() -> Summary:
    # A step this small gains nothing from more threads, and the decoding threads need the cores.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        draw_images(Path(folder))
        images = ps.from_folder(folder)
        classes: list[str] = images.source.classes  # type: ignore[attr-defined]
        training, test = images.split([0.8, 0.2])

        model = make_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
        losses: list[float] = []
        with batches(training, train=True).loader(seed=1, epochs=EPOCHS) as loader:
            for epoch, epoch_batches in loader.epochs():
                for batch in epoch_batches:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                print(f"epoch {epoch}: loss {losses[-1]:.3f}")

        right = tested = 0
        with torch.inference_mode(), batches(test, train=False).loader(epochs=1) as loader:
            for batch in loader:
                right += int((model(batch["image"]).argmax(dim=1) == batch["label"]).sum())
                tested += len(batch["label"])
    print(f"{right} of {tested} test images right")
    return Summary(classes=classes, steps=len(losses), losses=losses, tested=tested, accuracy=right / tested)


if __name__ == "__main__":
    main()
