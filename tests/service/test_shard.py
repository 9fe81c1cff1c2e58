"""Mode "shard": rank r of W gets every W-th batch, whatever happens to servers, connections and clients."""

import json
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from tests import nursery
from tests.cases import for_each
from tests.runtime.process_helpers import await_true
from tests.service.served import HERE, SOON_S, locally, pipeline, seen, server_process, stream

import penstock as ps
from penstock.service import lane, line
from penstock.testing import check_resume


def test_one_client_gets_the_epochs_of_the_pipeline():
    for served in (pipeline(), stream()):
        with ps.serve(served, HERE, mode="shard", seed=3) as server, ps.connect(server.address).loader() as loader:
            assert [seen(batches) for _, batches in loader.epochs(3)] == locally(served, 3, seed=3)


def test_ranks_share_the_stream_batch_by_batch():
    whole = locally(pipeline(), 2)
    with ps.serve(pipeline(), HERE, mode="shard") as server:
        loaders = [ps.connect(server.address, rank=rank, world=3).loader() for rank in range(3)]
        for epoch in range(2):
            parts = [iter(loader) for loader in loaders]
            found = [[] for _ in parts]
            for _ in range(20):
                for rank, part in enumerate(parts):
                    found[rank] += seen([batch] if (batch := next(part, None)) else [])
            assert found == [whole[epoch][rank::3] for rank in range(3)]
        for loader in loaders:
            loader.close()
        # They read in step, so every batch was made once.
        assert server.stats()["server.runs"] == 2


def test_received_arrays_are_writable_and_own_memory_of_the_message():
    large = ps.from_sequence(range(3)).map(lambda i: {"x": np.full((300, 300), i, "f8"), "y": np.full(3, i)})
    with ps.serve(large, HERE, mode="shard") as server:
        for i, sample in enumerate(ps.connect(server.address)):
            assert sample["x"].flags.writeable
            assert sample["y"].flags.writeable
            assert not sample["x"].flags.owndata
            sample["x"] += 1
            assert (sample["x"] == i + 1).all()


def test_what_cannot_be_sent_fails_on_both_sides_without_a_traceback(caplog):
    failed = pytest.raises(ps.ServiceError, match=r"raised NotCarried in epoch 0; see the server's log")
    with ps.serve(ps.from_sequence([{1, 2}]), HERE, mode="shard") as server, failed:
        list(ps.connect(server.address))
    assert "a builtins.set cannot be sent" in caplog.text


def test_a_client_goes_on_from_its_state_at_every_step():
    for served in (pipeline(40), stream(60)):
        with ps.serve(served, HERE, mode="shard") as server:
            check_resume(ps.connect(server.address, rank=1, world=2), every=3)


def test_ops_follow_a_connection_and_are_resumed_with_it():
    with ps.serve(pipeline(60), HERE, mode="shard") as server:
        after = ps.connect(server.address).unbatch().shuffle(window=10).batch(5)
        check_resume(after, every=4)


def test_a_state_is_small_and_says_nothing_of_the_address():
    with ps.serve(pipeline(), HERE, mode="shard") as server, ps.connect(server.address).loader() as loader:
        for number, _ in enumerate(loader):
            if number == 10:
                break
        text = json.dumps(loader.state_dict())
    assert "127.0.0.1" not in text
    assert len(text) < 3000


def test_another_process_goes_on_where_one_was_killed():
    code = """
import sys, json, penstock as ps
with ps.connect(sys.argv[1]).loader() as loader:
    for number, batch in enumerate(loader):
        print(json.dumps([batch["i"].tolist(), loader.state_dict()]), flush=True)
        sys.stdin.readline()
"""
    with ps.serve(pipeline(), HERE, mode="shard") as server:
        client = nursery.Forked(code, server.address, server=False)
        found = []
        for _ in range(9):
            batch, state = json.loads(client.line(SOON_S))
            found.append(batch)
            client.write("\n")
        client.kill()
        client.close()
        with ps.connect(server.address).loader(state=state) as loader:
            assert [*found, *seen(loader)] == locally(pipeline())[0]


