"""Faults that saved states once had, each as a user would meet it."""

import copy
import json
import random
import threading
from contextlib import suppress

import pytest
from tests.cases import for_each
from tests.runtime.helpers import SOON_S

import penstock as ps
from penstock.resume.schema import checksum
from penstock.testing import check_resume


def saved_after(pipeline, count, **arguments):
    """The first batches of an epoch, and the state after them, as JSON gives it back."""
    with pipeline.loader(epochs=1, timeout_s=SOON_S, **arguments) as loader:
        batches = iter(loader)
        got = [next(batches) for _ in range(count)]
        return got, json.loads(json.dumps(loader.state_dict())), loader.errors()


def rest_of(pipeline, state, **arguments):
    with pipeline.loader(epochs=1, state=state, timeout_s=SOON_S, **arguments) as loader:
        return list(loader), loader.errors()


@pytest.mark.parametrize("arguments", [{"inline": True}, {"workers": 3}])
def test_what_a_failing_generator_had_yielded_is_not_lost(arguments):
    def bad(number):
        yield number, "first"
        if number % 3 == 0:
            raise ValueError(number)
        yield number, "second"

    data = ps.from_sequence(range(12)).flat_map(bad, on_error="skip")
    whole, _ = rest_of(data, None, **arguments)
    for count in range(1, len(whole)):
        got, state, _ = saved_after(data, count, **arguments)
        rest, _ = rest_of(data, state, **arguments)
        assert got + rest == whole


def test_shards_of_different_worlds_keep_theirs_after_a_resume():
    data = ps.zip(
        ps.from_sequence(range(20)).shard(rank=1, world=2, equal=False),
        ps.from_sequence(range(100, 110)).shard(world=1),
    )
    whole, _ = rest_of(data, None)
    assert [first for first, _ in whole] == list(range(1, 20, 2))
    for count in range(1, len(whole)):
        got, state, _ = saved_after(data, count)
        assert got + rest_of(data, state)[0] == whole


