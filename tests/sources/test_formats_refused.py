"""What all formats refuse alike: files that are gone or may not be read, and libraries that are not installed."""

import gzip
import io
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.formats.tfrecord import framed

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
h5py = pytest.importorskip("h5py")
lmdb = pytest.importorskip("lmdb")
# The first call in a process opens a pipe for signals, which stays open.
pytest.importorskip("pyarrow.csv").read_csv(io.BytesIO(b"a\n1\n"))


def write(path):
    """A small file of the format that its name says."""
    kind = path.suffix
    if kind == ".tar":
        ps.from_sequence([{"n": 1}]).write(path.parent / "t", shard_size=1, overwrite=True)
        os.replace(path.parent / "t" / "000000.tar", path)
    elif kind == ".parquet":
        pq.write_table(pa.table({"n": [1]}), path)
    elif kind == ".arrow":
        with pa.ipc.new_file(str(path), pa.schema({"n": pa.int64()})) as writer:
            writer.write_table(pa.table({"n": [1]}))
    elif kind == ".npy":
        np.save(path, np.arange(3))
    elif kind == ".h5":
        with h5py.File(path, "w") as file:
            file["n"] = [1]
    elif kind == ".mdb":
        with lmdb.open(str(path), subdir=False) as database, database.begin(write=True) as transaction:
            transaction.put(b"a", b"b")
    else:
        path.write_bytes({".jsonl": b"1\n", ".csv": b"n\n1\n", ".tfrecord": framed(b"")}[kind])
    return str(path)


READ = {
    ".tar": ps.from_tar, ".jsonl": ps.from_jsonl, ".csv": ps.from_csv, ".parquet": ps.from_parquet,
    ".arrow": ps.from_arrow, ".npy": ps.from_npy, ".h5": ps.from_hdf5, ".mdb": ps.from_lmdb,
    ".tfrecord": lambda path: ps.from_tfrecord(path, raw=True),
}  # fmt: skip


@for_each("suffix", READ)
def test_a_file_that_is_removed_before_it_is_read_is_not_found(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}")
    pipeline = READ[suffix](path)
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        list(pipeline)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no users")
def test_a_file_that_may_not_be_read_is_an_error_with_its_name():
    with tempfile.TemporaryDirectory() as folder:  # that of pytest is its user's own
        os.chmod(folder, 0o755)
        for suffix, read in READ.items():
            path = write(Path(folder, f"a{suffix}"))
            if suffix != ".mdb":  # a database that is open stays open
                list(read(path))  # has all modules imported
            os.chmod(path, 0)
            user = os.geteuid()
            if user == 0:  # who may read everything
                os.seteuid(65534)
            try:
                with pytest.raises((PermissionError, ps.ReadError), match=f"a{suffix}"):
                    list(read(path).loader(epochs=1, inline=True))
            finally:
                os.seteuid(user)


@for_each("suffix", READ)
def test_an_empty_file_is_refused_or_has_no_samples(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"")
    if suffix in (".jsonl", ".tfrecord"):
        assert list(READ[suffix](str(path))) == []
    else:
        with pytest.raises(ps.ReadError, match=rf"a\{suffix}"):
            list(READ[suffix](str(path)))


@for_each(
    "module, extra, use",
    [
        ("pyarrow.parquet", "parquet", lambda folder: len(ps.from_parquet(folder / "a.parquet"))),
        ("pyarrow", "parquet", lambda folder: len(ps.from_csv(folder / "a.csv", types={"n": "int64"}))),
        ("h5py", "hdf5", lambda folder: len(ps.from_hdf5(folder / "a.h5"))),
        ("lmdb", "lmdb", lambda folder: len(ps.from_lmdb(folder / "a.mdb"))),
        ("lmdb", "lmdb", lambda folder: ps.from_sequence([1]).write(folder / "db", format="lmdb")),
        ("pyarrow.parquet", "parquet", lambda folder: ps.from_sequence([1]).write(folder / "p", format="parquet")),
    ],
)
def test_a_library_that_is_missing_is_named_with_the_command_that_installs_it(tmp_path, module, extra, use):
    for suffix in (".parquet", ".csv", ".h5", ".mdb"):
        write(tmp_path / f"a{suffix}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module, None)
        with pytest.raises(ps.MissingExtra, match=rf'pip install "penstock\[{extra}\]"'):
            use(tmp_path)


def test_zstandard_is_named_where_it_is_missing(tmp_path, monkeypatch):
    (tmp_path / "a.txt.zst").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    with pytest.raises(ps.MissingExtra, match=r'pip install "penstock\[zstd\]"'):
        list(ps.from_text(tmp_path))


def test_compressed_and_plain_files_are_not_read_as_one(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"1\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"2\n"))
    with pytest.raises(ps.PlanError, match=r"is compressed and .* is not"):
        ps.from_jsonl(tmp_path)
    assert list(ps.concat(ps.from_jsonl(tmp_path / "a.jsonl"), ps.from_jsonl(tmp_path / "b.jsonl.gz"))) == [1, 2]


@for_each("source, option", [(ps.from_parquet, "columns"), (ps.from_arrow, "columns"), (ps.from_hdf5, "fields")])
def test_a_dict_of_names_is_not_taken_for_a_list_of_them(tmp_path, source, option):
    path = tmp_path / f"a{'.h5' if source is ps.from_hdf5 else '.parquet'}"
    write(path)
    with pytest.raises(ps.PlanError, match=rf"{option}=\) takes a list of names, .*map\(\) gives them other names"):
        source(path, **{option: {"n": "number"}})
