"""from_tar: WebDataset shards, written by tarfile and by webdataset, read by our own indexed reader."""

import gzip
import io
import os
import pickle
import tarfile
from contextlib import closing
from functools import partial

import cloudpickle
import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.sources.shards import split_runs
from penstock.sources.tar import TarSource
from penstock.testing import check_resume, check_source

zstd = pytest.importorskip("backports.zstd")

pytestmark = pytest.mark.usefixtures("warm_processes")


def write_tar(path, members, mode="w", format=tarfile.PAX_FORMAT):
    """An archive of (name, data), by the standard library."""
    with tarfile.open(path, mode, format=format, encoding="utf-8", errors="surrogateescape") as archive:
        for name, data in members:
            archive.addfile(member(name, data), io.BytesIO(data))
    return str(path)


def member(name, data):
    found = tarfile.TarInfo(name)
    found.size = len(data)
    return found


def samples(n, start=0):
    fields = [(f"{i:06d}", b"%d" % i, b"%d" % (i % 10)) for i in range(start, start + n)]
    return [pair for key, image, label in fields for pair in ((f"{key}.jpg", b"j" + image), (f"{key}.cls", label))]


def expected(n, start=0):
    return [{"__key__": f"{i:06d}", "jpg": b"j%d" % i, "cls": b"%d" % (i % 10)} for i in range(start, start + n)]


@pytest.fixture
def shards(tmp_path):
    for number in range(3):
        write_tar(tmp_path / f"train-{number:03d}.tar", samples(40, 40 * number))
    return str(tmp_path / "train-{000..002}.tar")


# ---------------------------------------------------------------------- samples


def test_samples_are_members_of_one_basename(shards):
    assert list(ps.from_tar(shards)) == expected(120)
    assert len(ps.from_tar(shards)) == 120
    assert repr(ps.from_tar(shards)) == "from_tar(train-000.tar and 2 more)"


def test_shards_keep_the_contract_of_a_source_on_threads_and_processes(shards):
    indices = [*range(100, 20, -1), 3, 3, -1]
    check_source(
        ps.from_tar(shards, indices=indices, fields={"label": "cls", "image": "jpg"}, decode=True), most=30
    )
    check_resume(ps.from_tar(shards).shuffle().batch(50), epochs=1, restored_on={"inline": True})


def test_ten_thousand_samples_are_read_back(tmp_path):
    blocks = [tarfile.TarInfo.tobuf(member(name, data)) + data.ljust(512, b"\0") for name, data in samples(10_000)]
    (tmp_path / "big.tar").write_bytes(b"".join(blocks) + bytes(1024))
    pipeline = ps.from_tar(tmp_path / "big.tar")
    assert list(pipeline) == expected(10_000)
    assert sorted(sample["__key__"] for sample in pipeline.shuffle()) == [f"{i:06d}" for i in range(10_000)]


def compressed(plain, suffix):
    with open(plain, "rb") as file:
        data = file.read()
    path = plain.removesuffix("tar") + suffix
    if suffix != "tar":
        with open(path, "wb") as file:
            file.write(gzip.compress(data, 1) if suffix.endswith("gz") else zstd.compress(data, 1))
    return path


@pytest.mark.soak
def test_compressed_shards_keep_the_contract_of_a_source(tmp_path):
    for number, suffix in enumerate(("tar.gz", "tar.zst")):
        compressed(write_tar(tmp_path / f"{number}.tar", samples(30, 30 * number)), suffix)
    check_source(ps.from_tar(str(tmp_path / "*.tar.*")), most=40)


def test_compressed_shards_are_streams_with_a_shard_per_file(tmp_path):
    for number, suffix in enumerate(("tar.gz", "tar.zst", "tar.gz")):
        compressed(write_tar(tmp_path / f"{number}.tar", samples(30, 30 * number)), suffix)
    pipeline = ps.from_tar(str(tmp_path / "*.tar.*"))
    check_resume(pipeline.shuffle(window=8), epochs=1, every=30, restored_on={"inline": True})
    assert [os.path.basename(shard) for shard in pipeline.source.shards()] == ["0.tar.gz", "1.tar.zst", "2.tar.gz"]
    assert list(pipeline) == expected(90)
    with pytest.raises(ps.PlanError, match=r"indices= needs files that can be read at any position"):
        ps.from_tar(str(tmp_path / "*.tar.*"), indices=[0])
    with pytest.raises(ps.PlanError, match=r"is compressed and .* is not"):
        ps.from_tar(str(tmp_path / "*.tar*"))


