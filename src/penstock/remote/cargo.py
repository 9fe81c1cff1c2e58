"""How a chunk travels from one process to another: a few plain values, and its samples in a block.

Exceptions travel as themselves, places by pickle, samples by `penstock.memory.codec`. What cannot be sent ends the
chunk at its place, in an error that names the op and the sample.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.errors import NotCarried
from penstock.memory.codec import Layout, decode, layout_of
from penstock.memory.exceptions import dumps
from penstock.program.chunk import Chunk, ErrorRecord, Failure, with_losses
from penstock.program.failure import decide, take_note
from penstock.program.program import Program
from penstock.provenance import Place
from penstock.trees import nbytes

#: a result that cannot be sent will not be so the next time
_NEVER_AGAIN = 1 << 30


class Cargo(NamedTuple):
    """A chunk without its memory."""

    places: Sequence[Place]
    #: losses and the failure, pickled
    trouble: bytes | None
    #: what the samples look like, and how many bytes of memory they take
    header: bytes
    nbytes: int
    #: the block they are in; without one they are the body of the message
    block: int | None


def measured(chunk: Chunk, program: Program, epoch: int) -> tuple[Chunk, Layout]:
    """The chunk, without samples that cannot be sent, and the layout of the others.

    Such a sample is left out, or ends the chunk, as `on_error` of the op that made it says.
    """
    while True:
        try:
            return chunk, layout_of(chunk.samples)
        except Exception:
            number, cause = first_unsendable(chunk.samples) or (0, TypeError("as a whole"))
        place = chunk.places[number]
        label, index = _label(program), program.index_of(epoch, place)
        exc = NotCarried(
            f"{label} gave a {type(chunk.samples[number]).__name__} for sample {index} that cannot be sent from a "
            f"worker process: {cause}; return arrays, numbers, strings or plain objects, or run it on='thread'"
        )
        record = ErrorRecord(label, index, epoch, exc, place)
        before, places = chunk.samples[:number], list(chunk.places[:number])
        if program.steps and decide(program.steps[-1].op.on_error, exc, _NEVER_AGAIN).action == "skip":
            after = chunk.samples[number + 1 :], list(chunk.places[number + 1 :])
            losses = with_losses(chunk.losses, [number], [record], len(chunk.samples))
            chunk = Chunk(before + after[0], places + after[1], chunk.failure, losses, final=chunk.final)
        else:
            losses = with_losses(chunk.losses, (), (), number)
            chunk = Chunk(before, places, Failure(exc, record), losses)


def first_unsendable(samples: list[Any]) -> tuple[int, Exception] | None:
    """The number of the first sample that cannot be sent, and why."""
    for number, sample in enumerate(samples):
        try:
            layout_of(sample)
        except Exception as exc:
            return number, exc
    return None


def without_largest(chunk: Chunk, program: Program, epoch: int, exc: Exception) -> Chunk:
    """What comes before the largest sample of a chunk, which ends there in `exc`."""
    if not chunk.samples:
        return Chunk([], (), chunk.failure or Failure(exc))
    sizes = [nbytes(sample) for sample in chunk.samples]
    number = sizes.index(max(sizes))
    place = chunk.places[number]
    label, index = _label(program), program.index_of(epoch, place)
    take_note(exc, f"while sample {index} was sent back from {label}, {sizes[number] / 1e6:.1f} MB")
    failure = Failure(exc, ErrorRecord(label, index, epoch, exc, place))
    losses = with_losses(chunk.losses, (), (), number)
    return Chunk(chunk.samples[:number], chunk.places[:number], failure, losses)


def _label(program: Program) -> str:
    return program.steps[-1].op.label if program.steps else program.stage.label


def stowed(chunk: Chunk, layout: Layout, block: int | None) -> Cargo:
    """The message for a chunk whose samples are in `block`, or in the body of the message."""
    return Cargo(chunk.places, troubles(chunk), layout.header, layout.nbytes, block)


def troubles(chunk: Chunk) -> bytes | None:
    """The losses and the failure of a chunk, pickled; None if it has neither."""
    losses = [loss._replace(origin=None) for loss in chunk.losses]
    return dumps((losses, chunk.failure)) if losses or chunk.failure is not None else None


def troubled(chunk: Chunk, trouble: bytes | None) -> Chunk:
    """The chunk with its losses and its failure again."""
    if trouble is not None:
        chunk.losses, chunk.failure = pickle.loads(trouble)
    return chunk


def unstowed(cargo: Cargo, memory: Any) -> Chunk:
    """The chunk again; its samples look into `memory`."""
    return troubled(Chunk(decode(cargo.header, memory), cargo.places), cargo.trouble)
