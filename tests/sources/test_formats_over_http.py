"""Every format by URL: the same samples as from the disk, from a real server that fails now and then."""

import gzip
import io
import json
import os
import tarfile

import numpy as np
import pytest
from tests.cases import for_each
from tests.stores import web

import penstock as ps
from penstock.formats.tfrecord import framed
from penstock.storage import retry
from penstock.testing.same import assert_same

pytest.importorskip("obstore")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
h5py = pytest.importorskip("h5py")
# The first call in a process opens a pipe for signals, which stays open.
pytest.importorskip("pyarrow.csv").read_csv(io.BytesIO(b"a\n1\n"))

N = 60


@pytest.fixture(scope="module", autouse=True)
def first_request():
    """obstore starts its threads with the first request, and keeps them."""
    with web({"a": b"a"}) as server:
        next(iter(ps.from_files([f"{server.url}/a"])))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.001)


def write_all(folder):
    """The same rows in every format."""
    x = np.arange(2 * N, dtype="float32").reshape(N, 2)
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number in range(N):
            member = tarfile.TarInfo(f"{number:03d}.txt")
            member.size = 500
            archive.addfile(member, io.BytesIO(b"%500d" % number))
    (folder / "a.tar.gz").write_bytes(gzip.compress((folder / "a.tar").read_bytes()))
    (folder / "a.jsonl").write_text("".join(json.dumps({"n": number}) + "\n" for number in range(N)))
    (folder / "a.txt.gz").write_bytes(gzip.compress(b"".join(b"%d\n" % number for number in range(N))))
    (folder / "a.tfrecord").write_bytes(b"".join(framed(b"%d" % number) for number in range(N)))
    (folder / "a.csv").write_text("n,s\n" + "".join(f"{number},row {number}\n" for number in range(N)))
    table = pa.table({"n": np.arange(N), "s": [f"row {number}" for number in range(N)]})
    pq.write_table(table, folder / "a.parquet", row_group_size=20)
    with pa.ipc.new_file(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=20)
    np.save(folder / "a.npy", x)
    np.save(folder / "f.npy", np.asfortranarray(x))
    np.savez(folder / "a.npz", x=x, n=np.arange(N))
    np.savez_compressed(folder / "b.npz", x=x, n=np.arange(N))
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = x
        file.create_dataset("n", data=np.arange(N), chunks=(7,))


READ = {
    "a.tar": ps.from_tar, "a.tar.gz": ps.from_tar, "a.jsonl": ps.from_jsonl, "a.txt.gz": ps.from_text,
    "a.tfrecord": lambda path: ps.from_tfrecord(path, raw=True), "a.csv": ps.from_csv, "a.parquet": ps.from_parquet,
    "a.arrow": ps.from_arrow, "a.npy": ps.from_npy, "f.npy": ps.from_npy, "a.npz": ps.from_npy,
    "b.npz": ps.from_npy, "a.h5": ps.from_hdf5,
}  # fmt: skip


@for_each("name", READ)
def test_a_format_gives_the_same_samples_by_url(tmp_path, monkeypatch, name):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    if not (tmp_path / "a.tar").exists():
        write_all(tmp_path)
    expected = list(READ[name](str(tmp_path / name)))
    assert len(expected) == N
    with web({name: (tmp_path / name).read_bytes()}) as server:
        server.fault = lambda path, count: 503 if count % 5 == 0 else None
        pipeline = READ[name](f"{server.url}/{name}")
        assert_same(expected, list(pipeline.map(lambda sample: sample, workers=4)), name)
        if hasattr(pipeline.source, "read"):
            order = np.random.default_rng(0).permutation(N)
            assert_same([expected[number] for number in order], list(pipeline.source.read(order)), name)


def test_an_index_of_a_remote_file_is_in_the_cache_and_reads_few_ranges(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    write_all(tmp_path)
    with web({"a.tar": (tmp_path / "a.tar").read_bytes()}) as server:
        assert len(ps.from_tar(f"{server.url}/a.tar")) == N
        assert len(os.listdir(tmp_path / "cache" / "index")) == 1
        server.requests.clear()
        assert len(list(ps.from_tar(f"{server.url}/a.tar").batch(N, collate=list))) == 1
        assert len([one for one in server.requests if one[0] == "GET"]) <= 8


def test_a_remote_file_that_has_changed_is_indexed_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with web({"a.tfrecord": framed(b"a") * 3}) as server:
        assert len(ps.from_tfrecord(f"{server.url}/a.tfrecord", raw=True)) == 3
        server.files["a.tfrecord"] += framed(b"b")
        assert list(ps.from_tfrecord(f"{server.url}/a.tfrecord", raw=True)) == [b"a", b"a", b"a", b"b"]