@for_each("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_dialect_of_tar_is_read_with_its_long_names(tmp_path, format):
    long = "folder/" * 15 + "x" * 90  # more than a header holds, and a prefix can hold the folders
    names = ["a.txt", f"{long}.txt", "naïve/größe.txt"] + (
        [f"{'y' * 200}.txt"] if format != tarfile.USTAR_FORMAT else []
    )
    path = write_tar(tmp_path / "a.tar", [(name, name.encode()) for name in names], format=format)
    for one in (path, compressed(path, "tar.gz")):
        assert list(ps.from_tar(one, index=False)) == [
            {"__key__": name.removesuffix(".txt"), "txt": name.encode()} for name in names
        ]


@pytest.mark.soak  # it imports torch
@pytest.mark.filterwarnings("ignore")  # it leaves files to the garbage collector
def test_shards_that_webdataset_writes_are_read_and_read_alike(tmp_path):
    wds = pytest.importorskip("webdataset")
    path = str(tmp_path / "wds-000000.tar")
    with closing(wds.TarWriter(path)) as sink:
        for number in range(50):
            sink.write(
                {
                    "__key__": f"dir.x/s{number:04d}",
                    "npy": np.arange(number, number + 3),
                    "seg.json": {"n": number},
                    "txt": f"text {number}",
                    "cls": number,
                }
            )
    ours = list(ps.from_tar(path))
    with closing(iter(wds.WebDataset(path, shardshuffle=False))) as stream:
        theirs = [
            {key: sample[key] for key in sample if key not in ("__url__", "__local_path__")} for sample in stream
        ]
    assert ours == theirs
    decoded = ps.from_tar(path, decode=True).peek(index=7)[0]
    assert decoded["npy"].tolist() == [7, 8, 9]
    assert (decoded["seg.json"], decoded["txt"], decoded["cls"]) == ({"n": 7}, "text 7", 7)


def test_members_that_belong_to_no_sample_are_left_out(tmp_path):
    names = ["README", "./", ".hidden", "d/._a.jpg", "__meta__/info.json", "a.tar.d/b.jpg", "./c.JPG"]
    path = write_tar(tmp_path / "a.tar", [(name, b"x") for name in names if not name.endswith("/")])
    with tarfile.open(path, "a") as archive:
        folder = tarfile.TarInfo("somewhere")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    assert list(ps.from_tar(path)) == [{"__key__": "a.tar.d/b", "jpg": b"x"}, {"__key__": "./c", "jpg": b"x"}]


def test_fields_are_chosen_renamed_and_demanded(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("0.jpg", b"a"), ("0.cls", b"1"), ("1.png", b"b"), ("1.cls", b"2")])
    assert list(ps.from_tar(path, fields=["cls"])) == [{"__key__": "0", "cls": b"1"}, {"__key__": "1", "cls": b"2"}]
    both = ps.from_tar(path, fields={"label": "cls", "image": "jpg;png"}, decode=True)
    assert list(both) == [{"__key__": "0", "label": 1, "image": b"a"}, {"__key__": "1", "label": 2, "image": b"b"}]
    with pytest.raises(ps.ReadError, match=r"a\.tar: the sample '1' has no field 'jpg'"):
        list(ps.from_tar(path, fields=["jpg"]))
    assert list(ps.from_tar(path, fields=["jpg"], on_error="skip")) == [{"__key__": "0", "jpg": b"a"}]
    for fields in ("jpg", [], ["jpg", "jpg"]):
        with pytest.raises(ps.PlanError, match="fields="):
            ps.from_tar(path, fields=fields)


def test_skipped_samples_are_counted(tmp_path):
    path = write_tar(tmp_path / "a.tar", [(f"{n}.json", b"{}" if n % 3 else b"{") for n in range(12)])
    with pytest.raises(ps.ReadError, match="field 'json' of sample '0' cannot be decoded"):
        list(ps.from_tar(path, decode=True))
    with ps.from_tar(path, decode=True, on_error="skip").batch(4).loader() as loader:
        assert sum(len(batch["__key__"]) for batch in loader) == 8
        assert len(loader.errors()) == 4


def test_relative_paths_are_those_of_the_folder_in_which_the_pipeline_was_made(shards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipeline = ps.from_tar("train-000.tar")
    monkeypatch.chdir("/")
    assert list(pipeline.map(dict, on="process", workers=1)) == list(pipeline) == expected(40)


def test_a_folder_gives_its_archives_and_not_their_indexes(shards, tmp_path):
    assert len(ps.from_tar(shards)) == 120
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".index")]) == 3
    assert list(ps.from_tar(tmp_path)) == expected(120)