@for_each("worlds", [(1, 3, 2), (2, 1, 4)])
def test_another_number_of_clients_goes_on_with_the_same_global_stream(worlds):
    whole = locally(pipeline())[0]
    with ps.serve(pipeline(), HERE, mode="shard") as server:
        found, states = [], [None]
        for world in worlds:
            loaders = [ps.connect(server.address, rank=rank, world=world).loader() for rank in range(world)]
            for loader in loaders:
                if states[0] is not None:
                    loader.load_state_dict(states[0])
            parts = [iter(loader) for loader in loaders]
            rounds = 3 if world != worlds[-1] else 100
            for _ in range(rounds):
                for part in parts:
                    found += seen([batch] if (batch := next(part, None)) else [])
            states = [loader.state_dict() for loader in loaders]
            for loader in loaders:
                loader.close()
    assert found == whole


# ---------------------------------------------------------------------- servers that die


@for_each("made", ["pipeline", "stream"])
def test_clients_go_on_exactly_when_the_server_is_killed_and_started_again(made):
    whole = locally({"pipeline": pipeline, "stream": stream}[made]())[0]
    with server_process(mode="shard", credit=3, pipeline=made) as first:
        found = []
        with ps.connect(first.address).loader() as loader:
            batches = iter(loader)
            found += seen([next(batches) for _ in range(7)])
            first.kill()
            with server_process(mode="shard", credit=3, pipeline=made, bind=first.address) as second:
                found += seen(batches)
                # It went on from the state that came along, and not from the first batch.
                assert second.stats()["batches"] < len(whole)
    assert found == whole


def test_a_server_that_stays_away_is_an_error_that_names_it(monkeypatch):
    with (
        server_process(mode="shard", credit=2) as process,
        ps.connect(process.address, timeout_s=2).loader() as loader,
    ):
        batches = iter(loader)
        next(batches)
        process.kill()
        with pytest.raises(ps.ServiceError, match=rf"{process.address} has not answered for 2 s"):
            list(batches)


def test_a_server_that_is_not_there_is_an_error_that_names_it():
    with pytest.raises(ps.ServiceError, match=r"tcp://127\.0\.0\.1:9 has not answered for 0\.2 s"):
        list(ps.connect("tcp://127.0.0.1:9", timeout_s=0.2))


def test_another_pipeline_at_the_same_address_is_refused():
    with ps.serve(pipeline(), HERE, mode="shard") as server, ps.connect(server.address).loader() as loader:
        next(iter(loader))
        state = loader.state_dict()
    refused = pytest.raises(ps.ServiceError, match="serve the same pipeline with the same seed")
    with ps.serve(pipeline(124), HERE, mode="shard") as server:
        loader = ps.connect(server.address).loader(state=state)
        with loader, refused:
            list(loader)


def test_a_silent_connection_is_called_again(monkeypatch):
    monkeypatch.setattr(line, "SILENCE_S", 0.2)
    served = ps.serve(pipeline(), HERE, mode="shard", credit=2)
    with served as server, ps.connect(server.address).loader() as loader:
        batches = iter(loader)
        found = seen([next(batches)])
        before = server._broker.received
        lost = []
        # All that clients say is lost for a while, as over a connection that is half open.
        server._broker.received = lambda *message: lost.append(message)
        await_true(lambda: len(lost) > 3, "words that are lost")
        server._broker.received = before
        found += seen(batches)
    assert found == locally(pipeline())[0]


# ---------------------------------------------------------------------- clients


def test_break_leaves_nothing_of_the_epoch_to_the_next():
    whole = locally(pipeline(), 3)
    with ps.serve(pipeline(), HERE, mode="shard") as server, ps.connect(server.address).loader() as loader:
        found = []
        for _, batches in loader.epochs(3):
            found.append(seen([next(iter(batches)), next(iter(batches))]))
        assert found == [epoch[:2] for epoch in whole]
        loader.close()
        await_true(lambda: not server.stats()["server.clients"], "end of the session")


def test_a_client_that_takes_nothing_costs_its_credit_and_nobody_waits_for_it():
    whole = locally(pipeline())[0]
    with ps.serve(pipeline(), HERE, mode="each", credit=2) as server:
        with ps.connect(server.address).loader() as slow, ps.connect(server.address).loader() as fast:
            lazy = iter(slow)
            found = seen([next(lazy)])
            assert seen(fast) == whole
            assert server.stats()["server.window_bytes"] < 20_000
            # It is too far behind for the window: what it lacks is made again, for it alone.
            assert found + seen(lazy) == whole
        assert server.stats()["server.runs"] > 1


