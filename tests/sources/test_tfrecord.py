"""from_tfrecord: files in the published framing, with examples in the published wire format, written here."""

import gzip
import os
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import for_each
from tests.random_examples import examples

import penstock as ps
from penstock.formats import crc32c as crc
from penstock.formats.example import parse_example
from penstock.testing import check_source

pytestmark = pytest.mark.usefixtures("warm_processes")

# ---------------------------------------------------------------------- written by what is published


def slow_crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def mask(value):
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data):
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", mask(slow_crc32c(length))) + data + struct.pack("<I", mask(slow_crc32c(data)))


def varint(number):
    number &= 0xFFFFFFFFFFFFFFFF
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def message(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(value, packed=True):
    if all(isinstance(one, bytes) for one in value):
        return message(1, b"".join(message(1, one) for one in value))
    if all(isinstance(one, int) for one in value):
        numbers = [varint(one) for one in value]
        return message(3, message(1, b"".join(numbers)) if packed else b"".join(b"\x08" + one for one in numbers))
    floats = [struct.pack("<f", one) for one in value]
    return message(2, message(1, b"".join(floats)) if packed else b"".join(b"\x0d" + one for one in floats))


def example(features, packed=True):
    entries = [
        message(1, message(1, name.encode()) + message(2, feature(value, packed)))
        for name, value in features.items()
    ]
    return message(1, b"".join(entries))


def write(path, records):
    path.write_bytes(b"".join(records))
    return str(path)


def numbered(n, start=0):
    return [record(example({"n": [i], "name": [b"%d" % i]})) for i in range(start, start + n)]


# ---------------------------------------------------------------------- checksums


@for_each("length", [*range(70), 2999, 3000, 3001, 4096, 10_007, 70_001])
def test_checksums_are_those_of_the_published_polynomial(length):
    data = np.random.default_rng(length).bytes(length)
    known = crc.by_numpy(data)
    assert known == crc.crc32c(data)
    if length < 5000:
        assert known == slow_crc32c(data)


def test_many_short_texts_are_summed_at_once():
    rows = np.random.default_rng(0).integers(0, 256, (100, 8), dtype=np.uint8)
    assert crc.crc32c_of_rows(rows).tolist() == [slow_crc32c(row.tobytes()) for row in rows]


# ---------------------------------------------------------------------- samples


@for_each("packed", [True, False])
def test_an_example_is_parsed_without_tensorflow(packed):
    found = parse_example(example({"i": [1, -1, 2**62], "f": [0.5, -2.0], "b": [b"", b"ab"], "ü": [7]}, packed))
    assert list(found) == ["i", "f", "b", "ü"]
    assert found["i"].tolist() == [1, -1, 2**62]
    assert (found["i"].dtype, found["f"].dtype) == (np.int64, np.float32)
    assert found["f"].tolist() == [0.5, -2.0]
    assert found["b"] == [b"", b"ab"]


@examples(40)
@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60))
def test_any_integers_come_back(numbers):
    assert parse_example(example({"n": numbers or [0]}))["n"].tolist() == (numbers or [0])


@examples(100)
@given(data=st.binary(max_size=60))
def test_bytes_that_are_no_example_are_a_value_error_or_nothing(data):
    for damaged in (data, example({"n": [1, 300], "b": [b"abc"]})[: len(data)], message(1, message(1, data))):
        try:
            found = parse_example(damaged)
        except ValueError:
            continue
        assert isinstance(found, dict)


def test_ten_thousand_records_are_read_back(tmp_path):
    path = write(tmp_path / "a.tfrecord", [crc_record(example({"n": [i]})) for i in range(10_000)])
    pipeline = ps.from_tfrecord(path, features={"n": int}).shuffle()
    assert sorted(sample["n"] for sample in pipeline) == list(range(10_000))


def crc_record(data):
    """As `record`, at the speed of a library of somebody else's."""
    library = pytest.importorskip("google_crc32c")
    length = struct.pack("<Q", len(data))
    return (
        length
        + struct.pack("<I", mask(library.value(length)))
        + data
        + struct.pack("<I", mask(library.value(data)))
    )


def test_records_keep_the_contract_of_a_source_on_threads_and_processes(tmp_path):
    for number in range(3):
        write(tmp_path / f"train-{number:05d}-of-00003", numbered(30, 30 * number))
    pipeline = ps.from_tfrecord(tmp_path, indices=[*range(70, 5, -1), 0, 0])
    check_source(pipeline, most=30)
    assert [int(sample["n"][0]) for sample in pipeline] == [*range(70, 5, -1), 0, 0]
    assert pipeline.source.name(0) == "train-00002-of-00003/record 10"
    assert os.path.exists(tmp_path / ".train-00000-of-00003.index")


@pytest.mark.soak
def test_compressed_records_keep_the_contract_of_a_stream(tmp_path):
    for number in range(2):
        write(tmp_path / f"{number}", [gzip.compress(b"".join(numbered(20, 20 * number)))])
    check_source(ps.from_tfrecord(tmp_path, compression="gzip"), most=30)
    with pytest.raises(ps.ReadError, match="compression='gzip'"):
        len(ps.from_tfrecord(tmp_path))


