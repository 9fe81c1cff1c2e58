"""from_parquet and from_arrow: files that pyarrow wrote, read by row, by batch and by row group."""

import datetime
import gc
import threading
import weakref
from decimal import Decimal

import cloudpickle
import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.formats.columns import Columns
from penstock.formats.groups import Groups
from penstock.sources.tables import TableShard
from penstock.testing import check_resume, check_source

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.usefixtures("warm_processes")


def table(n, start=0):
    numbers = range(start, start + n)
    return pa.table(
        {
            "i": pa.array(numbers, pa.int32()),
            "x": pa.array([number / 2 for number in numbers], pa.float32()),
            "odd": [bool(number % 2) for number in numbers],
            "text": [f"row {number}" for number in numbers],
            "vector": pa.array([[number, -number] for number in numbers], pa.list_(pa.float32(), 2)),
        }
    )


def write(path, data, rows=40):
    pq.write_table(data, path, row_group_size=rows)
    return str(path)


@pytest.fixture
def files(tmp_path):
    for number in range(3):
        write(tmp_path / f"train-{number}.parquet", table(50, 50 * number), rows=20)
    return tmp_path


# ---------------------------------------------------------------------- what samples are


def test_rows_are_dicts_with_values_of_the_columns_types(tmp_path):
    data = pa.table(
        {
            "int": pa.array([1, None], pa.int8()),
            "float": pa.array([0.5, 1.5], pa.float16()),
            "text": ["a", None],
            "binary": [b"\x00", b"b"],
            "list": [[1, 2], None],
            "strings": [["a"], []],
            "struct": [{"a": 1, "b": "x"}, None],
            "nested": [[[1], [2, 3]], []],
            "gaps": [[1, None], [2]],
            "category": pa.array(["u", "v"]).dictionary_encode(),
            "time": pa.array([0, 1], pa.timestamp("s")),
            "day": pa.array([0, 1], pa.date32()),
            "money": pa.array([Decimal("1.50"), None]),
            "clock": [datetime.time(1, 2), None],
        }
    )
    first, second = ps.from_parquet(write(tmp_path / "a.parquet", data))
    assert first["list"].tolist() == [1, 2]
    assert first["list"].dtype == np.int64
    assert first["list"].flags.writeable
    del first["list"]
    assert first == {
        "int": 1, "float": 0.5, "text": "a", "binary": b"\x00", "strings": ["a"], "struct": {"a": 1, "b": "x"},
        "nested": [[1], [2, 3]], "gaps": [1, None], "category": "u", "time": np.datetime64("1970-01-01"),
        "day": np.datetime64("1970-01-01"), "money": Decimal("1.50"), "clock": datetime.time(1, 2),
    }  # fmt: skip
    kinds = {name: first[name].dtype for name in ("int", "float", "day")}
    assert kinds == {"int": np.int8, "float": np.float16, "day": "datetime64[D]"}
    nulls = ("int", "text", "list", "struct", "money", "clock")
    assert [name for name, value in second.items() if value is None] == list(nulls)


def test_a_batch_is_what_its_rows_stacked_would_be(files):
    pipeline = ps.from_parquet(files)
    check_source(pipeline, most=30)
    batch = next(iter(pipeline.shuffle().batch(100)))
    assert {name: getattr(column, "dtype", list) for name, column in batch.items()} == {
        "i": np.int32, "x": np.float32, "odd": np.bool_, "text": list, "vector": np.float32,
    }  # fmt: skip
    assert batch["vector"].shape == (100, 2)
    assert batch["text"] == [f"row {number}" for number in batch["i"]]


def test_rows_that_do_not_fit_into_a_batch_are_said_by_name(tmp_path):
    path = write(tmp_path / "a.parquet", pa.table({"n": [1, None, 3], "v": [[1], [1, 2], []]}))
    with pytest.raises(ps.RaggedBatch, match="field 'n': None at sample 1"):
        list(ps.from_parquet(path, columns=["n"]).batch(3))
    with pytest.raises(ps.RaggedBatch, match="field 'v'"):
        list(ps.from_parquet(path, columns=["v"]).batch(3))
    batches = list(ps.from_parquet(path, columns=["v"]).batch(3, pad=0))
    assert batches[0]["v"].tolist() == [[1, 0], [1, 2], [0, 0]]


