"""Bytes of a plain connection: messages are whole in whatever pieces they come, and memory is used again safely."""

import gc
import random
import resource
import socket
import struct
import threading
import weakref
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.cases import for_each
from tests.random_examples import seeds

import penstock as ps
from penstock.errors import CodecError
from penstock.memory.network import decode, layout_of
from penstock.memory.recycle import Recycler
from penstock.memory.scan import DOOR
from penstock.service import protocol
from penstock.service.frames import COMMAND, Frames
from penstock.service.protocol import FRAME_BYTES, Malformed

TOKEN = bytes(range(16))


def written(frames, flags=0):
    """A message as ZMTP has it."""
    out = b""
    for number, frame in enumerate(frames):
        more = flags | (number < len(frames) - 1)
        short = len(frame) < 256
        out += bytes((more, len(frame))) if short else bytes((more | 2,)) + struct.pack(">Q", len(frame))
        out += frame
    return out


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 1000))
    with ours, theirs:
        yield ours, theirs


def taken(frames):
    """All messages that are there."""
    found = []
    while (message := frames.message()) is not None:
        found.append([bytes(one) for one in message[1]])
    return found


@for_each("seed", seeds(5))
def test_messages_are_whole_whatever_pieces_they_come_in(seed):
    draw = random.Random(seed)
    sizes = [0, 1, 255, 256, 5000, 16_000, 17_000, 32_767, 32_768, 70_000, 200_000]
    sent = [[draw.randbytes(draw.choice(sizes)) for _ in range(draw.randrange(1, 5))] for _ in range(6)]
    data = b"".join(map(written, sent))
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 1000))
    with ours, theirs:
        frames, found = Frames(ours, Recycler()), []
        while data:
            size = draw.choice([1, 7, 300, 20_000, 90_000])
            theirs.sendall(data[:size])
            data = data[size:]
            found += taken(frames)
    assert found == sent


@for_each("size", [10, 5000, 70_000])
def test_a_heartbeat_between_two_frames_of_a_message_belongs_to_neither(pair, size):
    """libzmq sends one whenever its time has come, between two messages or two frames of one."""
    ours, theirs = pair
    ping, frame = written([b"\x04PING\0\0"], COMMAND), bytes(size)
    theirs.sendall(bytes([1, 4]) + b"head" + ping + written([frame, frame]) + ping)
    frames = Frames(ours, Recycler())
    found = [(bool(flags & COMMAND), [bytes(one) for one in parts]) for flags, parts in iter(frames.message, None)]
    heartbeat = (True, [b"\x04PING\0\0"])
    assert found == [heartbeat, (False, [b"head", frame, frame]), heartbeat]


@for_each(
    "data",
    [
        bytes([2]) + struct.pack(">Q", 4 << 30),
        bytes([2]) + struct.pack(">Q", FRAME_BYTES + 1),
        bytes([2]) + bytes([255]) * 8,
        bytes([8, 0]),
        bytes([COMMAND | 1, 0]),
        bytes([COMMAND | 2]) + struct.pack(">Q", 1 << 20),
        bytes([1, 0]) * 2000,
    ],
)
def test_what_no_batch_may_have_is_refused_by_its_length(data):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        with pytest.raises(Malformed):
            Frames(ours, Recycler()).message()


def test_the_end_of_a_connection_is_an_error(pair):
    ours, theirs = pair
    theirs.sendall(b"\x00")
    theirs.close()
    with pytest.raises(ConnectionError):
        Frames(ours, Recycler()).message()


def test_memory_of_a_decoded_batch_is_not_used_again_while_an_array_is_left():
    """numpy lets an array keep the base of its base alone: that must not let go of what was lent."""
    layout = layout_of({"x": np.arange(100_000), "y": np.arange(50_000.0)}, in_frames=True)
    recycler, batches = Recycler(), []

    def received():
        lent = []
        for frame in layout.frames():
            memory = recycler.empty((frame.nbytes,), np.dtype("uint8")).data if frame.nbytes else memoryview(b"")
            if frame.nbytes:
                memory[:] = frame
            lent.append(memory)
        return decode(layout.header, lent, DOOR)

    def places():
        return [one[name].__array_interface__["data"][0] for one in batches for name in "xy"]

    batches += [received() for _ in range(3)]
    used = places()
    assert len(set(used)) == 6
    kept = batches[0]["x"][5:7].reshape(2, 1)
    batches.clear()
    batches += [received() for _ in range(3)]
    assert set(places()) & set(used) == set(used) - {used[0]}
    assert kept.tolist() == [[5], [6]]


