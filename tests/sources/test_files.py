"""from_files: the bytes of files, each with its path."""

import os
import pickle
import sys
import tempfile
from pathlib import Path

import pytest
from tests.cases import for_each
from tests.helpers import TWO_PROCESSES, few_layouts

import penstock as ps
from penstock.sources.files import FileSource
from penstock.testing import check_resume, check_source

pytestmark = [pytest.mark.usefixtures("warm_processes"), pytest.mark.usefixtures("warm_pool")]


@pytest.fixture
def folder(tmp_path):
    for number in range(12):
        path = tmp_path / "data" / ("ab"[number % 2]) / f"{number:02}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * (number + 1))
    return tmp_path / "data"


def names(pipeline):
    return [os.path.basename(sample["path"]) for sample in pipeline]


EVEN, ODD = [f"{number:02}.bin" for number in range(0, 12, 2)], [f"{number:02}.bin" for number in range(1, 12, 2)]


def test_every_way_to_name_files_gives_them_in_the_promised_order(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert names(ps.from_files(folder)) == EVEN + ODD
    assert names(ps.from_files("**/*.bin")) == EVEN + ODD
    assert names(ps.from_files(f"{folder}/b/*")) == ODD
    assert names(ps.from_files("{b,a}/0*")) == ODD[:5] + EVEN[:5]
    assert names(ps.from_files(["b/05.bin", "a/00.bin", "b/05.bin"])) == ["05.bin", "00.bin", "05.bin"]
    assert names(ps.from_files(["b/05.bin", "a/0[02].bin"])) == ["05.bin", "00.bin", "02.bin"]
    assert names(ps.from_files("b/05.bin")) == ["05.bin"]
    assert names(ps.from_files(f"file://{folder}/b/05.bin")) == ["05.bin"]
    assert names(ps.from_files(folder, indices=[3, -1])) == ["06.bin", "11.bin"]


def test_a_sample_is_the_bytes_and_the_path_or_the_path_alone(folder):
    path = f"{folder}/b/05.bin"
    assert list(ps.from_files(path)) == [{"data": b"\5" * 6, "path": path}]
    assert list(ps.from_files(path, read=False)) == [path]


def test_the_source_keeps_the_contract(folder, monkeypatch):
    monkeypatch.chdir(folder)
    check_source(ps.from_files("**/*.bin"))
    check_source(ps.from_files(folder, indices=[5, 2, 2], read=False))


def test_workers_find_files_by_a_relative_path_wherever_they_run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    pipelines = [ps.from_files("a"), ps.from_files(["a/00.bin", f"{folder}/a/02.bin"])]
    monkeypatch.chdir("/")
    found = [[sample["path"] for sample in TWO_PROCESSES.run(pipeline)] for pipeline in pipelines]
    assert found == [[f"a/{name}" for name in EVEN], ["a/00.bin", f"{folder}/a/02.bin"]]


def test_every_sample_has_its_path_as_its_name(folder):
    source = ps.from_files(folder, indices=[7, 0]).source
    assert [source.name(0), source.name(1)] == [f"{folder}/b/03.bin", f"{folder}/a/00.bin"]
    first, second = ps.from_files(folder).split([0.5, 0.5])
    found = {part.source.name(index) for part in (first, second) for index in range(len(part))}
    assert found == {sample["path"] for sample in ps.from_files(folder)}
    assert ps.from_sequence("ab").source.name(1) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_with_newlines_and_of_no_encoding_go_through_processes(tmp_path):
    odd = [b"line\nbreak", b"\xff\xfe", "ü".encode(), b"back\\slash", b" "]
    for name in odd:
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            file.write(name)
    pipeline = ps.from_files(tmp_path)
    assert "\n" not in ps.from_files(tmp_path).source.label
    found = TWO_PROCESSES.run(pipeline)
    assert [sample["data"] for sample in found] == sorted(odd)
    assert [os.path.basename(os.fsencode(sample["path"])) for sample in found] == sorted(odd)


# ---------------------------------------------------------------------- what cannot be read

BROKEN = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to nothing": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


@for_each("what", BROKEN)
def test_a_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path, what):
    folder = tmp_path / what.replace(" ", "-")
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}").write_bytes(b"x")
    pipeline = ps.from_files(folder)
    BROKEN[what](folder / "2")
    seen = []
    with pytest.raises(OSError, match=f"{folder}/2"):
        seen.extend(iter(pipeline))
    assert pipeline.peek(index=1)[0]["data"] == b"x"


