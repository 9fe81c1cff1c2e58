"""How a chunk travels from one process to another: a few plain values, and its samples in a block.

Exceptions travel as themselves, places by pickle, samples by `penstock.memory.codec`. What cannot be sent ends the
chunk at its place, in an error that names the op and the sample.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.errors import NotCarried, PenstockError
from penstock.memory.block import BlockMap
from penstock.memory.codec import Layout, decode, layout_of
from penstock.memory.exceptions import packed, unpacked
from penstock.program.chunk import Chunk, ErrorRecord, Failure, Loss, with_losses
from penstock.program.failure import decide, take_note
from penstock.program.program import Program
from penstock.provenance import Place
from penstock.remote.wire import OTHER, Message
from penstock.trees import nbytes

__all__ = [
    "Cargo",
    "attach",
    "first_unsendable",
    "fits",
    "measured",
    "sendable",
    "stowed",
    "unstowed",
    "without_largest",
    "written",
]


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


def sendable(value: Any) -> bool:
    """Whether a value can be pickled."""
    try:
        OTHER[0](value)
    except Exception:
        return False
    return True


def _label(program: Program) -> str:
    return program.steps[-1].op.label if program.steps else program.stage.label


def stowed(chunk: Chunk, layout: Layout, block: int | None) -> Cargo:
    """What is to be said of a chunk whose samples lie in `block`, or go along in the message."""
    trouble = None
    if chunk.losses or chunk.failure is not None:
        failure = chunk.failure
        told = None if failure is None else (packed(failure.exception), _told(failure.record))
        losses = [(loss.before, loss.place, loss.hard, _told(loss.record)) for loss in chunk.losses]
        trouble = pickle.dumps((losses, told))
    return Cargo(chunk.places, trouble, layout.header, layout.nbytes, block)


def attach(blocks: BlockMap, message: Message, named: list[tuple[int, int]], dropped: list[int]) -> None:
    """Map the blocks that came with a message, and drop others."""
    for (number, size), fd in zip(named, message.fds, strict=True):
        with suppress(PenstockError):  # no memory to map it; chunks go through the socket
            blocks.attach(number, fd, size)
    for number in dropped:
        blocks.drop(number)


def fits(blocks: BlockMap, number: int | None, nbytes: int, tightly: bool = False) -> bool:
    """Whether so much can be written into a block; `tightly`, without leaving more than half of it unused."""
    if number is None or number not in blocks:
        return False
    size = blocks.view(number).nbytes
    return size >= nbytes and (not tightly or size <= 2 * nbytes)


def written(layout: Layout, blocks: BlockMap, block: int | None) -> Sequence[bytearray]:
    """Write samples into a block; without one, they are returned as the body of the message."""
    if block is not None:
        layout.write(blocks.view(block).data)
        return ()
    memory = bytearray(layout.nbytes)
    layout.write(memory)
    return (memory,)


def unstowed(cargo: Cargo, memory: Any) -> Chunk:
    """The chunk again; its samples look into `memory`."""
    chunk = Chunk(decode(cargo.header, memory), cargo.places)
    if cargo.trouble is not None:
        losses, failure = pickle.loads(cargo.trouble)
        chunk.losses = [Loss(before, _record(told), place, hard) for before, place, hard, told in losses]
        if failure is not None:
            exc = unpacked(failure[0])
            chunk.failure = Failure(exc, None if failure[1] is None else _record(failure[1], exc))
    return chunk


def _told(record: ErrorRecord | None) -> tuple[Any, ...] | None:
    if record is None:
        return None
    return record.op, record.index, record.epoch, packed(record.exception), record.place, record.name


def _record(told: tuple[Any, ...], exc: BaseException | None = None) -> ErrorRecord:
    op, index, epoch, raised, place, name = told
    return ErrorRecord(op, index, epoch, unpacked(raised) if exc is None else exc, place, name)
