"""Who is let in, what strangers can do, and what is never done with what they send."""

import ast
import contextlib
import json
import os
import random
import resource
import socket
import stat
import struct
from pathlib import Path

import pytest
import zmq
from tests import nursery
from tests.cases import for_each
from tests.random_examples import seeds
from tests.runtime.process_helpers import await_true
from tests.service.served import HERE, SOON_S, locally, pipeline, seen, server_process

import penstock as ps
from penstock.service import protocol, sockets
from penstock.service.keys import make_key, public_keys, read_key
from penstock.service.sockets import is_local

ROOT = Path(ps.__file__).parent


# ---------------------------------------------------------------------- where it binds


@for_each(
    "address", ["tcp://0.0.0.0:5557", "tcp://*:5557", "tcp://10.1.2.3:5557", "tcp://[::]:5557", "tcp://host:1"]
)
def test_binding_elsewhere_without_keys_is_refused(address):
    with pytest.raises(ps.PlanError, match=r"give key= and allow=, or say insecure=True"):
        ps.serve(pipeline(), address)


@for_each(
    "address", ["tcp://127.0.0.1:0", "tcp://127.8.9.1:1", "tcp://[::1]:5", "tcp://localhost:1", "ipc:///tmp/x"]
)
def test_this_machine_alone_needs_no_keys(address):
    assert is_local(address)


@for_each(
    "address",
    [
        *("5557", "http://127.0.0.1:1", "tcp://127.0.0.1", "ipc://", 5557, None, "tcp://a:b", "tcp://a..b:1"),
        *(f"tcp://{'a' * 64}:1", "tcp://a\0b:1", "ipc:///tmp/a\0b"),
    ],
)
def test_an_address_that_makes_no_sense_is_a_plan_error(address):
    with pytest.raises(ps.PlanError, match="an address is tcp://host:port or ipc:///path"):
        ps.serve(pipeline(), address)
    with pytest.raises(ps.PlanError):
        ps.connect(address)


def test_an_address_in_use_is_named():
    with ps.serve(pipeline(), HERE) as server, pytest.raises(ps.ServiceError, match=server.address):
        ps.serve(pipeline(), server.address)


def test_a_unix_socket_serves(tmp_path):
    with ps.serve(pipeline(), f"ipc://{tmp_path}/socket", mode="shard") as server:
        assert seen(ps.connect(server.address)) == locally(pipeline())[0]


def test_a_unix_socket_takes_the_place_of_no_file_and_of_no_other_server(tmp_path):
    file = tmp_path / "data"
    file.write_text("precious")
    with pytest.raises(ps.ServiceError, match="a file is there"):
        ps.serve(pipeline(), f"ipc://{file}")
    assert file.read_text() == "precious"
    with socket.socket(socket.AF_UNIX) as ended:  # as a killed server leaves it
        ended.bind(f"{tmp_path}/socket")
    with ps.serve(pipeline(), f"ipc://{tmp_path}/socket", mode="shard") as server:
        with pytest.raises(ps.ServiceError, match="another server is running"):
            ps.serve(pipeline(), server.address)
        assert seen(ps.connect(server.address)) == locally(pipeline())[0]


@for_each(
    "options, why",
    [
        ({"mode": "all"}, "takes 'split', 'shard' or 'each'"),
        ({"mode": "shard", "ledger": "x"}, "ledger=. is for mode 'split'"),
        ({"credit": 0}, "credit="),
        ({"allow": ["x" * 40]}, "needs key="),
        ({"allow": "x" * 40}, "takes a list"),
    ],
)
def test_what_makes_no_sense_is_a_plan_error(options, why):
    with pytest.raises(ps.PlanError, match=why):
        ps.serve(pipeline(), HERE, **options)


def test_a_thing_that_is_no_pipeline_is_not_served():
    with pytest.raises(ps.PlanError, match="takes a Pipeline, got list"):
        ps.serve([1, 2], HERE)


