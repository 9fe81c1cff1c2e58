"""The order in which chunks leave a stage. Pure: tickets and chunks in, chunks out."""

from tests.cases import for_each

from penstock.core.alternate import Alternating
from penstock.program.chunk import Chunk, ErrorRecord, Loss, Ticket


def lost(place, before=0):
    return Loss(before, ErrorRecord("map()", place, 0, ValueError(), place), place)


def ticket(*places, losses=()):
    return Ticket(0, samples=list(places), places=places, losses=list(losses))


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
