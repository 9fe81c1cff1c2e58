"""from_text and from_jsonl: lines by number, or forward where they are compressed."""

import gzip
import json
import os
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import for_each
from tests.random_examples import examples

import penstock as ps
from penstock.formats import lines
from penstock.testing import check_resume, check_source

zstd = pytest.importorskip("backports.zstd")

pytestmark = pytest.mark.usefixtures("warm_processes")


def write(path, data):
    path.write_bytes(data)
    return str(path)


def write_like(path, data):
    """`data` in a file that is compressed as its name says."""
    if str(path).endswith(".gz"):
        data = gzip.compress(data, 1)
    elif str(path).endswith(".zst"):
        data = zstd.compress(data, 1)
    return write(path, data)


RECORDS = [{"text": f"line {i}\n", "label": i % 7, "x": [i, i / 2], "none": None} for i in range(10_000)]


@for_each("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_ten_thousand_records_of_the_standard_library_are_read_back(tmp_path, name):
    path = write_like(tmp_path / name, "".join(json.dumps(one) + "\n" for one in RECORDS).encode())
    pipeline = ps.from_jsonl(path)
    assert list(pipeline) == RECORDS
    if name == "a.jsonl":
        assert sorted(one["text"] for one in pipeline.shuffle()) == sorted(one["text"] for one in RECORDS)
        assert len(pipeline) == 10_000


def test_lines_keep_the_contract_of_a_source_on_threads_and_processes(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.jsonl", b"".join(b'{"n": %d}\n\n' % (40 * number + i) for i in range(40)))
    pipeline = ps.from_jsonl(tmp_path, indices=[*range(100, 30, -1), 0, 0])
    check_source(pipeline, most=30)
    assert [one["n"] for one in pipeline] == [*range(100, 30, -1), 0, 0]
    assert pipeline.source.name(0) == "2.jsonl/record 21"


@pytest.mark.soak
def test_compressed_lines_keep_the_contract_of_a_stream(tmp_path):
    for number, suffix in enumerate(["gz", "zst"]):
        write_like(tmp_path / f"{number}.txt.{suffix}", b"".join(b"%d\r\n" % (30 * number + i) for i in range(30)))
    pipeline = ps.from_text(tmp_path)
    check_source(pipeline, most=40)
    check_resume(pipeline.shuffle(window=8), epochs=1, every=20, restored_on={"inline": True})
    assert list(pipeline) == [str(i) for i in range(60)]


@for_each(
    "data, text, values",
    [
        (b"", [], 0),
        (b"1", ["1"], 1),
        (b"1\n", ["1"], 1),
        (b"\n", [""], 0),
        (b"1\r\n2\r\n", ["1", "2"], 2),
        (b"\n\n1\n\n \t\r\n2\n   \n", ["", "", "1", "", " \t", "2", "   "], 2),
        (b"\xef\xbb\xbf1\n2", ["1", "2"], 2),
        (b" 1\n\t2 \n", [" 1", "\t2 "], 2),
        ("\u2028\x0b\x0c\x85\n".encode(), ["\u2028\x0b\x0c\x85"], None),
    ],
)
def test_lines_end_with_line_feeds_and_json_leaves_blank_ones_out(tmp_path, data, text, values):
    for name in ("a.txt", "a.txt.gz"):
        assert list(ps.from_text(write_like(tmp_path / name, data))) == text
    if values is not None:
        for name in ("a.jsonl", "a.jsonl.zst"):
            assert list(ps.from_jsonl(write_like(tmp_path / name, data))) == [1, 2][:values]


@examples(40)
@given(data=st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b" ", b"bc", b"\t"]), max_size=30).map(b"".join))
def test_lines_are_found_wherever_chunks_end(tmp_path_factory, data):
    path = write(tmp_path_factory.getbasetemp() / "random.txt", data)
    expected = [line.removesuffix(b"\r").decode() for line in data.split(b"\n")]
    expected = expected[:-1] if not expected[-1] and not data.endswith(b"\r") else expected
    if data.endswith(b"\r"):
        expected[-1] += "\r"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_CHUNK", 3)
        assert list(ps.from_text(path)) == expected


