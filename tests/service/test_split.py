"""Mode "split": every batch is handed to exactly one client, counted on the server's ledger."""

import json
import random
import threading
from contextlib import contextmanager

import pytest
from tests import nursery
from tests.runtime.process_helpers import await_true
from tests.service.served import HERE, SOON_S, locally, pipeline, seen, server_process, stream

import penstock as ps
from penstock.service import broker, lane
from penstock.service.ledger import Ledger, Refusal


def in_threads(loaders):
    """All loaders at once, each in a thread; what came, in any order."""
    found = []
    threads = [threading.Thread(target=lambda one=one: found.extend(seen(one))) for one in loaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    return found


def test_clients_together_get_every_batch_once():
    whole = locally(pipeline(), 2)
    with ps.serve(pipeline(), HERE, credit=2) as server:
        loaders = [ps.connect(server.address).loader() for _ in range(3)]
        for epoch in range(2):
            assert sorted(in_threads(loaders)) == sorted(whole[epoch])
        assert server.stats()["server.handed"] == 60
        assert server.stats()["server.runs"] == 2
        for loader in loaders:
            loader.close()


def test_loops_that_step_together_come_to_the_end():
    """One waits for a batch while the other, which has some, waits for the first."""
    whole = locally(pipeline())[0]
    for credit in (1, 10):
        with ps.serve(pipeline(), HERE, credit=credit) as server:
            loaders = [ps.connect(server.address).loader() for _ in range(3)]
            parts, found = [iter(loader) for loader in loaders], []
            while parts:
                for part in list(parts):
                    batch = next(part, None)
                    if batch is None:
                        parts.remove(part)
                    else:
                        found += seen([batch])
            for loader in loaders:
                loader.close()
        assert sorted(found) == sorted(whole)


def test_a_client_that_leaves_gives_back_what_it_was_not_handed():
    whole = locally(pipeline())[0]
    with ps.serve(pipeline(), HERE) as server:
        with ps.connect(server.address).loader() as early:
            found = seen([next(iter(early))])
        with ps.connect(server.address).loader() as late:
            found += seen(late)
        # The first client had been handed at most what its buffers hold ahead of the loop.
        assert len(whole) - 12 <= len(found) <= len(whole)
        assert len(set(map(str, found))) == len(found)
        assert server.stats()["server.handed"] == len(whole)


CLIENT = """
import sys, json, penstock as ps
with ps.connect(sys.argv[1]).loader() as loader:
    for batch in loader:
        print(json.dumps(batch["i"].tolist()), flush=True)
        sys.stdin.readline()
"""


def test_what_a_killed_client_was_not_handed_goes_to_others(monkeypatch, tmp_path):
    monkeypatch.setattr(broker, "LEASE_S", 1.0)
    whole = locally(pipeline())[0]
    with ps.serve(pipeline(), HERE, ledger=tmp_path / "ledger") as server:
        client = nursery.Forked(CLIENT, server.address, server=False)
        found = [json.loads(client.line(SOON_S))]
        await_true(lambda: server.stats()["server.leased"] >= 5, "leases")
        client.kill()
        client.close()
        with ps.connect(server.address).loader() as loader:
            found += seen(loader)
        handed = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    numbers = [number for entry in handed if entry[0] == "h" for number in entry[3]]
    assert sorted(numbers) == list(range(len(whole)))
    assert len(set(map(str, found))) == len(found) >= len(whole) - 12


@pytest.mark.parametrize("made", ["pipeline", "stream"])
def test_the_ledger_survives_a_killed_server(tmp_path, made):
    whole = locally({"pipeline": pipeline, "stream": stream}[made]())[0]
    options = {"credit": 4, "ledger": str(tmp_path / "ledger"), "pipeline": made}
    with server_process(**options) as first:
        loaders = [ps.connect(first.address).loader() for _ in range(2)]
        parts = [iter(loader) for loader in loaders]
        found = seen([next(part) for _ in range(4) for part in parts])
        first.kill()
        with server_process(bind=first.address, **options) as second:
            found += in_threads(parts)
            assert second.stats()["server.handed"] == len(whole)
            # It went on from the ledger, and not from the first batch.
            assert second.stats()["batches"] < len(whole)
        for loader in loaders:
            loader.close()
    assert sorted(found) == sorted(whole)


def test_without_a_file_a_server_that_was_started_again_is_refused():
    with server_process(credit=2) as first, ps.connect(first.address).loader() as loader:
        batches = iter(loader)
        next(batches)
        first.kill()
        refused = pytest.raises(ps.ServiceError, match="started again with another ledger")
        with server_process(credit=2, bind=first.address), refused:
            list(batches)


def saved_and_resumed(counts, servers):
    """What clients get together if each time another number of them goes on with the states of all before.

    They save after three batches each and read one more, which is forgotten; the last ones read to the end.
    `servers()` starts the servers and gives their addresses.
    """
    found, states = [], None
    for number, count in enumerate(counts, 1):
        with servers() as addresses:
            loaders = [ps.connect(addresses).loader(state=states) for _ in range(count)]
            parts = [iter(loader) for loader in loaders]
            if number == len(counts):
                found += in_threads(parts)
            else:
                found += seen([next(part) for _ in range(3) for part in parts])
                states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
                for part in parts:
                    next(part)
            for loader in loaders:
                loader.close()
    return found


def test_states_of_all_clients_roll_the_ledger_back(tmp_path):
    @contextmanager
    def server():
        with ps.serve(pipeline(), HERE, ledger=tmp_path / "ledger", credit=3) as one:
            yield one.address

    assert sorted(saved_and_resumed((1, 3, 2), server)) == sorted(locally(pipeline())[0])


def test_states_of_some_clients_are_refused(tmp_path):
    path = tmp_path / "ledger"
    with ps.serve(pipeline(), HERE, ledger=path) as server:
        loaders = [ps.connect(server.address).loader() for _ in range(2)]
        for loader in loaders:
            next(iter(loader))
        states = [loader.state_dict() for loader in loaders]
        for loader in loaders:
            loader.close()
    for given, options, why in (
        (states[0], {"ledger": path}, "the states of all clients are needed"),
        (states, {}, "the state is of another ledger"),
    ):
        refused = pytest.raises(ps.ServiceError, match=why)
        with ps.serve(pipeline(), HERE, **options) as server:
            loader = ps.connect(server.address).loader(state=given)
            with loader, refused:
                list(loader)


def test_a_silent_connection_hands_nothing_twice(monkeypatch):
    monkeypatch.setattr("penstock.service.line.SILENCE_S", 0.2)
    monkeypatch.setattr(lane, "BEAT_S", 0.05)
    with ps.serve(pipeline(), HERE, credit=3) as server, ps.connect(server.address).loader() as loader:
        send, dropped, rng = server._broker.send, [], random.Random(5)

        def lossy(identity, frames):
            """A fifth of the messages is lost: drawn, since turns of five would lose the same each time."""
            dropped.append(rng.random() < 0.2)
            if not dropped[-1]:
                send(identity, frames)

        server._broker.send = lossy
        assert sorted(seen(loader)) == sorted(locally(pipeline())[0])
        assert any(dropped)


# ---------------------------------------------------------------------- the ledger itself


def test_a_ledger_reads_what_it_wrote_and_cuts_off_half_a_line(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger(path, "abc")
    ledger.hand(0, "a", [0, 1])
    ledger.hand(0, "b", [3])
    ledger.stand(0, 2, b"{}")
    ledger.close()
    with open(path, "ab") as file:
        file.write(b'["h",0,"b",[2')
    again = Ledger(path, "abc")
    assert again.id == ledger.id
    assert (again.entries(0).low, again.entries(0).above, again.entries(0).states) == (2, {3}, {(0, 1): (2, b"{}")})
    assert again.has(0, "b", [2, 3]) == [3]
    again.hand(0, "a", [2])
    again.close()
    last = Ledger(path, "abc")
    assert last.entries(0).low == 4
    last.close()


def test_a_ledger_has_one_pipeline(tmp_path):
    path = tmp_path / "ledger"
    Ledger(path, "abc").close()
    with pytest.raises(ps.ServiceError, match="is of pipeline abc"):
        Ledger(path, "xyz")


def test_a_rollback_keeps_what_each_client_had():
    ledger = Ledger(None, "abc")
    ledger.hand(0, "a", [0, 2, 4])
    ledger.hand(0, "b", [1, 3])
    ledger.hand(1, "a", [0])
    with pytest.raises(Refusal, match="1 of 2 clients"):
        ledger.roll_back(0, 0, {"a": 1}, "")
    with pytest.raises(Refusal, match="more batches than the ledger"):
        ledger.roll_back(0, 0, {"a": 4, "b": 1}, "")
    ledger.roll_back(0, 0, {"a": 2, "b": 1}, "x")
    assert (ledger.entries(0).low, ledger.entries(0).above) == (3, set())
    assert ledger.entries(1).count == 0
    assert ledger.generation == 1
    ledger.hand(0, "c", [3])
    # An older checkpoint once more: all that came since is taken back.
    ledger.roll_back(0, 0, {"a": 1, "b": 1}, "x")
    assert (ledger.entries(0).low, ledger.entries(0).above) == (2, set())