@for_each("options", [{"rank": 0}, {"rank": 2, "world": 2}, {"timeout_s": 0}, {"world": 0, "rank": 0}])
def test_a_connection_that_makes_no_sense_is_a_plan_error(options):
    with pytest.raises(ps.PlanError):
        ps.connect("tcp://127.0.0.1:1", **options)


# ---------------------------------------------------------------------- keys


@pytest.fixture
def keys(tmp_path):
    make_key(tmp_path / "server.key")
    for name in ("alice", "mallory"):
        make_key(tmp_path / f"{name}.key", tmp_path / "server.key.pub")
    make_key(tmp_path / "other.key")
    make_key(tmp_path / "misled.key", tmp_path / "other.key.pub")
    return tmp_path


def test_keys_are_in_files_that_only_their_owner_can_read(keys):
    assert stat.S_IMODE(os.stat(keys / "server.key").st_mode) == 0o600
    key = read_key(keys / "server.key")
    assert public_keys([keys / "server.key.pub"]) == public_keys([key.public]) == [key.public]
    assert key.secret not in repr(key)
    with pytest.raises(ps.ServiceError, match="never overwritten"):
        make_key(keys / "server.key")
    os.chmod(keys / "server.key", 0o644)
    with pytest.raises(ps.ServiceError, match="mode 0644"):
        ps.serve(pipeline(), HERE, key=keys / "server.key", allow=[keys / "alice.key.pub"])


def test_only_listed_keys_are_let_in_and_others_are_counted(keys):
    options = {"mode": "shard", "key": keys / "server.key", "allow": [keys / "alice.key.pub"]}
    with ps.serve(pipeline(), HERE, **options) as server:
        assert seen(ps.connect(server.address, key=keys / "alice.key")) == locally(pipeline())[0]
        for key, count in (
            ("mallory", "refused_keys"),
            ("misled", "failed_handshakes"),
            (None, "failed_handshakes"),
        ):
            before = server.stats()[f"server.{count}"]
            path = None if key is None else keys / f"{key}.key"
            hint = r"give connect\(key=\)" if key is None else r"knows this client's \(allow=\)"
            with pytest.raises(ps.ServiceError, match=f"has not answered .*{hint}"):
                list(ps.connect(server.address, key=path, timeout_s=0.3))
            await_true(lambda n=f"server.{count}", b=before: server.stats()[n] > b, f"count of {key}")
        assert server.stats()["server.sessions"] == 1
        assert seen(ps.connect(server.address, key=keys / "alice.key")) == locally(pipeline())[0]


def test_keys_without_a_list_are_refused(keys):
    with pytest.raises(ps.PlanError, match="would let any key in"):
        ps.serve(pipeline(), HERE, key=keys / "server.key")
    with pytest.raises(ps.PlanError, match="does not name the server"):
        ps.connect("tcp://127.0.0.1:1", key=keys / "server.key")


# ---------------------------------------------------------------------- strangers at the port


def greeting(mechanism=b"NULL"):
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


READY = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"


def test_strangers_at_the_port_cost_nothing():
    """Half-open connections, noise, and a frame that says that it has 4 GiB."""
    with server_process(mode="shard") as process:
        host, port = process.address.removeprefix("tcp://").split(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(100)]
        for number, one in enumerate(idle):
            if number % 4 == 0:
                one.sendall(os.urandom(200))
            elif number % 4 == 1:
                one.sendall(greeting(b"PLAIN"))
            elif number % 4 == 2:
                one.sendall(
                    greeting() + bytes([4, len(READY)]) + READY + b"\x02" + struct.pack(">Q", 4 << 30) + b"x" * 100
                )
        assert seen(ps.connect(process.address)) == locally(pipeline())[0]
        await_true(lambda: process.stats()["server.failed_handshakes"] >= 25, "failed handshakes")
        for one in idle:
            one.close()
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak_kb = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
        assert peak_kb < 1_000_000


