"""from_npy: files that numpy saved, by memmap; never a pickle."""

import io
import zipfile

import cloudpickle
import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.testing import check_source

pytestmark = pytest.mark.usefixtures("warm_processes")


def save(path, array):
    np.save(path, array)
    return str(path)


@pytest.fixture
def parts(tmp_path):
    for number in range(3):
        save(
            tmp_path / f"part-{number}.npy",
            np.arange(80 * number, 80 * number + 80, dtype="float32").reshape(40, 2),
        )
    return tmp_path


def test_rows_of_a_folder_follow_each_other(parts):
    rows = list(ps.from_npy(parts))
    assert len(rows) == 120
    assert [row.tolist() for row in rows[39:42]] == [[78, 79], [80, 81], [82, 83]]
    assert not rows[0].flags.writeable
    batch = next(iter(ps.from_npy(parts).shuffle().batch(50)))
    assert (batch.shape, batch.dtype, batch.flags.writeable) == ((50, 2), np.float32, True)


def test_files_keep_the_contract_of_a_source_on_threads_and_processes(parts):
    check_source(ps.from_npy(parts, indices=[*range(100, 10, -1), 3, 3]), most=30)
    assert ps.from_npy(parts).source.name(41) == "part-1.npy/row 1"


@for_each("saved", [np.savez, np.savez_compressed])
def test_arrays_of_an_npz_file_are_fields(tmp_path, saved):
    for number in range(2):
        x = np.arange(60 * number, 60 * number + 60).reshape(20, 3)
        saved(tmp_path / f"{number}.npz", x=x, name=np.array([f"n{one}" for one in x[:, 0]]), y=x[:, 0] / 2)
    pipeline = ps.from_npy(tmp_path)
    assert len(pipeline) == 40
    assert {name: np.asarray(value).tolist() for name, value in pipeline.peek(index=21)[0].items()} == {
        "x": [63, 64, 65], "name": "n63", "y": 31.5,
    }  # fmt: skip
    batch = next(iter(pipeline.shuffle().batch(30)))
    assert batch["x"].shape == (30, 3)
    assert batch["name"] == [f"n{one}" for one in batch["x"][:, 0]]
    order = np.array([39, 0, 20, 20])
    assert [sample["y"] for sample in pipeline.source.read(order)] == [58.5, 0, 30, 30]


@pytest.mark.soak
def test_compressed_npz_files_keep_the_contract_of_a_source(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(100), y=np.arange(200).reshape(100, 2))
    check_source(ps.from_npy(tmp_path, cache_bytes=100))


def test_arrays_of_an_uncompressed_npz_file_are_mapped(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((1000, 1000)))
    source = ps.from_npy(tmp_path).source
    (row,) = source.read(range(1))
    assert isinstance(row["x"].base.base, np.memmap) or row["x"].base is not None
    assert len(cloudpickle.dumps(source)) < 5000


@for_each("array", [
    np.arange(12).reshape(4, 3), np.asfortranarray(np.arange(12.0).reshape(4, 3)), np.arange(4, dtype=">i2"),
    np.zeros((4, 0)), np.zeros((0, 3)), np.array(["a", "bc"]), np.zeros(3, [("a", "i4"), ("b", "f8")]),
    np.array(["2020-01-01"], "datetime64[D]"), np.array([True, False]),
])  # fmt: skip
def test_rows_are_those_of_np_load(tmp_path, array):
    path = save(tmp_path / "a.npy", array)
    expected = np.load(path)
    rows = list(ps.from_npy(path))
    assert len(rows) == len(expected)
    assert all(
        np.array_equal(one, other) and one.dtype == other.dtype for one, other in zip(rows, expected, strict=True)
    )


def test_ten_thousand_rows_in_any_order(tmp_path):
    path = save(tmp_path / "a.npy", np.arange(10_000))
    assert np.array_equal(np.sort(np.concatenate(list(ps.from_npy(path).shuffle().batch(300)))), np.arange(10_000))


@pytest.mark.soak
def test_whole_files_keep_the_contract_of_a_source(tmp_path):
    for number in range(30):
        save(tmp_path / f"{number:02d}.npy", np.full(number, number))
    check_source(ps.from_npy(tmp_path, rows=False, indices=[29, *range(20)]))


