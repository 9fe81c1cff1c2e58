"""Train a small network in JAX on two spirals.

`loader.jax()` puts the next batches on the device while the step runs. `drop_last=True` gives all batches one
shape, so `jax.jit` compiles the step once. The rotation of each point is new in every epoch, and the same
in every run.

    python examples/jax_training.py
"""

from __future__ import annotations

from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

import penstock as ps

POINTS = 1_000
BATCH = 64
EPOCHS = 40
WIDTH = 32

Array = npt.NDArray[np.float32]
Model = list[tuple[jax.Array, jax.Array]]

#: how often jax.jit has compiled the step
compiled = 0


class Summary(TypedDict):
    """What ``main`` returns."""

    steps: int
    losses: list[float]
    compiled: int
    devices: list[str]
    accuracy: float


def spirals(n: int, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Points of two spirals that are wound around each other, and which spiral each is on."""
    rng = np.random.default_rng(seed)
    label = np.arange(n) % 2
    turn = rng.uniform(0.3, 1.0, n)
    angle = 2 * np.pi * turn + np.pi * label
    point = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1)
    return {"x": point.astype(np.float32), "y": label.astype(np.int32)}


def rotate(point: Array, rng: np.random.Generator) -> Array:
    """Turn a point a little around the middle."""
    angle = rng.normal(0, 0.05)
    cos, sin = np.cos(angle), np.sin(angle)
    turned: Array = (np.array([[cos, -sin], [sin, cos]]) @ point).astype(np.float32)
    return turned


def make_model() -> Model:
    widths = [2, WIDTH, WIDTH, 2]
    keys = jax.random.split(jax.random.key(0), len(widths) - 1)
    return [
        (jax.random.normal(key, (before, after)) * (2 / before) ** 0.5, jnp.zeros(after))
        for key, before, after in zip(keys, widths, widths[1:], strict=False)
    ]


def scores(model: Model, x: jax.Array) -> jax.Array:
    for weights, offset in model[:-1]:
        x = jax.nn.relu(x @ weights + offset)
    weights, offset = model[-1]
    return x @ weights + offset


@jax.jit
def step(model: Model, batch: dict[str, jax.Array]) -> tuple[Model, jax.Array]:
    """One step of gradient descent, and the loss before it."""
    global compiled
    compiled += 1  # Python runs this line only while JAX compiles

    def loss_of(model: Model) -> jax.Array:
        chances = jax.nn.log_softmax(scores(model, batch["x"]))
        return -jnp.take_along_axis(chances, batch["y"][:, None], axis=1).mean()

    loss, slopes = jax.value_and_grad(loss_of)(model)
    return jax.tree.map(lambda value, slope: value - 0.3 * slope, model, slopes), loss


def main() -> Summary:
    data = (
        ps.from_arrays(spirals(POINTS, seed=1))
        .shuffle()
        .map(rotate, key="x", rng=True)
        .batch(BATCH, drop_last=True)
    )
    model = make_model()
    losses: list[float] = []
    devices: set[str] = set()
    with data.loader(seed=1, epochs=EPOCHS) as loader:
        batches = loader.jax()
        for epoch in range(EPOCHS):
            for batch in batches:
                model, loss = step(model, batch)
                losses.append(float(loss))
                devices |= {device.platform for device in batch["x"].devices()}
            if epoch % 10 == 9:
                print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    test = spirals(400, seed=2)
    accuracy = float((scores(model, jnp.asarray(test["x"])).argmax(axis=1) == test["y"]).mean())
    print(f"{len(losses)} steps, compiled {compiled} time(s), {accuracy:.0%} of new points right")
    return Summary(steps=len(losses), losses=losses, compiled=compiled, devices=sorted(devices), accuracy=accuracy)


if __name__ == "__main__":
    main()