def test_features_say_what_they_are(tmp_path):
    features = {"image": [b"jpeg"], "label": [3], "score": [0.5], "name": [b"caf\xc3\xa9"]}
    features |= {"box": [1.0, 2.0, 3.0, 4.0], "raw": [b"\x01\x00\x02\x00"]}
    path = write(tmp_path / "a", [record(example(features))])
    kinds = {
        "image": bytes,
        "label": int,
        "score": float,
        "name": str,
        "box": ((2, 2), "float64"),
        "raw": ((2,), "<u2"),
    }
    (sample,) = ps.from_tfrecord(path, features=kinds)
    assert (sample["image"], sample["label"], sample["score"], sample["name"]) == (b"jpeg", 3, 0.5, "café")
    assert sample["box"].tolist() == [[1, 2], [3, 4]]
    assert sample["raw"].tolist() == [1, 2]
    (sample,) = ps.from_tfrecord(path, features=["label"])
    assert sample["label"].tolist() == [3]
    assert list(ps.from_tfrecord(path, raw=True)) == [example(features)]
    for wrong, words in [
        ({"nothing": int}, "no feature 'nothing'"),
        ({"box": int}, "has 4 values, not one"),
        ({"image": int}, "has bytes, not int"),
        ({"label": str}, "has int64, not str"),
        ({"box": ((3,), "float32")}, "do not fit"),
    ]:
        with pytest.raises(ps.ReadError, match=rf"record at byte 0: .*{words}"):
            list(ps.from_tfrecord(path, features=wrong))
    for wrong in ("label", {"label": "int64"}, {"label": dict}):
        with pytest.raises(ps.PlanError, match="features="):
            ps.from_tfrecord(path, features=wrong)
    with pytest.raises(ps.PlanError, match="raw=True"):
        ps.from_tfrecord(path, features=["label"], raw=True)


# ---------------------------------------------------------------------- hostile files


def test_a_file_cut_short_anywhere_is_an_error_with_its_position(tmp_path):
    whole = b"".join(numbered(3)) + record(b"x" * 1500)
    ends = {0}
    for one in [*numbered(3), record(b"x" * 1500)]:
        ends.add(max(ends) + len(one))
    for cut in {*range(0, len(whole), 512), *range(100), *range(len(whole) - 20, len(whole))} - ends:
        path = write(tmp_path / "a", [whole[:cut]])
        with pytest.raises(ps.ReadError, match=r"a: byte \d+: .*cut short"):
            len(ps.from_tfrecord(path, index=False))
        path = write(tmp_path / "a.gz", [gzip.compress(whole[:cut], 0)])
        with pytest.raises(ps.ReadError, match=r"a\.gz: byte \d+: .*cut short"):
            list(ps.from_tfrecord(path, raw=True))
    assert list(ps.from_tfrecord(write(tmp_path / "a", []))) == []


@for_each("length", [4 << 30, (1 << 63) - 1, (1 << 64) - 1])
def test_a_length_of_gigabytes_is_refused_before_anything_is_allocated(tmp_path, length):
    header = struct.pack("<Q", length)
    honest = header + struct.pack("<I", mask(slow_crc32c(header)))
    for data, words in [
        (honest + b"x" * 100, "(cut short|more than max_bytes)"),
        (header + b"x" * 100, "checksum"),
    ]:
        for path in (write(tmp_path / "a", [data]), write(tmp_path / "a.gz", [gzip.compress(data)])):
            with pytest.raises(ps.ReadError, match=rf"byte 0: .*{words}"):
                list(ps.from_tfrecord(path))


def test_a_damaged_length_or_record_is_an_error_with_its_position(tmp_path):
    records = numbered(5)
    at = len(records[0]) + len(records[1])
    whole = bytearray(b"".join(records))
    whole[at] ^= 1
    path = write(tmp_path / "a", [whole])
    with pytest.raises(ps.ReadError, match=rf"byte {at}: the length of a record is damaged"):
        len(ps.from_tfrecord(path))
    whole[at] ^= 1
    whole[at + 20] ^= 1
    path = write(tmp_path / "a", [whole])
    with pytest.raises(ps.ReadError, match=rf"byte {at}: the data of a record is damaged"):
        list(ps.from_tfrecord(path))
    with ps.from_tfrecord(path, on_error="skip", raw=True).loader() as loader:
        assert len(list(loader)) == 4
        assert [lost.index for lost in loader.errors()] == [2]
    assert len(list(ps.from_tfrecord(path, check=False, raw=True))) == 5


def test_what_is_no_tfrecord_file_is_said_to_be_none(tmp_path):
    path = write(tmp_path / "a", [b"PK\x03\x04" + b"\0" * 200])
    with pytest.raises(ps.ReadError, match="byte 0: this is not a TFRecord file"):
        len(ps.from_tfrecord(path))
    with pytest.raises(ps.PlanError, match="no such file"):
        ps.from_tfrecord(tmp_path / "none")
    with pytest.raises(ps.PlanError, match="compression="):
        ps.from_tfrecord(path, compression="zip")


def test_a_file_that_grew_is_indexed_again_and_one_that_grows_in_a_run_is_an_error(tmp_path):
    path = write(tmp_path / "a", numbered(200))
    assert len(ps.from_tfrecord(path)) == 200
    with open(path, "ab") as file:
        file.write(record(example({"n": [200]})))
    assert len(ps.from_tfrecord(path)) == 201
    with ps.from_tfrecord(path).loader(inline=True) as loader:
        stream = iter(loader)
        next(stream)
        with open(path, "ab") as file:
            file.write(record(b""))
        with pytest.raises(ps.ReadError, match="has changed since it was indexed"):
            list(stream)
