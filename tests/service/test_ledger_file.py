"""The file of a ledger when it is cut short, damaged, full, or something else."""

import json
import random
import shutil

import pytest
from tests import nursery
from tests.cases import for_each
from tests.random_examples import seeds
from tests.service.served import HERE, pipeline

import penstock as ps
from penstock.service import journal
from penstock.service import ledger as ledger_module
from penstock.service.ledger import Ledger, Refusal


@pytest.fixture
def written(tmp_path):
    """A ledger with every kind of line."""
    path = tmp_path / "ledger"
    ledger = Ledger(path, "abc")
    ledger.enter("a", 1)
    ledger.hand(0, "a", [0, 1], turn=1)
    ledger.stand(0, 2, b"{}")
    ledger.stand(0, 1, b'{"x":[1]}', (1, 2))
    ledger.roll_back(0, 0, {"a": 1}, "x")
    ledger.hand(0, "b", [1, 2])
    ledger.end(0, 3)
    ledger.close()
    return path


def test_a_ledger_that_is_cut_at_any_byte_has_the_lines_before(written, tmp_path):
    whole = written.read_bytes()
    cut = tmp_path / "cut"
    for length in range(len(whole) + 1):
        cut.write_bytes(whole[:length])
        lines = whole[:length].count(b"\n")
        ledger = Ledger(cut, "abc")
        assert ledger.entries(0).count == [0, 0, 0, 2, 2, 2, 1, 3, 3][lines]
        assert ledger.generation == (lines > 5)
        assert ledger.hand(0, "c", [10])
        ledger.close()
        kept = b"".join(whole.splitlines(keepends=True)[:lines])
        assert cut.read_bytes().startswith(kept)
        assert cut.read_bytes().count(b"\n") == max(lines, 1) + 1


@pytest.mark.fuzz
@for_each("seed", seeds(500))
def test_a_damaged_ledger_is_read_or_refused_by_name(written, tmp_path, seed):
    draw = random.Random(seed)
    path = tmp_path / "damaged"
    data = bytearray(written.read_bytes())
    if seed % 2:
        data += b'["g",1,"x"]\n["d",1,5,[7,9]]\n["c",2,0,"a",[0,1]]\n["moved"]\n'
    for _ in range(draw.choice((1, 1, 3))):
        at = draw.randrange(len(data))
        data[at : at + draw.choice((0, 1, 1, 9))] = draw.choice(
            (b"[", b"]", b"9" * 30, b"-", b"1e999", b"null", b"{}", b'"', b"\n", draw.randbytes(2), b"[" * 9000)
        )
    path.write_bytes(data)
    try:
        Ledger(path, "abc").close()
    except ps.ServiceError as exc:
        assert str(path) in str(exc)  # noqa: PT017


@for_each(
    "data", [b"precious", b"precious\n", b"\0" * 5000, b"[", b'["penstock', b'["penstock ledger"]\n', b"{}\n[]\n"]
)
def test_a_file_that_is_no_ledger_is_refused_and_left_as_it_is(tmp_path, data):
    path = tmp_path / "weights"
    path.write_bytes(data)
    begun = b'["penstock ledger",'.startswith(data)  # a killed server had not written its first line
    if begun:
        Ledger(path, "abc").close()
    else:
        with pytest.raises(ps.ServiceError, match=r"is no ledger|is damaged"):
            Ledger(path, "abc")
        assert path.read_bytes() == data


def test_a_ledger_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ps.ServiceError, match="cannot be opened"):
        Ledger(tmp_path, "abc")
    with pytest.raises(ps.ServiceError, match="/dev/full cannot be written: No space left"):
        Ledger("/dev/full", "abc")


def test_a_full_disk_ends_the_server_and_no_batch_is_lost_or_handed_twice(tmp_path):
    code = """
import resource, sys, threading
import penstock as ps
from tests.service.served import HERE, pipeline
path = sys.argv[1]
found = []
def read(address):
    for batch in ps.connect(address):
        found.extend(batch["i"].tolist())
with ps.serve(pipeline(), HERE, ledger=path, credit=1) as server:
    address, unlimited = server.address, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, unlimited[1]))
    reader = threading.Thread(target=read, args=(address,))
    reader.start()
    try:
        server.wait(60)
    except ps.ServiceError as exc:
        print(f"{path} cannot be written: File too large" in str(exc), len(found) < 119)
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
with ps.serve(pipeline(), address, ledger=path) as server:
    reader.join()
print(sorted(found) == [i for i in range(120) if i != 13])
"""
    done = nursery.run(code, str(tmp_path / "ledger"))
    assert done.stdout == "True True\nTrue\n", done.stdout + done.stderr


def test_a_ledger_file_that_somebody_shortens_is_named(written, tmp_path):
    ledger = Ledger(written, "abc")
    shutil.copy(written, tmp_path / "copy")
    with open(written, "r+b") as file:
        file.truncate(100)
    with pytest.raises(ps.ServiceError, match="was cut from"):
        ledger.hand(0, "a", [7])
    ledger.close()


# ---------------------------------------------------------------------- a file that does not grow for ever


@pytest.fixture
def soon_anew(monkeypatch):
    monkeypatch.setattr(ledger_module, "_FEW_LINES", 20)


def said(ledger):
    """What a ledger knows."""
    epochs = {
        number: (one.low, one.above, {key: list(found) for key, found in one.clients.items() if found}, one.ended)
        for number, one in ledger.epochs.items()
        if one.count
    }
    states = {number: one.states for number, one in ledger.epochs.items() if one.states}
    return ledger.id, ledger.generation, ledger.origin, ledger.turns, epochs, states


