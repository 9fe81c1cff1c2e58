"""Whatever goes wrong inside fails the epoch, in the training loop, and the loader can be read again."""

import traceback
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from tests.runtime.helpers import SOON_S

import penstock as ps
from penstock.core import feeder, inlets
from penstock.core import gather as joined
from penstock.core import outlets as reorder
from penstock.core import stage as stage_run
from penstock.core.engine import Engine
from penstock.core.lane import Job
from penstock.core.workers import Crew
from penstock.ops.joint import Joint
from penstock.ops.op import Effect, Op
from penstock.remote import front as remote


class Fault(Exception):
    """Stands for a mistake of ours."""


async def fetched(sample):
    return sample


def same(sample):
    return sample


#: where the function of the pipeline runs, and how its loader is made
LAYOUTS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "inline": (same, {}, {"inline": True}),
    "thread": (same, {"workers": 1}, {}),
    "threads": (same, {"workers": 2}, {}),
    "async": (fetched, {"workers": 2}, {}),
    "process": (same, {"on": "process", "workers": 1}, {}),
}

#: functions of the bookkeeping: whose, and its name. Layouts in which nobody calls one are left out
PLACES: dict[str, tuple[Any, str, set[str]]] = {
    "looking for a ticket": (Crew, "take", {"inline"}),
    "looking through a loader": (Crew, "_job", {"inline"}),
    "taking in samples": (stage_run.StageRun, "refill", set()),
    "waking others": (Crew, "rouse", {"thread"}),
    "taking a ticket": (stage_run.StageRun, "take", set()),
    "cutting a ticket of positions": (inlets.PositionInlet, "cut", set()),
    "cutting a ticket of samples": (joined.JoinedInlet, "cut", set()),
    "passing on a chunk": (feeder.Feeder, "fill", set()),
    "handing in": (Engine, "handed_in", set()),
    "putting a chunk": (stage_run.StageRun, "put", set()),
    "restoring the order": (reorder.InOrder, "last", set()),
    "letting a chunk go": (reorder.Outlet, "pop", set()),
    "joining chunks": (Job, "finished", set()),
    "telling that something came": (Engine, "noticed", {"inline"}),
    "sending a ticket": (remote, "request_for", {"inline", "thread", "threads", "async"}),
    "reading an answer": (remote._Front, "_on_chunk", {"inline", "thread", "threads", "async"}),
    "tidying": (remote._Front, "tidy", {"inline", "thread", "threads", "async"}),
}
CASES = [(place, layout) for place, (*_, never) in PLACES.items() for layout in LAYOUTS if layout not in never]


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize(("place", "layout"), CASES, ids=[f"{place}, {layout}" for place, layout in CASES])
def test_a_fault_inside_fails_the_epoch_with_its_traceback(place, layout, monkeypatch):
    owner, name, _ = PLACES[place]
    function, placement, options = LAYOUTS[layout]
    original = getattr(owner, name)
    calls = []

    def faulty(*args, **kwargs):
        calls.append(None)
        if len(calls) == 3:
            raise Fault(place)
        return original(*args, **kwargs)

    data = ps.from_sequence(range(30)).map(function, **placement).filter(str).batch(3)
    with data.loader(timeout_s=SOON_S, **options) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, faulty)
            with pytest.raises(Fault) as caught:
                list(loader)
        assert "faulty" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert [batch.tolist() for batch in loader] == [[n, n + 1, n + 2] for n in range(0, 30, 3)]


# ---------------------------------------------------------------------- joints of third parties


class Passing(Joint):
    """A joint as it should be."""

    def step(self, inputs, most):
        (source,) = inputs
        samples, places = source.take(most)
        self.ended = source.ended and not source.count
        return samples, places


class OnePlaceTooFew(Passing):
    def step(self, inputs, most):
        samples, places = super().step(inputs, most)
        return samples, list(places)[:-1]


class NeverEnds(Passing):
    def step(self, inputs, most):
        out = super().step(inputs, most)
        self.ended = False
        return out


class LeavesTheLast(Passing):
    def step(self, inputs, most):
        (source,) = inputs
        return source.take(min(most, source.count - 1))


class StartsOverAndOver(Joint):
    opens_inputs: ClassVar[bool] = True

    def step(self, inputs, most):
        (source,) = inputs
        source.renew(source.epoch + 1)
        return [], []


class RaisesInStep(Passing):
    def step(self, inputs, most):
        if inputs[0].taken >= 4:
            raise Fault("step")
        return super().step(inputs, min(most, 4))


class RaisesInSave(Passing):
    def save(self):
        raise Fault("save")


class RaisesInLacking(Passing):
    def lacking(self, inputs):
        raise Fault("lacking")


class EndsInSystemExit(Passing):
    def step(self, inputs, most):
        raise SystemExit(3)


class ReturnsNothing(Passing):
    def step(self, inputs, most):
        return None


@dataclass(frozen=True)
class Through(Op[Any, Any]):
    """An op of a third party, with the joint that it is given."""

    kind: type[Joint]

    verb = "through"
    effect: ClassVar[Effect] = Effect.PASSES

    @property
    def label(self):
        return f"through({self.kind.__name__})"

    def joint(self, key, epoch, memo):
        return self.kind()


JOINTS = {
    OnePlaceTooFew: ps.PenstockError,
    NeverEnds: ps.PenstockError,
    LeavesTheLast: ps.PenstockError,
    RaisesInStep: Fault,
    RaisesInSave: Fault,
    RaisesInLacking: Fault,
    EndsInSystemExit: SystemExit,
    ReturnsNothing: TypeError,
}


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("joint", JOINTS)
def test_a_faulty_joint_fails_the_epoch_and_its_op_is_named(joint, layout):
    function, placement, options = LAYOUTS[layout]
    data = ps.from_sequence(range(12)).map(function, **placement).apply(Through(joint)).batch(3)
    with data.loader(timeout_s=SOON_S, **options) as loader, pytest.raises(JOINTS[joint]) as caught:
        list(loader)
    told = "".join(traceback.format_exception(caught.value))
    assert f"through({joint.__name__})" in told


@pytest.mark.parametrize("layout", ["inline", "threads"])
def test_a_joint_that_starts_an_empty_upstream_over_and_over_is_ended(layout):
    function, placement, options = LAYOUTS[layout]
    data = ps.from_sequence([]).map(function, **placement).apply(Through(StartsOverAndOver)).batch(3)
    with data.loader(timeout_s=SOON_S, **options) as loader, pytest.raises(ps.PenstockError, match="does not end"):
        list(loader)


def test_what_a_faulty_joint_has_passed_on_comes_first():
    data = ps.from_sequence(range(12)).map(same, workers=2).apply(Through(RaisesInStep))
    got = []
    with data.loader(timeout_s=SOON_S) as loader, pytest.raises(Fault):
        for sample in loader:
            got.append(sample)
    assert got == [0, 1, 2, 3]


def test_a_fault_of_one_loader_on_a_pool_leaves_the_others_alone():
    with ps.Threads(2) as pool:
        good = ps.from_sequence(range(100)).map(same, on=pool)
        bad = ps.from_sequence(range(12)).map(same, on=pool).apply(Through(EndsInSystemExit))
        with good.loader() as one, bad.loader(timeout_s=SOON_S) as other:
            batches = iter(one)
            got = [next(batches)]
            with pytest.raises(SystemExit):
                list(other)
            assert got + list(batches) == list(range(100))
