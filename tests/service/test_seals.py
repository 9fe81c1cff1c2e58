"""The secret that states of a data server are sealed with: who has the same one, and who can read it."""

import os
import stat

from penstock.service.keys import make_key, read_key
from penstock.service.seals import Seals, secret_of


def test_servers_of_one_user_and_servers_with_one_key_have_the_same_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    assert secret_of(None) == secret_of(None)
    keys = [make_key(tmp_path / name) for name in ("a", "b")]
    assert secret_of(keys[0]) == secret_of(read_key(tmp_path / "a"))
    assert len({secret_of(None), *map(secret_of, keys)}) == 3
    assert stat.S_IMODE(os.stat(tmp_path / "cache" / "service.secret").st_mode) == 0o600
    assert os.listdir(tmp_path / "cache") == ["service.secret"]


def test_a_secret_that_others_may_know_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    before = secret_of(None)
    (tmp_path / "service.secret").chmod(0o644)
    assert len({before, secret_of(None), secret_of(None)}) == 3
    monkeypatch.setenv("PENSTOCK_CACHE", "/dev/null/none")
    assert len(secret_of(None)) == 32


def test_a_seal_holds_for_its_state_pipeline_and_place_alone():
    seals, place = Seals(b"secret", "abc"), (3, (1, 2), 40)
    said = seals.sealed({"b": 1.5, "a": [1]}, place)
    assert seals.holds(said, place)
    assert seals.holds(said.replace(b",", b", "), place)  # a client writes it again
    for other in ((4, (1, 2), 40), (3, (0, 2), 40), (3, (1, 2), 41)):
        assert not seals.holds(said, other)
    assert not seals.holds(said.replace(b"1.5", b"2.5"), place)
    assert not Seals(b"secret", "abd").holds(said, place)
    assert not Seals(b"another", "abc").holds(said, place)
    for damaged in (b"", b"{}", b"[" * 5000, b'{"seal":1,"state":2}', b'{"seal":"\\u00e4","state":2}', b"\xff"):
        assert not seals.holds(damaged, place)
