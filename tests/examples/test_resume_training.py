"""Training that is killed goes on with the very batches that a run without kills has."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests import nursery

EXAMPLE = Path(__file__).parents[2] / "examples" / "resume_training.py"
#: the supervisors; each starts one process after the other
AT_ONCE = 2
STEPS = 40


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("resume_training", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unharmed(example, folder, count):
    """All steps of a run without kills, and its model."""
    log = []
    weights = example.train(folder, count, log.append)
    return [line for line in log if line.startswith("step ")], weights.tolist()


@pytest.fixture(scope="module")
def golden(example, tmp_path_factory):
    return unharmed(example, tmp_path_factory.mktemp("golden"), STEPS)


def checkpoint(folder):
    return json.loads((folder / "checkpoint.json").read_text())


def test_the_demonstration_ends_with_the_same_model_after_two_kills(example, capfd):
    found = example.main(["--kills", "2", "--steps", "60"])
    assert (found["kills"], found["steps"], found["same_model"]) == (2, 60, True)
    # A kill takes back no more than what is done between two saves.
    assert 0 <= found["steps_done_again"] <= 2 * example.SAVE_EVERY
    assert "2 kills" in capfd.readouterr().out


@pytest.mark.soak
def test_fifty_kills_change_neither_a_step_nor_the_model(example, tmp_path):
    kills, count = 50, 320
    steps, weights = unharmed(example, tmp_path, count)
    folders = [tmp_path / str(number) for number in range(AT_ONCE)]

    def kill(number):
        folders[number].mkdir()
        return example.kill_and_compare(folders[number], steps, count, kills // AT_ONCE, lambda line: None, number)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        lives = list(pool.map(kill, range(AT_ONCE)))

    assert sum(life.killed for one in lives for life in one) == kills
    assert [checkpoint(folder)["weights"] for folder in folders] == [weights] * AT_ONCE
    ends = [life.end for one in lives for life in one]
    assert "killed before the first step" in ends
    assert any(end.startswith("killed behind step") for end in ends)
    assert len({life.log[0] for one in lives for life in one if life.log}) > 10


def test_the_run_without_kills_has_what_makes_it_hard(example, tmp_path):
    steps, _ = unharmed(example, tmp_path, 160)
    with example.make_pipeline().loader(seed=1) as loader:
        batches = list(loader)
        failed = [record.index for record in loader.errors()]
    assert sorted(failed) == list(range(5, example.SAMPLES, 97))
    assert sum(len(batch["y"]) for batch in batches) < example.SAMPLES - len(failed)
    assert {line.split()[3] for line in steps} >= {"0", "1", "2"}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_kill_while_saving_leaves_the_checkpoint_before(example, golden, tmp_path, call):
    kept = example.train(tmp_path, example.SAVE_EVERY, lambda line: None).tolist()
    program = f"""
import os, pathlib, signal, resume_training
os.{call} = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
resume_training.train(pathlib.Path({str(tmp_path)!r}), {STEPS}, lambda line: None)
"""
    ended = nursery.run(program, cwd=EXAMPLE.parent)
    assert ended.returncode == -signal.SIGKILL
    assert (checkpoint(tmp_path)["step"], checkpoint(tmp_path)["weights"]) == (example.SAVE_EVERY, kept)

    log = []
    assert example.train(tmp_path, STEPS, log.append).tolist() == golden[1]
    assert [line for line in log if line.startswith("step ")] == golden[0][example.SAVE_EVERY :]


def test_a_step_that_differs_is_noticed(example, golden, tmp_path):
    steps = [*golden[0][:25], golden[0][25] + "0"]
    with pytest.raises(AssertionError, match="from step 0 on, differs"):
        example.kill_and_compare(tmp_path, steps, len(steps), 0, lambda line: None)


def test_a_training_that_fails_is_told(example, tmp_path, capfd):
    (tmp_path / "checkpoint.json").write_text("{")
    with pytest.raises(RuntimeError, match="exit code 1"):
        example.live(tmp_path, STEPS, None)
    assert "JSONDecodeError" in capfd.readouterr().err


def test_ctrl_c_ends_the_demonstration_and_leaves_nothing(tmp_path):
    command = [sys.executable, str(EXAMPLE), "--kills", "10", "--steps", "40"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as demo:
        for line in demo.stdout:
            if line.startswith("run 1:"):
                break
        demo.send_signal(signal.SIGINT)
        _, told = demo.communicate()
    assert (demo.returncode, told) == (130, "stopped\n")
    assert list(tmp_path.iterdir()) == []
    if Path("/proc/self/cmdline").exists():
        commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert not [one for one in commands if str(tmp_path).encode() in one]