def test_an_encoding_is_used_and_what_it_cannot_read_is_an_error_or_a_counted_skip(tmp_path):
    path = write(tmp_path / "a.txt", b"plain\ncaf\xe9\nend\n")
    assert list(ps.from_text(path, encoding="latin-1")) == ["plain", "café", "end"]
    with pytest.raises(ps.ReadError, match=r"a\.txt: record 2, byte 6: 'utf-8' codec can't decode"):
        list(ps.from_text(path))
    with ps.from_text(path, on_error="skip").loader() as loader:
        assert list(loader) == ["plain", "end"]
        assert [record.index for record in loader.errors()] == [1]
    for encoding in ("utf-16", "no such"):
        with pytest.raises(ps.PlanError, match="encoding="):
            ps.from_text(path, encoding=encoding)


@for_each("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_record_that_is_no_json_is_an_error_with_its_number(tmp_path, name):
    path = write_like(tmp_path / name, b'{"a": 1}\n\n{"a": \n{"a": 3}\n')
    with pytest.raises(ps.ReadError, match=rf"{name}: record 2.*truncated"):
        list(ps.from_jsonl(path))
    if name == "a.jsonl":
        assert list(ps.from_jsonl(path, on_error="skip")) == [{"a": 1}, {"a": 3}]


def test_deep_nesting_is_an_error_and_not_a_crash(tmp_path):
    with pytest.raises(ps.ReadError, match="record 1"):
        list(ps.from_jsonl(write(tmp_path / "a.jsonl", b"[" * 100_000)))


@for_each("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_a_compressed_file_cut_short_anywhere_is_an_error_with_its_name(tmp_path, name):
    path = write_like(tmp_path / name, b"".join(b'{"n": %d}\n' % zlib.crc32(b"%d" % i) for i in range(300)))
    with open(path, "rb") as file:
        whole = file.read()
    for cut in range(0, len(whole), 512):
        write(tmp_path / name, whole[:cut])
        with pytest.raises(ps.ReadError, match=name):
            list(ps.from_jsonl(path))


@for_each("name", ["a.txt.gz", "a.txt.zst"])
def test_a_decompression_bomb_takes_no_more_than_max_bytes(tmp_path, name):
    path = write_like(tmp_path / name, b"first\n" + bytes(20 << 20))
    with pytest.raises(ps.ReadError, match=r"line 2 has more than max_bytes=1000000 bytes"):
        list(ps.from_text(path, max_bytes=1_000_000))


def test_the_index_of_a_large_file_is_kept_and_made_anew_when_the_file_grows(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.sources.lines._KEPT_BYTES", 100)
    path = write(tmp_path / "a.jsonl", b"1\n" * 100)
    assert list(ps.from_jsonl(path)) == [1] * 100
    assert os.path.exists(tmp_path / ".a.jsonl.index")
    with open(path, "ab") as file:
        file.write(b"2\n")
    assert list(ps.from_jsonl(path)) == [1] * 100 + [2]
    write(tmp_path / "b.jsonl", b"1\n")
    assert len(ps.from_jsonl(tmp_path / "b.jsonl")) == 1
    assert not os.path.exists(tmp_path / ".b.jsonl.index")


def test_a_file_that_grows_during_a_run_is_an_error(tmp_path):
    path = write(tmp_path / "a.jsonl", b"1\n" * 5000)
    with ps.from_jsonl(path).loader(inline=True) as loader:
        stream = iter(loader)
        next(stream)
        with open(path, "ab") as file:
            file.write(b"2\n")
        with pytest.raises(ps.ReadError, match="has changed since it was indexed"):
            list(stream)


def test_missing_files_and_wrong_folders_are_said(tmp_path):
    with pytest.raises(ps.PlanError, match="no such file"):
        ps.from_jsonl(tmp_path / "none.jsonl")
    write(tmp_path / "a.csv", b"")
    with pytest.raises(ps.PlanError, match=r"no file in .* ends in \.jsonl"):
        ps.from_jsonl(tmp_path)


def test_random_lines_are_read_in_the_order_asked_for(tmp_path):
    path = write(tmp_path / "a.txt", b"".join(b"%d %s\n" % (i, b"x" * (i % 50)) for i in range(1000)))
    order = np.random.default_rng(0).integers(0, 1000, 500)
    assert [int(line.split()[0]) for line in ps.from_text(path).source.read(order)] == order.tolist()
