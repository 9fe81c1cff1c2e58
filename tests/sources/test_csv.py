"""from_csv: files that the csv module wrote, with typed columns by pyarrow."""

import csv
import gzip
import io
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import for_each
from tests.random_examples import examples

import penstock as ps
from penstock.formats import csv as csv_format
from penstock.testing import check_source

pa = pytest.importorskip("pyarrow")
zstd = pytest.importorskip("backports.zstd")

# The first call in a process opens a pipe for signals, which stays open.
pytest.importorskip("pyarrow.csv").read_csv(io.BytesIO(b"a\n1\n"))

pytestmark = pytest.mark.usefixtures("warm_processes")


def text(rows, header=("i", "x", "name"), **options):
    out = io.StringIO()
    writer = csv.writer(out, **options)
    writer.writerows([header, *rows] if header else rows)
    return out.getvalue().encode()


def rows(n, start=0):
    return [(number, number / 2, f'row {number}, "quoted"\nand broken') for number in range(start, start + n)]


def write(path, data):
    data = (
        gzip.compress(data, 1) if path.suffix == ".gz" else zstd.compress(data) if path.suffix == ".zst" else data
    )
    path.write_bytes(data)
    return str(path)


def test_records_are_dicts_of_typed_values(tmp_path):
    data = b"a,b,c,d,e\r\n1,1.5,true,text,2020-01-02\r\n\r\n2,,false,,2020-01-03"
    for path in (write(tmp_path / "a.csv", data), write(tmp_path / "a.csv.gz", data)):
        first, second = ps.from_csv(path)
        assert first == {"a": 1, "b": 1.5, "c": True, "d": "text", "e": np.datetime64("2020-01-02")}
        assert (first["a"].dtype, first["b"].dtype) == (np.int64, np.float64)
        assert second == {"a": 2, "b": None, "c": False, "d": "", "e": np.datetime64("2020-01-03")}


def test_files_keep_the_contract_of_a_source_on_threads_and_processes(tmp_path):
    for number in range(2):
        write(tmp_path / f"{number}.csv", text(rows(60, 60 * number)))
    pipeline = ps.from_csv(tmp_path, indices=[*range(110, 20, -1), 0, 0], columns=["name", "i"])
    check_source(pipeline, most=15)
    assert [sample["i"] for sample in pipeline] == [*range(110, 20, -1), 0, 0]
    assert list(pipeline.peek()[0]) == ["name", "i"]
    assert pipeline.source.name(0) == "1.csv/record 51"


@pytest.mark.soak
def test_compressed_files_keep_the_contract_of_a_stream(tmp_path):
    write(tmp_path / "0.csv.gz", text(rows(30)))
    write(tmp_path / "1.csv.zst", text(rows(30, 30)))
    pipeline = ps.from_csv(tmp_path)
    check_source(pipeline, most=40)
    assert [(sample["i"], sample["name"]) for sample in pipeline] == [(row[0], row[2]) for row in rows(60)]


def test_ten_thousand_records_in_any_order(tmp_path):
    path = write(tmp_path / "a.csv", text(rows(10_000)))
    batches = list(ps.from_csv(path).shuffle().batch(700))
    assert np.array_equal(np.sort(np.concatenate([batch["i"] for batch in batches])), np.arange(10_000))
    assert batches[3]["name"] == [f'row {number}, "quoted"\nand broken' for number in batches[3]["i"]]


def test_more_records_than_are_kept_are_parsed_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.sources.csv._GROUP", 500)
    monkeypatch.setattr("penstock.sources.csv._CACHE_BYTES", 2000)
    for number in range(2):
        write(tmp_path / f"{number}.csv", text(rows(200, 200 * number)))
    assert [sample["i"] for sample in ps.from_csv(tmp_path)] == list(range(400))
    shuffled = list(ps.from_csv(tmp_path).shuffle())
    assert sorted(sample["i"] for sample in shuffled) == list(range(400))
    assert all(sample["x"] == sample["i"] / 2 for sample in shuffled)
    batch = next(iter(ps.from_csv(tmp_path).shuffle().batch(100)))
    assert np.array_equal(batch["x"], batch["i"] / 2)


def test_types_are_said_or_those_of_the_first_file(tmp_path):
    write(tmp_path / "0.csv", b"a,b\n1,x\n")
    write(tmp_path / "1.csv", b"b,a\ny,2\n")
    assert list(ps.from_csv(tmp_path)) == [{"a": 1, "b": "x"}, {"b": "y", "a": 2}]
    kinds = {"a": "float32", "b": pa.large_string()}
    assert [sample["a"].dtype for sample in ps.from_csv(tmp_path, types=kinds, columns=["a"])] == [np.float32] * 2
    assert [sample["a"] for sample in ps.from_csv(tmp_path, types={"a": "string"})] == ["1", "2"]
    assert [sample["a"].dtype for sample in ps.from_csv(tmp_path, types={"a": np.uint8})] == [np.uint8] * 2
    with pytest.raises(ps.PlanError, match="types="):
        ps.from_csv(tmp_path, types={"a": "number"})
    with pytest.raises(ps.PlanError, match=r"0\.csv has no column 'z'; it has a, b"):
        len(ps.from_csv(tmp_path, columns=["z"]))