def test_an_interrupt_of_the_first_read_after_a_resume_loses_nothing(monkeypatch):
    data = ps.from_sequence(range(10)).map(abs)
    got, state, _ = saved_after(data, 4)
    with data.loader(epochs=1, state=state, inline=True) as loader:
        read, pressed = loader._engine.read, []

        def interrupted(*arguments):
            if not pressed:
                pressed.append(True)
                raise KeyboardInterrupt
            return read(*arguments)

        monkeypatch.setattr(loader._engine, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
        assert got + list(loader) == list(range(10))


@for_each(
    "where", [(name, when) for name in ("enter", "read", "leave", "carrying") for when in ("before", "after")]
)
def test_an_interrupt_at_any_call_of_the_engine_before_the_first_batch_loses_nothing(where, monkeypatch):
    name, when = where
    data = ps.from_sequence(range(6)).shuffle().filter(lambda number: number < 4)
    for count in range(1, 5):  # after the fourth, nothing is left, which nobody knows yet
        _, state, _ = saved_after(data, count, inline=True)
        with data.loader(epochs=3, state=state, inline=True) as loader:
            want = [(epoch, list(batches)) for epoch, batches in loader.epochs()]
        for nth in range(1, 4):
            with data.loader(epochs=3, state=state, inline=True) as loader:
                with monkeypatch.context() as patch:
                    patch.setattr(loader._engine, name, interrupted_at(getattr(loader._engine, name), nth, when))
                    with suppress(KeyboardInterrupt):
                        iter(loader)
                        continue
                saved = loader.state_dict()
                assert [(epoch, list(batches)) for epoch, batches in loader.epochs()] == want
            with data.loader(epochs=3, state=saved, inline=True) as loader:
                assert [(epoch, list(batches)) for epoch, batches in loader.epochs()] == want


def interrupted_at(function, nth, when):
    """`function`, in whose n-th call Ctrl-C comes."""
    calls = iter(range(1, nth + 1))

    def called(*args, **kwargs):
        now = next(calls, None) == nth
        if now and when == "before":
            raise KeyboardInterrupt
        result = function(*args, **kwargs)
        if now:
            raise KeyboardInterrupt
        return result

    return called


@pytest.mark.parametrize("layout", [{"inline": True}, {"workers": 2}])
def test_a_resumed_epoch_of_which_only_losses_are_left_is_not_delivered_empty(layout):
    data = ps.from_sequence(range(12)).map(fails, on_error="skip").take(9)  # 9 is lost, and the tenth
    data = ps.concat(data, ps.from_sequence([13, 17]).map(fails, on_error="skip"))
    whole, lost = rest_of(data, None, **layout)
    _, state, before = saved_after(data, len(whole), **layout)
    with data.loader(epochs=2, state=state, timeout_s=SOON_S, **layout) as loader:
        assert [(epoch, list(batches)) for epoch, batches in loader.epochs()] == [(1, whole)]
        told = [record.index for record in before + list(loader.errors())]
    assert told == [record.index for record in lost] * 2
    loader = data.loader(epochs=2, state=state, timeout_s=SOON_S, max_errors=0, **layout)
    with loader, pytest.raises(ps.TooManyErrors):
        list(loader)


def test_a_timeout_of_the_first_read_after_a_resume_loses_nothing():
    stuck, released = threading.Event(), threading.Event()

    def slow(number):
        if stuck.is_set():
            released.wait(SOON_S)
        return number

    data = ps.from_sequence(range(10)).map(slow, workers=1)
    got, state, _ = saved_after(data, 4)
    with data.loader(epochs=1, state=state, timeout_s=0.05) as loader:
        stuck.set()
        with pytest.raises(ps.StageTimeout):
            next(iter(loader))
        released.set()
        assert loader.state_dict() == state
    stuck.clear()
    assert got + rest_of(data, loader.state_dict())[0] == list(range(10))


def fails(number):
    if number % 4 == 1:
        raise ValueError(number)
    return number


def some(number):
    return [number] * (number % 3)


def numbers(first=0):
    return ps.from_sequence(range(first, first + 24)).map(fails, on_error="skip", workers=2)


READ_AHEAD = {
    "a window": lambda: numbers().shuffle(window=5),
    "a mix": lambda: ps.mix({"a": numbers(), "b": numbers(100)}, stop="all"),
    "a bucket": lambda: numbers().bucket(abs, [8, 16], size=2),
    "several of one": lambda: numbers().flat_map(some, workers=2),
    "parts in turn": lambda: ps.concat(numbers(), numbers(100)),
    "rows": lambda: ps.zip(numbers(), ps.from_sequence(range(9)).filter(bool, workers=1)),
}


@for_each("name", READ_AHEAD)
def test_the_limit_of_errors_ends_every_layout_at_the_same_batch_and_a_resume_loses_nothing(name):
    data = READ_AHEAD[name]()
    whole, lost = rest_of(data, None, inline=True)
    ends = []
    for layout in ({"inline": True}, {"workers": 1}, {"workers": 4}):
        with data.loader(epochs=1, max_errors=len(lost) // 2, timeout_s=SOON_S, **layout) as loader:
            got = []
            with suppress(ps.TooManyErrors):
                for batch in loader:
                    got.append(batch)
                    state = loader.state_dict()
            ends.append((plain(got), len(loader.errors())))
        assert len(got) < len(whole)
        assert plain(got + rest_of(data, state)[0]) == plain(whole)
    assert ends[1:] == ends[:1] * 2


def plain(batches):
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in batches]


@pytest.mark.parametrize("size", [10_000, pytest.param(50_000, marks=pytest.mark.soak)])
def test_a_window_with_many_losses_has_a_small_state(size):
    def one_in_ten(number):
        if number % 10 == 3:
            raise ValueError(number)
        return number

    numbers = ps.from_sequence(range(size * 6 // 5))
    data = numbers.map(one_in_ten, on_error="skip").shuffle(window=size).batch(size // 50)
    _, state, _ = saved_after(data, 20)
    assert len(json.dumps(state)) < size // 5


def changed_values(value):
    """Other values of one entry: of another type, out of range, or missing something."""
    yield from (None, -1, 1.5, True, "x", [], {}, [value], 2**70)
    if isinstance(value, int) and not isinstance(value, bool):
        yield from (value + 1, value * 1000)
    if isinstance(value, list) and value:
        yield from (value[:-1], value + value[-1:])
    if isinstance(value, dict) and value:
        yield {key: one for key, one in value.items() if key != next(iter(value))}


def spots(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from spots(one, (*path, key))


def test_every_change_of_a_state_is_refused_and_a_forged_one_ends():
    data = ps.from_sequence(range(40)).filter(lambda x: x % 5).shuffle(window=7).bucket(abs, [10, 30], size=3)
    _, state, _ = saved_after(data, 3)
    rng = random.Random(0)
    cases = [
        (path, value)
        for path in spots(state)
        if path and path[0] != "sum"
        for value in changed_values(_at(state, path))
    ]
    for path, value in rng.sample(cases, 150):
        forged = copy.deepcopy(state)
        _at(forged, path[:-1])[path[-1]] = value
        if forged == state:
            continue
        with pytest.raises(ps.StateMismatch):
            rest_of(data, forged)
        forged["sum"] = checksum({key: one for key, one in forged.items() if key != "sum"})
        with suppress(ps.StateMismatch, ps.PlanError):
            rest_of(data, forged, inline=True)


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def test_a_state_that_is_damaged_in_a_later_pass_of_an_input_is_refused():
    data = ps.from_sequence(range(6)).map(abs).shuffle(window=3).repeat(3).shuffle(window=4)
    _, state, _ = saved_after(data, 5, inline=True)
    repeat = state["at"]["front"]["inputs"][0]["edge"]["front"]
    assert repeat["inputs"][0]["epoch"] == 1
    assert '"P": [[0, ' in json.dumps(state["at"])  # samples of the pass before are made again first
    repeat["inputs"][0]["edge"]["front"]["own"] = [{"of": [0, 1], "first": {}, "last": {}, "key": 7}]
    state["sum"] = checksum({key: one for key, one in state.items() if key != "sum"})
    with pytest.raises(ps.StateMismatch, match="the state is damaged"):
        rest_of(data, state, inline=True)


CACHED = {
    "batches": lambda data: data.batch(5),
    "a window": lambda data: data.shuffle(window=4),
    "groups that wait": lambda data: data.map(lambda number: {"x": [number] * 3}).pack(8, key="x"),
}


@for_each("name", CACHED)
def test_an_epoch_that_a_cache_keeps_is_the_same_after_a_resume_although_epochs_go_on(name):
    feed = ps.from_sequence(range(6)).filter(bool).shuffle(window=3).epoch(12).cache()
    check_resume(CACHED[name](feed), epochs=3, every=3)


COUNTING = {
    "repeat()": lambda data: data.repeat(2),
    "take()": lambda data: data.take(20),
    "skip()": lambda data: data.skip(2),
    "epoch()": lambda data: data.epoch(20),
    "cache()": lambda data: data.cache(),
    "shard(steps=)": lambda data: data.shard(0, 1, steps=20),
    "concat()": lambda data: ps.concat(data, data),
    "mix()": lambda data: ps.mix({"a": data, "b": data}, stop="cycle"),
}


def with_number(own, number):
    """What a joint has saved, with another number in it."""
    if isinstance(own, dict):
        return own | {"next": number}
    return [number, *own[1:]] if isinstance(own, list) else number


@for_each("op", COUNTING)
def test_a_number_that_no_joint_saves_is_a_mismatch_and_no_fault_of_the_pipeline(op):
    data = COUNTING[op](ps.from_iterable(range(24)))
    _, state, _ = saved_after(data, 3, inline=True)
    for number in (-1, 1.5, True, None, "x", 2**70):
        at = copy.deepcopy(state["at"])
        at["front"]["own"] = with_number(at["front"].get("own"), number)
        with pytest.raises(ps.StateMismatch, match="the state is damaged"):
            rest_of(data, ps.edit_state(state, at=at), inline=True)


def test_an_epoch_whose_number_does_not_fit_its_place_is_a_mismatch():
    data = ps.from_iterable(range(20)).epoch(16).shuffle(window=1)
    _, state, _ = saved_after(data, 3, inline=True)
    at = copy.deepcopy(state["at"])
    at["front"]["inputs"][0]["epoch"] = 2**30  # it would go on for as many epochs
    with pytest.raises(ps.StateMismatch, match="its epoch begins at"):
        rest_of(data, ps.edit_state(state, at=at), inline=True)


@for_each("op", ["take()", "shard(steps=)"])
def test_a_joint_passes_on_no_more_than_its_count_whatever_a_state_says(op):
    endless = ps.from_iterable(range(24)).repeat()
    data = COUNTING[op](endless)
    _, state, _ = saved_after(data, 3, inline=True)
    at = copy.deepcopy(state["at"])
    at["front"]["own"] = with_number(at["front"]["own"], 2**30)
    rest, _ = rest_of(data, ps.edit_state(state, at=at), inline=True)
    assert len(rest) == 20


@pytest.mark.parametrize("count", [4, 5])
def test_a_group_that_came_short_after_a_resume_stays_as_it_was_in_the_next(count):
    bad = set()

    def fails_if_bad(number):
        if number in bad:
            raise ValueError(number)
        return number

    data = ps.from_sequence(range(9)).map(fails_if_bad, on_error="skip").batch(3, collate=list).unbatch()
    _, state, _ = saved_after(data, 1)
    feed = {"joint": "1", "inputs": [{"epoch": 0, "edge": {"front": {"at": 9}}, "taken": 9}]}
    state = ps.edit_state(state, at={"front": feed, "owed": {"places": {"G": [[3, 3], [0, 9]]}}})
    bad.add(3)
    with data.loader(epochs=1, state=state) as loader:
        samples = iter(loader)
        got = [next(samples) for _ in range(count)]
        state = loader.state_dict()
        assert [record.index for record in loader.errors()] == [3]
    bad.clear()
    assert got + rest_of(data, state)[0] == [0, 1, 2, 4, 5, 6, 7, 8]
