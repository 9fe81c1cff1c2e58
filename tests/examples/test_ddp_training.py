"""Two ranks of torch.distributed read each sample once, and end with the same model."""

import pytest
from tests.examples.test_examples import call_main


@pytest.mark.integrations
def test_two_ranks_read_each_sample_once():
    pytest.importorskip("torch")
    found = call_main("ddp_training")
    assert (found["once"], found["alike"], found["new_order"]) == (True, True, True)
    assert found["steps"] == [16, 16]
    slope, offset = found["weights"]
    assert abs(slope - 3) < 0.5
    assert abs(offset - 1) < 0.1
