"""Data-parallel training with torch on two processes, each of which reads its own part of the data.

`shard()` takes rank and world from `torch.distributed`. All ranks share one order of the epoch, so that together
they read every sample once, and every rank makes as many steps: none waits for a batch that another does not
have.

    python examples/ddp_training.py        # starts two processes with gloo, and compares what they have seen
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import penstock as ps

SAMPLES = 256
BATCH = 8
EPOCHS = 2


def train(rank: int, world: int, meeting: str) -> dict[str, Any]:
    """What one rank does: train, and say which samples it has seen."""
    import torch
    from torch import distributed, nn
    from torch.utils.data import TensorDataset, default_collate

    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, SAMPLES)[:, None]
    dataset = TensorDataset(x, 3 * x + 1, torch.arange(SAMPLES))

    data = ps.from_torch(dataset).shuffle().shard().batch(BATCH, collate=default_collate)
    seen: list[list[int]] = []
    with data.loader(seed=1, epochs=EPOCHS) as loader:
        for _, batches in loader.epochs():
            seen.append([])
            for inputs, targets, numbers in batches:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(inputs), targets).backward()
                optimizer.step()
                seen[-1] += numbers.tolist()
    weights = [round(one.item(), 6) for one in model.parameters()]
    distributed.destroy_process_group()
    return {"seen": seen, "weights": weights}


def main() -> dict[str, Any]:
    """Train on two ranks, and compare what they have seen and learned."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder, "meeting"))
        ranks = [
            subprocess.Popen([sys.executable, __file__, str(rank), "2", meeting], stdout=subprocess.PIPE)
            for rank in range(2)
        ]
        found = [json.loads(one.communicate()[0]) for one in ranks]
    once = all(
        sorted(found[0]["seen"][epoch] + found[1]["seen"][epoch]) == list(range(SAMPLES)) for epoch in range(EPOCHS)
    )
    steps = [len(seen) // BATCH for seen in found[0]["seen"]]
    alike = found[0]["weights"] == found[1]["weights"]
    print(f"each sample once in every epoch: {once}; steps per epoch and rank: {steps}; the same model: {alike}")
    new_order = found[0]["seen"][0] != found[0]["seen"][1]
    return {"once": once, "steps": steps, "alike": alike, "new_order": new_order, "weights": found[0]["weights"]}


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else print(json.dumps(train(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
