"""The order in which chunks leave a stage. Pure: tickets and chunks in, chunks out."""

from tests.cases import for_each

from penstock.core.alternate import Alternating
from penstock.core.losses import take_losses
from penstock.core.outlets import AsDone
from penstock.program.chunk import Chunk, ErrorRecord, Loss, Ticket
from penstock.resume.cursor import Held


def lost(place, before=0):
    return Loss(before, ErrorRecord("map()", place, 0, ValueError(), place), place)


def ticket(*places, losses=(), redo=False):
    return Ticket(0, samples=list(places), places=places, losses=list(losses), redo=redo)


def chunk(*places):
    return Chunk(list(places), places)


def left(outlet):
    """All that has left, in its order: places, and those of losses below 0."""
    out = []
    while (one := outlet.pop()) is not None:
        for number in range(len(one.samples) + 1):
            out += [-loss.place for loss in one.losses if loss.before == number]
            out += one.places[number : number + 1]
    return out


@for_each("late", [0, 1, 2])
def test_what_was_lost_behind_the_last_of_inputs_that_alternate_leaves_at_the_same_place_always(late):
    """However many of the inputs have been handed in before it is known that they were the last."""
    outlet = Alternating(2)
    for number in (0, 1):
        outlet.issued(number, ticket(10 + number))
    for number in range(3):
        if number == late:
            outlet.issued(2, ticket(losses=[lost(12)]))
            outlet.done(2)
            outlet.no_more()
        if number < 2:
            outlet.last(number, chunk(10 + number))
    assert left(outlet) == [10, 11, -12]


def test_what_was_lost_among_inputs_that_are_still_to_get_a_slot_keeps_its_place_when_the_stream_is_resumed():
    outlet = Alternating(2)
    outlet.resume([8], [Held(10)], [0, -1], [Held(place) for place in (11, 12, 13)])
    outlet.issued(0, ticket(10, losses=[lost(8)], redo=True))
    outlet.issued(1, ticket(11, redo=True))
    outlet.issued(2, ticket(13, losses=[lost(12)], redo=True))
    outlet.no_more()
    for number, place in enumerate((10, 11, 13)):
        outlet.last(number, chunk(place))
    assert left(outlet) == [-8, 10, 11, -12, 13]


def test_what_was_lost_before_a_stage_without_order_leaves_before_later_samples_that_wait():
    """A state saved behind these samples does not owe it any more."""
    outlet = AsDone()
    outlet.issued(0, ticket(10))
    outlet.issued(1, ticket(losses=[lost(11)]))
    outlet.issued(2, ticket(12))
    outlet.done(1)
    outlet.last(2, chunk(12))
    outlet.done(0)  # a filter has left its input out
    assert left(outlet) == [-11, 12]


def test_samples_that_are_lost_in_a_stage_and_before_it_keep_their_order():
    made = Chunk([], (), losses=[lost(2), lost(4), lost(6)])
    take_losses(made, ticket(2, 4, 6, losses=[lost(1, 0), lost(3, 1), lost(5, 2)]), 0, done=True)
    assert [loss.place for loss in made.losses] == [1, 2, 3, 4, 5, 6]
