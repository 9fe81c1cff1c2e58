"""explain: stages, what was fused and why, workers and bounds, in words and as data."""

import json
import re
import threading

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps


def decode(x):
    return x


def augment(x):
    return x


async def fetch(x):
    return x


def line_of(fn):
    return f"test_explain.py:{fn.__code__.co_firstlineno}"


def stage_of(pipeline, op):
    """The stage that runs `op`, as data."""
    (found,) = [
        stage for stage in pipeline.explain().to_dict()["stages"] if any(op in one["op"] for one in stage["ops"])
    ]
    return found


def test_it_names_every_function_with_its_file_and_line():
    text = str(
        ps.from_sequence(range(9)).map(decode, workers=4).map(augment).filter(lambda x: x).batch(2).explain()
    )
    assert re.search(rf"map\(decode\) +{re.escape(line_of(decode))}", text)
    assert re.search(rf"map\(augment\) +{re.escape(line_of(augment))}", text)
    assert re.search(r"filter\(lambda\) +test_explain.py:\d+", text)
    assert "from_sequence(range of 9)" in text


def test_it_says_how_many_workers_each_stage_has():
    pipeline = ps.from_sequence(range(9)).map(decode, workers=4).map(augment, workers=2).map(fetch, workers=16)
    assert [stage_of(pipeline, op)["workers"] for op in ("decode", "augment", "fetch")] == [4, 2, 16]
    assert [stage_of(pipeline, op)["on"] for op in ("decode", "augment", "fetch")] == ["thread", "thread", "async"]
    text = str(pipeline.explain())
    assert "4 threads" in text
    assert "2 threads" in text
    assert "16 coroutines" in text


def test_an_op_without_a_placement_rides_with_the_op_before_it():
    pipeline = ps.from_sequence(range(9)).map(decode, workers=4).map(augment)
    assert len(pipeline.explain().to_dict()["stages"]) == 1
    assert "map(augment) rides along" in str(pipeline.explain())


def test_the_source_rides_with_the_first_op_that_has_a_placement():
    stage = stage_of(ps.from_sequence(range(9)).map(augment).map(decode, workers=4), "augment")
    assert stage["workers"] == 4
    assert stage["source"] == "from_sequence(range of 9)"


def test_nothing_placed_is_one_background_thread():
    (stage,) = ps.from_sequence(range(9)).map(decode).explain().to_dict()["stages"]
    assert (stage["on"], stage["workers"]) == ("thread", 1)


@for_each(
    "pipeline, reason",
    [
        (ps.from_sequence([1]).map(decode, workers=2).map(augment, workers=3), "has a place of its own"),
        (ps.from_sequence([1]).map(fetch, workers=2).map(augment), "would block the event loop"),
        (ps.from_sequence([1]).map(decode, workers=2).map(fetch), "is an async def"),
        (ps.from_sequence([1]).filter(decode).batch(2), "varies the count"),
        (ps.from_sequence([1]).map(decode, on_error="skip").batch(2), "may skip samples"),
        (ps.from_sequence([1]).map(decode).batch(2), "made by the worker"),
        (ps.from_arrays(np.zeros(3)).batch(2), "as one read of the source"),
        (ps.from_sequence([1]).shuffle(), "nothing is stored"),
        (ps.from_sequence([1]).map(decode).cache(), "once per sample of the source"),
        (ps.from_iterable(list).map(decode), "one worker at a time"),
        (ps.from_sequence([1]).flat_map(range, interleave=3), "alternate"),
    ],
)
def test_it_says_what_was_fused_or_not_and_why(pipeline, reason):
    explanation = pipeline.explain()
    assert reason in str(explanation)
    assert any(reason in one for stage in explanation.to_dict()["stages"] for one in stage["reasons"])


