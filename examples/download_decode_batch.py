"""Download, decode, batch: every stage with its own concurrency, async and threads mixed.

The flow of SPDL's "Building a Pipeline": URLs are gathered in groups, because network calls are
cheaper together; the groups are downloaded by coroutines, taken apart again, decoded in threads,
gathered into batches, stacked, and handed to the device by one worker.

    URLs -> groups of 8 -> download (async) -> samples -> decode (threads) -> batches of 16 -> device

The files come from a web server that this script starts on 127.0.0.1: each answer takes 20 ms, as
over a network.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypedDict
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

import penstock as ps

FILES = 96
SIDE = 64
LATENCY_S = 0.02

Image = npt.NDArray[np.float32]


class Summary(TypedDict):
    """What ``main`` returns."""

    batches: int
    images: int
    in_order: bool
    most_requests_at_once: int


# --- the pipeline -----------------------------------------------------------------------------


async def download(urls: list[str]) -> list[bytes]:
    """All files of a group at once. Several groups are under way at the same time."""
    return list(await asyncio.gather(*(fetch(url) for url in urls)))


def preprocess(data: bytes) -> Image:
    """Decompress and scale one image. zlib and numpy release the GIL, so threads do overlap."""
    pixels = np.frombuffer(zlib.decompress(data), np.uint8).reshape(SIDE, SIDE)
    return pixels.astype(np.float32) / np.float32(255)


def collate(images: list[Image]) -> Image:
    """One array from the images of a batch."""
    return np.stack(images)


def transfer(batch: Image) -> Image:
    """Stands for the copy to the device: one at a time, as the hardware wants it."""
    return batch.copy()


def build(urls: list[str]) -> ps.Pipeline[Image]:
    """The pipeline: which stage waits for the network, which computes, which must be alone."""
    return (
        ps.from_sequence(urls)
        .batch(8, collate=list)
        .map(download, on="async", workers=4)
        .unbatch()
        .map(preprocess, workers=2)
        .batch(16, collate=list)
        .map(collate)
        .map(transfer, workers=1)
    )


# --- a web server and a client, with the standard library only -----------------------------------


async def fetch(url: str) -> bytes:
    """The body of one GET."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(f"GET {parts.path} HTTP/1.0\r\nHost: {parts.hostname}\r\n\r\n".encode())
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    status = head.split(b"\r\n", 1)[0]
    if b" 200 " not in status:
        raise OSError(f"GET {url} gave {status!r}")
    return body


class Server:
    """Serves numbered images, and counts how many requests are open at the same time."""

    def __init__(self) -> None:
        self.open_requests = 0
        self.most_at_once = 0
        self.port = 0
        self._ready = threading.Event()
        self._done = asyncio.Event()
        self._loop = asyncio.new_event_loop()

    def run(self) -> None:
        """Serve until ``close``; meant for a thread of its own."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def wait_until_ready(self) -> None:
        """Returns when the port is open."""
        self._ready.wait()

    def close(self) -> None:
        """Let ``run`` return."""
        self._loop.call_soon_threadsafe(self._done.set)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            await self._done.wait()
            while self.open_requests:  # clients that have gone leave some behind
                await asyncio.sleep(LATENCY_S)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_requests += 1
        self.most_at_once = max(self.most_at_once, self.open_requests)
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            number = int(request.split()[1].strip(b"/"))
            await asyncio.sleep(LATENCY_S)
            body = zlib.compress(np.full((SIDE, SIDE), number, np.uint8).tobytes())
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + body)
            await writer.drain()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            return  # the server closes, or the client has gone
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.open_requests -= 1


@contextmanager
def serving() -> Iterator[Server]:
    """A server in a thread, for the length of a ``with`` block."""
    server = Server()
    thread = threading.Thread(target=server.run, name="web server")
    thread.start()
    server.wait_until_ready()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def main() -> Summary:
    """Load every file once, and check that the batches come in the order of the URLs."""
    seen: list[int] = []
    batches = 0
    with serving() as server:
        data = build([f"http://127.0.0.1:{server.port}/{number}" for number in range(FILES)])
        print(data.explain())
        with data.loader() as loader:
            for batch in loader:
                batches += 1
                seen += [round(float(image[0, 0]) * 255) for image in batch]
    print(f"{batches} batches, {len(seen)} images, up to {server.most_at_once} downloads at once")
    return Summary(
        batches=batches,
        images=len(seen),
        in_order=seen == list(range(FILES)),
        most_requests_at_once=server.most_at_once,
    )


if __name__ == "__main__":
    main()