def test_a_sample_has_a_name_that_messages_use(shards):
    source = ps.from_tar(shards, indices=[119, 41]).source
    assert [source.name(0), source.name(1)] == ["train-002.tar/000119", "train-001.tar/000041"]


# ---------------------------------------------------------------------- the index


def test_an_index_is_made_once_and_used_again(shards, monkeypatch):
    assert len(ps.from_tar(shards)) == 120
    monkeypatch.setattr("penstock.formats.webdataset.members", None)
    assert list(ps.from_tar(shards)) == expected(120)


def test_a_worker_process_uses_the_index_that_is_there(shards):
    source = cloudpickle.loads(cloudpickle.dumps(ps.from_tar(shards).source))
    assert len(cloudpickle.dumps(source)) < 5000
    assert source.read(range(39, 42)) == expected(3, 39)


@for_each("damage", [b"", b"nonsense", "cut", "flip"])
def test_a_damaged_index_is_made_again(tmp_path, damage):
    path = write_tar(tmp_path / "a.tar", samples(5))
    list(ps.from_tar(path))
    index = tmp_path / ".a.tar.index"
    good = index.read_bytes()
    changed = bytearray(good)
    changed[-70] ^= 1
    index.write_bytes({"cut": good[:-1], "flip": bytes(changed)}.get(damage, damage))
    assert list(ps.from_tar(path)) == expected(5)
    assert index.read_bytes() == good


def test_a_folder_that_cannot_be_written_to_has_its_indexes_in_the_cache(tmp_path, monkeypatch):
    folder, cache = tmp_path / "data", tmp_path / "cache"
    folder.mkdir()
    path = write_tar(folder / "a.tar", samples(5))
    monkeypatch.setenv("PENSTOCK_CACHE", str(cache))
    (folder / ".a.tar.index").mkdir()  # nothing can be renamed to this: as good as a read-only folder, for root too
    assert list(ps.from_tar(path)) == expected(5)
    assert [name.startswith("a.tar-") for name in os.listdir(cache / "index")] == [True]
    assert list(ps.from_tar(path, index=tmp_path / "own")) == expected(5)
    assert len(os.listdir(tmp_path / "own")) == 1


def test_an_index_can_be_kept_in_memory_alone(tmp_path):
    path = write_tar(tmp_path / "a.tar", samples(5))
    assert list(ps.from_tar(path, index=False).map(dict, on="process", workers=1)) == expected(5)
    assert os.listdir(tmp_path) == ["a.tar"]


def test_a_shard_that_grew_since_its_index_was_made_is_indexed_again(tmp_path):
    path = write_tar(tmp_path / "a.tar", samples(5))
    assert len(ps.from_tar(path)) == 5
    write_tar(path, samples(2, start=5), mode="a")
    assert list(ps.from_tar(path)) == expected(7)


def test_a_shard_that_changes_during_a_run_is_an_error_that_names_it(tmp_path):
    path = write_tar(tmp_path / "a.tar", samples(100))
    pipeline = ps.from_tar(path)
    with pipeline.loader(inline=True) as loader:
        stream = iter(loader)
        next(stream)
        write_tar(path, samples(1, start=5), mode="a")
        with pytest.raises(ps.ReadError, match=r"a\.tar has changed since it was indexed"):
            list(stream)
    with pytest.raises(ps.ReadError, match="has changed"):
        cloudpickle.loads(cloudpickle.dumps(pipeline.source)).read(range(1))


