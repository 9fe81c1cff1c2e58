"""A batch that takes longer to arrive than a server may be silent."""

import numpy as np
import pytest
from tests.runtime.process_helpers import await_true
from tests.service.served import HERE

from penstock.memory.network import layout_of
from penstock.service import line as line_module
from penstock.service.door import PlainDoor
from penstock.service.lane import Lane, Plan
from penstock.service.line import TAKE_OVER_S, Line
from penstock.service.protocol import Ask, Batch, Hello, Ready, Welcome, decode_from_client, encode
from penstock.service.waker import Waker


class Slow:
    """A server that speaks the protocol, and says when and how much."""

    def __init__(self):
        self.door, self.waker = PlainDoor(HERE), Waker()

    def answer(self):
        """Take in what the client says, until it has asked for batches."""
        while True:
            for identity, frames in self.door.wait(0.05, self.waker):
                said = decode_from_client(frames)
                if isinstance(said, Ask):
                    self.door.send(identity, [encode(Welcome(said.session, said.turn, "shard", "abc", 3))])
                elif isinstance(said, Hello):
                    self.door.send(identity, [encode(Ready(said.session, said.turn))])
                    return identity, said

    def close(self):
        self.door.close()
        self.waker.close()


@pytest.fixture
def slow():
    server = Slow()
    yield server
    server.close()


def test_a_server_is_not_called_again_while_a_large_batch_arrives_slowly(slow, monkeypatch):
    """The clock goes on by two seconds after each piece, for longer than the whole timeout."""
    clock = [0.0]
    monkeypatch.setattr(line_module, "monotonic", lambda: clock[0])
    lane = Lane(lambda welcome: Plan(0), "", 0.0)
    line = Line([lane], [slow.door.address], None, 10.0)
    try:
        identity, hello = slow.answer()
        layout = layout_of(np.zeros(4 << 20, np.uint8), in_frames=True)
        frames = [encode(Batch(hello.session, hello.turn, 0, 0)), layout.header, *layout.frames()]
        slow.door.send(identity, frames)
        wire = slow.door._guests[identity].wire
        parts, wire._parts = list(wire._parts), type(wire._parts)()
        data = b"".join(parts)
        wire.socket.setblocking(True)
        for at in range(0, len(data), 1 << 18):
            before = line._connections[0].received
            wire.socket.sendall(data[at : at + (1 << 18)])
            await_true(lambda before=before: line._connections[0].received > before, "a piece of the batch")
            clock[0] += 2.0
        with line.lock:
            line.wait_for(lambda: bool(lane.available) or lane.over)
        assert lane.available == 1, line.error
        assert line.reconnects == 0
        assert clock[0] > 2 * TAKE_OVER_S
    finally:
        line.close()
