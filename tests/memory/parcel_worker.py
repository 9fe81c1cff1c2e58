"""Another process for tests of parcels: it is given functions, calls them, and answers with what they return."""

import pickle
import socket
import subprocess
import sys
from contextlib import closing
from typing import Any

from penstock.memory.parcel import pack

SOON_S = 60.0

WORKER = """
import pickle, socket, struct, sys
import cloudpickle
from penstock.memory.parcel import unpack

link = socket.socket(fileno=int(sys.argv[1]))
while True:
    head, fds, _, _ = socket.recv_fds(link, 8, 8, socket.MSG_CMSG_CLOEXEC)
    if not head:
        break
    (size,) = struct.unpack("q", head)
    data = b""
    while len(data) < size:
        data += link.recv(size - len(data))
    try:
        answer = unpack(data, fds)()
    except Exception as exc:
        answer = exc
    answer = cloudpickle.dumps(answer)
    link.sendall(struct.pack("q", len(answer)) + answer)
    del answer
"""


class Worker:
    """A fork of the nursery, or an interpreter of its own: a script that is one itself has no nursery."""

    def __init__(self, fork: bool = True) -> None:
        self.link, theirs = socket.socketpair()
        self.link.settimeout(SOON_S)
        with closing(theirs):
            self.process: Any
            if fork:
                from tests.nursery import Forked

                self.process = Forked(WORKER, fds=[theirs.fileno()], server=False)
            else:
                command = [sys.executable, "-c", WORKER, str(theirs.fileno())]
                self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)

    def call(self, function: Any) -> Any:
        """What `function` returns there."""
        parcel = pack(function, "the program")
        socket.send_fds(self.link, [parcel.nbytes.to_bytes(8, "little")], [block.fd for block in parcel.blocks])
        self.link.sendall(parcel.data)
        return pickle.loads(self._exactly(int.from_bytes(self._exactly(8), "little")))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.link.recv(size - len(data))
            assert more, "the worker has died"
            data += more
        return data

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exc: object) -> None:
        self.link.close()
        self.process.wait(SOON_S)
        if not isinstance(self.process, subprocess.Popen):
            self.process.close()
