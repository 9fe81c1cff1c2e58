"""The page of one loader: a small server on loopback, with the standard library.

Who may see it: programs of this machine that know the token. Besides, the host that a browser asks for must be one
of this machine's own names (so no foreign name can point here), and no page of another origin may ask. What may
be relied on: it only reads the loader, never keeps it alive, and `close` leaves no thread, socket or file behind.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import resources
from pathlib import Path
from time import monotonic, time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from penstock.dashboard.feed import Feed, Gone
from penstock.dashboard.notices import Notice, post, remove
from penstock.errors import PenstockError, PlanError

#: how often whoever watches gets news
_EVERY_S = 0.5
#: a request that takes longer to arrive, or an answer that nobody reads, is given up
_PATIENCE_S = 10.0
#: how long `close` waits for answers under way, before and after it hangs up
_GRACE_S = 2.0
_MOST_CONNECTIONS = 16
_SHORTEST_TOKEN = 16
_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Dashboard:
    """Serves what a `Feed` shows, until it is closed."""

    def __init__(self, feed: Feed, port: int = 0) -> None:
        self.feed = feed
        self.token = _token()
        #: it ends: who waits to send the next news is woken
        self.ended = threading.Event()
        self._pid = os.getpid()
        self._connections: dict[socket.socket, threading.Thread] = {}
        #: until when the request of a connection has to be here
        self._unheard: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        try:
            self._http = _Http(("127.0.0.1", port), self)
        except OSError as exc:
            raise PlanError(
                f"loader(dashboard={port}): port {port} of this machine cannot be used: {exc}; "
                "dashboard=True takes a free one"
            ) from exc
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="penstock-dashboard", daemon=True)
        self._thread.start()
        self.notice = Notice(
            self._pid, socket.gethostname(), self._http.server_address[1], self.token, feed.title, feed.began
        )
        self._posted: Path | None = None
        try:
            self._posted = post(self.notice)
        except (OSError, PenstockError) as exc:
            warnings.warn(f"penstock top will not find this loader: {exc}", RuntimeWarning, stacklevel=5)
        print(f"penstock: watch this loader at {self.notice.url}", file=sys.stderr)

    # ------------------------------------------------------------------ ending

    def stop(self) -> None:
        """End without waiting. May run anywhere, inside the garbage collector too."""
        if self._pid != os.getpid():
            return
        self.ended.set()
        if self._posted is not None:
            remove(self._posted)
        with suppress(OSError):
            self._wake.send(b"x")

    def close(self) -> None:
        """End, and wait for the answers under way. Closing twice is the same as once."""
        if self._pid != os.getpid():
            return
        self.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(3 * _GRACE_S)

    def _serve(self) -> None:
        """The life of the thread: take connections, and keep the curves, until somebody ends it."""
        http, woken, due = self._http, self._woken, time()
        try:
            while not self.ended.is_set():
                with selectors.DefaultSelector() as selector:
                    selector.register(http, selectors.EVENT_READ)
                    selector.register(woken, selectors.EVENT_READ)
                    ready = [key.fileobj for key, _ in selector.select(max(due - time(), 0.0))]
                if http in ready and not self.ended.is_set():
                    http.handle_request()
                if time() >= due:
                    due = time() + 1.0
                    self._give_up_late_requests()
                    with suppress(Gone):
                        self.feed.tick()
        finally:
            self._hang_up()
            http.server_close()
            self._wake.close()
            woken.close()

    def _give_up_late_requests(self) -> None:
        """A request that comes byte by byte must not keep its place for ever."""
        with self._lock:
            late = [connection for connection, until in self._unheard.items() if monotonic() > until]
        for connection in late:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _hang_up(self) -> None:
        """Nobody is read from any more; what is being sent is finished, unless nobody takes it."""
        with self._lock:
            connections = dict(self._connections)
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            for connection in connections:
                with suppress(OSError):
                    connection.shutdown(how)
            deadline = monotonic() + _GRACE_S
            for thread in connections.values():
                thread.join(max(deadline - monotonic(), 0.0))

    # ------------------------------------------------------------------ connections

    def take(self, connection: socket.socket, address: Any) -> None:
        """Answer a connection in a thread of its own."""
        thread = threading.Thread(
            target=self._answer, args=(connection, address), name="penstock-dashboard-answer", daemon=True
        )
        with self._lock:
            if len(self._connections) >= _MOST_CONNECTIONS:
                connection.close()
                return
            self._connections[connection] = thread
            self._unheard[connection] = monotonic() + _PATIENCE_S
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            with self._lock:
                del self._connections[connection], self._unheard[connection]
            connection.close()

    def heard(self, connection: socket.socket) -> None:
        """The request of a connection is here."""
        with self._lock:
            self._unheard.pop(connection, None)

    def _answer(self, connection: socket.socket, address: Any) -> None:
        try:
            with suppress(OSError):  # whoever asked has left, or takes too long
                _Handler(connection, address, self._http)
        finally:
            self.heard(connection)
            with self._lock:
                self._connections.pop(connection, None)
            self._http.shutdown_request(connection)


class _Http(HTTPServer):
    """Listens, and hands connections over."""

    def __init__(self, address: tuple[str, int], dashboard: Dashboard) -> None:
        self.dashboard = dashboard
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """As its base class, without asking a name server who this is."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]
        self.socket.setblocking(False)  # who has connected may have left before it is taken

    def process_request(self, request: Any, client_address: Any) -> None:
        self.dashboard.take(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What goes wrong with one connection is no concern of the run."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: _Http
    timeout = _PATIENCE_S
    server_version = "penstock"
    sys_version = ""

    def do_GET(self) -> None:
        self.server.dashboard.heard(self.connection)
        # Not urlsplit: a path may begin with anything, and that takes it for a host.
        path, _, query = self.path.partition("?")
        if (refused := self._refused(query)) is not None:
            self._send(403, "text/plain; charset=utf-8", refused + "\n")
            return
        answer = {
            "/": self._page,
            "/stats.json": self._stats,
            "/events": self._events,
            "/metrics": self._metrics,
        }.get(path)
        if answer is None:
            self._send(404, "text/plain; charset=utf-8", "there is: / /stats.json /events /metrics\n")
            return
        try:
            answer()
        except Gone:
            self._send(410, "text/plain; charset=utf-8", "the loader is gone\n")

    def _refused(self, query: str) -> str | None:
        """Why this is not answered; None if it is."""
        host = self.headers.get("Host", "")
        if _name_of(host) not in _NAMES:
            return f"the host {host!r} is not this machine; use the address that the loader has printed"
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            return f"pages of {origin!r} may not read this"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "pages of other sites may not read this"
        given = parse_qs(query).get("token", [""])[0]
        kind, _, bearer = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            given = bearer.strip()
        if not hmac.compare_digest(given.encode(), self.server.dashboard.token.encode()):
            return "the token is missing or wrong; use the address that the loader has printed"
        return None

    def _page(self) -> None:
        page = resources.files("penstock.dashboard").joinpath("page.html").read_text("utf-8")
        self._send(200, "text/html; charset=utf-8", page, {"Content-Security-Policy": _policy(page)})

    def _stats(self) -> None:
        self._send(200, "application/json", _json(self.server.dashboard.feed.snapshot()))

    def _metrics(self) -> None:
        self._send(200, "text/plain; version=0.0.4; charset=utf-8", self.server.dashboard.feed.prometheus())

    def _events(self) -> None:
        """News twice a second, until the loader or whoever watches ends."""
        dashboard = self.server.dashboard
        self._head(200, "text/event-stream")
        since = 0.0
        while True:
            ended = dashboard.ended.is_set()
            try:
                snapshot = dashboard.feed.snapshot(since)
            except Gone:
                ended = True
            else:
                since = max(since, *(point[0] for point in snapshot["curves"]), 0.0)
                self.wfile.write(f"data: {_json(snapshot)}\n\n".encode())
            if ended:
                self.wfile.write(b"event: end\ndata: {}\n\n")
                return
            self.wfile.flush()
            dashboard.ended.wait(_EVERY_S)

    def _head(self, status: int, kind: str, headers: Mapping[str, str] = _HEADERS) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, status: int, kind: str, text: str, headers: Mapping[str, str] | None = None) -> None:
        self._head(status, kind, {**_HEADERS, **(headers or {})})
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Nothing: the terminal belongs to the training run."""


def _name_of(host: str) -> str | None:
    """The name in a Host header, without its port; None if there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # a bracket without its other half
        return None


def _policy(page: str) -> str:
    """What the page may do: run its own script, have its own style, and ask this server. Nothing else."""
    allowed = {}
    for tag in ("script", "style"):
        _, _, rest = page.partition(f"<{tag}>")
        digest = hashlib.sha256(rest.partition(f"</{tag}>")[0].encode()).digest()
        allowed[tag] = f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'"
    return (
        f"default-src 'none'; {allowed['script']}; {allowed['style']}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _token() -> str:
    """What whoever watches must know: new for every loader, unless the user has set one for a monitor."""
    given = os.environ.get("PENSTOCK_TOKEN", "")
    if given and len(given) < _SHORTEST_TOKEN:
        raise PlanError(
            f"PENSTOCK_TOKEN has {len(given)} characters; take at least {_SHORTEST_TOKEN} random ones, or unset it"
        )
    return given or secrets.token_urlsafe(18)


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)
