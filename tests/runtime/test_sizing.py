"""How many samples go into one ticket."""

from tests.cases import for_each

from penstock.program.sizing import TARGET_S, Sizer


def fed(sizer, per_unit_s, times=60):
    for _ in range(times):
        sizer.record(sizer.size, sizer.size * per_unit_s)
    return sizer


def test_the_first_ticket_has_one_sample():
    assert Sizer().size == 1


def test_a_ticket_is_at_most_twice_the_one_before():
    sizer = Sizer()
    for _ in range(30):
        before = sizer.size
        sizer.record(before, 0.0)
        assert before <= sizer.size <= 2 * before


@for_each("per_unit_s", [1e-6, 1e-5, 1e-4, 5e-4])
def test_tickets_settle_at_about_a_millisecond_of_work(per_unit_s):
    sizer = fed(Sizer(), per_unit_s)
    assert 0.5 * TARGET_S <= sizer.size * per_unit_s <= 1.01 * TARGET_S


@for_each("per_unit_s", [2e-3, 0.1, 10.0])
def test_slow_samples_go_one_by_one(per_unit_s):
    assert fed(Sizer(), per_unit_s).size == 1


def test_work_that_turns_slow_is_cut_within_a_few_tickets():
    sizer = fed(Sizer(), 1e-6)
    for _ in range(5):
        sizer.record(sizer.size, sizer.size * 0.1)
    assert sizer.size == 1


def test_one_slow_ticket_among_fast_ones_changes_little():
    sizer = fed(Sizer(), 1e-5)
    before = sizer.size
    sizer.record(before, 1.0)
    fed(sizer, 1e-5, times=6)
    assert before / 2 <= sizer.size <= 2 * before


def test_a_ticket_is_never_empty_nor_unbounded():
    sizer = fed(Sizer(), 0.0, times=100)
    assert 1 <= sizer.size <= 100_000
    assert fed(sizer, 1e9, times=3).size == 1


def test_a_ticket_without_samples_teaches_nothing():
    sizer = fed(Sizer(), 1e-5)
    size = sizer.size
    sizer.record(0, 100.0)
    assert sizer.size == size


def many(unit_bytes, times, per_unit_s=0.005, workers=64):
    sizer = Sizer(workers=workers)
    sizer.unit_bytes = unit_bytes
    return fed(sizer, per_unit_s, times)


def test_small_samples_of_many_waiting_workers_go_together():
    assert 4 <= many(100, times=10_000).size <= 7


def test_tickets_of_many_workers_hold_one_sample_until_each_has_made_many():
    assert many(100, times=64 * 7).size == 1


@for_each("unit_bytes", [40_000, 10**9, float("inf")])
def test_samples_that_are_large_or_of_unknown_size_go_one_by_one(unit_bytes):
    assert many(unit_bytes, times=10_000).size == 1


def test_a_ticket_of_many_workers_takes_no_longer_than_it_may():
    assert many(1, times=100_000, workers=256).size * 0.005 <= 0.032


def test_few_workers_keep_to_a_millisecond():
    assert fed(Sizer(workers=2), 1e-4, times=10_000).size * 1e-4 <= 1.01 * TARGET_S


def test_a_quick_function_is_not_slowed_by_having_many_workers():
    sizer = fed(Sizer(workers=64), 1e-5)
    assert sizer.size * 1e-5 >= 0.5 * TARGET_S
