"""zip and concat: several pipelines as one."""

from itertools import count, islice

import pytest
from tests.cases import for_each
from tests.helpers import INLINE, any_layout, any_workers, few_layouts, plain, until_error

import penstock as ps


@any_layout
def test_zip_gives_tuples_and_ends_with_the_shortest(layout):
    long = ps.from_sequence(range(50)).map(layout.fn(lambda x: x * 2), **layout.place)
    short = ps.from_iterable(lambda: "abcdefg")
    expected = [(2 * i, letter) for i, letter in enumerate("abcdefg")]
    assert layout.epochs(ps.zip(long, short), 3) == [expected] * 3
    assert layout.run(ps.zip(short, long)) == [(letter, number) for number, letter in expected]


@any_layout
def test_concat_gives_one_after_the_other(layout):
    first = ps.from_sequence(range(30)).map(layout.fn(lambda x: x * 2), **layout.place)
    second = ps.from_iterable(lambda: range(5))
    expected = [*range(0, 60, 2), *range(5)]
    assert layout.epochs(ps.concat(first, second), 3) == [expected] * 3
    assert layout.epochs(ps.concat(second, first, second), 2) == [[*range(5), *expected]] * 2


@few_layouts
@for_each("combine", [ps.zip, ps.concat])
def test_ops_behind_them_work_as_behind_any_source(layout, combine):
    parts = [ps.from_sequence(range(40)).map(lambda x: x, **layout.place), ps.from_iterable(lambda: range(40))]
    pipeline = combine(*parts)
    plainly = list(zip(range(40), range(40), strict=True)) if combine is ps.zip else [*range(40), *range(40)]
    assert layout.run(pipeline.map(lambda s: s).filter(lambda s: s)) == [s for s in plainly if s]
    assert layout.run(pipeline.batch(7, collate=list)) == [plainly[i : i + 7] for i in range(0, len(plainly), 7)]
    assert sorted(layout.run(pipeline.shuffle(window=9))) == sorted(plainly)
    assert layout.run(pipeline.skip(3).take(5)) == plainly[3:8]
    assert layout.run(pipeline.repeat(2)) == plainly * 2
    assert layout.epochs(pipeline.epoch(len(plainly) - 1), 2)[1][:2] == [plainly[-1], plainly[0]]


@any_workers
def test_parts_with_places_of_their_own_and_random_draws_are_the_same_for_any_layout(layout):
    def build(one):
        draw = ps.from_sequence(range(60)).shuffle().map(lambda x, rng: (x, rng.random()), rng=True, **one.place)
        spread = ps.from_sequence(range(20)).flat_map(lambda x: [x] * 3, workers=2).shuffle(window=8)
        both = ps.zip(draw, spread.map(lambda x, rng: (x, rng.random()), rng=True))
        return (
            ps.concat(both, both.take(7))
            .map(lambda s, rng: (s, rng.random()), rng=True, workers=3)
            .batch(4, collate=list)
        )

    assert layout.epochs(build(layout), 2) == INLINE.epochs(build(INLINE), 2)


@any_workers
def test_parts_may_share_a_pool(layout):
    with ps.Threads(2) as pool:
        parts = [ps.from_sequence(range(n)).map(lambda x: x + 1, on=pool) for n in (10, 20, 30)]
        assert layout.run(ps.zip(*parts)) == [(x, x, x) for x in range(1, 11)]
        assert len(layout.run(ps.concat(*parts).map(str, on=pool))) == 60


@few_layouts
def test_a_shuffle_in_a_part_is_new_every_epoch(layout):
    pipeline = ps.zip(ps.from_sequence(range(30)).shuffle(), ps.from_sequence(range(30)))
    first, second = layout.epochs(pipeline, 2)
    assert [b for _, b in first] == list(range(30))
    assert [a for a, _ in first] != [a for a, _ in second]


@few_layouts
def test_they_nest(layout):
    a, b = ps.from_sequence("ab"), ps.from_sequence([1, 2, 3])
    assert layout.run(ps.zip(a, ps.zip(b, b))) == [("a", (1, 1)), ("b", (2, 2))]
    assert layout.run(ps.concat(ps.concat(a, b), a)) == ["a", "b", 1, 2, 3, "a", "b"]
    assert layout.run(ps.zip(a)) == [("a",), ("b",)]