def test_delimiters_and_files_without_a_header(tmp_path):
    path = write(tmp_path / "a.tsv", b"1\tx\n2\ty\n")
    assert list(ps.from_csv(path, names=["n", "s"], delimiter="\t")) == [{"n": 1, "s": "x"}, {"n": 2, "s": "y"}]
    assert ps.from_csv(path, names=["n", "s"]).peek() == [{"n": 1, "s": "x"}]  # the name says that it has tabs
    for delimiter in ("", "\t\t", '"', "é"):
        with pytest.raises(ps.PlanError, match="delimiter="):
            ps.from_csv(path, delimiter=delimiter)


@examples(40)
@given(table=st.lists(st.lists(st.text('ab,"\n\r ', max_size=4), min_size=2, max_size=2), max_size=6))
def test_records_are_found_wherever_chunks_end(tmp_path_factory, table):
    kept = [row for row in table if row != ["", ""]]
    path = write(tmp_path_factory.getbasetemp() / "random.csv", text(kept, ("x", "y"), quoting=csv.QUOTE_ALL))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_format, "_CHUNK", 3)
        found = list(ps.from_csv(path, types={"x": "string", "y": "string"}))
    assert [[sample["x"], sample["y"]] for sample in found] == kept


# ---------------------------------------------------------------------- odd files


@for_each("name", ["a.csv", "a.csv.gz"])
def test_records_that_do_not_fit_are_errors_with_their_place(tmp_path, name, monkeypatch):
    monkeypatch.setattr(csv_format, "_SAMPLE", 100)
    monkeypatch.setattr("penstock.sources.csv._BLOCK", 100)
    path = write(tmp_path / name, b"a,b\n1,2\n3\n5,6\n")
    with pytest.raises(ps.ReadError, match=rf"{name}.*Expected 2 columns, got 1"):
        list(ps.from_csv(path, types={"a": "int64", "b": "int64"}))
    path = write(tmp_path / f"b{name}", text([(1, 1)] * 300 + [("x", 1)], ("a", "b")))
    with pytest.raises(ps.ReadError, match=r"record.*'x'"):
        list(ps.from_csv(path).skip(290))


def test_a_bad_record_is_named_and_can_be_skipped(tmp_path):
    path = write(tmp_path / "a.csv", b"a,b\n" + b"1,2\n" * 10 + b"x,2\n" + b"3,4\n" * 3)
    kinds = {"a": "int64"}
    with pytest.raises(ps.ReadError, match=r"a\.csv: record 11, byte 44: .*'x'.* types="):
        list(ps.from_csv(path, types=kinds))
    with ps.from_csv(path, types=kinds, on_error="skip").batch(4).loader() as loader:
        assert np.concatenate([batch["a"] for batch in loader]).tolist() == [1] * 10 + [3] * 3
        assert len(loader.errors()) == 1


@for_each("name", ["a.csv", "a.csv.gz"])
def test_empty_files_and_headers_of_nonsense(tmp_path, name):
    assert list(ps.from_csv(write(tmp_path / name, b"a,b\n"))) == []
    assert list(ps.from_csv(write(tmp_path / name, b"\xef\xbb\xbfa,b\n1,2\n"))) == [{"a": 1, "b": 2}]
    for data, words in [(b"", "no header"), (b"\n\n", "no header"), (b"a,a\n1,2\n", "the column 'a' twice")]:
        with pytest.raises(ps.ReadError, match=rf"{name}: .*{words}"):
            list(ps.from_csv(write(tmp_path / name, data)))


def test_a_quote_that_is_never_closed_is_an_error(tmp_path):
    with pytest.raises(ps.ReadError, match=r"a\.csv: a quote is opened and never closed"):
        len(ps.from_csv(write(tmp_path / "a.csv", b'a,b\n1,"2\n3,4\n')))


def test_a_decompression_bomb_takes_no_memory(tmp_path):
    path = write(tmp_path / "a.csv.gz", b"a\n1\n" + b"x" * (20 << 20))
    with pytest.raises(ps.ReadError, match=r"a\.csv\.gz"):
        list(ps.from_csv(path, types={"a": "string"}))


def test_compressed_files_cut_short_are_errors_with_their_name(tmp_path):
    for name in ("a.csv.gz", "a.csv.zst"):
        path = write(tmp_path / name, text(rows(500)))
        whole = (tmp_path / name).read_bytes()
        for cut in range(0, len(whole), 512):
            (tmp_path / name).write_bytes(whole[:cut])
            with pytest.raises(ps.ReadError, match=name):
                list(ps.from_csv(path))


def test_the_index_of_a_large_file_is_kept_and_a_change_in_a_run_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.sources.csv._KEPT_BYTES", 100)
    path = write(tmp_path / "a.csv", text(rows(3000)))
    assert len(ps.from_csv(path)) == 3000
    assert os.path.exists(tmp_path / ".a.csv.index")
    with ps.from_csv(path).loader(inline=True) as loader:
        stream = iter(loader)
        next(stream)
        with open(path, "ab") as file:
            file.write(b"1,2,x\n")
        with pytest.raises(ps.ReadError, match="has changed"):
            list(stream)
    assert len(ps.from_csv(path)) == 3001
