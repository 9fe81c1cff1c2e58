"""Random faults: killed and stopped processes, cut and half-open connections. Nothing is lost or doubled."""

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from tests import nursery
from tests.cases import for_each
from tests.random_examples import SEED, TIMES, seeds
from tests.service.proxy import Proxy
from tests.service.served import SOON_S, Process, locally, pipeline, stream

CLIENT = """
import json, sys
import penstock as ps
from penstock.service import lane, line
line.SILENCE_S, lane.BEAT_S = 0.4, 0.1
address, rank, world, state = json.loads(sys.argv[1])
with ps.connect(address, rank=rank, world=world, timeout_s=50).loader(state=state, epochs=1) as loader:
    try:
        for _, batches in loader.epochs():
            for batch in batches:
                print(json.dumps([batch["i"].tolist(), loader.state_dict()]), flush=True)
                if not sys.stdin.readline():
                    sys.exit()
    except ps.ServiceError as exc:
        # It was killed, and came back after the whole epoch was handed out and the server started again.
        if "before this server was started" not in str(exc) or "again" not in sys.argv:
            raise
print("null", flush=True)
"""

FAULTS = ["kill server", "cut", "freeze", "kill client", "stop client", "stop server"]
#: the longest time for which a server is stopped
STOPPED_S = 2.0


class Client:
    """A training loop in a process of its own, one batch at a time."""

    def __init__(self, address, rank, world):
        self.address, self.rank, self.world = address, rank, world
        self.state = None
        self.found = []
        self.kills = 0
        self.over = False
        self.stopped = False
        self.start()

    def start(self, keep_state=True):
        order = [self.address, self.rank, self.world, self.state if keep_state else None]
        again = () if keep_state else ("again",)
        self.script = nursery.Forked(CLIENT, json.dumps(order), *again, server=False)

    def step(self):
        """The next batch; False at the end."""
        line = self.script.line(SOON_S)
        assert line, self.script.ended(SOON_S)
        said = json.loads(line)
        if said is None:
            self.over = True
            return False
        self.found.append(said[0])
        self.state = said[1]
        return True

    def go_on(self):
        self.script.write("\n")

    def kill(self, keep_state):
        self.script.kill()
        self.script.close()
        self.kills += 1
        self.start(keep_state)

    def signal(self, number):
        os.kill(self.script.pid, number)
        self.stopped = number == signal.SIGSTOP

    def close(self):
        if self.stopped:
            self.signal(signal.SIGCONT)
        self.script.kill()
        self.script.close()


class Schedule:
    """One random run: which faults come after which batches is up to the seed."""

    def __init__(self, seed, mode, folder):
        self.draw = random.Random(seed)
        self.mode = mode
        self.made = self.draw.choice(["pipeline", "stream"])
        self.options = {"mode": mode, "credit": self.draw.randrange(1, 6), "pipeline": self.made}
        self.ledger = Path(folder) / f"ledger-{seed}"
        if mode == "split":
            self.options["ledger"] = str(self.ledger)
        self.told = []

    def run(self):
        self.server = Process(**self.options)
        count = self.draw.choice([1, 2])
        with Proxy(self.server.address) as self.proxy:
            ranks = range(count)
            self.clients = [Client(self.proxy.address, rank, count) for rank in ranks]
            try:
                self._read_all()
            finally:
                for client in self.clients:
                    client.close()
                self.server.close()
        return self._check(count)

    def _read_all(self):
        while not all(client.over for client in self.clients):
            for client in self.clients:
                if client.over:
                    continue
                if client.stopped:
                    client.signal(signal.SIGCONT)
                if not client.step():
                    continue
                killed = False
                if self.draw.random() < 0.15:
                    killed = self._fault(client)
                if not killed:
                    client.go_on()

    def _fault(self, client):
        """Do something bad; whether the client is another one now."""
        fault = self.draw.choice(FAULTS)
        self.told.append(fault)
        if fault == "kill server":
            address = self.server.address
            self.server.close()
            self.server = Process(**self.options, bind=address)
        elif fault == "cut":
            self.proxy.cut()
        elif fault == "freeze":
            self.proxy.freeze()
            self.proxy.thaw()
        elif fault == "stop client":
            client.signal(signal.SIGSTOP)
        elif fault == "stop server":
            self._stop_server()
        else:
            client.kill(keep_state=self.mode != "split")
            return True
        return False

    def _stop_server(self):
        """Until a client has taken its silence for a death; one that has all it needs does not call again."""
        before, end = self.proxy.accepted, time.monotonic() + STOPPED_S
        os.kill(self.server.pid, signal.SIGSTOP)
        while self.proxy.accepted == before and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(self.server.pid, signal.SIGCONT)

    def _check(self, count):
        whole = locally({"pipeline": pipeline, "stream": stream}[self.made]())[0]
        found = [client.found for client in self.clients]
        if self.mode == "each":
            assert found == [whole] * count, self.told
        elif self.mode == "shard":
            assert found == [whole[rank::count] for rank in range(count)], self.told
        else:
            entries = [json.loads(line) for line in self.ledger.read_text().splitlines()]
            handed = Counter(number for entry in entries if entry[0] == "h" for number in entry[3])
            assert handed == Counter(range(len(whole))), self.told
            came = Counter(str(batch) for part in found for batch in part)
            assert came <= Counter(map(str, whole)), self.told
            if not any(client.kills for client in self.clients):
                assert came == Counter(map(str, whole)), self.told
        return self.told


@for_each("seed, mode", [(1, "shard"), (5, "split")])
def test_faults_lose_and_double_nothing(seed, mode, tmp_path):
    assert Schedule(seed, mode, tmp_path).run()


@pytest.mark.soak
@for_each("seed", seeds(200) if SEED is None else seeds(max(200 // TIMES, 1)))
def test_many_random_faults_lose_and_double_nothing(seed, tmp_path):
    Schedule(seed, ("shard", "each", "split")[seed % 3], tmp_path).run()
