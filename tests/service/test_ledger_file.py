"""The file of a ledger when it is cut short, damaged, full, or something else."""

import random
import shutil

import pytest
from tests import nursery
from tests.cases import for_each
from tests.random_examples import seeds

import penstock as ps
from penstock.service.ledger import Ledger


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
    ledger.close()
    return path


def test_a_ledger_that_is_cut_at_any_byte_has_the_lines_before(written, tmp_path):
    whole = written.read_bytes()
    cut = tmp_path / "cut"
    for length in range(len(whole) + 1):
        cut.write_bytes(whole[:length])
        lines = whole[:length].count(b"\n")
        ledger = Ledger(cut, "abc")
        assert ledger.entries(0).count == [0, 0, 0, 2, 2, 2, 1, 3][lines]
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
