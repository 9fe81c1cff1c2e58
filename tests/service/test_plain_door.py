"""The server's own sockets: what a connection may cost, and what becomes of messages that nobody reads."""

import errno
import socket
import struct
from contextlib import contextmanager

import pytest
from tests.cases import for_each
from tests.service.served import HERE, SOON_S, locally, pipeline, seen
from tests.service.test_security import READY, greeting

import penstock as ps
from penstock.service import floods, plain_door
from penstock.service.plain_door import PlainDoor
from penstock.service.waker import Waker

MESSAGE = b"\x00\x05hello"


@contextmanager
def door_and_guest():
    """A door, one connection to it after its handshake, and how the door names it."""
    door, waker = PlainDoor(HERE), Waker()
    host, port = door.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=SOON_S) as guest:
        guest.sendall(greeting() + bytes([4, len(READY)]) + READY + MESSAGE)
        messages = []
        while not messages:
            messages = door.wait(SOON_S, waker)
        yield door, waker, guest, messages[0][0]
    door.close()
    waker.close()


def answered(guest):
    """What comes after the handshake."""
    data = b""
    while b"READY" not in data or len(data) < 64 + 2 + data[65]:
        data += guest.recv(100)
    return data[64 + 2 + data[65] :]


def test_what_nobody_reads_is_dropped_beyond_a_limit(monkeypatch):
    monkeypatch.setattr(plain_door, "_UNSENT_BYTES", 1 << 20)
    with door_and_guest() as (door, waker, _, identity):
        batch = bytearray(40_000)
        for _ in range(3000):
            door.send(identity, [b"head", batch])
            door.wait(0, waker)
        assert door._guests[identity].wire.unsent < (1 << 20) + 50_000


def test_a_client_that_does_not_read_is_not_read_from_and_its_messages_come_once_it_reads(monkeypatch):
    monkeypatch.setattr(plain_door, "_UNSENT", 10)
    with door_and_guest() as (door, waker, guest, identity):
        answered(guest)
        batch = bytearray(8 << 20)  # more than the kernel takes at once
        for _ in range(10):
            door.send(identity, [b"head", batch])
        guest.sendall(MESSAGE * 5)
        assert door.wait(0, waker) == door.wait(0, waker) == []
        guest.settimeout(0)
        found = []
        while len(found) < 5:
            with pytest.raises(BlockingIOError):
                while guest.recv(1 << 20):
                    pass
            found += door.wait(0.05, waker)
        assert [bytes(frames[0]) for _, frames in found] == [b"hello"] * 5


def test_a_message_behind_many_commands_is_read():
    with door_and_guest() as (door, waker, guest, _):
        guest.sendall(b"\x04\x05\x04MORE" * 200 + MESSAGE)
        found = []
        while not found:
            found = door.wait(SOON_S, waker)
        assert [bytes(frame) for frame in found[0][1]] == [b"hello"]


def test_little_waits_in_the_kernel_for_a_client_on_this_machine():
    """More would not be in the cache any more when it is received."""
    with door_and_guest() as (door, waker, _, identity):
        door.send(identity, [bytes(16 << 20)])
        while not door.wait(0, waker) and door._guests[identity].wire.flush():
            pass
        assert door._guests[identity].wire.unsent > (16 - 2) << 20


@for_each("size", [0, 5, 255, 256, 40_000])
def test_messages_arrive_as_they_were_said(size):
    with door_and_guest() as (door, waker, guest, identity):
        door.send(identity, [b"head", bytes(size)])
        door.wait(0, waker)
        data = answered(guest)
        expected = (
            b"\x01\x04head" + (bytes((0, size)) if size < 256 else b"\x02" + struct.pack(">Q", size)) + bytes(size)
        )
        while len(data) < len(expected):
            data += guest.recv(1 << 16)
        assert data == expected


def test_a_client_that_says_nothing_is_asked_and_then_left(monkeypatch):
    monkeypatch.setattr(plain_door.sockets, "PING_MS", -1)
    with door_and_guest() as (door, waker, guest, _):
        assert not answered(guest)
        door.tick()
        door.wait(0, waker)
        assert guest.recv(100) == b"\x04\x07\x04PING\0\0"
        monkeypatch.setattr(plain_door.sockets, "PING_LOST_MS", -1)
        door.tick()
        assert guest.recv(100) == b""


def test_a_handshake_is_over_in_time_however_it_trickles_in(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(plain_door, "monotonic", lambda: clock[0])
    door, waker = PlainDoor(HERE), Waker()
    host, port = door.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=SOON_S) as guest:
        for number in range(5):
            guest.sendall(b"\xff")
            while [one.wire.received for one in door._guests.values()] != [number + 1]:
                door.wait(0.05, waker)
            door.tick()
            clock[0] += 1.1
        assert len(door._guests) == 1
        door.tick()
        assert not door._guests
        assert door.stats()["server.failed_handshakes"] == 1
    door.close()
    waker.close()


def test_a_process_without_descriptors_accepts_again_when_it_has_some(monkeypatch, caplog):
    """libc says so for every connection that waits: looking again at once would take all of a CPU."""
    real = socket.socket.accept
    with ps.serve(pipeline(), HERE, mode="shard") as server:

        def refuse(listener):
            monkeypatch.setattr(socket.socket, "accept", real)
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(socket.socket, "accept", refuse)
        assert seen(ps.connect(server.address)) == locally(pipeline())[0]
    assert caplog.text.count("Too many open files") == 1


def test_a_connection_through_libzmq_that_sends_without_end_is_cut(monkeypatch):
    monkeypatch.setattr(floods, "MOST_BYTES", 100_000)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        guest = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with guest, accepted:
            watched = floods.Floods(listener.getsockname()[1])
            watched.accepted(accepted.fileno())
            for sent, cut in ((90_000, 0), (20_000, 1)):
                guest.sendall(bytes(sent))
                while sent:
                    sent -= len(accepted.recv(sent))
                watched.look()
                assert watched.cut == cut
            assert accepted.recv(1) == b""
