"""Train on a folder of images: the script that most users write first.

A folder with a folder for each class -> shuffle -> decode -> augment -> batch -> two epochs. Threads decode and
augment while the training step runs. The model is one layer on the mean colours of 4 x 4 fields, which is enough to
tell the three classes of JPEGs apart that the script makes for itself with Pillow.

    python examples/image_folder.py              # makes a folder of its own
    python examples/image_folder.py FOLDER       # uses yours: FOLDER/cat/1.jpg, FOLDER/dog/2.jpg, ...
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from PIL import Image

import penstock as ps

COLOURS = {"blue": (40, 60, 200), "green": (50, 180, 60), "red": (200, 50, 40)}
IMAGES = 60
BATCH = 32
EPOCHS = 2
SIDE = 32

Array = npt.NDArray[np.float32]


class Summary(TypedDict):
    """What ``main`` returns."""

    classes: list[str]
    steps: int
    images: int
    augmented_anew: bool
    accuracy: float


def make_images(folder: Path) -> None:
    """A folder for each class, with JPEGs of many sizes: its colour, and noise."""
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(IMAGES):
            height, width = rng.integers(40, 120, 2)
            pixels = np.clip(np.array(colour) + rng.normal(0, 60, (height, width, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number:03}.jpg", quality=90)


def training_data(folder: Path) -> ps.Pipeline[Any]:
    return (
        ps.from_folder(folder)
        .shuffle()
        .map(ps.decode_image(size=SIDE), key="image", workers=2)
        .map(ps.image.random_resized_crop(SIDE, scale=(0.3, 1.0)), key="image", rng=True)
        .map(ps.image.flip(), key="image", rng=True)
        .map(ps.image.normalize(), key="image")
        .batch(BATCH)
    )


def test_data(folder: Path) -> ps.Pipeline[Any]:
    return (
        ps.from_folder(folder)
        .map(ps.decode_image(size=SIDE), key="image", workers=2)
        .map(ps.image.resize(SIDE), key="image")
        .map(ps.image.center_crop(SIDE), key="image")
        .map(ps.image.normalize(), key="image")
        .batch(BATCH)
    )


def features(images: Array) -> Array:
    """Mean colours of 4 x 4 fields."""
    fields = images.reshape(len(images), 4, SIDE // 4, 4, SIDE // 4, 3).mean(axis=(2, 4), dtype=np.float32)
    flat: Array = fields.reshape(len(images), -1)
    return flat


def step(weights: Array, images: Array, labels: npt.NDArray[np.int64]) -> None:
    """One step of softmax regression, in place."""
    x = features(images)
    scores = x @ weights
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    weights -= 0.1 * x.T @ chances / len(labels)


def train(folder: Path) -> Summary:
    data = training_data(folder)
    classes: list[str] = data.source.classes  # type: ignore[attr-defined]
    weights = np.zeros((4 * 4 * 3, len(classes)), np.float32)
    steps = 0
    first_images: list[Array] = []
    seen: set[str] = set()
    with data.loader(seed=1, epochs=EPOCHS) as loader:
        for epoch, batches in loader.epochs(EPOCHS):
            for batch in batches:
                step(weights, batch["image"], batch["label"])
                steps += 1
                seen.update(batch["path"])
                first_images += [batch["image"][0]] if len(first_images) == epoch else []
            print(f"epoch {epoch}: {steps} steps so far")

    def accuracy(batch: Any) -> float:
        guesses = (features(batch["image"]) @ weights).argmax(axis=1)
        return float((guesses == batch["label"]).mean())

    right = ps.evaluate(test_data(folder), accuracy)
    print(f"{len(seen)} images of the classes {', '.join(classes)}: {right:.0%} right")
    return Summary(
        classes=classes,
        steps=steps,
        images=len(seen),
        augmented_anew=not np.array_equal(first_images[0], first_images[1]),
        accuracy=right,
    )


def main() -> Summary:
    if len(sys.argv) > 1:
        return train(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder))
        return train(Path(folder))


if __name__ == "__main__":
    main()
