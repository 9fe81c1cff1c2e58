"""from_hdf5: files that h5py wrote, in every layout."""

import cloudpickle
import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.testing import check_source

h5py = pytest.importorskip("h5py")

pytestmark = pytest.mark.usefixtures("warm_processes")

LAYOUTS = {
    "contiguous": {},
    "chunks of 1": {"chunks": (1, 3)},
    "chunks of 7": {"chunks": (7, 3)},
    "gzip": {"chunks": (16, 3), "compression": "gzip", "shuffle": True},
    "one field of many": {"chunks": (50, 1)},
}


def write(path, n=100, start=0, **layout):
    x = np.arange(3 * start, 3 * (start + n), dtype="int16").reshape(n, 3)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=x, **layout)
        file["deep/y"] = x[:, 0] / 2
        file["name"] = [f"row {number}" for number in range(start, start + n)]
    return str(path)


def test_files_keep_the_contract_of_a_source_on_threads_and_processes(tmp_path):
    write(tmp_path / "a.h5", 60)
    write(tmp_path / "b.h5", 60, start=60, chunks=(7, 3))
    pipeline = ps.from_hdf5(tmp_path, indices=[*range(110, 20, -1), 0, 0])
    check_source(pipeline, most=30)
    assert pipeline.source.name(0) == "b.h5/row 50"
    assert [sample["name"] for sample in pipeline.peek(2)] == ["row 110", "row 109"]


@for_each("layout", LAYOUTS.values())
def test_rows_of_every_layout_are_read_in_any_order(tmp_path, layout):
    path = write(tmp_path / "a.h5", **layout)
    pipeline = ps.from_hdf5(path, fields=["x", "deep/y", "name"])
    x = np.arange(300).reshape(100, 3)
    for order in (range(100), np.random.default_rng(0).integers(0, 100, 80), np.array([5]), np.array([5, 4, 3, 3])):
        samples = pipeline.source.read(order)
        assert np.array_equal([sample["x"] for sample in samples], x[order])
        assert [sample["deep/y"] for sample in samples] == (x[order, 0] / 2).tolist()
        batch = pipeline.source.read_batch(order)
        assert np.array_equal(batch["x"], x[order])
        assert batch["x"].dtype == np.int16
        assert batch["name"] == [f"row {number}" for number in order]


def test_ten_thousand_rows_in_any_order(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("n", data=np.arange(10_000), chunks=(1000,))
    batches = ps.from_hdf5(tmp_path, fields="n").shuffle().batch(500)
    assert np.array_equal(np.sort(np.concatenate(list(batches))), np.arange(10_000))


def test_a_single_field_gives_rows_without_a_dict(tmp_path):
    path = write(tmp_path / "a.h5", 3)
    assert [row.tolist() for row in ps.from_hdf5(path, fields="x")] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert next(iter(ps.from_hdf5(path, fields="x").batch(2))).tolist() == [[0, 1, 2], [3, 4, 5]]


@for_each("kind", ["bool", ">i4", "S5", "complex64", "ragged", "compound"])
def test_values_are_those_of_h5py(tmp_path, kind):
    data = {
        "bool": np.array([True, False]), ">i4": np.array([1, 2], ">i4"), "S5": np.array([b"ab", b"c"]),
        "complex64": np.array([1j, 2], "complex64"), "compound": np.zeros(2, [("a", "i4"), ("b", "f8")]),
    }.get(kind)  # fmt: skip
    path = tmp_path / f"{kind.strip('>')}.h5"
    with h5py.File(path, "w") as file:
        if kind == "ragged":
            file.create_dataset("v", (2,), dtype=h5py.vlen_dtype(np.int32))
            file["v"][0], file["v"][1] = [1, 2, 3], [4]
        else:
            file["v"] = data
    with h5py.File(path) as file:
        expected = list(file["v"][:])
    rows = list(ps.from_hdf5(path, fields="v"))
    assert all(np.array_equal(one, other) for one, other in zip(rows, expected, strict=True))


def test_a_file_with_a_user_block_is_read_right(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["x"] = np.arange(1000)
    assert next(iter(ps.from_hdf5(tmp_path, fields="x").batch(1000))).tolist() == list(range(1000))


def test_a_worker_process_opens_the_file_for_itself(tmp_path):
    path = write(tmp_path / "a.h5", 50, chunks=(5, 3))
    source = ps.from_hdf5(path).source
    source.read(range(3))
    assert len(cloudpickle.dumps(source)) < 3000
    with ps.from_hdf5(path).map(lambda sample: int(sample["x"][0]), on="process", workers=2).loader() as loader:
        assert list(loader) == list(range(0, 150, 3))


# ---------------------------------------------------------------------- odd files


def test_fields_that_are_not_there_or_do_not_fit_are_said(tmp_path):
    path = write(tmp_path / "a.h5", 5)
    with pytest.raises(ps.PlanError, match=r"no data set 'z'; it has 'deep/y', 'name', 'x'"):
        len(ps.from_hdf5(path, fields=["z"]))
    with pytest.raises(ps.PlanError, match="at least one"):
        ps.from_hdf5(path, fields=[])
    with h5py.File(path, "a") as file:
        file["other"], file["scalar"] = np.arange(7), 3
    with pytest.raises(
        ps.PlanError, match=r"different numbers of rows \(deep/y: 5, name: 5, other: 7, scalar: none"
    ):
        len(ps.from_hdf5(path))
    with h5py.File(tmp_path / "empty.h5", "w"):
        pass
    with pytest.raises(ps.PlanError, match="has no data set"):
        len(ps.from_hdf5(tmp_path / "empty.h5"))


def test_files_cut_short_anywhere_are_errors_with_their_name(tmp_path):
    for layout in (LAYOUTS["contiguous"], LAYOUTS["gzip"]):
        write(tmp_path / "a.h5", 40, **layout)
        whole = (tmp_path / "a.h5").read_bytes()
        for cut in [*range(0, len(whole), 512), len(whole) - 1]:
            (tmp_path / "a.h5").write_bytes(whole[:cut])
            with pytest.raises(ps.ReadError, match=r"a\.h5"):
                list(ps.from_hdf5(tmp_path / "a.h5"))
    (tmp_path / "a.h5").write_bytes(b"x" * 5000)
    with pytest.raises(ps.ReadError, match=r"a\.h5"):
        len(ps.from_hdf5(tmp_path / "a.h5"))
    with pytest.raises(ps.PlanError, match="no such file"):
        ps.from_hdf5(tmp_path / "none.h5")


def test_a_chunk_that_is_damaged_is_an_error_with_its_rows(tmp_path):
    path = write(tmp_path / "a.h5", 2000, chunks=(100, 3), compression="gzip", fletcher32=True)
    with h5py.File(path) as file:
        chunk = file["x"].id.get_chunk_info(3)
    with open(path, "r+b") as file:
        file.seek(chunk.byte_offset + chunk.size // 2)
        file.write(b"\xff\xff")
    with pytest.raises(ps.ReadError, match=r"a\.h5: rows from \d+ on cannot be read"):
        list(ps.from_hdf5(path, fields="x"))


def test_a_file_that_changes_during_a_run_is_an_error(tmp_path):
    path = write(tmp_path / "a.h5", 3000)
    with ps.from_hdf5(path).loader(inline=True) as loader:
        stream = iter(loader)
        next(stream)
        with open(path, "ab") as file:
            file.write(b"x")
        with pytest.raises(ps.ReadError, match="has changed"):
            list(stream)
