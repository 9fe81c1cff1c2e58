"""A trace says what each worker did when, in a file that viewers accept."""

import gzip
import json
from collections import defaultdict

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.errors import PenstockError, PlanError
from penstock.stats.trace import Recording


def double(x):
    return 2 * x


async def double_later(x):
    return 2 * x


def numbers():
    return iter(range(64))


PIPELINES = {
    "threads": lambda: ps.from_sequence(range(64)).map(double, workers=3).batch(4),
    "two stages": lambda: (
        ps.from_sequence(range(64)).map(double, workers=2).batch(4).map(len, on="thread", workers=2)
    ),
    "processes": lambda: ps.from_sequence(range(64)).map(double, on="process", workers=2).batch(4),
    "coroutines": lambda: ps.from_sequence(range(64)).map(double_later, workers=4).batch(4),
    "a stream": lambda: ps.from_iterable(numbers).map(double, workers=2).batch(4),
    "a stream to processes": lambda: ps.from_iterable(numbers).map(double, on="process", workers=2).batch(4),
}


def events_of(path, opened=open):
    """The events of a trace, after a check that the file keeps the rules of the format."""
    with opened(path, "rt") as file:
        found = json.load(file)
    names = {e["tid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    assert names[1] == "training loop"
    assert len(set(names.values())) == len(names), "each track has a name of its own"
    events = [event for event in found["traceEvents"] if event["ph"] != "M"]
    assert {event["pid"] for event in events} <= {found["traceEvents"][0]["pid"]}
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    open_spans = defaultdict(list)
    for event in events:
        assert event["ts"] >= 0
        if event["ph"] == "C":
            assert event["args"]["ready"] >= 0
            continue
        assert event["ph"] == "X"
        assert event["dur"] >= 0
        assert event["tid"] in names
        end = round(event["ts"] + event["dur"], 3)
        spans = open_spans[event["tid"]]
        while spans and spans[-1] <= event["ts"]:
            spans.pop()
        assert not spans or end <= spans[-1], "a span ends after the one around it"
        spans.append(end)
    return events, names, found["otherData"]


def traced(loader, path, **options):
    with loader.trace(path, **options):
        for _ in loader:
            pass


def made(events, label):
    return sum(e["args"]["samples"] for e in events if e.get("cat") == "ticket" and e["name"] == label)


@pytest.mark.usefixtures("warm_processes")
@for_each("kind", PIPELINES)
def test_every_ticket_is_on_the_track_of_its_worker(kind, tmp_path):
    with PIPELINES[kind]().loader(epochs=1) as loader:
        traced(loader, tmp_path / "run.json")
        labels = [stage["label"] for stage in loader.explain().to_dict()["stages"]]
        stats = loader.stats()
    events, names, _ = events_of(tmp_path / "run.json")
    for label in labels:
        assert made(events, label) == stats[f"stage.{label}.samples"]
        assert any(event["name"] == label for event in events if event["ph"] == "C")
    tickets = [event for event in events if event.get("cat") == "ticket"]
    assert all(event["args"]["units"] >= 0 for event in tickets)
    if kind == "processes":
        assert {names[event["tid"]].partition("-")[0] for event in tickets} == {"process"}
    if kind == "coroutines":
        assert not any("cpu_ms" in e["args"] for e in tickets if e["name"].startswith("double_later"))
    if kind == "threads":
        assert any(event["args"].get("cpu_ms", -1) >= 0 for event in tickets)
    if "stream" in kind:
        assert any(event["cat"] == "read" for event in events if event["ph"] == "X")


def test_the_training_loop_waits_on_a_track_of_its_own(tmp_path):
    with ps.from_sequence(range(8)).map(double, workers=1).loader(epochs=1) as loader:
        traced(loader, tmp_path / "run.json")
    events, _, _ = events_of(tmp_path / "run.json")
    waits = [event for event in events if event.get("cat") == "wait"]
    assert waits
    assert {event["tid"] for event in waits} == {1}


def test_what_the_reader_runs_itself_lies_inside_its_waits(tmp_path):
    with ps.from_sequence(range(8)).map(double).loader(inline=True) as loader:
        traced(loader, tmp_path / "run.json")
    events, names, _ = events_of(tmp_path / "run.json")
    assert names == {1: "training loop"}
    spans = [(e["cat"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    waits = [(began, ended) for kind, began, ended in spans if kind == "wait"]
    for kind, began, ended in spans:
        assert kind == "wait" or any(a <= began and ended <= b for a, b in waits)


@pytest.mark.usefixtures("warm_processes")
def test_the_trace_of_an_isolated_loader_has_its_waits_and_says_so(tmp_path):
    with ps.from_sequence(range(8)).map(double, workers=1).loader(isolate=True, epochs=1) as loader:
        traced(loader, tmp_path / "run.json")
    events, names, about = events_of(tmp_path / "run.json")
    assert {event["cat"] for event in events} == {"wait"}
    assert names == {1: "training loop"}
    assert "isolate" in about["note"]


def test_a_full_trace_keeps_its_beginning_and_says_what_is_missing(tmp_path):
    full = pytest.warns(RuntimeWarning, match=r"is full: it has 5 events.*Trace fewer steps")
    with ps.from_sequence(range(64)).map(double, workers=2).loader(epochs=1) as loader, full:
        traced(loader, tmp_path / "run.json", events=5)
    events, _, about = events_of(tmp_path / "run.json")
    assert len(events) == 5
    assert about["dropped"] > 0


def test_a_block_that_raises_leaves_its_trace(tmp_path):
    def failing():
        with (
            ps.from_sequence(range(8)).map(double, workers=1).loader() as loader,
            loader.trace(tmp_path / "a.json"),
        ):
            next(iter(loader))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        failing()
    assert made(events_of(tmp_path / "a.json")[0], "double") > 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_two_traces_in_turn_see_their_own_part(tmp_path):
    with ps.from_sequence(range(8)).map(double).loader(inline=True) as loader:
        for name in ("a", "b"):
            traced(loader, tmp_path / f"{name}.json.gz")
        list(loader)
    for name in ("a", "b"):
        assert made(events_of(tmp_path / f"{name}.json.gz", gzip.open)[0], "double") == 8


def test_nobody_looks_before_and_after_a_trace(tmp_path):
    with ps.from_sequence(range(8)).loader() as loader:
        assert loader._engine.witness is None
        with loader.trace(tmp_path / "run.json"):
            assert loader._engine.witness is loader._engine.counters.witness is not None
        assert loader._engine.witness is loader._engine.counters.witness is None


def test_what_cannot_be_traced_is_refused_before_anything_runs(tmp_path):
    with ps.from_sequence(range(8)).loader() as loader:
        with pytest.raises(PlanError, match="there is no folder"), loader.trace(tmp_path / "no" / "run.json"):
            pass
        with pytest.raises(PlanError, match=r"trace\(events=\)"), loader.trace(tmp_path / "run.json", events=0):
            pass
        with loader.trace(tmp_path / "run.json"), pytest.raises(PenstockError, match="already"):
            traced(loader, tmp_path / "b.json")
    with pytest.raises(PenstockError, match="closed"), loader.trace(tmp_path / "c.json"):
        pass


def test_spans_that_would_overlap_are_put_one_after_the_other():
    recording = Recording(10.0, 100)
    track = recording.track("process-1.1")
    recording.span("ticket", track, "a", 9.0, 11.0)  # began before the recording
    recording.span("ticket", track, "a", 10.5, 12.0)  # came in late
    recording.span("ticket", track, "a", 8.0, 9.0)  # over before the recording began
    spans = [(event["ts"], event["dur"]) for event in recording.events(1) if event["ph"] == "X"]
    assert spans == [(0.0, 1e6), (1e6, 1e6)]
