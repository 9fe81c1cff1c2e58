"""In which order chunks leave a stage, against a model that knows everything beforehand."""

import random
from collections import deque

from tests.cases import for_each

from penstock.runtime.chunk import Chunk, ErrorRecord, Failure
from penstock.runtime.reorder import Alternating, AsDone, InOrder

SEEDS = range(60)


def chunk_of(*samples, failure=None, losses=()):
    return Chunk(list(samples), list(samples), failure, list(losses))


def drained(outlet):
    """All samples that may leave now."""
    samples = []
    while (chunk := outlet.pop()) is not None:
        samples += chunk.samples
    return samples


def random_tickets(rng, most=8):
    """Tickets of no, one or several chunks, of one or several samples; a few chunks are empty."""
    tickets = []
    for number in range(rng.randrange(most)):
        sizes = [rng.choice([0, 1, 1, 2, 3]) for _ in range(rng.randrange(4))]
        parts = [[f"{number}.{part}.{sample}" for sample in range(size)] for part, size in enumerate(sizes)]
        tickets.append(parts)
    return tickets


def interleaved(rng, tickets):
    """Puts and dones of all tickets, in a random order that keeps each ticket's own."""
    queues = [deque([("put", n, part) for part in parts] + [("done", n, None)]) for n, parts in enumerate(tickets)]
    while any(queues):
        yield rng.choice([queue for queue in queues if queue]).popleft()


def play(outlet, events):
    """Hand everything in; what left, in its order."""
    left = []
    for what, number, part in events:
        if what == "put":
            outlet.put(number, chunk_of(*part))
        else:
            outlet.done(number)
        assert outlet.held >= 0
        left += drained(outlet)
    return left


def flat(tickets):
    return [sample for parts in tickets for part in parts for sample in part]


def in_turn(tickets, width):
    """The model of `Alternating`: samples of `width` tickets in turn."""
    waiting = deque(deque(sample for part in parts for sample in part) for parts in tickets)
    turns = [waiting.popleft() for _ in range(min(width, len(waiting)))]
    out, turn = [], 0
    while turns:
        turn %= len(turns)
        if turns[turn]:
            out.append(turns[turn].popleft())
            turn += 1
        elif waiting:
            turns[turn] = waiting.popleft()
        else:
            del turns[turn]
    return out


def test_in_order_passes_on_in_the_order_of_tickets_however_they_finish():
    for seed in SEEDS:
        rng = random.Random(seed)
        tickets = random_tickets(rng)
        assert play(InOrder(), interleaved(rng, tickets)) == flat(tickets)


def test_as_done_passes_on_in_the_order_of_arrival():
    for seed in SEEDS:
        rng = random.Random(seed)
        events = list(interleaved(rng, random_tickets(rng)))
        assert play(AsDone(), events) == [sample for what, _, part in events if what == "put" for sample in part]


@for_each("width", [2, 3, 5])
def test_alternating_takes_one_sample_of_each_ticket_in_turn(width):
    for seed in SEEDS:
        rng = random.Random(seed)
        tickets = random_tickets(rng)
        outlet = Alternating(width)
        left = play(outlet, interleaved(rng, tickets))
        outlet.no_more(len(tickets))
        assert left + drained(outlet) == in_turn(tickets, width)


def test_alternating_does_not_depend_on_when_it_learns_that_no_ticket_follows():
    for seed in SEEDS:
        rng = random.Random(seed)
        tickets = random_tickets(rng)
        events = list(interleaved(rng, tickets))
        outlet = Alternating(3)
        at = rng.randrange(len(events) + 1)
        left = play(outlet, events[:at])
        outlet.no_more(len(tickets))
        left += drained(outlet) + play(outlet, events[at:])
        assert left == in_turn(tickets, 3)


@for_each("make", [InOrder, AsDone, lambda: Alternating(2), lambda: Alternating(4)])
def test_what_is_held_is_never_negative_and_ends_at_nothing(make):
    for seed in range(20):
        rng = random.Random(seed)
        tickets = random_tickets(rng)
        outlet = make()
        play(outlet, interleaved(rng, tickets))
        outlet.no_more(len(tickets))
        drained(outlet)
        assert outlet.held == 0


