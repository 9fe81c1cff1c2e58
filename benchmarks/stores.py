"""How much of its rate does a pipeline over a remote store keep when some of the store's answers fail or hang?

A web server in a process of its own answers each request for 10 KB after 30 ms, as object stores do. The pipeline
reads 4000 files with 64 workers, with the settings that users have by default:
  calm      every request is answered
  ours      5 of 100 requests are answered with an error, and 1 of 100 only after 30 s
Every run checks that each sample arrives once and in order. Target: at least 0.8 of the calm rate.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Callable
from multiprocessing.connection import Connection

from _measure import Bench

import penstock as ps

LATENCY_S, SLOW_S = 0.03, 30.0
FAILING, SLOW = 0.05, 0.01
BYTES, WORKERS = 10_000, 64

ANSWER = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: %d\r\n\r\n'
ERROR = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"


def content(number: int) -> bytes:
    return b"%08d" % number + bytes(BYTES - 8)


def serve(port: Connection) -> None:
    """Answer requests for ``/calm/NUMBER`` and ``/rough/NUMBER`` until the process is ended."""
    dice = random.Random(0)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.split(b" ", 2)
                draw = dice.random() if path.startswith(b"/rough/") else 1.0
                failing, slow = draw < FAILING, FAILING <= draw < FAILING + SLOW
                await asyncio.sleep(SLOW_S if slow else LATENCY_S)
                body = b"" if method == b"HEAD" else content(int(path.rpartition(b"/")[2]))
                writer.write(ERROR if failing else ANSWER % BYTES + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has closed the connection
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(client, "127.0.0.1", 0, backlog=512)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def reading(url: str, samples: int) -> Callable[[], int]:
    files = ps.from_files(f"{url}/{{{0:05}..{samples - 1:05}}}").map(number_of, workers=WORKERS)

    def run() -> int:
        with files.loader(epochs=1) as loader:
            assert list(loader) == list(range(samples)), "a sample is missing, or not in its place"
        return samples

    return run


def number_of(sample: dict[str, bytes]) -> int:
    assert len(sample["data"]) == BYTES
    return int(sample["data"][:8])


def main() -> None:
    bench = Bench("stores", __doc__)
    samples = bench.size(4000, quick=1000)
    ours, theirs = multiprocessing.Pipe()
    # Not forked: the client's threads must not be in the server's process.
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}"
    calm, rough = reading(f"{url}/calm", samples), reading(f"{url}/rough", samples)
    bench.versus("5 % fail and 1 % hang, 64 workers", rough, calm, at_least=0.8)
    server.kill()
    server.join()
    bench.finish()


if __name__ == "__main__":
    main()
