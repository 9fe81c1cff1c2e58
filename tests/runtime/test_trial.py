"""The verdict over a ticket whose worker processes die."""

from penstock.remote.trial import Trial

READING = (-1, 7, 0)
SAMPLE, OTHER = (0, 7, 0), (0, 8, 0)


def probing_trial():
    trial = Trial()
    trial.death(SAMPLE, "killed")
    trial.death(SAMPLE, "killed")
    return trial


def test_one_death_says_nothing():
    trial = Trial()
    assert not trial.death(SAMPLE, "killed")
    assert not trial.probing
    assert trial.condemned == {}


def test_after_two_deaths_the_samples_are_run_one_at_a_time():
    trial = probing_trial()
    assert trial.probing
    assert trial.condemned == {}


def test_a_sample_that_kills_the_probe_three_times_running_is_condemned():
    trial = probing_trial()
    for _ in range(2):
        assert not trial.death(SAMPLE, "killed")
        assert trial.condemned == {}
    assert not trial.death(SAMPLE, "segmentation fault")
    assert trial.condemned == {SAMPLE: "segmentation fault"}


def test_deaths_of_different_samples_in_turn_condemn_none():
    trial = probing_trial()
    for _ in range(20):
        trial.death(SAMPLE, "killed")
        trial.death(OTHER, "killed")
    assert trial.condemned == {}


def test_several_samples_can_be_condemned_one_after_the_other():
    trial = probing_trial()
    for sample in (SAMPLE, OTHER, READING):
        for _ in range(3):
            trial.death(sample, "killed")
    assert set(trial.condemned) == {SAMPLE, OTHER, READING}
    assert trial.probing


def test_a_probe_that_dies_before_any_sample_is_in_hand_gives_the_ticket_up():
    trial = probing_trial()
    assert [trial.death(None, "killed") for _ in range(10)] == [False] * 9 + [True]


def test_a_ticket_that_dies_three_times_after_its_probe_is_given_up():
    trial = probing_trial()
    trial.probed()
    assert not trial.probing
    assert [trial.death(SAMPLE, "killed") for _ in range(3)] == [False, False, True]


def test_what_no_probe_can_run_is_condemned_after_the_probe():
    trial = probing_trial()
    trial.probed()
    assert [trial.death(SAMPLE, "killed", probeable=False) for _ in range(3)] == [False, False, False]
    assert trial.condemned == {SAMPLE: "killed"}


def test_a_ticket_that_dies_at_what_is_not_run_any_more_is_given_up():
    trial = probing_trial()
    trial.probed()
    deaths = [trial.death(SAMPLE, "killed", probeable=False) for _ in range(6)]
    assert deaths == [False] * 5 + [True]