def test_five_hundred_half_open_connections_are_closed_and_counted(monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # both ends of 500 connections are in this process
    monkeypatch.setattr(sockets, "HANDSHAKE_MS", 300)
    with ps.serve(pipeline(), HERE, mode="shard") as server, contextlib.ExitStack() as stack:
        host, port = server.address.removeprefix("tcp://").split(":")
        idle = [stack.enter_context(socket.create_connection((host, int(port)), SOON_S)) for _ in range(500)]
        assert seen(ps.connect(server.address)) == locally(pipeline())[0]
        for one in idle:
            while one.recv(100):  # the greeting of the server, then the end
                pass
        await_true(lambda: server.stats()["server.failed_handshakes"] >= 500, "failed handshakes")
        assert server.stats()["server.sessions"] == 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@for_each("seed", seeds(1))
@pytest.mark.fuzz
def test_mutated_messages_reach_a_server_and_it_goes_on(seed):
    draw = random.Random(seed)
    token = bytes(16)
    good = [
        protocol.Ask(protocol.VERSION, token, 1),
        protocol.Hello(token, 1, 0, 3, 2, 1, "", 5, b'{"version": 2}'),
        protocol.Hello(token, 1, 1 << 60, 1 << 60, 1 << 30, 1, "", 0, b"", (1, 2)),
        protocol.Want(token, 1, 5, 1 << 60, 1 << 60),
        protocol.Bye(token, 1),
    ]
    for mode in ("shard", "split"):
        with ps.serve(pipeline(), HERE, mode=mode) as server, zmq.Context() as context:
            stranger = context.socket(zmq.DEALER)
            stranger.linger = 0
            stranger.connect(server.address)
            for _ in range(300):
                frame = bytearray(protocol.encode(draw.choice(good)))
                for _ in range(draw.choice((0, 1, 1, 3))):
                    frame[draw.randrange(len(frame))] = draw.choice((0, 0x7F, 0xC0, 0xDF, draw.randrange(256)))
                stranger.send_multipart([bytes(frame)] + [b"more"] * draw.choice((0, 0, 0, 1)))
            await_true(lambda s=server: s.stats()["server.malformed"] > 30, "what is malformed")
            stranger.close()
            assert seen(ps.connect(server.address)) or mode == "split"


# ---------------------------------------------------------------------- what is never done


#: what strangers' bytes go through
DOOR = [*sorted((ROOT / "service").glob("*.py")), ROOT / "memory" / "network.py", ROOT / "memory" / "scan.py"]


@for_each("path", DOOR)
def test_nothing_at_the_door_can_run_code(path):
    """No pickle, eval, exec or import by a name that somebody sends; no arrays of objects."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            assert not names & {"pickle", "cloudpickle", "marshal", "shelve", "dill", "code", "runpy"}, path.name
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
            assert getattr(node.func, "id", "") not in {"eval", "exec", "compile", "__import__"}, path.name
            assert name not in {"recv_pyobj", "send_pyobj", "fromstring", "set_string_function"}, path.name
            if name == "import_module":
                assert all(isinstance(argument, ast.Constant) for argument in node.args), path.name
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            raise AssertionError(path.name)


def test_decoding_imports_and_runs_nothing():
    """Python itself says so, by its audit events, while mutated messages and batches are decoded."""
    code = """
import random, sys
import numpy as np
from penstock.errors import CodecError
from penstock.memory.network import decode, layout_of
from penstock.memory.scan import DOOR
from penstock.service import protocol, sockets
layout = layout_of({"x": np.arange(10), "name": ["a", b"b" * 3000, (1.5, None)]}, in_frames=True)
frames = [bytearray(one) for one in layout.frames()]
token = bytes(16)
words = [protocol.encode(one) for one in (protocol.Ask(1, token, 0), protocol.Batch(token, 0, 1, 2, b"{}"))]
draw = random.Random(5)
def all_of_it():
    for number in range(3000):
        header = bytearray(draw.choice([layout.header, layout.header, *words]))
        for _ in range(draw.randrange(4)):
            header[draw.randrange(len(header))] = draw.randrange(256)
        for tried in (lambda: decode(header, frames, DOOR), lambda: protocol.decode_from_client([header]),
                      lambda: protocol.decode_from_server([header, b""])):
            try:
                tried()
            except (CodecError, protocol.Malformed):
                pass
all_of_it()
seen = set()
armed = False
sys.addaudithook(lambda event, args: armed and seen.add(event))
armed = True
all_of_it()
armed = False
print(sorted(one for one in seen if one.split(".")[0] in
      {"import", "exec", "compile", "pickle", "marshal", "os", "subprocess", "open", "socket", "ctypes"}))
"""
    done = nursery.run(code)
    assert done.stdout == "[]\n", done.stderr


def test_a_failure_reaches_clients_as_a_code(caplog):
    secret = "the password is swordfish"

    def fails(i):
        raise RuntimeError(secret)

    failed = pytest.raises(ps.ServiceError, match="raised RuntimeError")
    with ps.serve(ps.from_sequence(range(3)).map(fails), HERE, mode="shard") as server, failed as caught:
        list(ps.connect(server.address))
    assert secret not in str(caught.value)
    assert secret in caplog.text
    assert json.dumps(server.stats())


@for_each("message", [b"\x00\x01x", b"\x00\x15" + protocol.encode(protocol.Ask(protocol.VERSION, bytes(16), 1))])
def test_a_stranger_that_sends_without_reading_costs_a_server_no_memory(message):
    """It sends until the server reads no more, or for 100 MB."""
    message = message[:1] + bytes([len(message) - 2]) + message[2:]
    with server_process(mode="shard") as process:
        host, port = process.address.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), timeout=0.3) as stranger:
            stranger.sendall(greeting() + bytes([4, len(READY)]) + READY)
            with contextlib.suppress(OSError):
                for _ in range(50):
                    stranger.sendall(message * ((2 << 20) // len(message)))
        assert seen(ps.connect(process.address)) == locally(pipeline())[0]
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak_kb = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    assert peak_kb < 150_000


def test_a_message_without_an_end_is_cut_off():
    frame = b"\x03" + struct.pack(">Q", 200_000) + bytes(200_000)  # more frames follow
    with server_process(mode="shard") as process:
        host, port = process.address.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), timeout=SOON_S) as stranger:
            stranger.sendall(greeting() + bytes([4, len(READY)]) + READY)
            with pytest.raises(ConnectionError):
                while True:
                    stranger.sendall(frame)
        assert process.stats()["server.cut"] == 1
        assert seen(ps.connect(process.address)) == locally(pipeline())[0]


def test_more_credit_than_a_client_takes_is_a_plan_error():
    with pytest.raises(ps.PlanError, match="takes at most 100000 batches"):
        ps.serve(pipeline(), HERE, credit=100_001)


def test_addresses_and_key_files_that_cannot_be_are_refused_with_what_to_do(tmp_path):
    with pytest.raises(ps.PlanError, match="up to 65535"):
        ps.serve(ps.from_sequence([1]).batch(1), bind="tcp://127.0.0.1:99999")
    for port in ("*", "0"):
        with pytest.raises(ps.PlanError, match="has no port; give the one that the server prints"):
            ps.connect(f"tcp://127.0.0.1:{port}")
    for called in (ps.connect, lambda address: ps.serve(ps.from_sequence([1]), address)):
        with pytest.raises(ps.PlanError, match="the path of a Unix socket has at most"):
            called(f"ipc://{tmp_path}/{'a' * 110}")
    with pytest.raises(ps.PlanError, match="must be positive, got '3'"):
        ps.connect("tcp://127.0.0.1:5557", timeout_s="3")
    with pytest.raises(ps.ServiceError, match=r"No such file or directory$"):
        ps.serve(ps.from_sequence([1]), f"ipc://{tmp_path}/none/socket")
    with pytest.raises(ps.ServiceError, match="cannot be written: No such file or directory"):
        make_key(tmp_path / "none" / "a.key")
    with pytest.raises(ps.ServiceError, match="penstock keygen"):
        ps.connect("tcp://127.0.0.1:5557", key=tmp_path / "no.key")
