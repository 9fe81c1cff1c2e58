"""The messages between a data server and its clients, as bytes. Pure; docs/protocol.md is the specification.

A message is a list of frames. The first one is msgpack: one of the structs below, checked against its types and
bounds while it is decoded. Only a `Batch` has more frames: the header of the samples, and their raw bytes, both of
which `penstock.memory.network` checks. Nothing here decides anything or touches a socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec

from penstock.errors import ServiceError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


#: both sides must speak the same; another one for every change that the other side would misread
VERSION = 1
#: the largest frame that a socket takes in; libzmq refuses a longer one by its length field
FRAME_BYTES = 2 << 30
#: the first frame of any message
_HEAD_BYTES = 300_000
#: of a batch: the head, the header of the samples and their frames
MOST_FRAMES = 1026
#: batches that a server may let a client have unacknowledged
MOST_CREDIT = 100_000

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Token = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Word = Annotated[str, msgspec.Meta(max_length=64)]
_Text = Annotated[str, msgspec.Meta(max_length=2000)]
#: a state of the served pipeline, as JSON
_State = Annotated[bytes, msgspec.Meta(max_length=65_536)]


_Numbers = Annotated[tuple[_Count, ...], msgspec.Meta(max_length=20_000)]


class Malformed(ServiceError):
    """What came is no message of this protocol."""


class _Message(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """All of them are arrays that begin with their tag."""


# ---------------------------------------------------------------------- what a client says


class Ask(_Message, tag=1):
    """What a client says first: which protocol it speaks. The answer is a `Welcome`, or why not."""

    version: _Count
    session: _Token
    #: counts the times that a session was begun: what belongs to an earlier one is dropped on both sides
    turn: _Count


class Hello(_Message, tag=2):
    """Begin a session, or go on with it: send from number `first` on, with credit and numbering begun anew."""

    session: _Token
    turn: _Count
    epoch: _Count
    #: the global number of the first batch that is wanted, and the step to the next
    first: _Count = 0
    step: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] = 1
    #: the batches are dealt to so many servers, by their number; the step is a multiple of it
    servers: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    #: what the client had batches of before; empty if of nothing
    fingerprint: _Word = ""
    #: where the served pipeline stood before batch `state_at`, from which it can go on
    state_at: _Count = 0
    state: _State = b""
    #: in mode "split": batches that the client has, and of which it does not know whether they were handed to it
    claims: _Numbers = ()


class Want(_Message, tag=3):
    """What the client has, and how much more it takes. Sent whenever that changes, and as a heartbeat."""

    session: _Token
    turn: _Count
    #: batches of this turn that are acknowledged: all up to this number
    acknowledged: _Count
    #: absolute credit: the server may send this many batches, and bytes, in this turn
    batches: _Count
    nbytes: _Count
    #: seconds that the training loop has waited for batches
    waited_s: _Seconds = 0.0
    #: in mode "split": the loop waits, and no batch is confirmed for it
    needy: bool = False


class Bye(_Message, tag=4):
    """The client reads no further in this epoch."""

    session: _Token
    turn: _Count


# ---------------------------------------------------------------------- what a server says


class Welcome(_Message, tag=17):
    """The answer to an `Ask`: what is served here."""

    session: _Token
    turn: _Count
    mode: _Word
    fingerprint: _Word
    credit: Annotated[int, msgspec.Meta(ge=1, le=MOST_CREDIT)]
    #: names the ledger of a server in mode "split"
    ledger: _Word = ""


class Ready(_Message, tag=22):
    """The answer to a `Hello`: batches follow. Of the claims, those were handed to this session."""

    session: _Token
    turn: _Count
    kept: _Numbers = ()
    #: of the ledger
    generation: _Count = 0


class Refused(_Message, tag=18):
    """The session is not there, or ends: why, as a code and as words."""

    session: _Token
    turn: _Count
    code: _Word
    text: _Text


class Batch(_Message, tag=19):
    """One batch, number `seq` of this turn. The samples follow in frames of their own."""

    session: _Token
    turn: _Count
    seq: _Count
    number: _Count
    #: where the served pipeline stands after this batch; empty with most batches
    state: _State = b""


class End(_Message, tag=20):
    """The epoch is over after `sent` batches of this turn; it has `total` batches for all clients together."""

    session: _Token
    turn: _Count
    sent: _Count
    total: _Count


class Beat(_Message, tag=21):
    """The answer to every `Want`: how many batches of this turn were sent, and acknowledged."""

    session: _Token
    turn: _Count
    sent: _Count
    acknowledged: _Count


FromClient: TypeAlias = Ask | Hello | Want | Bye
FromServer: TypeAlias = Welcome | Ready | Refused | Batch | End | Beat

_ENCODER = msgspec.msgpack.Encoder()
_FROM_CLIENT: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)
_FROM_SERVER: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)


def encode(message: FromClient | FromServer) -> bytes:
    """The first frame of a message.

    >>> decode_from_client([encode(Bye(bytes(16), 3))]).turn
    3
    """
    return _ENCODER.encode(message)


def decode_from_client(frames: Sequence[ReadableBuffer]) -> FromClient:
    """The message in these frames; `Malformed` for anything else."""
    if len(frames) != 1:
        raise Malformed(f"a message of a client has 1 frame, got {len(frames)}")
    found: FromClient = _decoded(_FROM_CLIENT, frames[0])
    return found


def decode_from_server(frames: Sequence[ReadableBuffer]) -> FromServer:
    """The message in the first of these frames; only a `Batch` may have more."""
    if not 1 <= len(frames) <= MOST_FRAMES:
        raise Malformed(f"a message has 1 to {MOST_FRAMES} frames, got {len(frames)}")
    found: FromServer = _decoded(_FROM_SERVER, frames[0])
    if isinstance(found, Batch) != (len(frames) > 1):
        raise Malformed(f"a {type(found).__name__} of {len(frames)} frames")
    return found


def _decoded(decoder: msgspec.msgpack.Decoder[Any], frame: ReadableBuffer) -> Any:
    size = memoryview(frame).nbytes
    if size > _HEAD_BYTES:
        raise Malformed(f"the first frame has {size} bytes, and {_HEAD_BYTES} are accepted")
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError) as exc:
        raise Malformed(f"no message of protocol {VERSION}: {exc}") from None