@few_layouts
def test_on_error_skip_leaves_out_what_cannot_be_read_and_counts_it(tmp_path_factory, layout):
    folder = tmp_path_factory.mktemp("skipped")
    for number in range(40):
        (folder / f"{number:02}").write_bytes(bytes([number]) * (number % 7 != 3))
    pipeline = ps.from_files(folder, on_error="skip").map(data_of, **layout.place).batch(4)
    with pipeline.loader(epochs=1, **layout.loader) as loader:
        found = [value for batch in loader for value in batch]
        errors = loader.errors()
    assert found == [bytes([number]) for number in range(40) if number % 7 != 3]
    assert sorted(record.index for record in errors) == [3, 10, 17, 24, 31, 38]
    assert all(f"{folder}/{record.index:02}: the file is empty" in str(record.exception) for record in errors)


def test_a_run_that_skips_files_can_be_resumed(tmp_path):
    for number in range(20):
        (tmp_path / f"{number:02}").write_bytes(bytes([number]) * (number % 7 != 3))
    check_resume(ps.from_files(tmp_path, on_error="skip").shuffle().map(data_of, workers=2).batch(4))


def data_of(sample):
    return sample["data"]


def test_empty_files_are_samples_if_the_user_says_so(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"")
    assert [sample["data"] for sample in ps.from_files(tmp_path, allow_empty=True)] == [b""]


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no users")
def test_a_file_without_permission_is_an_error_with_its_name(tmp_path):
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "secret").chmod(0)
    pipeline = ps.from_files(tmp_path)
    user = os.geteuid()
    if user == 0:  # who may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(PermissionError, match=f"{tmp_path}/secret"):
            list(pipeline.loader(inline=True))
    finally:
        os.seteuid(user)


@for_each(
    "paths, options, said",
    [
        ("nowhere", {}, "'nowhere': no such file"),
        ("*.none", {}, "from_files: no file matches '\\*.none'"),
        ("nowhere/*.none", {}, "from_files: nothing matches 'nowhere/\\*.none'"),
        (".", {}, "from_files: no file matches '.'"),
        ([], {}, "from_files: no file matches the list"),
        (7, {}, "got int"),
        (["a"], {"manifest": "m.json"}, "manifest= is for a folder or a glob"),
        (["a"], {"on_error": "ignore"}, "on_error= is 'raise' or 'skip', got 'ignore'"),
        (["a"], {"indices": [1]}, "index 1 is outside a source of 1"),
        (["a", "b*"], {}, "nothing matches 'b\\*'"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(tmp_path, monkeypatch, paths, options, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ps.PlanError, match=said):
        ps.from_files(paths, **options)


# ---------------------------------------------------------------------- resuming


def test_a_state_of_another_listing_is_refused_by_name(folder):
    with ps.from_files(folder).batch(4).loader() as loader:
        next(iter(loader))
        state = loader.state_dict()
    (folder / "a" / "00.bin").rename(folder / "a" / "new.bin")
    with pytest.raises(
        ps.StateMismatch, match=r"was from_files\(data: 12 files\): .*listing \w+.* and is .*listing"
    ):
        ps.from_files(folder).batch(4).loader(state=state)


def test_a_state_fits_the_same_files_in_another_place(folder, tmp_path):
    with ps.from_files(folder).batch(4).loader() as loader:
        next(iter(loader))
        state = loader.state_dict()
    (tmp_path / "moved").mkdir()
    folder.rename(tmp_path / "moved" / "data")
    with ps.from_files(tmp_path / "moved" / "data").batch(4).loader(state=state) as loader:
        assert sum(len(batch["path"]) for batch in loader) == 8


# ---------------------------------------------------------------------- many names


@pytest.fixture
def quick_disk(tmp_path):
    """A folder where a file is made in microseconds, if the system has one."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="penstock-test-") as folder:
        yield Path(folder)


def check_many(folder, count):
    for number in range(count):
        os.close(os.open(folder / f"image_{number:08}.jpg", os.O_CREAT | os.O_WRONLY))
    source = FileSource(folder)
    assert len(source) == count
    assert source.name(count - 1).endswith(f"image_{count - 1:08}.jpg")
    # The name has 18 letters. All that a source holds is what its pickle holds, and a few words.
    assert len(pickle.dumps(source)) / count < 30
    assert source.heap_bytes / count < 30


def test_five_thousand_names_take_their_own_bytes_and_eight_more(quick_disk):
    check_many(quick_disk, 5000)


@pytest.mark.soak
def test_two_hundred_thousand_names_take_their_own_bytes_and_eight_more(quick_disk):
    check_many(quick_disk, 200_000)
    pipeline = ps.from_files(quick_disk, read=False).shuffle()
    assert len(set(TWO_PROCESSES.run(pipeline))) == 200_000


def test_worker_processes_share_the_names_and_do_not_copy_them():
    from penstock.memory.parcel import pack, unpack

    source = FileSource([f"/data/images/{number:09}.jpg" for number in range(130_000)])
    parcel = pack(source, "the source")
    assert parcel.nbytes < 2000
    assert parcel.shared_bytes == source.heap_bytes
    copy = unpack(parcel.data, [os.dup(block.fd) for block in parcel.blocks])
    assert copy.name(129_999) == "/data/images/000129999.jpg"
