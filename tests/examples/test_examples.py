"""Every example runs as a user runs it, and does what its docstring says."""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests import nursery
from tests.cases import for_each

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
TIMEOUT_S = 150


def call_main(name: str) -> Any:
    """What ``main()`` returns, from a process of its own: the examples start threads and servers."""
    path = f"import sys; sys.path.append({str(EXAMPLES)!r})"
    with tempfile.TemporaryDirectory() as folder:
        done = nursery.run(f"{path}\nimport json, {name}; print(json.dumps({name}.main()))", cwd=Path(folder))
        assert (done.returncode, done.stderr) == (0, "")
        *said, found = done.stdout.splitlines()
        assert said, "it prints nothing"
        assert os.listdir(folder) == []
    return json.loads(found)


def test_an_example_runs_as_a_script(tmp_path):
    command = [sys.executable, "-W", "error", str(EXAMPLES / "thread_pool_arrays.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@for_each("name", NAMES)
def test_an_example_says_what_it_shows_and_calls_its_main_as_a_script(name):
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    assert len((ast.get_docstring(tree) or "").splitlines()) >= 3
    assert "main" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    last = tree.body[-1]
    assert isinstance(last, ast.If)
    assert ast.unparse(last.test) == "__name__ == '__main__'"
    assert "main()" in ast.unparse(last.body[0])


def test_no_example_is_forgotten():
    files = list(Path(__file__).parent.glob("test_*.py"))
    flows = {name for path in files for name in re.findall(r"^def test_the_flow_of_(\w+)", path.read_text(), re.M)}
    files_of_their_own = {path.stem.removeprefix("test_") for path in files}
    assert set(NAMES) == flows | (files_of_their_own - {"examples", "frameworks"})


def test_the_flow_of_download_decode_batch():
    found = call_main("download_decode_batch")
    assert (found["batches"], found["images"], found["in_order"]) == (6, 96, True)
    # Four groups of eight may be under way at once; one group alone would be eight.
    assert 8 < found["most_requests_at_once"] <= 32


def test_the_flow_of_thread_pool_arrays():
    found = call_main("thread_pool_arrays")
    assert found == {"batches": 7, "last_batch": 16, "labels_seen_once": True, "same_as_serial": True}


def test_the_flow_of_arrays_and_map():
    found = call_main("arrays_and_map")
    assert found["batch_sizes"] == [10] * 8 + [5]
    assert found["each_sample_once"]
    assert found["same_batches"]
    # Nine steps of 20 ms. How much of the augmentation is hidden behind them depends on what else the machine does.
    assert min(found["overlapped_s"], found["inline_s"]) > 9 * 0.02


def test_the_flow_of_batchup_process_pool():
    found = call_main("batchup_process_pool")
    assert (found["batches"], found["last_batch"], found["validated"]) == (5, 44, 100)
    assert found["labels_seen_once"]
    assert found["same_as_threads"]
    assert found["same_as_serial"]
    assert not found["augmented_here"]


def test_the_flow_of_trw_map():
    found = call_main("trw_map")
    assert found["batch_sizes"] == [10] * 8 + [5]
    assert found["same_batches"]
    assert min(found["overlapped_s"], found["in_the_loop_s"]) > 9 * 0.01  # nine steps of 10 ms
    assert found["kept"] == [19] * 5
    assert found["left_out"] == [7] * 5


def test_the_flow_of_image_folder():
    found = call_main("image_folder")
    assert found["classes"] == ["blue", "green", "red"]
    assert (found["steps"], found["images"], found["augmented_anew"]) == (12, 180, True)
    assert found["accuracy"] > 0.95


def test_the_flow_of_two_rates():
    found = call_main("two_rates")
    # 60 batches of 10 out of 30 samples; 180 batches of 40 out of 3000.
    assert (found["labelled_epoch"], found["unlabelled_epoch"]) == (19, 2)
    assert found["same_model"]
    assert found["accuracy"] > 0.95
