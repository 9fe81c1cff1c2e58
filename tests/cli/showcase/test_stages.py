"""Shares and verdict from counters."""

import pytest

from penstock.cli.showcase.stages import limiting_sentence, stage_shares


def stage(label: str, working: float, waiting_input: float, waiting_room: float, workers: int = 2):
    start = f"stage.{label}."
    return {
        f"{start}working_s": working,
        f"{start}waiting_input_s": waiting_input,
        f"{start}waiting_room_s": waiting_room,
        f"{start}occupancy": 0.5,
        f"{start}samples": 100,
        f"{start}workers": workers,
    }


def test_the_shares_of_a_stage_add_up_to_one():
    (row,) = stage_shares(stage("load", 6, 3, 1))
    assert (row.working, row.waiting_input, row.waiting_room) == (0.6, 0.3, 0.1)
    assert (row.workers, row.samples) == (2, 100)


def test_stages_keep_their_order_and_labels_may_hold_dots():
    stats = {"samples": 5, **stage("map(io.load)", 1, 0, 0), **stage("batch", 1, 0, 0)}
    assert [row.label for row in stage_shares(stats)] == ["map(io.load)", "batch"]


def test_a_stage_that_has_not_run_is_left_out():
    assert stage_shares(stage("load", 0, 0, 0)) == []


def test_the_training_loop_limits_while_it_hardly_waits():
    sentence = limiting_sentence({"wait_share": 0.02, **stage("load", 9, 0, 1)})
    assert sentence.startswith("The training loop limits: it waited 2% of its time")


def test_the_stage_that_works_most_of_its_time_limits_a_loop_that_waits():
    stats = {"wait_share": 0.4, **stage("download", 2, 0, 8), **stage("decode", 97, 2, 1, workers=4)}
    sentence = limiting_sentence(stats)
    assert sentence.startswith("decode limits: its 4 workers were at work 97% of the time")
    assert "still waited 40%" in sentence


@pytest.mark.parametrize(("workers", "who"), [(1, "its worker was"), (3, "its 3 workers were")])
def test_one_worker_is_not_many(workers, who):
    assert who in limiting_sentence({"wait_share": 0.4, **stage("decode", 1, 0, 0, workers=workers)})


def test_without_counters_nothing_is_blamed():
    assert limiting_sentence({}).startswith("The training loop limits")
