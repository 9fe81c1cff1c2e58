"""Train a small language model on packed rows: no padding, and no attention from one sentence to another.

Sentences of 15 to 70 characters are packed into rows of 128. `segment` says which sentence each character of a row
belongs to, and `position` where in its sentence it is. From these the model makes its attention mask, its position
embedding and the characters that it must predict.

    python examples/packed_text.py
"""

from __future__ import annotations

import random
from typing import Any, TypedDict

import numpy as np
import torch
from torch import nn

import penstock as ps

SENTENCES = 1_000
ROW = 128
BATCH = 8
EPOCHS = 3
WIDTH = 32
END = 0
LETTERS = " abcdefghijklmnopqrstuvwxyz"


class Summary(TypedDict):
    """What ``main`` returns."""

    steps: int
    losses: list[float]
    padding_packed: float
    padding_batched: float
    continued: str


def write_sentences() -> list[str]:
    rng = random.Random(0)
    nouns = ["cat", "dog", "horse", "small bird", "old tree"]
    verbs = ["sees", "likes", "hears", "follows"]

    def sentence() -> str:
        clauses = [
            f"the {rng.choice(nouns)} {rng.choice(verbs)} the {rng.choice(nouns)}" for _ in range(rng.randint(1, 2))
        ]
        return " and ".join(clauses)

    return [sentence() for _ in range(SENTENCES)]


def encode(text: str) -> dict[str, Any]:
    """One number for each character; 0 ends a sentence."""
    return {"ids": np.array([1 + LETTERS.index(letter) for letter in text], np.int64)}


class Model(nn.Module):
    """One layer of attention over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(1 + len(LETTERS), WIDTH)
        self.positions = nn.Embedding(ROW, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.scores = nn.Linear(WIDTH, 1 + len(LETTERS))

    def forward(self, ids: Any, segment: Any, position: Any) -> Any:
        before = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        seen = before & (segment[:, :, None] == segment[:, None, :])
        hidden = self.letters(ids) + self.positions(position)
        hidden = self.layer(hidden, src_mask=~seen.repeat_interleave(2, dim=0))  # one mask for each of two heads
        return self.scores(hidden)


def loss_of(model: Model, row: dict[str, Any]) -> Any:
    """How badly each character predicts the next one of its own sentence."""
    ids, segment = row["ids"], row["segment"]
    scores = model(ids, segment, row["position"])[:, :-1]
    counted = (segment[:, :-1] == segment[:, 1:]) & (segment[:, 1:] > 0)
    return nn.functional.cross_entropy(scores[counted], ids[:, 1:][counted])


def padding(batches: ps.Pipeline[Any]) -> float:
    """The share of an epoch's characters that is padding."""
    used = total = 0
    for batch in batches:
        total += batch["ids"].size
        used += int(batch["ids_length"].sum() if "ids_length" in batch else np.count_nonzero(batch["segment"]))
    return 1 - used / total


def continued(model: Model, text: str) -> str:
    """The text, and what the model finds most likely after it."""
    ids = encode(text)["ids"].tolist()
    with torch.inference_mode():
        while len(ids) < 70 and ids[-1] != END:
            row = torch.tensor([ids])
            scores = model(row, torch.ones_like(row), torch.arange(len(ids))[None])
            ids.append(int(scores[0, -1].argmax()))
    return "".join(LETTERS[number - 1] for number in ids if number != END)


def main() -> Summary:
    torch.set_num_threads(1)  # the model is too small for more
    torch.manual_seed(0)
    sentences = ps.from_sequence(write_sentences()).map(encode).shuffle()
    rows = sentences.pack(ROW, key="ids", eos=END).batch(BATCH)
    shares = padding(rows), padding(sentences.batch(BATCH, pad=END))
    print(f"padding: {shares[0]:.1%} of packed rows; {shares[1]:.0%} of rows with one sentence each")

    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses: list[float] = []
    with rows.to("cpu").loader(seed=1, epochs=EPOCHS) as loader:
        for epoch, batches in loader.epochs():
            for batch in batches:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    text = continued(model, "the ho")
    print(f"the model continues 'the ho': {text}")
    return Summary(
        steps=len(losses), losses=losses, padding_packed=shares[0], padding_batched=shares[1], continued=text
    )


if __name__ == "__main__":
    main()