def test_whole_files_are_samples_if_asked_for(tmp_path):
    for number in range(30):
        save(tmp_path / f"{number:02d}.npy", np.full(number, number))
    pipeline = ps.from_npy(tmp_path, rows=False, indices=[29, *range(20)])
    assert [len(one) for one in pipeline] == [29, *range(20)]
    assert pipeline.source.name(0).endswith("29.npy")
    np.savez(tmp_path / "a.npz", x=np.arange(2), y=np.arange(3))
    (sample,) = ps.from_npy(tmp_path / "a.npz", rows=False)
    assert {name: value.tolist() for name, value in sample.items()} == {"x": [0, 1], "y": [0, 1, 2]}


# ---------------------------------------------------------------------- odd and hostile files


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_pickled_objects_are_refused_and_never_unpickled(tmp_path):
    trap = tmp_path / "sprung"
    objects = np.array([Touch(str(trap))], dtype=object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "a.npz", x=objects)
    np.savez_compressed(tmp_path / "b.npz", x=objects)
    for name in ("a.npy", "a.npz", "b.npz"):
        for rows in (True, False):
            with pytest.raises(
                ps.ReadError, match=rf"{name}: .*never unpickled; save numbers or strings instead(\n|$)"
            ):
                list(ps.from_npy(tmp_path / name, rows=rows))
    assert not trap.exists()


def test_files_cut_short_anywhere_are_errors_with_their_name(tmp_path):
    array = np.random.default_rng(0).integers(0, 9, (100, 10))
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", x=array)
    np.savez_compressed(tmp_path / "b.npz", x=array)
    for name in ("a.npy", "a.npz", "b.npz"):
        whole = (tmp_path / name).read_bytes()
        for cut in [*range(0, len(whole), 512), 5, 20, len(whole) - 1]:
            (tmp_path / name).write_bytes(whole[:cut])
            for rows in (True, False):
                with pytest.raises(ps.ReadError, match=name):
                    list(ps.from_npy(tmp_path / name, rows=rows))


@for_each("header", [
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999, 9999999), }",
    b"{'descr': '<i8'}", b"nonsense",
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }", b"__import__('os').system('touch sprung')",
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (), }",
    b"{'descr': '<i8', 'fortran_order': (False, 'shape': (1,), }\n",
])  # fmt: skip
def test_headers_of_nonsense_are_refused(tmp_path, header):
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 8
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(ps.ReadError, match=r"a\.npy"):
        len(ps.from_npy(tmp_path / "a.npy"))


def test_a_compressed_member_that_grows_beyond_its_header_is_refused(tmp_path):
    member = io.BytesIO()
    np.save(member, np.arange(4))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", member.getvalue() + bytes(1 << 24))
    with pytest.raises(ps.ReadError, match=r"a\.npz: 'x\.npy': int64\[4\] does not take 16777248 bytes"):
        len(ps.from_npy(tmp_path))


def test_arrays_that_do_not_fit_together_are_said(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(2))
    with pytest.raises(ps.ReadError, match="different lengths"):
        len(ps.from_npy(tmp_path / "a.npz"))
    save(tmp_path / "a.npy", np.zeros((2, 3)))
    save(tmp_path / "b.npy", np.zeros((2, 4)))
    with pytest.raises(
        ps.ReadError, match=r"b\.npy has rows of float64\[4\], and .*a\.npy has rows of float64\[3\]"
    ):
        len(ps.from_npy(str(tmp_path / "*.npy")))
    np.savez(tmp_path / "none.npz")
    with pytest.raises(ps.ReadError, match="no array in it"):
        len(ps.from_npy(tmp_path / "none.npz"))


def test_a_file_that_changes_during_a_run_is_an_error(tmp_path):
    path = save(tmp_path / "a.npy", np.arange(100_000))
    with ps.from_npy(path).batch(10).loader(inline=True) as loader:
        stream = iter(loader)
        next(stream)
        with open(path, "ab") as file:
            file.write(b"x")
        with pytest.raises(ps.ReadError, match="has changed"):
            list(stream)
