"""Files that are sound but unusual, or are not what they seem to be: read right, or refused by name."""

import gzip
import io
import os
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps

# The first call in a process opens a pipe for signals, which stays open.
pytest.importorskip("pyarrow.csv").read_csv(io.BytesIO(b"a\n1\n"))

linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")

#: a name in no encoding, with a line break
ODD = os.fsdecode(b"caf\xe9\n")


def tar_bytes(names):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return out.getvalue()


def write(path, data):
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return str(path)


# ---------------------------------------------------------------------- names of files


@linux
def test_a_file_of_every_format_may_have_a_name_in_no_encoding(tmp_path):
    pa, lmdb, h5py = map(pytest.importorskip, ("pyarrow", "lmdb", "h5py"))
    table = pa.table({"a": [1, 2]})
    stem = str(tmp_path / ODD)
    write(tmp_path / f"{ODD}.tar", tar_bytes(["0.txt", "1.txt"]))
    write(tmp_path / f"{ODD}.jsonl", b'{"a": 1}\n{"a": 2}\n')
    write(tmp_path / f"{ODD}.csv", b"a\n1\n2\n")
    with open(f"{stem}.parquet", "wb") as file:
        pytest.importorskip("pyarrow.parquet").write_table(table, file)
    with open(f"{stem}.arrow", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    np.save(f"{stem}.npy", np.arange(2))
    with h5py.File(f"{stem}.h5", "w") as file:
        file["a"] = [1, 2]
    with lmdb.open(os.fsencode(f"{stem}.lmdb"), map_size=1 << 20) as base, base.begin(write=True) as transaction:
        transaction.put(b"a", b"1")
        transaction.put(b"b", b"2")
    for make, suffix in (
        *((ps.from_tar, "tar"), (ps.from_jsonl, "jsonl"), (ps.from_csv, "csv"), (ps.from_npy, "npy")),
        *((ps.from_parquet, "parquet"), (ps.from_arrow, "arrow"), (ps.from_hdf5, "h5"), (ps.from_lmdb, "lmdb")),
    ):
        pipeline = make(f"{stem}.{suffix}")
        assert len(list(pipeline)) == 2, suffix
        assert pipeline.explain()


@linux
def test_filters_and_streams_of_parquet_files_work_with_any_name(tmp_path):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    with open(tmp_path / f"{ODD}.parquet", "wb") as file:
        pq.write_table(pa.table({"a": [1, 2, 3]}), file, row_group_size=1)
    path = str(tmp_path / f"{ODD}.parquet")
    assert list(ps.from_parquet(path, filters=[("a", ">", 1)])) == [{"a": 2}, {"a": 3}]
    assert list(ps.from_parquet(path, filters=[("a", ">", 2)], stream=True)) == [{"a": 3}]


def test_an_index_is_kept_for_a_name_in_no_encoding(tmp_path):
    path = write(tmp_path / f"{ODD}.tar", tar_bytes(["0.txt"]))
    assert len(ps.from_tar(path, index=tmp_path / "indexes")) == 1
    assert len(os.listdir(tmp_path / "indexes")) == 1


def test_a_link_to_itself_is_listed_and_reading_it_says_why(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").write_bytes(b"a")
    (tmp_path / "cat" / "self.jpg").symlink_to("self.jpg")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=r"levels of symbolic links.*cat/self\.jpg"):
        list(ps.from_folder(tmp_path, pattern="*/*"))
    with ps.from_folder(tmp_path, pattern="*/*", on_error="skip").loader(epochs=1) as loader:
        assert [sample["image"] for sample in loader] == [b"a"]
        assert len(loader.errors()) == 1


# ---------------------------------------------------------------------- tar


@for_each("name", ["a.tar", "a.tar.gz"])
@for_each("more", [tar_bytes(["2.txt"]), b"garbage", bytes(1 << 21) + b"x"])
def test_nothing_but_zeros_may_follow_the_end_of_an_archive(tmp_path, name, more):
    one = tar_bytes(["0.txt", "1.txt"])
    assert len(list(ps.from_tar(write(tmp_path / name, one + bytes(1 << 21))))) == 2
    at = len(one) + len(more) - len(more.lstrip(b"\0"))
    with pytest.raises(ps.ReadError, match=rf"{name}: byte {at - at % 512}: something follows the end"):
        list(ps.from_tar(write(tmp_path / name, one + more)))


def test_a_sample_of_many_small_members_is_bounded_too(tmp_path):
    path = write(tmp_path / "a.tar.gz", tar_bytes([f"0.{number:03}" for number in range(40)]))
    assert len(next(iter(ps.from_tar(path, max_bytes=200)))) == 41
    with pytest.raises(
        ps.ReadError, match=r"a\.tar\.gz: byte \d+: the sample '0' has 105 bytes so far, more than max_bytes=100"
    ):
        list(ps.from_tar(path, max_bytes=100))


@for_each("format", ["gnu", "posix"])
def test_a_sparse_member_is_refused_by_name_or_position(tmp_path, format):
    with open(tmp_path / "0.jpg", "wb") as file:
        file.truncate(1 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"end")
    command = ["tar", "--sparse", f"--format={format}", "-cf", "a.tar", "0.jpg"]
    try:
        made = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no tar command")
    if made.returncode:
        pytest.skip("tar is not GNU tar")
    with pytest.raises(ps.ReadError, match=r"a\.tar: byte 0: .* is a sparse file; .*without --sparse"):
        list(ps.from_tar(tmp_path / "a.tar"))


# ---------------------------------------------------------------------- lines and CSV


@for_each("name", ["a.jsonl", "a.jsonl.gz"])
@for_each("data, words", [
    (b'{"a": NaN}\n', "neither NaN nor Infinity"), (b'[\n{"a": 1},\n{"a": 2}\n]\n', "one whole JSON value"),
    (b'{"a": 1} {"a": 2}\n', "one whole JSON value"),
])  # fmt: skip
def test_json_of_other_kinds_is_refused_with_what_is_wrong(tmp_path, name, data, words):
    with pytest.raises(ps.ReadError, match=rf"{name}: record 1.*{words}"):
        list(ps.from_jsonl(write(tmp_path / name, data)))


@for_each("name", ["a.csv", "a.csv.gz"])
@for_each("data, words", [
    (b'a\n1\n"x\n2\n', "a quote is opened and never closed"), (b"a,b\r1,2\r", "a carriage return alone"),
])  # fmt: skip
def test_csv_that_would_be_read_as_something_else_is_refused(tmp_path, name, data, words):
    with pytest.raises(ps.ReadError, match=rf"{name}: .*{words}"):
        list(ps.from_csv(write(tmp_path / name, data)))


def test_a_record_with_too_few_values_is_not_said_to_be_of_a_wrong_type(tmp_path):
    with pytest.raises(ps.ReadError, match=r"record 2, byte 8: .*Expected 2 columns, got 1: 3(\n|$)"):
        list(ps.from_csv(write(tmp_path / "a.csv", b"a,b\n1,2\n3\n")))


def test_a_stretch_of_records_with_a_bad_one_is_parsed_as_a_whole_only_once(tmp_path, monkeypatch):
    from penstock.formats.csv import Dialect

    path = write(tmp_path / "a.csv", b"a\n" + b"1\n" * 5000 + b"x\n")
    pipeline = ps.from_csv(path, types={"a": "int64"}, on_error="skip")
    assert len(pipeline) == 5001
    sizes, parsed = [], Dialect.table
    monkeypatch.setattr(
        Dialect, "table", lambda self, records, *more: sizes.append(len(records)) or parsed(self, records, *more)
    )
    with pipeline.batch(100).loader(epochs=1) as loader:
        assert sum(len(batch["a"]) for batch in loader) == 5000
        assert len(loader.errors()) == 1
    assert sum(size > 5000 for size in sizes) == 1


# ---------------------------------------------------------------------- tables and arrays


def test_a_table_with_a_column_twice_is_refused(tmp_path):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    for make, name in ((ps.from_parquet, "a.parquet"), (ps.from_arrow, "a.arrow")):
        with pytest.raises(ps.ReadError, match=rf"{name}: .*has the column 'a' twice"):
            len(make(tmp_path / name))


@for_each("said", [b"[]", b"3", b"{}", b'{"version": 1}', b"\xff"])
def test_metadata_of_nonsense_in_a_parquet_file_is_refused_with_its_name(tmp_path, said):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    table = pa.table({"a": [1]})
    pq.write_table(table.replace_schema_metadata({b"penstock": said}), tmp_path / "a.parquet")
    with pytest.raises(ps.ReadError, match=r"a\.parquet: "):
        len(ps.from_parquet(tmp_path / "a.parquet"))


def test_row_groups_without_rows_are_passed_over(tmp_path):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    empty, some = pa.table({"a": pa.array([], pa.int64())}), pa.table({"a": [1, 2]})
    for name, parts in (("a", []), ("b", [empty, some, empty, some, empty])):
        with pq.ParquetWriter(tmp_path / f"{name}.parquet", some.schema) as writer:
            for part in parts:
                writer.write_table(part)
    files = [tmp_path / f"{name}.parquet" for name in "aba"]
    for stream in (False, True):
        assert list(ps.from_parquet(files, stream=stream)) == [{"a": 1}, {"a": 2}] * 2
    assert sorted(sample["a"] for sample in ps.from_parquet(files).shuffle()) == [1, 1, 2, 2]


def test_named_databases_are_refused_and_keys_that_cannot_be_are_errors_with_the_path(tmp_path):
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "a"), map_size=1 << 20, max_dbs=2) as base:
        inner = base.open_db(b"train")
        with base.begin(write=True) as transaction:
            transaction.put(b"x", b"1", db=inner)
    with pytest.raises(ps.ReadError, match=r"/a: it holds named databases \('train'\)"):
        list(ps.from_lmdb(tmp_path / "a"))
    with pytest.raises(ps.ReadError, match=r"/a: the entries from b'' on cannot be read: .*BAD_VALSIZE"):
        list(ps.from_lmdb(tmp_path / "a", keys=[b""]))


