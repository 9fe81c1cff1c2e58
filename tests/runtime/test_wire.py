"""Messages over a real socket pair."""

import os
import socket
import threading

import numpy as np
import pytest

from penstock.remote.wire import Gone, Wire


@pytest.fixture
def wires():
    one, other = socket.socketpair()
    yield Wire(one), Wire(other)
    one.close()
    other.close()


def test_a_message_arrives_as_it_was_sent(wires):
    here, there = wires
    here.send(("run", 1, range(3), {"a": (2, 3)}))
    assert there.receive().head == ("run", 1, range(3), {"a": (2, 3)})


def test_a_body_arrives_in_one_piece_and_can_be_written_to(wires):
    here, there = wires
    here.send(("chunk",), [b"ab", np.arange(3, dtype=np.uint8), b"", bytearray(b"z")])
    body = there.receive().body
    assert bytes(body) == b"ab\x00\x01\x02z"
    body[0] = 1


def test_messages_keep_their_order_and_their_bounds(wires):
    here, there = wires
    for number in range(20):
        here.send((number,), [bytes(number)])
    assert [(message.head[0], message.body.nbytes) for message in (there.receive() for _ in range(20))] == [
        (number, number) for number in range(20)
    ]


def test_a_body_larger_than_the_buffers_of_the_system_arrives(wires):
    here, there = wires
    data = np.random.default_rng(0).integers(0, 255, 5_000_000, dtype=np.uint8)
    sending = threading.Thread(target=here.send, args=(("chunk",), [data[:1_000_000], data[1_000_000:]]))
    sending.start()
    received = there.receive().body
    sending.join()
    assert np.array_equal(received, data)


def test_descriptors_ride_along_with_their_own_message(wires):
    here, there = wires
    read, write = os.pipe()
    here.send(("first",))
    here.send(("attach",), [b"x" * 10], fds=[write, read])
    assert there.receive(fds=True).fds == []
    message = there.receive(fds=True)
    os.write(message.fds[0], b"hello")
    assert os.read(message.fds[1], 5) == b"hello"
    assert not os.get_inheritable(message.fds[0])
    for fd in (read, write, *message.fds):
        os.close(fd)


@pytest.mark.parametrize("size", [10, 70_000, 3_000_000])
def test_heads_and_bodies_of_any_size_follow_each_other(wires, size):
    here, there = wires

    def send():
        for number in range(20):
            here.send((number, "x" * (size * number // 20)), [b"y" * (size - size * number // 20)])

    sending = threading.Thread(target=send)
    sending.start()
    for number in range(20):
        head, body, _ = there.receive(fds=number % 2 == 0)
        assert head == (number, "x" * (size * number // 20))
        assert bytes(body) == b"y" * (size - size * number // 20)
    sending.join()


def test_descriptors_of_several_messages_that_come_at_once_go_to_their_own(wires):
    here, there = wires
    pipes = [os.pipe() for _ in range(6)]
    for number, (read, write) in enumerate(pipes):
        here.send((number,), fds=[read, write][: number % 3])
    for number in range(6):
        message = there.receive(fds=True)
        assert (message.head, len(message.fds)) == ((number,), number % 3)
        for got, sent in zip(message.fds, pipes[number], strict=False):
            assert os.fstat(got).st_ino == os.fstat(sent).st_ino
            os.close(got)
    for fd in (fd for pipe in pipes for fd in pipe):
        os.close(fd)


@pytest.mark.parametrize("fds", [False, True])
def test_the_end_of_the_other_side_is_told(wires, fds):
    here, there = wires
    here.sock.close()
    with pytest.raises(Gone):
        there.receive(fds=fds)
    with pytest.raises(Gone):
        for _ in range(2):
            there.send(("anything",))


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 40])
def test_half_a_message_is_the_end(wires, cut):
    here, there = wires
    one, other = socket.socketpair()
    Wire(one).send(("chunk", "x" * 50), [b"y" * 50])
    here.sock.sendall(other.recv(1000)[:cut])
    here.sock.close()
    one.close()
    other.close()
    with pytest.raises(Gone):
        there.receive(fds=True)
