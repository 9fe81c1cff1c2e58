"""How much of a bare socket's speed does the data server keep, on this machine?

Contestants: another process has a batch ready and sends it again and again; a loop takes them and looks at two
bytes of each. Every batch that arrives is memory of its own, which the loop may keep.
  sockets   sendall, and recv_into a new array for every batch, in the thread of the loop. Ours in the same way
            (inline=True), and ours by default, where a thread of the loader receives while the loop computes and
            hands batches over: target at least 0.9 of it at 9.6 MB and 0.8 at 1 MB
  peers     tensorpack's RemoteDataZMQ and the tf.data service, where they are installed; target: ahead of both
  curve     ours with keys, against ours without: reported, no target
  small     batches of 64 samples of 10 KB, as dicts, against the process transport of this library: no target
  latency   the time of one batch of 1 KB with a credit of one: reported, no target
  restart   the server is killed and another started in its place: the loop waits less than 2 s for it
  page      the two files of docs/service.md, against train.py alone: at least 1.3 times as fast
"""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from _measure import Bench
from numpy.typing import NDArray

import penstock as ps
from penstock.service.keys import make_key

#: longer than any run
ENDLESS = 10_000_000
#: batches read before the clock starts: more than anybody has sent ahead
AHEAD = 24
HERE = "tcp://127.0.0.1:0"
LARGE, MEDIUM, TINY = 64 * 224 * 224 * 3, 1 << 20, 1 << 10


def batch_of(nbytes: int) -> NDArray[np.uint8]:
    return np.full(nbytes, 7, np.uint8)


def make_sample(i: int) -> dict[str, NDArray[np.float32]]:
    return {f"field{k}": np.full(512, i, np.float32) for k in range(5)}


def numbers(n: int) -> Iterator[int]:
    return iter(range(n))


def samples(**placing: Any) -> ps.Pipeline[Any]:
    return ps.from_sequence(range(ENDLESS)).map(make_sample, **placing).batch(64)


def constant(nbytes: int) -> ps.Pipeline[Any]:
    """The same batch again and again, so that only the transport is measured."""
    batch = batch_of(nbytes)
    return ps.from_sequence(range(ENDLESS)).map(lambda i: batch)


class Taking:
    """A contestant: takes so many batches of a stream that is open."""

    def __init__(self, stream: Iterator[Any], batches: int, nbytes: int) -> None:
        self.stream = stream
        self.batches = batches
        self.nbytes = nbytes

    def prepare(self) -> None:
        for _ in range(AHEAD):
            next(self.stream)

    def __call__(self) -> int:
        for _ in range(self.batches):
            batch = next(self.stream)
            if self.nbytes and (batch.nbytes != self.nbytes or batch[0] != batch[-1]):
                raise AssertionError(f"expected {self.nbytes} bytes of one value, got {batch.nbytes}")
        return self.batches


# ---------------------------------------------------------------------- streams without an end