def test_links_within_an_hdf5_file_are_fields_if_they_are_named(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = [1, 2]
        file["soft"], file["up"], file["nowhere"] = map(h5py.SoftLink, ("/x", "/", "/none"))
        file["other"] = h5py.ExternalLink("missing.h5", "/x")
        file["single"] = 5
    assert list(ps.from_hdf5(tmp_path / "a.h5", fields="soft")) == [1, 2]
    for name in ("up", "nowhere", "other"):
        with pytest.raises(ps.PlanError, match=f"has no data set '{name}'"):
            len(ps.from_hdf5(tmp_path / "a.h5", fields=name))
    with pytest.raises(ps.PlanError, match="single: a data set without dimensions has no rows"):
        len(ps.from_hdf5(tmp_path / "a.h5", fields="single"))


def test_text_of_an_hdf5_file_that_is_no_text_is_an_error_with_its_rows(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["s"] = np.array([b"a", b"\xff"], dtype=h5py.string_dtype())
    with pytest.raises(ps.ReadError, match=r"a\.h5: rows from \d on cannot be read: .*0xff"):
        list(ps.from_hdf5(tmp_path / "a.h5"))


def test_arrays_without_dimensions_are_samples_as_whole_files_only(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(2), n=np.array(5))
    np.savez_compressed(tmp_path / "b.npz", x=np.arange(2), n=np.array(5))
    np.save(tmp_path / "c.npy", np.array(5))
    for name in ("a.npz", "b.npz"):
        (sample,) = ps.from_npy(tmp_path / name, rows=False)
        assert sample["n"] == 5
        assert sample["x"].tolist() == [0, 1]
    for name in ("a.npz", "b.npz", "c.npy"):
        with pytest.raises(ps.ReadError, match=rf"{name}: .* has no dimension, so no rows; rows=False"):
            len(ps.from_npy(tmp_path / name))


def test_members_of_an_npz_file_are_named_in_errors_and_come_once(tmp_path):
    array = io.BytesIO()
    np.save(array, np.arange(2))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", array.getvalue())
        archive.writestr("README.txt", "no array")
    with pytest.raises(ps.ReadError, match=r"a\.npz: 'README\.txt': this is not a \.npy file"):
        len(ps.from_npy(tmp_path / "a.npz"))
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("x.npy", array.getvalue())
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("x.npy", array.getvalue())
    with pytest.raises(ps.ReadError, match=r"b\.npz: it has the array 'x' twice"):
        len(ps.from_npy(tmp_path / "b.npz"))


def test_a_shuffle_over_more_than_one_arrow_table_can_hold_reads_row_groups(tmp_path, monkeypatch):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    from penstock.sources import tables

    def too_large(source):
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    pq.write_table(
        pa.table({"a": [f"{number:05}" for number in range(1000)]}), tmp_path / "a.parquet", row_group_size=50
    )
    monkeypatch.setattr(tables.TableSource, "_all", too_large)
    monkeypatch.setattr(tables, "_ONE_TABLE", 1000)
    rows = [sample["a"] for sample in ps.from_parquet(tmp_path / "a.parquet").shuffle()]
    assert sorted(rows) == [f"{number:05}" for number in range(1000)]


# ---------------------------------------------------------------------- pipes, and archives of nothing


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX")
@for_each("read", [ps.from_files, ps.from_tar, ps.from_jsonl, ps.from_csv, ps.from_npy, ps.from_parquet])
def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path_factory, read):
    path = tmp_path_factory.mktemp("pipe") / "a.npy"
    os.mkfifo(path)
    with pytest.raises(ps.ReadError, match=r"a\.npy: a pipe.*copy its content"):
        list(read([path]))


def test_an_archive_of_nothing_among_others_has_no_samples(tmp_path):
    write(tmp_path / "0.tar", tar_bytes(["0.txt"]))
    write(tmp_path / "1.tar", tar_bytes([]))
    write(tmp_path / "2.tar", tar_bytes(["2.txt"]))
    assert [sample["__key__"] for sample in ps.from_tar(tmp_path)] == ["0", "2"]
    assert sorted(sample["__key__"] for sample in ps.from_tar(tmp_path).shuffle()) == ["0", "2"]
    write(tmp_path / "1.tar", tar_bytes(["README"]))
    with pytest.raises(ps.ReadError, match=r"1\.tar: no member of this archive is named like a sample's field"):
        len(ps.from_tar(tmp_path))


@for_each("name", ["a.tar", "a.tar.gz"])
def test_no_field_takes_the_place_of_the_key(tmp_path, name):
    write(tmp_path / name, tar_bytes(["0.txt", "0.__key__", "0.a b"]))
    assert list(ps.from_tar(tmp_path / name)) == [{"__key__": "0", "txt": b"0.txt", "a b": b"0.a b"}]


def test_samples_with_some_fields_of_no_bytes_are_read_in_any_order(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(20):
            for field, data in ("x", b""), ("y", b"y" * (number % 2)):
                member = tarfile.TarInfo(f"{number}.{field}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    for pipeline in (ps.from_tar(tmp_path / "a.tar"), ps.from_tar(tmp_path / "a.tar", fields=["x", "y"]).shuffle()):
        found = {sample["__key__"]: (sample["x"], sample["y"]) for sample in pipeline}
        assert found == {str(number): (b"", b"y" * (number % 2)) for number in range(20)}