def test_it_says_what_is_bounded():
    pipeline = ps.from_sequence(range(9)).map(decode, workers=4)
    assert "keeps up to 8 tickets ready" in str(pipeline.explain())
    assert stage_of(pipeline, "decode")["bound"]["tickets"] == 8
    pipeline = ps.from_sequence(range(9)).map(decode, workers=4).batch(2).prefetch(5)
    assert "keeps up to 5" in str(pipeline.explain())
    assert stage_of(pipeline, "decode")["bound"]["samples"] == 5


def test_it_lists_later_ops_that_depend_on_an_order_that_is_not_kept():
    pipeline = ps.from_sequence(range(9)).map(decode, workers=4, ordered=False).batch(2)
    assert "in the order of completion" in str(pipeline.explain())
    assert any("batch(2) depends on the order" in note for note in pipeline.explain().to_dict()["notes"])


@for_each(
    "pipeline, length, said",
    [
        (ps.from_sequence(range(9)).batch(2), 5, "5 per epoch"),
        (ps.from_sequence(range(9)).filter(decode), None, "not known before the run"),
        (ps.from_sequence(range(9)).repeat(), "endless", "endless"),
    ],
)
def test_it_tells_the_length(pipeline, length, said):
    assert pipeline.explain().to_dict()["length"] == length
    assert said in str(pipeline.explain()).splitlines()[0]


def test_a_pool_and_a_cap_in_it_are_told():
    with ps.Threads(8) as pool:
        pipeline = ps.from_sequence(range(9)).map(decode, on=pool).map(augment, on=pool, workers=2)
        text = str(pipeline.explain())
    assert "8 threads of a shared pool" in text
    assert "at most 2 at once" in text


def test_several_pipelines_in_one_are_a_tree():
    left = ps.from_sequence(range(9)).map(decode, workers=2)
    pipeline = ps.zip(left, ps.from_iterable(lambda: range(9))).map(augment)
    data = pipeline.explain().to_dict()
    assert [stage["inputs"] for stage in data["stages"]][-1] == [1, 2]
    assert "zip of 2" in str(pipeline.explain())


@for_each(
    "pipeline",
    [
        ps.from_sequence(range(9)).shuffle().map(decode, workers=4).batch(np.int64(2)).prefetch(3),
        ps.from_arrays({"x": np.zeros((4, 2))}).shuffle(seed=3).batch(2),
        ps.from_iterable(lambda: range(3)).flat_map(range, interleave=2).shuffle(window=4).take(np.int64(3)),
        ps.concat(ps.from_sequence([1]).repeat(), ps.fake(((2,), "uint8"), 3)).epoch(4).cache(max_bytes=10),
        ps.from_sequence(range(9)).repeat().map(fetch).unbatch().tap(print),
    ],
)
def test_it_can_be_written_as_json(pipeline):
    data = json.loads(json.dumps(pipeline.explain().to_dict()))
    assert data["stages"]


def test_it_estimates_the_state_of_a_window_over_groups():
    groups = ps.from_sequence(range(100)).filter(bool).batch(32)
    assert (
        "names the 16,000 samples in the 500 groups of a block: up to about 64 KB"
        in groups.shuffle(window=500).explain()
    )
    buckets = ps.from_sequence(range(100)).bucket(abs, [10, 20], size=[8, 4, 2])
    assert (
        "names the 80 samples in the 10 groups of a block: up to about 1 KB" in buckets.shuffle(window=10).explain()
    )
    rows = ps.from_sequence([{"x": [1]}]).pack(8, key="x")
    assert "names each sample in the 10 groups of a block: up to about 4 bytes" in rows.shuffle(window=10).explain()
    for small in (ps.from_sequence(range(9)).filter(bool), groups.unbatch()):
        assert "a state names" not in small.shuffle(window=500).explain()


def test_it_runs_nothing():
    def never():
        raise AssertionError("iterated")

    assert "never" in str(ps.from_iterable(never).map(ps.per_worker(never)).explain())