def test_ten_thousand_rows_are_read_back_in_any_order(tmp_path):
    path = write(tmp_path / "a.parquet", table(10_000), rows=900)
    for pipeline in (ps.from_parquet(path), ps.from_parquet(path, stream=True)):
        rows = list(pipeline)
        assert [row["i"] for row in rows] == list(range(10_000))
        assert rows[7777]["text"] == "row 7777"
    numbers = np.concatenate([batch["i"] for batch in ps.from_parquet(path).shuffle().batch(512)])
    assert not np.array_equal(numbers, np.arange(10_000))
    assert np.array_equal(np.sort(numbers), np.arange(10_000))


# ---------------------------------------------------------------------- columns, filters, indices


def test_columns_come_in_the_order_asked_for_and_missing_ones_are_named(files):
    pipeline = ps.from_parquet(files, columns=["text", "i"])
    assert list(pipeline.peek()[0]) == ["text", "i"]
    with pytest.raises(ps.PlanError, match=r"train-0\.parquet has no column 'nothing'; it has i, x, odd"):
        len(ps.from_parquet(files, columns=["nothing"]))
    with pytest.raises(ps.PlanError, match="columns="):
        ps.from_parquet(files, columns="i")


@for_each("stream", [False, True])
@for_each("filters", [[("i", ">=", 70), ("odd", "==", True)], (pc.field("i") >= 70) & pc.field("odd")])
def test_filters_leave_rows_out(files, stream, filters):
    pipeline = ps.from_parquet(files, filters=filters, stream=stream, columns=["i"])
    assert [row["i"] for row in pipeline] == list(range(71, 150, 2))
    if not stream:
        assert len(pipeline) == 40
        assert [row["i"] for row in ps.from_parquet(files, filters=filters, indices=[-1, 0])] == [149, 71]
        source = cloudpickle.loads(cloudpickle.dumps(pipeline.source))
        assert [row["i"] for row in source.read(np.array([1, 0]))] == [73, 71]


def test_filters_read_only_row_groups_that_may_match(files, monkeypatch):
    read = []
    whole = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_group",
        lambda self, group, **rest: read.append(group) or whole(self, group, **rest),
    )
    assert len(ps.from_parquet(files, filters=[("i", "==", 45)])) == 1
    assert read == [2]


def test_filters_of_nonsense_are_a_plan_error(files):
    with pytest.raises(ps.PlanError, match="filters="):
        ps.from_parquet(files, filters=[("i", "~", 3)])


@pytest.mark.soak
def test_a_stream_of_row_groups_keeps_the_contract_of_a_source(files):
    check_source(ps.from_parquet(files, stream=True), most=45)


def test_a_stream_has_a_shard_per_row_group_and_is_resumed(files):
    pipeline = ps.from_parquet(files, stream=True)
    assert len(pipeline.source.shards()) == 9
    assert len(pipeline) == 150
    check_resume(pipeline.shuffle(window=30).batch(25), epochs=1, every=2, restored_on={"inline": True})
    numbers = [row["i"] for row in pipeline.shuffle(window=30)]
    assert sorted(numbers) == list(range(150))
    assert max(numbers[:10]) > 50  # row groups come in random order
    with pytest.raises(ps.PlanError, match=r"indices= needs files.*leave stream=True out"):
        ps.from_parquet(files, stream=True, indices=[0])


# ---------------------------------------------------------------------- row groups


def test_a_row_group_is_decoded_once_when_rows_are_read_in_order(files, monkeypatch):
    decoded = []
    whole = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_group",
        lambda self, group, **rest: decoded.append(group) or whole(self, group, **rest),
    )
    # One worker: of several, one that the system holds up finds its row group dropped for those of the others.
    list(ps.from_parquet(files, cache_bytes=4000).batch(7).map(len, workers=1))
    assert sorted(decoded) == sorted([0, 1, 2] * 3)


def test_rows_of_the_row_group_of_the_last_read_are_looked_up_without_the_others(files, monkeypatch):
    source = ps.from_parquet(files).source
    whole = source.read(range(len(source)))
    asked = []
    get = Groups.get
    monkeypatch.setattr(Groups, "get", lambda self, key, decode: asked.append(key) or get(self, key, decode))
    for first in (0, 4, 8, 36, 40, 44, 2):  # 36 to 42 are of two row groups
        assert [row["i"] for row in source.read(range(first, first + 6))] == [
            row["i"] for row in whole[first : first + 6]
        ]
    assert len(asked) == 5  # the first read, two for both groups, one for each change of group after that


def test_a_row_group_that_is_not_kept_is_not_held_by_its_last_reader(files):
    source = ps.from_parquet(files, cache_bytes=1).source
    source.read(range(3))
    first = source._recent.columns()
    source.read(range(100, 103))
    assert source._recent.columns() is not first
    kept = weakref.ref(first)
    del first
    gc.collect()
    assert kept() is None