def random_entry(draw, ledger, turns):
    ledger.catch_up()
    client = draw.choice("abc")
    epoch = draw.randrange(3)
    match draw.randrange(10):
        case 0:
            turns[client] = turns.get(client, 0) + 1
            ledger.enter(client, turns[client])
        case 1:
            ledger.stand(epoch, ledger.entries(epoch).low, b"{}")
        case 2:
            known = ledger.entries(epoch).clients
            ours = {who: len(found) for (number, who), found in known.items() if number == ledger.generation}
            if draw.random() < 0.2:
                kept = {who: draw.randrange(count + 1) for who, count in ours.items()}
                ledger.roll_back(epoch, ledger.generation, kept, "x")
                turns.clear()
        case 3:
            ledger.end(epoch, 100, (draw.randrange(2), 2))
        case _:
            numbers = sorted(draw.sample(range(200), draw.randrange(1, 3)))
            ledger.hand(epoch, client, numbers, ledger.turns.get(client, 0))


@for_each("seed", seeds(20))
def test_servers_agree_about_a_file_that_is_written_anew_again_and_again(tmp_path, soon_anew, seed):
    draw = random.Random(seed)
    path = tmp_path / f"ledger-{seed}"
    ledgers, turns = [Ledger(path, "abc") for _ in range(3)], {}
    for _ in range(300):
        random_entry(draw, draw.choice(ledgers), turns)
    for one in ledgers:
        one.catch_up()
    again = Ledger(path, "abc")
    assert said(ledgers[0]) == said(ledgers[1]) == said(ledgers[2]) == said(again)
    assert len(path.read_bytes().splitlines()) < 150
    for one in (*ledgers, again):
        one.close()


def test_a_file_has_less_than_twice_the_lines_that_it_needs(tmp_path, soon_anew):
    path = tmp_path / "ledger"
    ledger = Ledger(path, "abc")
    for epoch in range(50):
        for number in range(40):
            ledger.hand(epoch, f"client of epoch {epoch}", [number])
    ledger.close()
    assert len(path.read_bytes().splitlines()) < 2 * 55 + 40
    again = Ledger(path, "abc")
    assert [again.entries(epoch).count for epoch in range(50)] == [40] * 50
    # To whom the batches of early epochs were handed is forgotten: nobody can go back there.
    with pytest.raises(Refusal, match="for the last 16 epochs, and epoch 3 is not one"):
        again.roll_back(3, 0, {"client of epoch 3": 2}, "x")
    again.roll_back(40, 0, {"client of epoch 40": 2}, "x")
    assert [again.entries(epoch).count for epoch in (39, 40, 41)] == [40, 2, 0]
    again.close()


@for_each("replaced", [False, True])
def test_a_server_that_is_killed_while_it_writes_the_file_anew_has_changed_nothing(
    tmp_path, soon_anew, monkeypatch, replaced
):
    path = tmp_path / f"ledger-{replaced}"
    ledger, other = Ledger(path, "abc"), Ledger(path, "abc")

    class Killed(Exception):
        pass

    def kill(source, target):
        if replaced:
            shutil.move(source, target)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "replace", kill)
        with pytest.raises(Killed):
            for number in range(100):
                ledger.hand(0, "a", [number])
    count = ledger.entries(0).count
    ledger._journal.close()  # as the end of its process does
    assert not other.hand(0, "b", [count - 1])
    assert other.hand(0, "b", [count])
    again = Ledger(path, "abc")
    assert again.entries(0).count == count + 1
    again.close()
    other.close()


def test_a_folder_that_cannot_be_written_leaves_the_file_as_it_is(tmp_path, soon_anew, monkeypatch):
    def refused(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(journal.os, "replace", refused)
    ledger = Ledger(tmp_path / "ledger", "abc")
    for number in range(200):
        assert ledger.hand(0, "a", [number])
    ledger.close()
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert sum(line[0] == "h" for line in lines) == 200
    assert sum(line == ["moved"] for line in lines) < 10
    again = Ledger(tmp_path / "ledger", "abc")
    assert again.entries(0).count == 200
    again.close()


# ---------------------------------------------------------------------- a new training on an old ledger


def test_a_new_training_on_the_ledger_of_an_old_one_is_told_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("penstock.service.split._LATE_S", 0.1)
    path = tmp_path / "ledger"
    with ps.serve(pipeline(), HERE, ledger=path) as server, ps.connect(server.address).loader() as loader:
        assert [len(list(batches)) for _, batches in loader.epochs(2)] == [30, 30]
        state = loader.state_dict()
    assert not caplog.text
    with ps.serve(pipeline(), HERE, ledger=path) as server:
        assert f"the ledger {path} says that all batches of epochs 0 to 1 are handed out" in caplog.text
        refused = pytest.raises(
            ps.ServiceError, match=r"ledger 'ledger' says for epochs 0 to 1; for a new training"
        )
        with refused, ps.connect(server.address).loader() as loader:
            list(loader)
        # The old training goes on with the next epoch. Then others may come late.
        with ps.connect(server.address).loader(state=state) as loader:
            assert len(list(loader)) == 30
        with ps.connect(server.address).loader() as loader:
            assert list(loader) == []
        assert "came to epoch 0 when all 30 batches were handed out" in caplog.text
