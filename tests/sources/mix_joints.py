"""What tests of joints share: inputs over lists, and going on from any step."""

import json

from penstock.ops.op import Key


class Fake:
    """An input over a list for every epoch; samples arrive when they are asked for."""

    def __init__(self, samples, epoch=-1, used=0):
        self.samples = samples
        self.count, self.ended, self.taken = 0, False, 0
        self.epoch, self.used = epoch, used

    @property
    def items(self):
        return self.count  # nothing is lost here

    def fill(self, most):
        assert self.epoch >= 0, "was never started"
        left = len(self.samples(self.epoch)) - self.used - self.count
        self.ended = left == 0
        self.count += min(most, left)

    def take(self, most):
        most = min(most, self.count)
        first, self.used = self.used, self.used + most
        self.count -= most
        self.taken += most
        return self.samples(self.epoch)[first : self.used], range(first, self.used)

    def renew(self, epoch):
        self.epoch, self.used, self.count, self.ended = epoch, 0, 0, False


def told_apart(name, n):
    """Samples that tell the epochs apart."""
    return lambda epoch: [(name, epoch, number) for number in range(n)]


def started(source, samples, positions=None, epoch=3):
    joint = source.joint(Key(0, "op"), epoch, {})
    at = (-1, 0) if joint.opens_inputs else (epoch, 0)
    return joint, [Fake(samples[name], *(positions or {}).get(name, at)) for name, _ in source.parts]


def steps(joint, inputs, most, arriving):
    """What every step gives, until the end."""
    for _ in range(10_000):
        samples, places = joint.step(inputs, most)
        assert len(samples) == len(places) <= most
        if samples:
            yield samples, list(places)
        if joint.ended:
            return
        if not samples:
            lacking = joint.lacking(inputs)
            assert joint.opens_inputs or lacking, "waits for nothing"
            for number in lacking:
                inputs[number].fill(arriving)
    raise AssertionError("does not end")


def flat(found):
    found = list(found)
    return [s for samples, _ in found for s in samples], [p for _, places in found for p in places]


def resumed(source, samples, joint, inputs):
    """A fresh joint over fresh inputs, where the others stand."""
    saved = json.loads(json.dumps(joint.save()))
    positions = {name: (one.epoch, one.used) for (name, _), one in zip(source.parts, inputs, strict=True)}
    other, fresh = started(source, samples, positions)
    other.restore(saved)
    return other, fresh


def check_saved_at_every_step(source, samples, most, arriving):
    """Save after every step, go on with a fresh joint that is asked for other numbers, and demand the same rest."""
    whole, places = flat(steps(*started(source, samples), 7, 2))
    assert places == list(range(len(whole)))
    joint, inputs = started(source, samples)
    running = steps(joint, inputs, most, arriving)
    seen, some = 0, ()
    while some is not None:
        for again in (1, 5):
            rest, at = flat(steps(*resumed(source, samples, joint, inputs), again, 3))
            assert (rest, at) == (whole[seen:], places[seen:])
        some, _ = next(running, (None, None))
        seen += len(some or ())
    assert seen == len(whole)
