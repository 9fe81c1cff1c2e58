"""Training that is killed again and again, and ends with the model of a run that never was.

Every ten steps the model and the state of the loader are saved together, and a run that finds such a file goes
on from there. The pipeline has what makes that hard: a random order, reads that fail once and succeed when tried
again, samples that are left out, random augmentation, and a window of shuffled samples.

    python examples/resume_training.py                   # a demonstration: trains, kills, compares
    python examples/resume_training.py --kills 50
    python examples/resume_training.py --train FOLDER    # just the training; stop it, and start it again
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

import penstock as ps

SAMPLES = 1000
FEATURES = 8
BATCH = 16
SAVE_EVERY = 10

Array = npt.NDArray[np.float64]
Row = dict[str, Array]

# ---------------------------------------------------------------------- the data

_tried: set[tuple[int, int]] = set()


def fetch(row: Row, info: ps.SampleInfo) -> Row:
    """Stands for a read from storage: every seventh fails at first, and some rows cannot be read at all."""
    if info.index % 97 == 5:
        raise OSError("this row is damaged")
    if info.index % 7 == 3 and (info.epoch, info.index) not in _tried:
        _tried.add((info.epoch, info.index))
        raise ConnectionError("try again")
    return row


def is_usual(row: Row) -> bool:
    return bool(abs(row["y"]) < 4)


def jitter(x: Array, rng: np.random.Generator) -> Array:
    return x + 0.01 * rng.standard_normal(FEATURES)


def make_pipeline() -> ps.Pipeline[Row]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, FEATURES))
    y = x @ np.arange(FEATURES) / 4 + 0.1 * rng.standard_normal(SAMPLES)
    return (
        ps.from_arrays({"x": x, "y": y})
        .shuffle()
        .map(fetch, info=True, workers=2, on_error=ps.Retry(times=1, backoff_s=0.001, then="skip"))
        .filter(is_usual)
        .map(jitter, key="x", rng=True)
        .shuffle(window=50)
        .batch(BATCH)
    )


# ---------------------------------------------------------------------- the training


def train(folder: Path, steps: int, say: Callable[[str], None]) -> Array:
    """Train up to step number `steps`, from wherever the last run in this folder was ended."""
    checkpoint = folder / "checkpoint.json"
    first, weights, state = 0, np.zeros(FEATURES), None
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        first, weights, state = saved["step"], np.array(saved["weights"]), saved["loader"]
    say(f"begin at step {first}")
    with make_pipeline().loader(seed=1, state=state) as loader:
        for step, batch in loader.steps(steps - first):
            say(f"step {step} epoch {loader.epoch} batch {loader.batch_index} {digest(batch)}")
            weights = weights - 0.05 * batch["x"].T @ (batch["x"] @ weights - batch["y"]) / len(batch["y"])
            done = step + 1
            if done % SAVE_EVERY == 0 or done == steps:
                say(f"save {step}")
                # One file for both: a model and a loader that were saved at different steps do not fit together.
                save(checkpoint, {"step": done, "weights": weights.tolist(), "loader": loader.state_dict()})
                say(f"saved {step}")
    return weights


def save(path: Path, content: Any) -> None:
    """Replace the file at once: whoever is killed in here leaves the old one or the new one, and both are whole."""
    beside = path.with_suffix(".new")
    with beside.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def digest(batch: Row) -> str:
    return hashlib.blake2b(batch["x"].tobytes() + batch["y"].tobytes(), digest_size=8).hexdigest()


# ---------------------------------------------------------------------- the demonstration


class Moment(NamedTuple):
    """When a run is killed."""

    #: after so many lines of its log
    lines: int
    #: and not before it begins to save
    at_save: bool
    #: and after so many seconds
    wait_s: float

    @classmethod
    def draw(cls, rng: random.Random) -> Moment:
        if rng.random() < 0.2:
            return cls(0, False, rng.uniform(0, 0.5))  # while it starts
        return cls(rng.randrange(1, 20), rng.random() < 0.3, rng.choice([0, rng.uniform(0, 0.03)]))

    def has_come(self, log: list[str]) -> bool:
        return len(log) >= self.lines and (not self.at_save or log[-1].startswith("save "))


class Life(NamedTuple):
    """One run of the training, from its start to its end or its death."""

    log: list[str]
    killed: bool

    @property
    def end(self) -> str:
        """How far it came, in words."""
        if not self.killed:
            return "to the end"
        if len(self.log) < 2:
            return "killed before the first step"
        kind, number = self.log[-1].split()[:2]
        return f"killed {'while saving' if kind == 'save' else 'behind'} step {number}"


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until what is in here is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def live(folder: Path, steps: int, moment: Moment | None) -> Life:
    """Train in a process of its own; kill it when the moment has come."""
    command = [sys.executable, __file__, "--train", str(folder), "--steps", str(steps)]
    log: list[str] = []
    child = None
    try:
        with uninterrupted():
            # In a session of its own: Ctrl-C is for this process, which then ends the other.
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert child.stdout is not None
        while True:
            if moment is not None and moment.has_come(log):
                time.sleep(moment.wait_s)
                child.kill()
                moment = None
            line = child.stdout.readline()
            if not line:
                break
            log.append(line.strip())
    finally:
        if child is not None:
            child.kill()
            child.communicate()
    if child.returncode > 0:
        raise RuntimeError(f"the training failed with exit code {child.returncode}")
    return Life(log, child.returncode < 0)


def first_step(life: Life, saved: set[int]) -> int | None:
    """Where a run began; it must be where one before it has saved."""
    if not life.log:
        return None
    first = int(life.log[0].removeprefix("begin at step "))
    if first not in saved:
        raise AssertionError(f"began at step {first}, but saved were {sorted(saved)}")
    return first


def kill_and_compare(
    folder: Path, golden: list[str], steps: int, kills: int, say: Callable[[str], None], seed: int = 0
) -> list[Life]:
    """Kill the training so many times, then let it end. All steps of all runs must be those of the golden one."""
    rng = random.Random(seed)
    lives: list[Life] = []
    #: what the next run may begin with: what was saved last, or was being saved at the kill
    saved = {0}
    while not lives or lives[-1].killed:
        life = live(folder, steps, Moment.draw(rng) if len(lives) < kills else None)
        lives.append(life)
        first = first_step(life, saved)
        if first is not None:
            saved = {first}
            found = [line for line in life.log if line.startswith("step ")]
            if found != golden[first : first + len(found)]:
                raise AssertionError(f"run {len(lives)}, from step {first} on, differs from the run without kills")
            for line in life.log:
                kind, number = line.split()[:2]
                if kind == "save":
                    saved.add(int(number) + 1)
                elif kind == "saved":
                    saved = {int(number) + 1}
        began = "not begun" if first is None else f"from step {first}"
        say(f"run {len(lives)}: {began}, {life.end}; every step as it should be")
    return lives


def tell(line: str) -> None:
    print(line, flush=True)


class Summary(TypedDict):
    """What ``main`` returns."""

    kills: int
    steps: int
    steps_done_again: int
    same_model: bool


def demonstrate(kills: int, steps: int) -> Summary:
    """Train without a kill; then with many; compare."""
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        whole.mkdir()
        killed.mkdir()
        log: list[str] = []
        weights = train(whole, steps, log.append)
        golden = [line for line in log if line.startswith("step ")]
        tell(f"{steps} steps without a kill: the model is {weights.round(2).tolist()}")
        lives = kill_and_compare(killed, golden, steps, kills, tell)
        found = json.loads((killed / "checkpoint.json").read_text())["weights"]
    done = sum(line.startswith("step ") for life in lives for line in life.log)
    summary = Summary(
        kills=sum(life.killed for life in lives),
        steps=steps,
        steps_done_again=done - steps,
        same_model=found == weights.tolist(),
    )
    told = "the same, bit for bit" if summary["same_model"] else f"ANOTHER: {found}"
    tell(f"{summary['kills']} kills, {summary['steps_done_again']} steps done again; the model is {told}")
    return summary


def main(arguments: list[str] | None = None) -> Summary | None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--train", metavar="FOLDER", type=Path, help="train, and keep the checkpoint there")
    parser.add_argument("--steps", type=int, default=200, help="how many steps the training has (200)")
    parser.add_argument("--kills", type=int, default=5, help="how often it is killed (5)")
    given = parser.parse_args(arguments)
    if given.train is None:
        return demonstrate(given.kills, max(given.steps, 12 * given.kills))
    given.train.mkdir(parents=True, exist_ok=True)
    train(given.train, given.steps, tell)
    return None


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
