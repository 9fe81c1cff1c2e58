"""Snapshots of a run: few, and close together of late."""

from tests.cases import for_each

from penstock.stats.history import History, Snapshot


def history_of(seconds):
    history = History()
    for second in range(seconds):
        history.add(Snapshot(float(second), {"second": second}))
    return history


def test_there_are_never_many():
    for seconds in (1, 255, 256, 257, 1000, 50_000):
        assert len(history_of(seconds)) <= 512


def test_the_first_is_always_kept():
    assert history_of(50_000).since(-1.0).now == 0.0


def test_it_is_empty_at_first():
    assert History().since(0.0) is None


@for_each("ago", [1, 10, 60, 600, 3600, 20_000])
def test_what_is_asked_for_is_met_to_a_small_share(ago):
    last = 50_000 - 1
    found = history_of(50_000).since(last - ago)
    assert ago <= last - found.now <= 1.1 * ago + 1


def test_the_next_is_due_a_moment_later():
    history = History()
    assert history.due < 0
    history.add(Snapshot(5.0, {}))
    assert 5.0 < history.due < 6.0


def test_what_is_kept_comes_back_and_names_are_shared():
    history = History()
    for second in range(3):
        history.add(Snapshot(second, {"samples": second, "wait_s": 0.5}))
    history.add(Snapshot(3, {"samples": 3, "wait_s": 0.5, "late": 1}))  # a counter that came later
    assert history.since(1) == Snapshot(1, {"samples": 1, "wait_s": 0.5})
    assert history.since(9).stats == {"samples": 3, "wait_s": 0.5, "late": 1}
    assert history._kept[0].names is history._kept[2].names
