"""A TCP proxy for faults: connections that are cut, that fall silent half open, or that crawl.

One thread, real sockets. `cut` resets all connections; `freeze` keeps them open and forwards nothing; `thaw` ends
that for connections made from then on, as after a cable was pulled: the frozen ones stay dead.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading


class Proxy:
    """Forwards to `target`, an address of a server, until told otherwise."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("tcp://").split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wakes, self._waker = os.pipe()
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._orders: list[str] = []
        self._frozen = False
        #: connections so far
        self.accepted = 0
        self._thread = threading.Thread(target=self._work, name="test-proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self._order("cut")

    def freeze(self) -> None:
        self._order("freeze")

    def thaw(self) -> None:
        self._order("thaw")

    def close(self) -> None:
        self._order("end")
        self._thread.join()
        os.close(self._wakes)
        os.close(self._waker)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _order(self, order: str) -> None:
        self._orders.append(order)
        os.write(self._waker, b"\0")

    # ------------------------------------------------------------------ the thread

    def _work(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fd == self._wakes:
                    os.read(self._wakes, 100)
                    if not self._obey():
                        return
                else:
                    self._forward(key.fileobj)  # type: ignore[arg-type]

    def _obey(self) -> bool:
        while self._orders:
            order = self._orders.pop(0)
            if order in ("cut", "end"):
                for one in list(self._pairs):
                    self._drop(one)
            if order == "freeze":
                self._frozen = True
                for one in self._pairs:
                    with contextlib.suppress(KeyError):
                        self._selector.unregister(one)
            self._frozen = self._frozen and order != "thaw"
            if order == "end":
                self._selector.close()
                self._listener.close()
                return False
        return True

    def _accept(self) -> None:
        ours, _ = self._listener.accept()
        self.accepted += 1
        try:
            theirs = socket.create_connection(self._target)
        except OSError:
            ours.close()
            return
        self._pairs[ours], self._pairs[theirs] = theirs, ours
        if not self._frozen:
            for one in (ours, theirs):
                self._selector.register(one, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        if source not in self._pairs:
            return
        try:
            data = source.recv(1 << 16)
            if data:
                self._pairs[source].sendall(data)
                return
        except OSError:
            pass
        self._drop(source)

    def _drop(self, one: socket.socket) -> None:
        other = self._pairs.pop(one, None)
        for each in (one, other):
            if each is None:
                continue
            self._pairs.pop(each, None)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(each)
            # Closed without a word, as by a reset.
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