@contextmanager
def in_process(run: Callable[..., None], *args: Any) -> Iterator[Any]:
    """`run` in a process of its own; it says an address."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=run, args=(theirs, *args), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.terminate()
        process.join()


def serve(pipe: Any, pipeline: ps.Pipeline[Any], options: dict[str, Any]) -> None:
    with ps.serve(pipeline, **{"bind": HERE, "mode": "shard", **options}) as server:
        pipe.send(server.address)
        server.wait()


@contextmanager
def penstock(
    pipeline: ps.Pipeline[Any], with_key: str | None = None, inline: bool = False, **options: Any
) -> Iterator[Iterator[Any]]:
    with ExitStack() as stack:
        address = stack.enter_context(in_process(serve, pipeline, options))
        yield iter(stack.enter_context(ps.connect(address, key=with_key).loader(inline=inline)))


def send_raw(pipe: Any, nbytes: int) -> None:
    batch = batch_of(nbytes)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname())
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            while True:
                connection.sendall(batch)


@contextmanager
def raw(nbytes: int) -> Iterator[Iterator[Any]]:
    with in_process(send_raw, nbytes) as address, socket.create_connection(address) as connection:
        yield received(connection, nbytes)


def received(connection: socket.socket, nbytes: int) -> Iterator[NDArray[np.uint8]]:
    while True:
        batch = np.empty(nbytes, np.uint8)
        view, at = memoryview(batch), 0
        while at < nbytes:
            at += connection.recv_into(view[at:])
        yield batch


def send_tensorpack(pipe: Any, nbytes: int, address: str) -> None:
    from tensorpack.dataflow import DataFromList, send_dataflow_zmq

    pipe.send(address)
    send_dataflow_zmq(DataFromList(Repeated([batch_of(nbytes)]), shuffle=False), address, hwm=10)


class Repeated(list[Any]):
    """A list of one thing, again and again."""

    def __len__(self) -> int:
        return ENDLESS

    def __iter__(self) -> Iterator[Any]:
        return repeat([self[0]])


@contextmanager
def tensorpack(nbytes: int) -> Iterator[Iterator[Any]]:
    from tensorpack.dataflow import RemoteDataZMQ

    with tempfile.TemporaryDirectory() as folder:
        remote = RemoteDataZMQ(f"ipc://{folder}/socket", hwm=10)
        remote.reset_state()
        with in_process(send_tensorpack, nbytes, f"ipc://{folder}/socket"):
            yield (point[0] for point in remote)


def serve_tf(pipe: Any) -> None:
    from tensorflow.data.experimental import service

    dispatcher = service.DispatchServer()
    target = dispatcher.target
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=target.split("://")[1]))
    pipe.send(target)
    worker.join()


@contextmanager
def tf_service(nbytes: int) -> Iterator[Iterator[Any]]:
    """Uncompressed: faster on one machine. The server is forked before TensorFlow has threads here."""
    with in_process(serve_tf) as target:
        import tensorflow as tf
        from tensorflow.data.experimental import service

        batches = tf.data.Dataset.from_tensors(batch_of(nbytes)).repeat()
        far = service.distribute(service.ShardingPolicy.OFF, target, compression=None)
        yield batches.apply(far).as_numpy_iterator()


# ---------------------------------------------------------------------- questions


def rates(bench: Bench, amount: float, unit: str) -> None:
    runs = bench.results[-1].runs
    ours, other = (np.median([amount / run[side] for run in runs]) for side in ("ours_s", "bare_s"))
    cpu = np.median([run["ours_cpu_s"] / run["bare_cpu_s"] for run in runs])
    print(f"      ours {ours:.2f} {unit}, the other {other:.2f} {unit}; CPU of both sides, ours / other: {cpu:.2f}")


def against_sockets(bench: Bench) -> None:
    for name, nbytes, count, inline, target in (
        ("9.6 MB, in the loop's thread", LARGE, 100, True, 0.9),
        ("1 MB, in the loop's thread", MEDIUM, 1000, True, 0.8),
        ("9.6 MB", LARGE, 100, False, 0.9),
        ("1 MB", MEDIUM, 1000, False, 0.8),
    ):
        batches = bench.size(count, quick=count // 10)
        with penstock(constant(nbytes), inline=inline) as ours, raw(nbytes) as bare:
            ours_taking, bare_taking = Taking(ours, batches, nbytes), Taking(bare, batches, nbytes)
            bench.versus(f"sockets: {name}", ours_taking, bare_taking, at_least=target)
        rates(bench, batches * nbytes / 1e9, "GB/s")


def against_peers(bench: Bench) -> None:
    batches = bench.size(60, quick=6)
    for name, module, open_peer in (
        ("tensorpack", "tensorpack", tensorpack),
        ("tf.data service", "tensorflow", tf_service),
    ):
        if find_spec(module) is None:
            print(f"  {name}: left out, {module} is not installed", flush=True)
            continue
        with penstock(constant(LARGE)) as ours, open_peer(LARGE) as other:
            ours_taking, other_taking = Taking(ours, batches, LARGE), Taking(other, batches, LARGE)
            bench.versus(f"batches of 9.6 MB, {name}", ours_taking, other_taking, at_least=1)


def with_keys(bench: Bench) -> None:
    batches = bench.size(60, quick=6)
    with tempfile.TemporaryDirectory() as folder:
        server, client = f"{folder}/server.key", f"{folder}/client.key"
        make_key(server)
        make_key(client, f"{server}.pub")
        keys = {"key": server, "allow": [f"{client}.pub"]}
        with penstock(constant(LARGE), client, **keys) as ours, penstock(constant(LARGE)) as plain:
            ours_taking, plain_taking = Taking(ours, batches, LARGE), Taking(plain, batches, LARGE)
            bench.versus("9.6 MB with keys, against without", ours_taking, plain_taking, at_least=0)
        rates(bench, batches * LARGE / 1e9, "GB/s")


def small_samples(bench: Bench) -> None:
    batches = bench.size(400, quick=40)
    with penstock(samples(workers=1)) as ours, samples(on="process", workers=1).loader() as local:
        ours_taking, local_taking = Taking(ours, batches, 0), Taking(iter(local), batches, 0)
        bench.versus("64 samples of 10 KB, a worker process", ours_taking, local_taking, at_least=0)
    rates(bench, batches * 64 / 1e3, "thousand samples/s")


def latency(bench: Bench) -> None:
    times = []
    with penstock(constant(TINY), credit=1) as stream:
        for _ in range(bench.size(2000, quick=200)):
            began = time.perf_counter()
            next(stream)
            times.append((time.perf_counter() - began) * 1e3)
    bench.limit("one batch of 1 KB, credit 1", times, below=100, unit=" ms")


def after_a_restart(bench: Bench) -> None:
    """The longest wait of a loop from the moment that a new server listens where another was killed."""
    gaps = []
    for _ in range(bench.size(7, quick=2)):
        with ExitStack() as stack:
            with in_process(serve, constant(TINY), {}) as address:
                stream = iter(stack.enter_context(ps.connect(address).loader()))
                for _ in range(AHEAD):
                    next(stream)
            with in_process(serve, constant(TINY), {"bind": address}):
                before, longest = time.perf_counter(), 0.0
                for _ in range(20 * AHEAD):
                    next(stream)
                    now = time.perf_counter()
                    before, longest = now, max(longest, now - before)
                gaps.append(longest)
    bench.limit("longest wait after a restart of the server", gaps, below=2, unit=" s")


def files_of_the_page(bench: Bench) -> None:
    """server.py and train.py of docs/service.md: loading beside training, against one after the other."""
    page = (Path(__file__).parents[1] / "docs" / "service.md").read_text()
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL):
            Path(folder, name).write_text(text.replace(":5557", f":{port}"))

        def train(*args: str) -> int:
            done = subprocess.run([sys.executable, "train.py", *args], cwd=folder, check=True, capture_output=True)
            return done.stdout.count(b"1000 samples")

        server = subprocess.Popen([sys.executable, "server.py"], cwd=folder, stderr=subprocess.DEVNULL)
        try:
            bench.versus("train.py -p, against train.py", lambda: train("-p"), train, at_least=1.3)
        finally:
            server.kill()
            server.wait()


def main() -> None:
    bench = Bench("service", __doc__)
    for name, ask in (
        ("sockets", against_sockets),
        ("peers", against_peers),
        ("curve", with_keys),
        ("small", small_samples),
        ("latency", latency),
        ("restart", after_a_restart),
        ("page", files_of_the_page),
    ):
        if bench.wanted(name):
            ask(bench)
    bench.finish()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