@few_layouts
def test_empty_parts(layout):
    empty, some = ps.from_iterable(list), ps.from_sequence([1, 2])
    assert layout.epochs(ps.zip(some, empty), 2) == [[], []]
    assert layout.epochs(ps.zip(empty, some), 2) == [[], []]
    assert layout.epochs(ps.concat(empty, some, empty, some, empty), 2) == [[1, 2, 1, 2]] * 2
    assert layout.epochs(ps.concat(empty, empty), 2) == [[], []]


@few_layouts
def test_an_endless_part_ends_with_the_others(layout):
    endless = ps.from_iterable(count)
    assert layout.run(ps.zip(endless, ps.from_sequence("abc"))) == [(0, "a"), (1, "b"), (2, "c")]
    with ps.concat(ps.from_sequence("ab"), endless).loader(**layout.loader) as loader:
        assert list(islice(iter(loader), 5)) == ["a", "b", 0, 1, 2]


@few_layouts
def test_an_endless_part_is_pulled_only_a_bounded_number_ahead(layout):
    pulled = 0

    def endless():
        nonlocal pulled
        for number in count():
            pulled += 1
            yield number

    assert len(layout.run(ps.zip(ps.from_sequence(range(20)), ps.from_iterable(endless)))) == 20
    assert pulled < 20_000


@any_workers
def test_a_failure_in_a_part_comes_at_its_place(layout):
    bad = ps.from_sequence(range(20)).map(lambda x: 1 // (x - 9) or x, **layout.place)
    good = ps.from_sequence(range(100, 120))
    with ps.zip(good, bad).loader(**layout.loader) as loader:
        assert [a for a, _ in until_error(loader, ZeroDivisionError)[0]] == list(range(100, 109))
    with ps.concat(good, bad, good).loader(**layout.loader) as loader:
        assert len(until_error(loader, ZeroDivisionError)[0]) == 29


@any_workers
def test_where_one_part_has_ended_and_another_fails_the_first_of_them_decides(layout):
    bad = ps.from_sequence(range(20)).map(lambda x: 1 // (x - 9) or x, **layout.place)
    nine = ps.from_iterable(lambda: range(9))
    assert len(layout.run(ps.zip(nine, bad))) == 9
    with ps.zip(bad, nine).loader(**layout.loader) as loader:
        assert len(until_error(loader, ZeroDivisionError)[0]) == 9


@any_workers
def test_a_sample_skipped_in_a_part_is_counted_and_the_next_takes_its_place(layout):
    bad = ps.from_sequence(range(6)).map(lambda x: 1 // (x - 2) and x, on_error="skip", **layout.place)
    with ps.zip(ps.from_sequence("abcdef"), bad).loader(epochs=1, **layout.loader) as loader:
        assert [a for a, _ in loader] == list("abcde")
        assert loader.stats()["errors"] == 1


@few_layouts
def test_a_pipeline_may_be_a_part_of_itself_twice(layout):
    source = ps.from_sequence(range(5)).map(lambda x: x, **layout.place)
    assert layout.run(ps.zip(source, source)) == [(x, x) for x in range(5)]
    assert layout.run(ps.concat(source, source)) == [*range(5), *range(5)]


@few_layouts
def test_batches_of_parts(layout):
    pipeline = ps.zip(ps.from_sequence(range(6)).batch(2), ps.from_sequence("abcdef").batch(3)).batch(
        2, collate=list
    )
    assert plain(layout.run(pipeline)) == [[([0, 1], ["a", "b", "c"]), ([2, 3], ["d", "e", "f"])]]


@for_each("combine", [ps.zip, ps.concat])
def test_what_is_no_pipeline_is_refused(combine):
    with pytest.raises(ps.PlanError, match="at least one"):
        combine()
    with pytest.raises(ps.PlanError, match="takes pipelines, got list"):
        combine(ps.from_sequence([1]), [1, 2])
