"""Files whose content is not what their form promises: an error that names the file, or the right samples."""

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.formats.tfrecord import framed


def message(number, content):
    """A field of a protocol buffer that holds bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def example(name, feature):
    return message(1, message(1, message(1, name) + message(2, feature)))


FLOAT = example(b"n", message(2, message(1, struct.pack("<f", 2.5))))
INFINITE = example(b"n", message(2, message(1, struct.pack("<f", float("inf")))))


# ---------------------------------------------------------------------- TFRecord


@for_each("packed", [False, True])
def test_an_integer_of_ten_bytes_has_64_bits(tmp_path, packed):
    number = b"\xff" * 9 + b"\x7f"
    values = message(1, number) if packed else b"\x08" + number
    (tmp_path / "a").write_bytes(framed(example(b"n", message(3, values))))
    (sample,) = ps.from_tfrecord(tmp_path / "a")
    assert sample["n"].tolist() == [-1]


@for_each("record", [FLOAT, INFINITE])
def test_a_float_is_not_cut_down_to_an_integer(tmp_path, record):
    (tmp_path / "a").write_bytes(framed(record))
    with pytest.raises(ps.ReadError, match=r"a: the record at byte 0: the feature 'n' has float32, not int"):
        list(ps.from_tfrecord(tmp_path / "a", features={"n": int}))
    with ps.from_tfrecord(tmp_path / "a", features={"n": int}, on_error="skip").loader(epochs=1) as loader:
        assert list(loader) == []
        assert len(loader.errors()) == 1


# ---------------------------------------------------------------------- names


def test_a_question_mark_in_the_name_of_a_local_file_is_a_letter(tmp_path):
    (tmp_path / "why?.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n'))
    assert list(ps.from_jsonl([tmp_path / "why?.jsonl.gz"])) == [{"a": 1}]
    assert list(ps.from_jsonl(tmp_path)) == [{"a": 1}]
    np.savez(tmp_path / "why?.npz", x=np.arange(2))
    assert [sample["x"] for sample in ps.from_npy([tmp_path / "why?.npz"])] == [0, 1]


# ---------------------------------------------------------------------- .npz


def npz(path, method):
    array = io.BytesIO()
    np.save(array, np.zeros(1000))
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", array.getvalue())
    return bytearray(path.read_bytes())


def test_an_encrypted_member_of_an_npz_file_is_refused_with_its_name(tmp_path):
    data = npz(tmp_path / "a.npz", zipfile.ZIP_DEFLATED)
    data[6] |= 1
    data[data.find(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.npz").write_bytes(data)
    for rows in (True, False):
        with pytest.raises(ps.ReadError, match=r"a\.npz: 'x\.npy': it is encrypted"):
            list(ps.from_npy(tmp_path / "a.npz", rows=rows))


@for_each("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_member_of_an_npz_file_is_an_error_with_the_file(tmp_path, method):
    data = npz(tmp_path / "a.npz", method)
    start = data.find(b"x.npy") + 5
    for at in range(start + 10, start + 30):
        data[at] ^= 0x55
    (tmp_path / "a.npz").write_bytes(data)
    for rows in (True, False):
        with pytest.raises(ps.ReadError, match=r"a\.npz: "):
            list(ps.from_npy(tmp_path / "a.npz", rows=rows))


def test_a_member_of_an_npz_file_that_begins_before_it_is_an_error_with_the_file(tmp_path):
    data = npz(tmp_path / "a.npz", zipfile.ZIP_STORED)
    data[-6:-2] = (int.from_bytes(data[-6:-2], "little") + 5000).to_bytes(4, "little")  # where the directory begins
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ps.ReadError, match=r"a\.npz: "):
        list(ps.from_npy(tmp_path / "a.npz"))


# ---------------------------------------------------------------------- tar


def tar_bytes(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


@for_each("decode", [None, True])
@for_each("name", ["a.tar", "a.tar.gz"])
def test_of_several_fields_that_may_stand_for_a_name_the_first_that_was_asked_for_is_taken(tmp_path, name, decode):
    data = tar_bytes([("0.png", b"P"), ("0.jpg", b"J"), ("1.jpg", b"J"), ("1.png", b"P"), ("2.png", b"P")])
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    samples = ps.from_tar(tmp_path / name, fields={"image": "jpg;png"}, decode=decode)
    assert [sample["image"] for sample in samples] == [b"J", b"J", b"P"]


@for_each("compress, said", [
    (gzip.compress, r"name it \.tar\.gz"), (bz2.compress, r"\.bz2 is not read"),
    (lzma.compress, r"\.xz is not read"),
])  # fmt: skip
@for_each("data", [b"short", os.urandom(2000)])
def test_an_archive_that_is_compressed_without_saying_so_is_refused_with_what_to_do(tmp_path, compress, said, data):
    (tmp_path / "a.tar").write_bytes(compress(tar_bytes([("0.bin", data)])))
    with pytest.raises(ps.ReadError, match=rf"a\.tar: byte 0: this is not a tar file; it is compressed.*{said}"):
        list(ps.from_tar(tmp_path / "a.tar"))


# ---------------------------------------------------------------------- Arrow and Parquet


def arrow_file(path, table, make):
    pa = pytest.importorskip("pyarrow")
    with getattr(pa.ipc, make)(str(path), table.schema) as writer:
        writer.write_table(table)
    return path.read_bytes()


@for_each("make", ["new_file", "new_stream"])
@for_each("within", ["column", "struct", "list"])
def test_strings_that_begin_outside_of_an_arrow_file_are_an_error_and_no_crash(tmp_path, make, within):
    pa = pytest.importorskip("pyarrow")
    texts = pa.array(["a", "bb", "ccc"])
    column = {
        "column": texts,
        "struct": pa.StructArray.from_arrays([texts], names=["x"]),
        "list": pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), texts),
    }[within]
    data = arrow_file(tmp_path / "a.arrow", pa.table({"s": column}), make)
    wrong = data.replace(np.array([0, 1, 3, 6], "<i4").tobytes(), np.array([0, 1 << 30, 3, 6], "<i4").tobytes())
    assert wrong != data
    (tmp_path / "a.arrow").write_bytes(wrong)
    for _ in range(2):
        with pytest.raises(ps.ReadError, match=r"a\.arrow: record batch 0: column 's': its values overlap"):
            list(ps.from_arrow(tmp_path / "a.arrow"))


def test_text_that_is_no_text_is_an_error_with_file_and_row(tmp_path):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    texts = pa.array([b"a", b"\xff" * 1000]).view(pa.string())
    table = pa.table({"s": texts})
    pq.write_table(table, tmp_path / "a.parquet")
    arrow_file(tmp_path / "a.arrow", table, "new_file")
    for pipeline in (
        *(ps.from_arrow(tmp_path / "a.arrow"), ps.from_arrow(tmp_path / "a.arrow").batch(2)),
        *(ps.from_parquet(tmp_path / "a.parquet"), ps.from_parquet(tmp_path / "a.parquet", stream=True)),
    ):
        with pytest.raises(ps.ReadError, match=r"/a\.\w+: .*rows from \d on cannot be read: .{1,250}(\n|$)"):
            list(pipeline)


def test_rows_that_take_more_memory_than_their_file_count_by_their_memory(tmp_path):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    zeros = pa.table({"a": np.zeros(200_000, "int64")})
    pq.write_table(zeros, tmp_path / "a.parquet", row_group_size=50_000)
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    pipeline = ps.from_parquet(tmp_path / "a.parquet", cache_bytes=1_000_000)
    with pytest.raises(ps.PlanError, match=r"its 4 row groups .* take 2 MB, more than the cache_bytes=1,000,000"):
        pipeline.shuffle().loader()


def test_small_numbers_of_a_parquet_file_count_by_their_width_in_memory(tmp_path):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    numbers = np.random.default_rng(0).integers(0, 100, 400_000)
    kinds = {"a": "uint8", "b": "int16"}  # 1.2 MB; the file holds each of them in 32 bits
    rows = pa.table({name: numbers.astype(kind) for name, kind in kinds.items()})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=100_000, use_dictionary=False)
    ps.from_parquet(tmp_path / "a.parquet", cache_bytes=1_200_000).shuffle().loader().close()
    with pytest.raises(ps.PlanError, match="take 1 MB, more than the cache_bytes=1,100,000"):
        ps.from_parquet(tmp_path / "a.parquet", cache_bytes=1_100_000).shuffle().loader()
