"""Files and folders of this machine."""

import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.cases import for_each

from penstock import storage
from penstock.errors import PlanError, ReadError
from penstock.storage import disk


def make(folder, names):
    for name in names:
        path = os.path.join(os.fsencode(folder), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(os.fsencode(name))


TREE = ["a.txt", "a/1.jpg", "a/2.jpg", "a/deep/3.jpg", "b/1.jpg", ".hidden", ".h/1.jpg", "b/.x"]


@for_each(
    "pattern, names",
    [
        ("**/*", ["a.txt", "a/1.jpg", "a/2.jpg", "a/deep/3.jpg", "b/1.jpg"]),
        ("*", ["a.txt"]),
        ("*/*.jpg", ["a/1.jpg", "a/2.jpg", "b/1.jpg"]),
        ("a/**", ["a/1.jpg", "a/2.jpg", "a/deep/3.jpg"]),
        ("**/deep/**/*", ["a/deep/3.jpg"]),
        ("**/[12].jpg", ["a/1.jpg", "a/2.jpg", "b/1.jpg"]),
        (".h/*", [".h/1.jpg"]),
        ("nothing*", []),
    ],
)
def test_a_folder_is_listed_in_the_order_of_bytes_without_hidden_names(tmp_path, pattern, names):
    make(tmp_path, TREE)
    assert storage.listed(str(tmp_path), pattern) == names == sorted(names)


def test_the_order_is_that_of_whole_paths_as_object_stores_have_it(tmp_path):
    names = ["a-b", "a.b", "a/c", "a/c.d/e", "a/c/d", "a0", "\u00e9", "z"]
    made = [name for name in names if name != "a/c"]
    make(tmp_path, made)
    assert storage.listed(str(tmp_path)) == sorted(made, key=os.fsencode)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_with_newlines_and_of_no_encoding_are_listed_and_read(tmp_path):
    names = ["line\nbreak", "tab\t", os.fsdecode(b"\xff\xfe latin \xe9"), "umlaut \u00e4"]
    make(tmp_path, names)
    found = storage.listed(str(tmp_path))
    assert sorted(found, key=os.fsencode) == found
    assert set(found) == set(names)
    for name in found:
        assert storage.file(os.path.join(tmp_path, name)).read() == os.fsencode(name)


def test_links_are_followed_and_a_loop_is_refused_by_name(tmp_path):
    make(tmp_path, ["data/x/1", "other/2"])
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "other")
    (tmp_path / "data" / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "data" / "pipe")
    assert storage.listed(str(tmp_path / "data")) == ["dangling", "linked/2", "x/1"]
    (tmp_path / "data" / "x" / "up").symlink_to(tmp_path / "data")
    with pytest.raises(PlanError, match="data/x/up' is a link to a folder above it"):
        storage.listed(str(tmp_path / "data"))


@for_each("missing", ["nowhere", "a.txt"])
def test_a_folder_that_is_none_is_refused(tmp_path, missing):
    make(tmp_path, ["a.txt"])
    with pytest.raises(PlanError, match=missing):
        storage.listed(str(tmp_path / missing))


# ---------------------------------------------------------------------- what a user writes


def test_paths_are_expanded_in_the_order_that_is_promised(tmp_path, monkeypatch):
    make(tmp_path, ["t-2.tar", "t-0.tar", "t-1.tar", "x/b", "x/a", "odd[1].tar", "br{a,b}"])
    monkeypatch.chdir(tmp_path)

    def found(paths):
        return storage.expanded(paths, "from_tar")

    assert found("t-*.tar") == ["t-0.tar", "t-1.tar", "t-2.tar"]
    assert found("t-{2..0}.tar") == ["t-2.tar", "t-1.tar", "t-0.tar"]
    assert found("{x/*,t-0*}") == ["x/a", "x/b", "t-0.tar"]
    assert found(["t-2.tar", "x", "t-[01].tar"]) == ["t-2.tar", "x/a", "x/b", "t-0.tar", "t-1.tar"]
    assert found("odd[1].tar") == ["odd[1].tar"]
    assert found("br{a,b}") == ["br{a,b}"]
    assert found(tmp_path / "x") == [f"{tmp_path}/x/a", f"{tmp_path}/x/b"]
    assert found(f"{tmp_path}/x/") == [f"{tmp_path}/x/a", f"{tmp_path}/x/b"]
    assert found(f"file://{tmp_path}/x/*") == [f"{tmp_path}/x/a", f"{tmp_path}/x/b"]
    assert found("*.{tar,missing}") == ["odd[1].tar", "t-0.tar", "t-1.tar", "t-2.tar"]


