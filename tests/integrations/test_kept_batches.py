"""A batch that torch or JAX keeps stays as it was, while a thousand others go through the same memory."""

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.integrations


def full(number):
    return np.full((64, 1024), number, np.float32)


@pytest.mark.parametrize(("device", "library"), [("cpu", "torch"), ("jax", "jax"), ("numpy", "numpy")])
def test_a_kept_batch_stays_as_it_was_while_a_thousand_others_pass(device, library):
    pytest.importorskip(library)
    data = ps.from_sequence(range(1101)).map(full, on="process", workers=2).to(device)
    with data.loader() as loader:
        kept = {number: batch for number, batch in enumerate(loader) if number in (3, 50, 100)}
    for number, batch in kept.items():
        assert (np.asarray(batch) == number).all()
