"""Joints without a runtime: an input that is a list, and a resume between any two steps."""

import json
from dataclasses import dataclass, field
from typing import Any

from penstock.ops.op import LOST
from penstock.ops.residents import Keeping, Measured


@dataclass
class ListInput:
    """An input that has all its samples; `portion` of them arrive whenever the joint has used up what is there."""

    samples: list[Any]
    #: the places of `samples`
    places: list[int]
    portion: int = 1 << 30
    count: int = 0
    ended: bool = False
    epoch: int = 0
    taken: int = 0

    def more(self) -> None:
        left = len(self.samples) - self.taken - self.count
        self.count += min(self.portion, left)
        self.ended = self.portion > left  # the end may be seen only after the last sample

    def take(self, most: int) -> tuple[list[Any], list[int]]:
        stop = self.taken + min(most, self.count)
        out = self.samples[self.taken : stop], self.places[self.taken : stop]
        self.count -= stop - self.taken
        self.taken = stop
        return out

    def renew(self, epoch: int) -> None:
        raise NotImplementedError


@dataclass
class Run:
    """One run through a joint, in steps of at most `most` groups."""

    joint: Keeping
    source: ListInput
    #: samples of the input that an earlier joint had taken
    before: int = 0
    groups: list[Any] = field(default_factory=list)
    places: list[Any] = field(default_factory=list)

    def step(self, most: int) -> None:
        groups, places = self.joint.step([self.source], most)
        assert len(groups) == len(places) <= most
        assert self.joint.kept == len(self.joint.held)
        assert list(self.joint.held) == sorted(self.joint.held)
        if not groups and not self.joint.ended:
            assert self.joint.lacking([self.source]) == [0]
            self.source.more()
        self.groups += groups
        self.places += places

    def resumed(self, joint: Keeping, lost: Any = ()) -> "Run":
        """The same run in another joint; of the samples that were kept, those at the places `lost` fail."""
        saved = json.loads(json.dumps(self.joint.save()))
        joint.restore(saved)
        assert joint.save() == saved
        old = self.source
        order = [*self.joint.held, *range(old.taken, len(old.samples))]
        kept = len(self.joint.held)
        samples = [
            LOST if at < kept and old.places[number] in lost else old.samples[number]
            for at, number in enumerate(order)
        ]
        source = ListInput(samples, [old.places[number] for number in order], old.portion)
        return Run(joint, source, kept, self.groups, self.places)


def measured(samples: list[Any], measure: Any = len) -> list[Measured]:
    return [Measured(measure(sample), sample) for sample in samples]


def run_through(
    op: Any, samples: list[Measured], most: int = 1, portion: int = 1 << 30, resume: bool = False
) -> Run:
    """All groups of `samples`; with `resume`, in a new joint after every step that got ahead."""
    run = Run(op.joint(None, 0, {}), ListInput(samples, list(range(len(samples))), portion))
    while not run.joint.ended:
        given = len(run.groups)
        run.step(most)
        ahead = len(run.groups) > given or run.source.taken > run.before
        if resume and ahead and not run.joint.ended:
            run = run.resumed(op.joint(None, 0, {}))
    assert run.joint.kept == 0
    return run
