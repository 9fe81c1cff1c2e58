"""On the fake device's timeline, the next batch is copied while a step runs; the page shows that timeline."""

from pathlib import Path

import pytest

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "staging.svg"


@pytest.fixture
def timeline():
    pytest.importorskip("torch")
    from tests.devices import timeline

    return timeline


def by_kind(spans, kind):
    return [span for span in spans if span.kind == kind]


def test_copy_k_plus_1_runs_during_step_k(timeline):
    spans = timeline.simulate(depth=1)
    copies, steps = by_kind(spans, "copy"), by_kind(spans, "step")
    assert len(copies) == len(steps) == timeline.BATCHES
    for step, copy in zip(steps, copies[1:], strict=False):
        assert step.begin <= copy.begin < copy.end <= step.end
    # The device computes without a pause from the first copy on.
    assert [step.begin for step in steps] == pytest.approx(
        [timeline.COPY_S + number * timeline.STEP_S for number in range(timeline.BATCHES)]
    )


def test_a_step_never_begins_before_its_batch_is_there(timeline):
    for depth, inline in ((1, True), (1, False), (3, False)):
        spans = timeline.simulate(depth, inline)
        for copy, step in zip(by_kind(spans, "copy"), by_kind(spans, "step"), strict=True):
            assert copy.end <= step.begin


def test_inline_copies_and_steps_take_turns(timeline):
    spans = sorted(timeline.simulate(depth=1, inline=True), key=lambda span: span.begin)
    assert [(span.kind, span.batch) for span in spans] == [
        (kind, batch) for batch in range(timeline.BATCHES) for kind in ("copy", "step")
    ]
    assert spans[-1].end == pytest.approx(timeline.BATCHES * (timeline.COPY_S + timeline.STEP_S))


def test_the_picture_on_the_page_is_what_is_drawn_today(timeline):
    assert PICTURE.read_text(encoding="utf-8") == timeline.picture()
