"""JAX on several devices, and Keras, with a loader.

Devices and backend are chosen before the import: in processes.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.integrations

JAX = """
import json
import jax, numpy as np, penstock as ps

x = np.arange(64, dtype=np.float32)[:, None]
data = ps.from_arrays({"x": x / 64, "y": 3 * x / 64 + 1}).shuffle().batch(8)
mesh = jax.make_mesh((4,), ("data",))
spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

@jax.jit
def step(state, batch):
    def loss(state):
        return ((batch["x"] * state[0] + state[1] - batch["y"]) ** 2).mean()
    return jax.tree.map(lambda p, g: p - 0.5 * g, state, jax.grad(loss)(state))

def epochs(loader, n, state):
    seen = []
    for _ in range(n):
        seen.append([])
        for batch in loader:
            assert len(batch["x"].sharding.device_set) == 4
            seen[-1].append(np.asarray(batch["x"]).ravel().tolist())
            # XLA's devices on a CPU share a few threads: with several steps under way, the parts of one all-reduce
            # may wait for a thread for ever. On two busy cores a loop without penstock did so in 8 of 24 runs.
            state = jax.block_until_ready(step(state, batch))
    return seen, state

out = {"devices": jax.device_count()}
with data.loader(seed=1) as loader:
    seen, state = epochs(loader.jax(sharding=spread), 40, (0.0, 0.0))
    out["learned"] = [float(p) for p in state]
with data.to(spread).loader(seed=1) as loader:
    out["same"] = epochs(loader, 2, (0.0, 0.0))[0] == seen[:2]
out["once"] = all(sorted(sum(epoch, [])) == sorted((x / 64).ravel().tolist()) for epoch in seen)
out["new_order"] = seen[0] != seen[1]
with data.loader(seed=1) as loader:
    ours = loader.jax(sharding=spread)
    batches = iter(ours)
    for number in range(8):
        next(batches)
        saved = ours.state_dict()
        with data.loader(seed=1, state=saved) as again:
            rest = [np.asarray(batch["x"]).ravel().tolist() for batch in again.jax()]
        assert rest == (seen[0][number + 1 :] or seen[1]), number
try:
    list(ps.from_arrays(x[:13]).batch(8).loader(inline=True).jax(sharding=spread))
except ValueError as exc:
    out["short"] = exc.__notes__[-1]
print(json.dumps(out))
"""

KERAS = """
import json
import keras, numpy as np, penstock as ps

x = np.linspace(-1, 1, 64, dtype=np.float32)[:, None]
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.5), loss="mse")
epochs = []
def noted(dataset):
    # what Keras gets of each epoch
    class Noted(type(dataset)):
        def __getitem__(self, number):
            batch = super().__getitem__(number)
            epochs[-1] += batch[0].ravel().tolist()
            return batch
        def on_epoch_begin(self):
            super().on_epoch_begin()
            epochs.append([])
    dataset.__class__ = Noted
    return dataset

with ps.from_arrays(x, 3 * x + 1).shuffle().batch(8).loader(epochs=6) as loader:
    history = model.fit(noted(loader.keras()), epochs=5, verbose=0)
    evaluated = model.evaluate(noted(loader.keras()), verbose=0)
    last = loader.epoch
look = epochs.pop(0)                          # Keras builds the model with one batch
assert look == epochs[0][:8], (look, epochs[0])
print(json.dumps({
    "once": all(sorted(epoch) == sorted(x.ravel().tolist()) for epoch in epochs),
    "new_order": epochs[0] != epochs[1],
    "epochs": len(epochs),
    "last": last,
    "loss": history.history["loss"][-1],
    "evaluated": float(evaluated),
}))
"""


def run(script, tmp_path, **environment):
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_jax_trains_on_four_devices_and_resumes_where_the_loop_stood(tmp_path):
    pytest.importorskip("jax")
    found = run(JAX, tmp_path, XLA_FLAGS="--xla_force_host_platform_device_count=4", JAX_PLATFORMS="cpu")
    assert (found["devices"], found["same"], found["once"], found["new_order"]) == (4, True, True, True)
    assert "drop_last=True" in found["short"]
    slope, offset = found["learned"]
    assert abs(slope - 3) < 0.1
    assert abs(offset - 1) < 0.1


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras_fits_on_a_new_order_in_each_epoch(backend, tmp_path):
    for name in ("keras", backend):  # keras is not imported here: it takes the backend that it finds first
        if find_spec(name) is None:
            pytest.skip(f"no {name}")
    found = run(KERAS, tmp_path, KERAS_BACKEND=backend, JAX_PLATFORMS="cpu", KERAS_HOME=str(tmp_path))
    assert (found["once"], found["new_order"], found["epochs"], found["last"]) == (True, True, 6, 5)
    assert found["loss"] < 0.01
    assert found["evaluated"] < 0.01