@for_each(
    "paths, said",
    [
        ("nothing.tar", "'nothing.tar': no such file"),
        ("no-*.tar", "nothing matches 'no-\\*.tar'"),
        ("nowhere/no-*.tar", "nothing matches"),
        ("t-{0..1}.tar", "'t-1.tar', which 't-{0..1}.tar' stands for, is not there"),
        ([], "nothing matches a list of 0"),
        (3, "got int"),
        ("file://host/x", "three slashes"),
    ],
)
def test_what_matches_nothing_is_refused_by_name(tmp_path, monkeypatch, paths, said):
    make(tmp_path, ["t-0.tar"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlanError, match=said):
        storage.expanded(paths, "from_tar")


# ---------------------------------------------------------------------- reading


def test_a_file_is_read_whole_in_parts_and_forward(tmp_path):
    data = os.urandom(100_000)
    (tmp_path / "f").write_bytes(data)
    one = storage.file(str(tmp_path / "f"))
    assert (one.size, one.read(), one.read_at(99_990, 10), one.read_at(5, 0)) == (100_000, data, data[-10:], b"")
    with one.open() as stream:
        assert stream.read(7) + stream.read() == data
    copy = pickle.loads(pickle.dumps(one))
    assert (copy.path, copy.read_at(3, 4), copy.content) == (one.path, data[3:7], one.content)


def test_a_system_without_pread_reads_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_pread", disk._seek_and_read)
    (tmp_path / "f").write_bytes(bytes(range(256)) * 8)
    one = storage.file(str(tmp_path / "f"))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda at: one.read_at(at, 1), range(2048)))
    assert b"".join(found) == bytes(range(256)) * 8


def test_content_tells_one_version_of_a_file_from_another(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"one")
    before = storage.file(str(path)).content
    path.write_bytes(b"four")
    assert storage.file(str(path)).content != before


@for_each("offset, length", [(0, 11), (5, 6), (10, 1), (1000, 1)])
def test_a_read_behind_the_end_names_file_and_position(tmp_path, offset, length):
    (tmp_path / "f").write_bytes(b"0123456789")
    with pytest.raises(ReadError, match=rf"/f: {length} bytes at position {offset} .* ends at 10"):
        storage.file(str(tmp_path / "f")).read_at(offset, length)


def test_a_file_that_is_not_there_or_no_file_is_an_error_with_its_name(tmp_path):
    for call in (
        lambda one: one.read(),
        lambda one: one.read_at(0, 1),
        lambda one: one.size,
        lambda one: one.open(),
    ):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            call(storage.file(str(tmp_path / "nowhere")))
    with pytest.raises(IsADirectoryError):
        storage.file(str(tmp_path)).read()


def test_a_file_that_grows_while_it_is_read_is_an_error_with_its_name(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    status = os.stat(path)

    def shorter(fd):
        return os.stat_result((*status[:6], 3, *status[7:]))

    monkeypatch.setattr(disk.os, "fstat", shorter)
    with pytest.raises(ReadError, match="f: it had 3 bytes when it was opened, and 5"):
        storage.file(str(path)).read()


def test_a_relative_path_is_that_of_the_moment_it_was_given(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(b"here")
    monkeypatch.chdir(tmp_path)
    one = storage.file("f")
    monkeypatch.chdir("/")
    assert (one.path, one.read(), pickle.loads(pickle.dumps(one)).read_at(0, 4)) == ("f", b"here", b"here")


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts descriptors in /proc")
def test_many_files_read_by_many_threads_keep_few_descriptors_open(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_MOST_OPEN", 8)
    make(tmp_path, [f"{number:03}" for number in range(100)])
    files = [storage.file(str(tmp_path / f"{number:03}")) for number in range(100)]
    before = open_descriptors()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: one.read_at(0, 3), files * 50))
    assert found == [f"{number:03}".encode() for number in range(100)] * 50
    assert open_descriptors() - before <= 8
    del files
    assert open_descriptors() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_opens_its_own_descriptor(tmp_path):
    (tmp_path / "f").write_bytes(b"12345")
    one = storage.file(str(tmp_path / "f"))
    assert one.read_at(0, 1) == b"1"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if one._handle is None and one.read_at(4, 1) == b"5" else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert one._handle is not None


def test_a_folder_that_vanishes_during_a_listing_is_named_in_the_error(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").write_bytes(b"")
    names = disk.walk(str(tmp_path), "**/*")
    assert next(names) == b"a/1"
    (tmp_path / "b" / "1").unlink()
    (tmp_path / "b").rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        list(names)
    assert caught.value.filename == str(tmp_path / "b")