def test_printing_it_in_a_shell_shows_the_report():
    explanation = ps.from_sequence([1]).explain()
    assert repr(explanation) == str(explanation)
    assert isinstance(explanation, str)


def test_stages_of_one_name_are_told_apart():
    pipeline = ps.from_sequence(range(9)).map(decode, workers=2).map(decode, workers=2)
    labels = [stage["label"] for stage in pipeline.explain().to_dict()["stages"]]
    assert len(set(labels)) == 2
    with pipeline.loader() as loader:
        list(loader)
        assert all(f"stage.{label}.samples" in loader.stats() for label in labels)


# ---------------------------------------------------------------------- what the loader says


def notes(explanation):
    return explanation.to_dict()["notes"]


def test_a_loader_explains_the_plan_that_it_runs():
    pipeline = ps.from_sequence(range(9)).map(decode).batch(3)
    for options, on, workers in (
        ({}, "thread", 1),
        ({"workers": 3}, "thread", 3),
        ({"on": "process", "workers": 2}, "process", 2),
        ({"inline": True}, "inline", 1),
        ({"workers": 0}, "inline", 1),
        ({"on": "process", "workers": 0}, "inline", 1),
    ):
        with pipeline.loader(**options) as loader:
            (stage,) = loader.explain().to_dict()["stages"]
            assert (stage["on"], stage["workers"]) == (on, workers), options
            assert str(loader.explain()).startswith("1 stage, 3 per epoch")


def test_the_plan_of_an_isolated_loader_says_where_it_runs():
    with ps.from_sequence(range(9)).map(decode).loader(isolate=True, workers=2) as loader:
        assert "2 threads" in str(loader.explain())
        assert any("process of its own" in note for note in notes(loader.explain()))


def test_a_note_says_that_a_loader_may_run_another_plan():
    pipeline = ps.from_sequence(range(9)).map(decode)
    (note,) = notes(pipeline.explain())
    assert "loader.explain()" in note
    assert notes(ps.from_sequence(range(9)).map(decode, workers=2).explain()) == []
    with pipeline.loader(workers=2) as loader:
        assert notes(loader.explain()) == []


def test_a_note_names_the_ops_that_a_loader_does_not_move():
    pipeline = ps.from_sequence(range(9)).map(decode, workers=4).map(augment)
    with pipeline.loader(on="process", workers=2) as loader:
        (note,) = notes(loader.explain())
        (stage,) = loader.explain().to_dict()["stages"]
    assert note.startswith("loader(on='process', workers=2) does not move map(decode):")
    assert (stage["on"], stage["workers"]) == ("thread", 4)
    with pipeline.loader(inline=True, workers=2) as loader:
        assert notes(loader.explain()) == [
            "loader(workers=2) has no effect: inline=True runs everything in the reader's thread"
        ]
    with pipeline.loader() as loader:
        assert notes(loader.explain()) == []


@pytest.mark.parametrize("on", [None, "thread", "process", "inline", ps.Threads(2)], ids=str)
def test_no_workers_are_the_thread_that_reads(on):
    here = threading.get_ident()
    own = ps.from_sequence(range(4)).map(lambda x: threading.get_ident(), on=on, workers=0)
    assert set(own) == {here}
    with ps.from_sequence(range(4)).map(lambda x: threading.get_ident()).loader(on=on, workers=0) as loader:
        assert set(loader) == {here}


def test_an_async_def_without_workers_runs_in_the_reader_too():
    assert list(ps.from_sequence(range(4)).map(fetch, workers=0)) == [0, 1, 2, 3]


def test_it_says_that_every_rank_reads_the_whole_of_a_stream():
    stream = ps.from_iterable(lambda: iter(range(9)))
    assert "each of the 4 ranks reads everything before it" in str(stream.shard(1, 4).explain())
    assert "ranks reads" not in str(stream.shard(0, 1).explain())
    assert "ranks reads" not in str(ps.from_sequence(range(9)).shard(1, 4).explain())