def test_in_order_holds_what_waits_for_its_turn():
    for seed in range(20):
        rng = random.Random(seed)
        outlet = InOrder()
        numbers = list(range(1, 9))
        rng.shuffle(numbers)
        for count, number in enumerate(numbers, 1):
            outlet.put(number, chunk_of(number))
            outlet.done(number)
            assert (outlet.held, outlet.head, outlet.pop()) == (count, 0, None)
        outlet.done(0)
        assert outlet.head == 9
        assert drained(outlet) == list(range(1, 9))


def test_the_head_is_the_first_ticket_that_is_not_done():
    for seed in range(20):
        rng = random.Random(seed)
        numbers = list(range(8))
        rng.shuffle(numbers)
        for outlet in (InOrder(), AsDone()):
            missing = set(range(9))
            for number in numbers:
                outlet.done(number)
                missing.remove(number)
                assert outlet.head == min(missing)


def test_the_head_of_an_alternating_outlet_is_the_ticket_whose_turn_it_is():
    outlet = Alternating(2)
    heads = [outlet.head]
    for number, samples in ((0, "a"), (1, "x"), (0, "b")):
        outlet.put(number, chunk_of(*samples))
        heads.append(outlet.head)
    outlet.put(1, chunk_of("y"))
    outlet.done(0)
    assert heads == [0, 1, 0, 1]
    assert outlet.head == 2
    assert drained(outlet) == ["a", "x", "b", "y"]


def test_nothing_leaves_an_alternating_outlet_after_the_turn_of_a_failure():
    outlet = Alternating(2)
    failure = Failure(ValueError("bad"))
    outlet.put(0, chunk_of("a", failure=failure))
    outlet.done(0)
    outlet.put(1, chunk_of("x", "y", "z"))
    outlet.done(1)
    outlet.no_more(2)
    left = list(iter(outlet.pop, None))
    assert [sample for chunk in left for sample in chunk.samples] == ["a", "x"]
    assert left[-1].failure is failure
    assert outlet.failed
    assert outlet.held == 0


@for_each("make", [InOrder, AsDone])
def test_nothing_leaves_after_a_failure(make):
    outlet = make()
    failure = Failure(ValueError("bad"))
    outlet.put(0, chunk_of("good", failure=failure))
    outlet.done(0)
    outlet.put(1, chunk_of("late"))
    outlet.done(1)
    outlet.no_more(2)
    left = list(iter(outlet.pop, None))
    assert [sample for chunk in left for sample in chunk.samples] == ["good"]
    assert [chunk.failure for chunk in left][-1] is failure
    assert outlet.failed


def test_a_failure_waits_for_the_good_samples_before_it():
    outlet = InOrder()
    outlet.put(1, chunk_of(failure=Failure(ValueError("bad"))))
    outlet.done(1)
    assert outlet.pop() is None
    assert not outlet.failed
    outlet.put(0, chunk_of("good"))
    outlet.done(0)
    assert drained(outlet) == ["good"]
    assert outlet.failed


@for_each("make", [InOrder, AsDone, lambda: Alternating(2)])
def test_losses_leave_even_without_a_sample(make):
    outlet = make()
    record = ErrorRecord("map(f)", 3, 0, ValueError("bad"), 3)
    outlet.put(0, chunk_of(losses=[record]))
    outlet.done(0)
    outlet.no_more(1)
    assert [loss for chunk in iter(outlet.pop, None) for loss in chunk.losses] == [record]
    assert outlet.held == 0


def test_places_and_bytes_stay_with_the_samples_when_they_alternate():
    outlet = Alternating(2)
    outlet.put(0, Chunk(["a", "b"], [0, 1], nbytes=20))
    outlet.put(1, Chunk(["x"], [5], nbytes=7))
    outlet.done(0)
    outlet.done(1)
    outlet.no_more(2)
    chunks = list(iter(outlet.pop, None))
    assert [s for c in chunks for s in c.samples] == ["a", "x", "b"]
    assert [p for c in chunks for p in c.places] == [0, 5, 1]
    assert sum(c.nbytes for c in chunks) == 27