def test_states_fit_shards_of_the_same_names_and_sizes_wherever_they_are(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_tar(tmp_path / folder / "a.tar", samples(10))
    write_tar(tmp_path / "a.tar", samples(10, start=1))
    with ps.from_tar(tmp_path / "one").loader() as loader:
        stream = iter(loader)
        next(stream)
        state = loader.state_dict()
    with ps.from_tar(tmp_path / "two").loader(state=state) as loader:
        assert list(loader) == expected(9, start=1)
    write_tar(tmp_path / "two" / "a.tar", [*samples(10), ("x/1.jpg", b"x" * 5000)])
    with pytest.raises(ps.StateMismatch, match="from_tar"):
        ps.from_tar(tmp_path / "two").loader(state=state)


# ---------------------------------------------------------------------- hostile archives


def fails_alike(path, match):
    """A plain archive, and the same compressed, are refused with the same words."""
    for one in (path, compressed(path, "tar.gz")):
        with pytest.raises(ps.ReadError, match=match) as caught:
            list(ps.from_tar(one, index=False))
        assert os.path.basename(one) in str(caught.value)


def test_a_shard_cut_short_at_any_block_is_an_error_with_its_position(tmp_path):
    path = write_tar(tmp_path / "a.tar", [*samples(6), ("x" * 120 + ".txt", b"y" * 700)])
    with open(path, "rb") as file:
        whole = file.read()
    end = len(whole.rstrip(b"\0"))
    end += -end % 512
    for cut in [*range(0, end + 1, 512), *range(100, end, 1777)]:
        for name, data in (("cut.tar", whole[:cut]), ("cut.tar.gz", gzip.compress(whole[:cut], 0))):
            (tmp_path / name).write_bytes(data)
            with pytest.raises(ps.ReadError, match=rf"{name}: byte \d+: "):
                list(ps.from_tar(str(tmp_path / name), index=False))
    (tmp_path / "cut.tar").write_bytes(whole[: end + 512])
    assert len(ps.from_tar(str(tmp_path / "cut.tar"))) == 7


@for_each("suffix", ["tar.gz", "tar.zst"])
def test_a_compressed_shard_cut_short_or_damaged_is_an_error_with_its_name(tmp_path, suffix):
    path = compressed(write_tar(tmp_path / "a.tar", samples(50)), suffix)
    with open(path, "rb") as file:
        whole = file.read()
    for damaged in (b"", whole[: len(whole) // 2], whole[:-1], b"x" * 100, whole[:30] + b"\0" * 20 + whole[50:]):
        with open(path, "wb") as file:
            file.write(damaged)
        with pytest.raises(ps.ReadError, match=r"a\.tar\.(gz|zst)"):
            list(ps.from_tar(path))


@for_each("kind, words", [
    (tarfile.SYMTYPE, "a symbolic link"), (tarfile.LNKTYPE, "a hard link"), (tarfile.CHRTYPE, "a character device"),
    (tarfile.FIFOTYPE, "a named pipe"), (b"Z", "a member of kind 'Z'"),
])  # fmt: skip
def test_links_and_devices_are_refused_by_name(tmp_path, kind, words):
    path = write_tar(tmp_path / "a.tar", samples(1))
    with tarfile.open(path, "a") as archive:
        evil = member("evil.jpg", b"")
        evil.type, evil.linkname = kind, "/etc/passwd"
        archive.addfile(evil)
    fails_alike(path, rf"byte 2048: 'evil\.jpg' is {words}")


@for_each("name", ["/etc/passwd.txt", "../up.txt", "a/../../b.txt", "a\\..\\b.txt"])
def test_names_that_lead_out_of_the_archive_are_refused(tmp_path, name):
    fails_alike(write_tar(tmp_path / "a.tar", [(name, b"x")]), r"leads out of the archive")


def test_a_key_that_comes_back_and_a_field_that_comes_twice_are_refused_with_both_positions(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b""), ("b.jpg", b""), ("a.cls", b"")])
    fails_alike(path, r"the key 'a' is at byte 0 and again, after another key, at byte 1024")
    path = write_tar(tmp_path / "b.tar", [("a.jpg", b""), ("a.JPG", b"")])
    fails_alike(path, r"the sample 'a' has the field 'jpg' twice: at byte 0 and at byte 512")


@for_each("data, words", [
    (b"", "the file is empty"), (b"PK\x03\x04" + b"x" * 2000, "not a tar file"), (b"\0" * 10240, "no member"),
    (b"x" * 100, "cut short"),
])  # fmt: skip
def test_what_is_no_tar_file_is_said_to_be_none(tmp_path, data, words):
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(ps.ReadError, match=words):
        list(ps.from_tar(str(tmp_path / "a.tar")))


def test_a_header_that_is_damaged_is_refused_with_its_position(tmp_path):
    path = write_tar(tmp_path / "a.tar", samples(3))
    with open(path, "r+b") as file:
        file.seek(1024 + 130)
        file.write(b"9")
    fails_alike(path, "byte 1024: no header of a member")


@for_each("size", [b"\x80" + b"\xff" * 11, b"77777777777\0", b"\xff" * 12])
def test_a_size_beyond_the_file_is_refused_before_anything_is_allocated(tmp_path, size):
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"x")])
    with open(path, "rb") as file:
        data = bytearray(file.read())
    data[124:136] = size
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    (tmp_path / "a.tar").write_bytes(data)
    fails_alike(path, r"byte 0: .*(cut short|more than max_bytes|the file is damaged)")