def test_a_global_shuffle_over_more_than_is_kept_is_refused_with_what_to_do(files):
    pipeline = ps.from_parquet(files, cache_bytes=1000)
    for one in (pipeline.shuffle(), pipeline.map(len).shuffle().batch(3), pipeline.split([0.5, 0.5])[0].shuffle()):
        with pytest.raises(
            ps.PlanError, match=r"9 row groups of about 16 rows take .* stream=True and shuffle\(window="
        ):
            one.loader()
    assert len(list(pipeline.shuffle(window=20))) == 150
    assert len(list(pipeline)) == 150


def test_kept_groups_are_bounded_and_decoded_by_one_thread():
    one = Columns(pa.table({"x": np.zeros(100)}))
    groups, made = Groups(2000), []
    gate = threading.Barrier(4)

    def decode(key):
        made.append(key)
        return one

    def ask():
        gate.wait()
        groups.get("a", lambda: decode("a"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["a"]
    for key in "bcd":
        groups.get(key, lambda key=key: decode(key))
    assert len(groups._groups) == 2
    assert groups._bytes <= 2000
    groups.get("d", lambda: decode("d"))
    assert made == list("abcd")
    with pytest.raises(ZeroDivisionError):
        groups.get("e", lambda: 1 // 0)
    groups.get("e", lambda: decode("e"))
    assert made[-1] == "e"


# ---------------------------------------------------------------------- odd files


def test_files_of_other_columns_are_an_error_or_their_own_rows(tmp_path):
    write(tmp_path / "a.parquet", pa.table({"x": [1, 2]}))
    write(tmp_path / "b.parquet", pa.table({"y": [3]}))
    with pytest.raises(ps.PlanError, match=r"b\.parquet has no column 'x'"):
        len(ps.from_parquet(tmp_path, columns=["x"]))


def test_damaged_files_are_errors_with_their_name(tmp_path):
    path = write(tmp_path / "a.parquet", table(200))
    with open(path, "rb") as file:
        whole = file.read()
    cuts = [*range(0, len(whole), 512), len(whole) - 1]
    for damaged in [whole[:cut] for cut in cuts] + [b"PAR1" + b"\0" * 100 + b"PAR1", b"x" * 1000]:
        (tmp_path / "a.parquet").write_bytes(damaged)
        for stream in (False, True):
            with pytest.raises(ps.ReadError, match=r"a\.parquet"):
                list(ps.from_parquet(path, stream=stream))
    torn = bytearray(whole)
    torn[100:1100] = b"\xff" * 1000
    (tmp_path / "a.parquet").write_bytes(torn)
    with pytest.raises(ps.ReadError, match=r"a\.parquet: row group 0"):
        list(ps.from_parquet(path))


def test_empty_tables_and_missing_files(tmp_path):
    path = write(tmp_path / "a.parquet", table(0))
    assert list(ps.from_parquet(path)) == list(ps.from_parquet(path, stream=True)) == []
    with pytest.raises(ps.PlanError, match="no such file"):
        ps.from_parquet(tmp_path / "none.parquet")


def test_a_file_that_changes_during_a_run_is_an_error(tmp_path):
    path = write(tmp_path / "a.parquet", table(2000), rows=100)
    with ps.from_parquet(path).loader(inline=True) as loader:
        stream = iter(loader)
        next(stream)
        write(tmp_path / "a.parquet", table(2001), rows=100)
        with pytest.raises(ps.ReadError, match="has changed since it was indexed"):
            list(stream)


# ---------------------------------------------------------------------- Arrow


def write_arrow(path, data, new="new_file", compression=None, rows=20):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with getattr(pa.ipc, new)(str(path), data.schema, options=options) as writer:
        writer.write_table(data, max_chunksize=rows)
    return str(path)


@pytest.mark.soak
def test_a_table_in_memory_keeps_the_contract_of_a_source():
    check_source(ps.from_arrow(table(60), columns=["x", "text"], indices=[*range(50, 5, -1), 3, 3]))


def test_rows_of_a_table_in_memory():
    assert [row["i"] for row in ps.from_arrow(table(10), indices=[9, 0])] == [9, 0]
    assert ps.from_arrow(table(10)).source.stays == ""
    assert "Arrow table of" in ps.from_arrow(pa.table({"x": np.zeros(1 << 22)})).source.stays
    with pytest.raises(ps.PlanError, match="no column 'nothing'"):
        ps.from_arrow(table(3), columns=["nothing"])
    with pytest.raises(ps.PlanError, match="from_arrow takes"):
        ps.from_arrow({"x": [1]})


@for_each(
    "new, compression", [("new_file", None), ("new_stream", None), ("new_file", "lz4"), ("new_stream", "zstd")]
)
def test_arrow_files_are_read_in_any_order(tmp_path, new, compression):
    paths = [write_arrow(tmp_path / f"{n}.arrow", table(50, 50 * n), new, compression) for n in range(2)]
    pipeline = ps.from_arrow(paths, columns=["i", "text"])
    assert [row["i"] for row in pipeline] == list(range(100))
    assert sorted(row["text"] for row in pipeline.shuffle()) == sorted(f"row {n}" for n in range(100))
    batch = next(iter(pipeline.shuffle().batch(64)))
    assert batch["text"] == [f"row {n}" for n in batch["i"]]


@pytest.mark.soak
def test_arrow_files_keep_the_contract_of_a_source(tmp_path):
    write_arrow(tmp_path / "a.arrow", table(50), "new_stream")
    write_arrow(tmp_path / "b.arrow", table(50, 50), "new_stream")
    check_source(ps.from_arrow(tmp_path))


def test_data_sets_of_pyarrow_are_read_by_their_files(tmp_path, files):
    dataset = pytest.importorskip("pyarrow.dataset")
    assert len(ps.from_arrow(dataset.dataset(files))) == 150
    write_arrow(tmp_path / "a.arrow", table(30))
    assert len(ps.from_arrow(dataset.dataset(tmp_path / "a.arrow", format="ipc"))) == 30


def test_damaged_arrow_files_are_errors_with_their_name(tmp_path):
    for new in ("new_file", "new_stream"):
        path = write_arrow(tmp_path / "a.arrow", table(100), new)
        with open(path, "rb") as file:
            whole = file.read()
        for cut in [*range(0, len(whole), 512), len(whole) - 8, len(whole) - 1]:
            (tmp_path / "a.arrow").write_bytes(whole[:cut])
            with pytest.raises(ps.ReadError, match=r"a\.arrow"):
                list(ps.from_arrow(path))
    data = pa.table({"c": pa.array(["a", "b"]).dictionary_encode()})
    with pytest.raises(ps.ReadError, match="dictionaries in the stream format"):
        len(ps.from_arrow(write_arrow(tmp_path / "a.arrow", data, "new_stream")))
    assert list(ps.from_arrow(write_arrow(tmp_path / "a.arrow", data))) == [{"c": "a"}, {"c": "b"}]


def test_few_rows_have_the_values_of_many():
    rows = {
        "text": pa.array(["a", None, "é"] * 10),
        "bytes": pa.array([b"a", None, b"\xff"] * 10),
        "lists": pa.array([["a"], None, []] * 10),
        "dates": pa.array([1, None, 3] * 10, pa.date64()),
    }
    source = ps.from_arrow(pa.table(rows)).source
    many = source.read(range(30))
    assert many == [source.read(np.array([number]))[0] for number in range(30)] == source.read(np.arange(30))


def test_a_read_over_many_record_batches_looks_at_its_file_once(tmp_path, monkeypatch):
    table = pa.table({"n": range(40)})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    source = ps.from_arrow(tmp_path / "a.arrow").source
    looks = []
    monkeypatch.setattr(TableShard, "check", lambda shard: looks.append(shard))
    assert [row["n"] for row in source.read(np.array([39, 0, 20, 7]))] == [39, 0, 20, 7]
    assert len(looks) == 1


def test_lists_of_one_length_and_tensors_are_arrays_beside_nulls_too():
    lists = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2))
    flags = pa.array([[True, False], None, [False, True]], pa.list_(pa.bool_(), 2))
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.bool_(), [2, 1]), flags)
    swapped = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), [2, 1], permutation=[1, 0]), lists)
    table = pa.table({"list": lists, "mask": tensors, "swapped": swapped})
    for rows in (list(ps.from_arrow(table)), list(ps.from_arrow(pa.concat_tables([table, table]).slice(3)))):
        assert rows[1] == {"list": None, "mask": None, "swapped": None}
        assert [rows[2][name].tolist() for name in table.column_names] == [[3, 4], [[False], [True]], [[3, 4]]]
        assert (rows[0]["list"].dtype, rows[0]["mask"].dtype) == (np.int32, bool)
    batch = next(iter(ps.from_arrow(table, indices=[2, 0]).batch(2)))
    assert [batch[name].shape for name in table.column_names] == [(2, 2), (2, 2, 1), (2, 1, 2)]
