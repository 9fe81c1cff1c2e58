"""A real HTTP server for tests of remote reads: with ranges, and with failures on request."""

import re
import socket
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from penstock.storage.clients import forget_clients


class Web(ThreadingHTTPServer):
    """Serves `files`, a dict from path to bytes. `fault(path, count)` may name what goes wrong with a request:
    a status such as 503, "cut" (half of the body, then the end), "slow" (no answer at all) or "hold" (an answer
    after `wake`); "moved" (to the same name below ``moved/``), "no head" (such requests are refused), "no tag", or
    of a range "other" (one that begins later), "fewer" and "more" (bytes than it says).
    """

    daemon_threads = False
    block_on_close = True
    request_queue_size = 128

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.fault = lambda path, count: None
        self.requests = []
        self.counts = Counter()
        self.wake = threading.Event()
        self.lock = threading.Lock()
        self.connections = []
        #: how many requests were under way at once, at most
        self.busiest = self.busy = 0
        #: how many of these wait for `wake`
        self.held = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def get_request(self):
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def hang_up(self):
        """End all connections, so that the threads that wait for requests end."""
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        pass  # a client that gave up is no error of the server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for head and body
    timeout = 30

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        server = self.server
        path = unquote(urlsplit(self.path).path).lstrip("/")
        with server.lock:
            server.requests.append((self.command, self.path, self.headers.get("Range")))
            server.counts[path] += 1
            fault = server.fault(path, server.counts[path])
            server.busy += 1
            server.busiest = max(server.busiest, server.busy)
        try:
            self.serve(server, path, fault)
        finally:
            with server.lock:
                server.busy -= 1

    def serve(self, server, path, fault):
        if fault in ("slow", "hold"):
            with server.lock:
                server.held += 1
            server.wake.wait(30)
            with server.lock:
                server.held -= 1
        if fault == "slow":
            self.close_connection = True
            return
        if isinstance(fault, int):
            self.head(fault, b"")
            return
        if fault == "moved":
            self.head(302, b"", headers={"Location": f"/moved/{path}"})
            return
        if fault == "no head" and self.command == "HEAD":
            self.head(405, b"")
            return
        data = server.files.get(path.removeprefix("moved/"))
        if data is None:
            self.head(404, b"")
            return
        status, headers, body = 200, {"ETag": f'"{len(data)}-{hash(data) & 0xFFFF:x}"'}, data
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted and not path.startswith("whole/"):
            first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
            if first >= len(data):
                self.head(416, b"")
                return
            first, last = (first + 1, last + 1) if fault == "other" else (first, last)
            status, body = 206, data[first : last + 1 + {"fewer": -1, "more": 1}.get(fault, 0)]
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            if fault == "no tag":
                del headers["ETag"]
        self.head(status, body[: len(body) // 2] if fault == "cut" else body, len(body), headers)
        if fault == "cut":
            self.close_connection = True

    def head(self, status, body, length=None, headers=()):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
        self.wfile.flush()


@contextmanager
def web(files):
    """A server over `files` that is closed, with all its connections, at the end."""
    server = Web(files)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="web")
    thread.start()
    try:
        yield server
    finally:
        server.wake.set()
        server.shutdown()
        thread.join()
        server.hang_up()
        server.server_close()
        forget_clients()
