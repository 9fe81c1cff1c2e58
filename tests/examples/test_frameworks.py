"""Examples that train with torch, JAX and Lightning, as they are: they learn, and what they say is so."""

from statistics import mean

import pytest
from tests.examples.test_examples import call_main

pytestmark = pytest.mark.integrations


def test_the_flow_of_torch_images():
    pytest.importorskip("torch")
    found = call_main("torch_images")
    assert found["classes"] == ["circle", "square", "triangle"]
    assert (found["steps"], found["tested"]) == (8 * 10, 48)  # 192 of 240 images, in batches of 20, eight times
    assert mean(found["losses"][-10:]) < 0.5 * mean(found["losses"][:10])
    assert found["accuracy"] > 0.8


def test_the_flow_of_packed_text():
    pytest.importorskip("torch")
    found = call_main("packed_text")
    assert found["padding_packed"] < 0.01
    assert found["padding_batched"] > 0.2
    # A model that has learned nothing has log(28), 3.3.
    assert found["losses"][0] > 2.5
    assert mean(found["losses"][-10:]) < 0.8
    assert found["continued"].startswith("the horse ")


def test_the_flow_of_jax_training():
    pytest.importorskip("jax")
    found = call_main("jax_training")
    assert (found["steps"], found["compiled"]) == (40 * 15, 1)
    assert len(found["devices"]) == 1
    assert found["losses"][0] > 0.5
    assert found["accuracy"] > 0.95


def test_the_flow_of_lightning_resume():
    pytest.importorskip("lightning")
    found = call_main("lightning_resume")
    # A checkpoint after every fifth step; killed after steps 8 and 23.
    assert (found["kills"], found["first_steps"], found["steps"]) == (2, [1, 6, 21], 36)
    assert found["same_steps"]
    assert found["same_model"]
    assert found["losses"][-1] < 0.1 * found["losses"][0]