def test_each_client_sees_all_and_the_work_is_done_once():
    with ps.serve(pipeline(40), HERE, mode="each") as server:
        loaders = [ps.connect(server.address).loader() for _ in range(3)]
        parts = [iter(loader) for loader in loaders]
        found = [seen([next(part) for part in parts]) for _ in range(10)]
        assert all(len({json.dumps(one) for one in row}) == 1 for row in found)
        assert server.stats()["server.runs"] == 1
        for loader in loaders:
            loader.close()


def test_a_long_step_of_the_loop_is_not_a_death(monkeypatch):
    monkeypatch.setattr("penstock.service.broker.LEASE_S", 0.6)
    monkeypatch.setattr(lane, "BEAT_S", 0.1)
    with (
        ps.serve(pipeline(), HERE, mode="shard", credit=1) as server,
        ps.connect(server.address).loader() as loader,
    ):
        batches = iter(loader)
        found = seen([next(batches)])
        session = await_true(lambda: list(server._broker.sessions.values()), "session")[0]
        first = session.heard
        # The loop computes; the thread of the socket goes on saying that the client lives.
        await_true(lambda: session.heard > first + 1.0, "heartbeats")
        found += seen(batches)
        assert server.stats()["server.expired"] == 0
    assert found == locally(pipeline())[0]


def test_closing_a_loader_that_waits_for_a_slow_server_returns():
    held = threading.Event()
    slow = ps.from_sequence(range(3)).map(lambda i: held.wait(SOON_S) and i)
    with ps.serve(slow, HERE, mode="shard") as server:
        loader = ps.connect(server.address).loader()
        loader.start()
        await_true(lambda: server.stats()["server.clients"], "session")
        loader.close()
        held.set()


def test_the_end_is_checked_against_the_count():
    with ps.serve(pipeline(), HERE, mode="shard") as server, ps.connect(server.address).loader() as loader:
        finish = server._broker.finish
        server._broker.finish = lambda session, total: finish(session, total + 5)
        with pytest.raises(ps.ServiceError, match=r"ended epoch 0 after 35 batches, and batch 30 never came"):
            list(loader)


@pytest.mark.usefixtures("warm_processes")
def test_isolated_loaders_connect_too():
    with (
        ps.serve(pipeline(), HERE, mode="shard") as server,
        ps.connect(server.address).loader(isolate=True) as loader,
    ):
        assert seen(loader) == locally(pipeline())[0]


def test_tensors_cross():
    torch = pytest.importorskip("torch")
    tensors = ps.from_sequence(range(6)).map(lambda i: torch.full((3,), i)).batch(2)
    with ps.serve(tensors, HERE, mode="shard") as server:
        assert torch.equal(torch.cat(list(ps.connect(server.address)))[:, 0], torch.arange(6))


def test_a_state_that_one_client_made_up_fails_for_that_client_alone(caplog):
    whole = locally(pipeline())[0]
    with ps.serve(pipeline(), HERE, mode="shard") as server, ps.connect(server.address).loader() as good:
        batches = iter(good)
        found = seen([next(batches)])
        with ps.connect(server.address).loader() as loader:
            part = iter(loader)
            for _ in range(5):
                next(part)
            state = loader.state_dict()
        bad = json.loads(json.dumps(state))
        bad["at"]["front"]["own"]["states"]["0"][1]["state"]["sum"] = "0" * 16
        bad = ps.edit_state({**state}, at=bad["at"])
        with ps.connect(server.address).loader(state=bad) as loader:
            server._broker.runs.clear()  # so that no window has its batch
            with pytest.raises(ps.ServiceError, match="raised StateMismatch"):
                list(loader)
        found += seen(batches)
    assert found == whole


def test_a_stopped_client_costs_a_server_no_memory():
    """Another reads 300 MB meanwhile."""
    code = """
import sys, penstock as ps
for batch in ps.connect(sys.argv[1]):
    print("here", flush=True)
    sys.stdin.readline()
"""
    with server_process(mode="each", credit=3, pipeline="megabytes", args=[300]) as process:
        client = nursery.Forked(code, process.address, server=False)
        assert client.line(SOON_S) == "here\n"
        os.kill(client.pid, signal.SIGSTOP)
        assert sum(len(batch) for batch in ps.connect(process.address)) == 300 << 20
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak_kb = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
        client.kill()
        client.close()
    assert peak_kb < 250_000


def test_staging_belongs_behind_the_connection():
    with pytest.raises(ps.PlanError, match=r"put it behind connect\(\)"):
        ps.serve(pipeline().to("numpy"), HERE)
