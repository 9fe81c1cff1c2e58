"""``penstock serve`` and ``penstock keygen``, in processes of their own."""

import os
import signal
import stat
import subprocess
import sys

import pytest
from tests.service.served import SOON_S, locally, pipeline, seen

import penstock as ps
from penstock.cli.main import main


@pytest.fixture
def serving(tmp_path):
    """`penstock serve` with these arguments, as a process, and its address."""
    started = []

    def start(*args):
        command = [sys.executable, "-m", "penstock", "serve", "tests.service.served:pipeline", *args]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        line = process.stdout.readline()
        assert line.startswith("serving "), process.communicate(timeout=SOON_S)
        return process, line.split(" at ")[1].split(",")[0]

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=SOON_S)


def test_sigterm_lets_clients_finish_their_epoch(serving):
    process, address = serving("--bind", "tcp://127.0.0.1:0", "--mode", "shard", "--credit", "2")
    with ps.connect(address).loader() as loader:
        batches = iter(loader)
        found = seen([next(batches)])
        process.send_signal(signal.SIGTERM)
        found += seen(batches)
    assert found == locally(pipeline())[0]
    _, errors = process.communicate(timeout=SOON_S)
    assert (process.returncode, errors) == (0, "penstock serve: ended\n")


def test_keygen_makes_keys_that_serve_takes(serving, tmp_path, capsys):
    server, client = str(tmp_path / "server.key"), str(tmp_path / "client.key")
    assert main(["keygen", server]) == 0
    assert main(["keygen", client, "--server", f"{server}.pub"]) == 0
    said = capsys.readouterr().out
    assert stat.S_IMODE(os.stat(client).st_mode) == 0o600
    for line in (tmp_path / "client.key").read_text().splitlines():
        assert not line.startswith("secret") or line.split(": ")[1] not in said
    _, address = serving(
        "--bind", "tcp://127.0.0.1:0", "--mode", "each", "--key-file", server, "--allow", f"{client}.pub"
    )
    assert seen(ps.connect(address, key=client)) == locally(pipeline())[0]
    assert main(["keygen", server]) == 1
    assert "never overwritten" in capsys.readouterr().err