def test_pax_headers_of_nonsense_are_refused(tmp_path):
    for data in (b"99 path=a\n", b"x path=a\n", b"0 \n", b"5 abc", b"12 nothing \n"):
        with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            pax = member("pax", data)
            pax.type = tarfile.XHDTYPE
            archive.addfile(pax, io.BytesIO(data))
        fails_alike(str(tmp_path / "a.tar"), "byte 0: a pax header")


class Touch:
    """A pickle of it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_pickle_is_never_unpickled(tmp_path):
    trap = tmp_path / "sprung"
    data = pickle.dumps(Touch(str(trap)))
    objects = io.BytesIO()
    np.save(objects, np.array([Touch(str(trap))], dtype=object), allow_pickle=True)
    path = write_tar(tmp_path / "a.tar", [(f"0.{ext}", data) for ext in ("pkl", "pyd", "pickle", "pth", "bin")])
    for decode in (None, True, False):
        assert set(next(iter(ps.from_tar(path, decode=decode))).values()) == {"0", data}
    path = write_tar(tmp_path / "b.tar", [("0.npy", objects.getvalue())])
    with pytest.raises(ps.ReadError, match="never unpickled"):
        list(ps.from_tar(path, decode=True))
    assert not trap.exists()


def test_names_may_hold_newlines_and_bytes_that_are_no_text(tmp_path):
    names = ["new\nline.txt", "caf\udce9.txt", "tab\t.txt"]
    path = write_tar(tmp_path / "a.tar", [(name, b"x") for name in names], format=tarfile.GNU_FORMAT)
    pipeline = ps.from_tar(path)
    keys = [name.removesuffix(".txt") for name in names]
    assert [sample["__key__"] for sample in pipeline] == keys
    with pipeline.map(dict, on="process", workers=1).loader() as loader:
        assert [sample["__key__"] for sample in loader] == keys
    fails_alike(write_tar(tmp_path / "b.tar", [(names[1], b""), ("b.txt", b""), (names[1], b"")]), "caf")


@pytest.mark.parametrize("suffix", ["tar.gz", "tar.zst"])
def test_a_decompression_bomb_takes_no_memory(tmp_path, suffix):
    bomb = tmp_path / f"a.{suffix}"
    opened = {"tar.gz": partial(gzip.open, compresslevel=1), "tar.zst": partial(zstd.open, level=1)}[suffix]
    with opened(bomb, "wb") as out, tarfile.open(fileobj=out, mode="w|") as archive:
        large = member("0.jpg", b"")
        large.size = 30 << 20
        archive.addfile(large, Zeros())
        archive.addfile(member("1.jpg", b""), io.BytesIO(b""))
    with pytest.raises(ps.ReadError, match=r"byte 0: '0\.jpg' has 31457280 bytes, more than max_bytes=1000000"):
        list(ps.from_tar(str(bomb), max_bytes=1_000_000))
    assert list(ps.from_tar(str(bomb), fields=["cls;jpg"]).source.open(str(bomb), 1)) == [
        {"__key__": "1", "cls": b""}
    ]


class Zeros(io.RawIOBase):
    def read(self, size=-1):
        return bytes(size)


def test_missing_and_unreadable_shards_are_errors_of_the_system(tmp_path):
    with pytest.raises(ps.PlanError, match="no such file"):
        ps.from_tar(str(tmp_path / "none.tar"))
    (tmp_path / "folder.tar").symlink_to(tmp_path / "gone.tar")
    with pytest.raises(FileNotFoundError):
        len(ps.from_tar(str(tmp_path / "folder.tar")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ps.PlanError):
        ps.from_tar(tmp_path / "empty")


# ---------------------------------------------------------------------- many shards


@for_each("seed", range(5))
def test_indices_are_split_by_shard_and_lose_none(seed):
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(rng.integers(0, 6, 12))])
    n = int(starts[-1])
    first = int(rng.integers(0, n))
    for indices in (range(first, n), rng.integers(0, n, 30), np.arange(n)[::-1].copy(), np.array([first])):
        out = [None] * len(indices)
        for shard, within, places in split_runs(starts, indices):
            for place, number in zip(places, within, strict=True):
                assert 0 <= number < starts[shard + 1] - starts[shard]
                out[place] = int(starts[shard] + number)
        assert out == list(indices)


def test_more_shards_than_may_be_open_are_read_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(TarSource, "most_open", 7)
    for number in range(50):
        write_tar(tmp_path / f"{number:03d}.tar", samples(2, 2 * number))
    pipeline = ps.from_tar(tmp_path, index=False)
    assert sorted(sample["__key__"] for sample in pipeline.shuffle()) == [f"{i:06d}" for i in range(100)]
    assert len(pipeline.source._shards) == 7