def test_a_decoded_batch_goes_with_its_last_array():
    """Without the garbage collector, which would come many batches later."""
    layout = layout_of({"x": np.arange(100_000), "pair": (np.arange(3), "a")}, in_frames=True)
    frames = [np.frombuffer(bytes(one), np.uint8).copy() if len(one) else b"" for one in layout.frames()]
    gone = weakref.ref(frames[1])
    gc.disable()
    try:
        batch = decode(layout.header, frames, DOOR)
        del frames
        assert gone() is not None
        del batch
        assert gone() is None
    finally:
        gc.enable()


def test_a_program_that_does_not_speak_the_protocol_is_no_server():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        listener.settimeout(60)
        loader = ps.connect(where, timeout_s=0.5).loader()
        with loader, pytest.raises(ps.ServiceError, match="has not answered"):
            iterator = iter(loader)

            def answer():
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 10)

            thread = threading.Thread(target=answer)
            thread.start()
            try:
                next(iterator)
            finally:
                thread.join()


# ---------------------------------------------------------------------- 50 000 mutations; `make fuzz`: a million


@contextmanager
def memory_limited(nbytes):
    """Whoever asks for so many bytes more than are in use gets a MemoryError, even if they are never touched."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_the_limit_of_these_tests_holds():
    with memory_limited(64 << 20), pytest.raises(MemoryError):
        np.empty(128 << 20, np.uint8)


def mutated(draw, good):
    data = bytearray(good)
    for _ in range(draw.choice((1, 1, 2, 6))):
        at = draw.randrange(len(data)) if data else 0
        match draw.randrange(3):
            case 0 if data:
                data[at] = draw.choice((0, 0x7F, 0xC1, 0xDD, 0xDF, 0xFF, draw.randrange(256)))
            case 1:
                del data[at : at + draw.randrange(1, 4)]
            case _:
                data[at:at] = draw.randbytes(draw.randrange(1, 5))
    return data


SAMPLES = [
    {"x": np.arange(10), "name": ["a", b"b" * 3000, (1.5, None)], "y": np.float32(3)},
    [
        {"image": np.zeros((4, 4, 3), np.uint8), "label": 3},
        {"image": np.ones((2, 2), ">f4"), "when": np.datetime64(0, "s")},
    ],
    (np.zeros((0, 5)), {"deep": [[[(1, (2, (3,)))]]]}, "text", 1 << 40, -1.5),
]
MESSAGES = [
    protocol.encode(one)
    for one in (
        protocol.Ask(1, TOKEN, 0),
        protocol.Hello(TOKEN, 1, 3, 4, 6, 3, "abc", 7, b"{}", (1, 5)),
        protocol.Want(TOKEN, 1, 5, 15, 1 << 40, 0.25),
        protocol.Welcome(TOKEN, 0, "shard", "abc", 10),
        protocol.Ready(TOKEN, 1, (4, 5)),
        protocol.Batch(TOKEN, 0, 1, 2, b"state"),
        protocol.End(TOKEN, 0, 5, 10),
    )
]


@pytest.mark.fuzz
@for_each("seed", seeds(5))
def test_mutated_frames_headers_and_streams_are_decoded_or_refused(seed):
    draw = random.Random(seed)
    layouts = [layout_of(one, in_frames=True) for one in SAMPLES]
    bodies = [[bytearray(frame) for frame in one.frames()] for one in layouts]
    refused = 0
    with memory_limited(64 << 20):
        for number in range(10_000):
            try:
                if number % 2:
                    at = draw.randrange(len(layouts))
                    decode(mutated(draw, layouts[at].header), bodies[at], DOOR)
                else:
                    frame = mutated(draw, draw.choice(MESSAGES))
                    if number % 4:
                        protocol.decode_from_client([frame])
                    else:
                        protocol.decode_from_server([frame, b""])
            except (CodecError, Malformed):
                refused += 1
    assert refused > 3000
    with memory_limited(FRAME_BYTES + (64 << 20)):  # a frame has its memory before its bytes are there
        for _ in range(20):
            assert stream_is_refused_or_read(draw)


def stream_is_refused_or_read(draw):
    """A mutated stream of a connection ends, is refused, or waits for more."""
    good = b"".join(
        written([draw.choice(MESSAGES), draw.randbytes(draw.choice((0, 300, 40_000)))]) for _ in range(3)
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(mutated(draw, good))
        theirs.close()
        try:
            frames = Frames(ours, Recycler())
            for _ in range(3):  # a frame that is cut off is given up only when it is waited for again
                taken(frames)
        except (Malformed, ConnectionError):
            return True
    raise AssertionError("a stream that has ended has to end")
