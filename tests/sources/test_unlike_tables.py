"""Tables in several files whose columns differ: nothing is ever read as another column or as another type."""

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
csv = pytest.importorskip("pyarrow.csv")


def write(path, table):
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        csv.write_csv(table, str(path))
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)


def folder(path, kind, *tables):
    path = path / kind
    path.mkdir()
    for number, columns in enumerate(tables):
        write(path / f"{number}.{kind}", pa.table(columns))
    return {"parquet": ps.from_parquet, "arrow": ps.from_arrow, "csv": ps.from_csv}[kind](path)


def ways(pipeline):
    """All rows, by every way that reads them."""
    yield list(pipeline)
    yield list(pipeline.shuffle())
    for batches in (pipeline.batch(4), pipeline.shuffle().batch(4)):
        for batch in batches:
            yield [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]


@for_each("kind", ["parquet", "arrow", "csv"])
def test_columns_in_another_order_keep_their_names(tmp_path, kind):
    unlike = {"x": [1, 2], "y": [10, 20]}, {"y": [30], "x": [3]}, {"y": [40], "x": [4]}
    for rows in ways(folder(tmp_path, kind, *unlike)):
        assert sorted((int(row["x"]), int(row["y"])) for row in rows) == [(1, 10), (2, 20), (3, 30), (4, 40)]
        assert [list(row) for row in rows] == [["x", "y"]] * 4


@for_each("kind", ["parquet", "arrow", "csv"])
def test_files_with_other_columns_are_refused_with_both_names(tmp_path, kind):
    pipeline = folder(tmp_path, kind, {"x": [1], "y": [2]}, {"x": [1], "z": [2], "y": [3]})
    said = rf"1\.{kind} has the columns x, z, y, and .*0\.{kind} has x, y; .*columns="
    with pytest.raises(ps.ReadError, match=said):
        len(pipeline)


def test_a_csv_file_that_lacks_a_column_is_refused_by_name(tmp_path):
    with pytest.raises(ps.PlanError, match=r"1\.csv has no column 'y'; it has x"):
        len(folder(tmp_path, "csv", {"x": [1], "y": [2]}, {"x": [1]}))


@for_each("kind", ["parquet", "arrow"])
def test_columns_of_a_file_without_rows_do_not_matter(tmp_path, kind):
    none = pa.array([], pa.int64())
    pipeline = folder(tmp_path, kind, {"other": none}, {"x": [1]}, {"other": none}, {"x": [2]})
    for rows in ways(pipeline):
        assert sorted(int(row["x"]) for row in rows) == [1, 2]


@for_each("kind", ["parquet", "arrow"])
@for_each("first, second", [([1], [1.5]), (np.array([1], "int32"), [1 << 40]), ([True], [7])])
def test_a_column_of_another_type_keeps_its_values(tmp_path_factory, kind, first, second):
    pipeline = folder(tmp_path_factory.mktemp("t"), kind, {"x": first}, {"x": second}, {"x": first})
    for rows in ways(pipeline):
        assert sorted(row["x"].item() for row in rows) == sorted([first[0], second[0], first[0]])


@for_each(
    "array",
    [
        pa.array(["a", None, "c"], pa.string_view()),
        pa.array([b"a", b"b", None], pa.binary_view()),
        pa.array([["a"], [], ["c"]], pa.list_(pa.string_view())),
        pa.array([1, 1, 2]).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays([2, 3], [1, 2]),
    ],
)
def test_types_whose_rows_arrow_cannot_take_in_any_order_are_read_in_any(array):
    pipeline = ps.from_arrow(pa.table({"n": [0, 1, 2], "x": array}))
    assert [row["x"] for row in pipeline] == array.to_pylist()
    for row in pipeline.shuffle():
        assert row["x"] == array[int(row["n"])].as_py()
