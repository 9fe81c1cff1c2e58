"""Lost samples on their way through a stage: from among its inputs to among what was made of these. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from penstock.program.chunk import Chunk, Loss, Ticket
from penstock.provenance import input_of, key_of, steps_from


def count_steps(chunk: Chunk, ticket: Ticket, depth: int, before: int) -> None:
    """Note how many ops had made several samples of one before each of the losses of `chunk`, which are new.

    `depth` ops of the stage do, and `before` earlier ones since the last joint or the source. The place alone
    does not tell: what comes through a joint may have sub-indices of its own.
    """
    inputs = {key_of(place) for place in ticket.inputs}
    chunk.losses = [loss._replace(steps=before + _steps_here(loss, inputs, depth)) for loss in chunk.losses]


def _steps_here(loss: Loss, inputs: set[Hashable], depth: int) -> int:
    for steps in range(depth + 1):
        if key_of(input_of(loss.place, steps)) in inputs:
            return steps
    return len(steps_from(loss.place, depth))  # of a batch that the worker has made


def take_losses(chunk: Chunk, ticket: Ticket, depth: int, done: bool) -> None:
    """Put what was lost before the ticket's inputs among what was made of them, as far as that has come.

    `depth` ops of the stage make several samples of one. If the ticket is `done`, all of it has come.
    """
    waiting, own = ticket.losses, list(chunk.losses)
    numbers = {key_of(place): number for number, place in enumerate(ticket.inputs)}
    out: list[Loss] = []

    def put(at: int, number: int) -> None:
        """What was lost before sample `at`, which was made of input `number`."""
        while True:
            mine = bool(own) and own[0].before <= at
            if waiting and waiting[0].before <= (_number(own[0], numbers, depth) if mine else number):
                out.append(waiting.pop(0)._replace(before=at))
            elif mine:
                out.append(own.pop(0))
            else:
                return

    for at, place in enumerate(chunk.places):
        put(at, numbers[key_of(input_of(place, depth))])
    put(len(chunk.samples), len(numbers) if done else -1)
    chunk.losses = out


def _number(own: Loss, numbers: Mapping[Hashable, int], depth: int) -> int:
    """The number of the input that was lost, or of which something was; -1 if unknown."""
    for one in range(depth + 1):
        number = numbers.get(key_of(input_of(own.place, one)))
        if number is not None:
            return number
    return -1
