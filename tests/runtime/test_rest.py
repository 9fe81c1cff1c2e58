"""What is left of a ticket whose worker is gone."""

from tests.cases import for_each

from penstock.provenance import Passed
from penstock.runtime.chunk import Chunk, ErrorRecord, Ticket
from penstock.runtime.rest import Progress


def chunk(places, lost=()):
    return Chunk(
        [str(place) for place in places],
        list(places),
        None,
        [ErrorRecord("op", 0, 0, ValueError(), p) for p in lost],
    )


def begun(*handed, ticket, unit=1):
    """The rest of a ticket after these chunks, and its progress."""
    progress = Progress()
    for one in handed:
        progress.handed_in(one)
    return progress.rest_of(ticket, unit), progress


def positions(ticket):
    return (ticket.first, ticket.last)


def test_a_ticket_that_has_handed_in_nothing_is_begun_as_it_was():
    ticket = Ticket(0, 10, 20, losses=["told with the first chunk"])
    rest, progress = begun(ticket=ticket)
    assert rest is ticket
    assert not progress.begun


@for_each(
    "handed, first",
    [
        ([chunk([10, 11, 12])], 13),
        ([chunk([10]), chunk([11, 14])], 15),
        ([chunk([10], lost=[12])], 13),
        ([chunk([13], lost=[12])], 14),
        ([chunk([], lost=[19])], 20),
        ([chunk([(12, 0), (12, 1)])], 12),
        ([chunk([(12, 0)], lost=[12])], 13),
    ],
)
def test_over_positions_it_goes_on_behind_what_is_done(handed, first):
    rest, _ = begun(*handed, ticket=Ticket(0, 10, 20, losses=["told"]))
    assert positions(rest) == (first, 20)
    assert rest.losses == []


def test_batches_are_begun_at_whole_ones():
    rest, _ = begun(chunk([range(8, 12), range(12, 16)]), ticket=Ticket(0, 8, 32), unit=4)
    assert positions(rest) == (16, 32)
    rest, progress = begun(chunk([8, 9, 10]), ticket=Ticket(0, 8, 32), unit=4)  # a batch that was taken apart
    assert positions(rest) == (8, 32)
    assert progress.news(chunk([8, 9, 10, 11]), rest).places == [11]


def test_outputs_of_the_input_in_hand_are_not_handed_in_twice():
    rest, progress = begun(chunk([(12, 0), (12, 1)]), ticket=Ticket(0, 10, 20))
    assert progress.news(chunk([(12, 0)]), rest).places == []
    assert progress.news(chunk([(12, 1), (12, 2), (13, 0)]), rest).places == [(12, 2), (13, 0)]
    assert progress.news(chunk([(14, 0)]), rest).places == [(14, 0)]


def test_an_input_that_fails_the_second_time_takes_nothing_from_the_next():
    rest, progress = begun(chunk([(12, 0), (12, 1)]), ticket=Ticket(0, 10, 20))
    assert progress.news(chunk([(13, 0), (13, 1)], lost=[12]), rest).places == [(13, 0), (13, 1)]


@for_each(
    "places", [[4, 9, 2, 7], [(4, 1), (4, 0), 2, (3, 3)], [range(4), range(4, 8)], [Passed(3, 1), Passed(3, 2)]]
)
def test_with_samples_it_goes_on_behind_the_input_that_is_done(places):
    for number, place in enumerate(places):
        ticket = Ticket(0, samples=list("abcd")[: len(places)], places=places)
        rest, _ = begun(chunk([place]), ticket=ticket)
        assert rest.places == places[number + 1 :]
        assert rest.samples == ticket.samples[number + 1 :]


def test_with_samples_outputs_of_the_input_in_hand_are_left_out():
    ticket = Ticket(0, samples=list("abc"), places=[9, (4, 1), 2])
    rest, progress = begun(chunk([(9, 0), (4, 1, 0), (4, 1, 1)]), ticket=ticket)
    assert rest.places == [(4, 1), 2]
    assert progress.news(chunk([(4, 1, 0), (4, 1, 1), (4, 1, 2), (2, 0)]), rest).places == [(4, 1, 2), (2, 0)]


def test_with_samples_in_any_order_an_input_that_fails_the_second_time_takes_nothing_from_the_next():
    rest, progress = begun(chunk([(9, 0)]), ticket=Ticket(0, samples=list("ab"), places=[9, 2]))
    assert progress.news(chunk([(2, 0)], lost=[9]), rest).places == [(2, 0)]


def test_members_of_a_batch_are_left_out_by_their_order_in_it():
    ticket = Ticket(0, samples=["batch", "other"], places=[[7, 3, 5], [1]])
    rest, progress = begun(chunk([7, 3]), ticket=ticket)
    assert rest.places == ticket.places
    assert progress.news(chunk([7, 3, 5, 1]), rest).places == [5, 1]


def test_a_ticket_may_be_given_up_again_and_again():
    ticket, progress = Ticket(0, 0, 10), Progress()
    for first, handed in [(2, [0, 1]), (5, [2, 3, 4]), (5, []), (9, [5, 8])]:
        progress.handed_in(chunk(handed))
        ticket = progress.rest_of(ticket, 1)
        assert positions(ticket) == (first, 10)
