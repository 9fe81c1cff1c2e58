"""from_lmdb: databases that the lmdb library wrote."""

import os
import pickle

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.testing import check_source

lmdb = pytest.importorskip("lmdb")

pytestmark = pytest.mark.usefixtures("warm_processes")


def write(path, entries, subdir=True):
    with (
        lmdb.open(str(path), subdir=subdir, map_size=1 << 26) as database,
        database.begin(write=True) as transaction,
    ):
        for key, value in entries:
            transaction.put(key, value)
    return str(path)


def entries(n):
    return [(b"%06d" % number, b"value %d" % number) for number in range(n)]


def expected(n):
    return [{"key": key, "value": value} for key, value in entries(n)]


@for_each("subdir", [True, False])
def test_entries_come_in_the_order_of_the_database(tmp_path, subdir):
    path = write(tmp_path / f"db-{subdir}", reversed(entries(50)), subdir)
    assert list(ps.from_lmdb(path)) == expected(50)
    assert ps.from_lmdb(path, indices=[49]).source.name(0).endswith("/000049")


def test_a_database_keeps_the_contract_of_a_source_on_threads_and_processes(tmp_path):
    path = write(tmp_path / "db", entries(120))
    check_source(ps.from_lmdb(path, indices=[*range(110, 5, -1), 0, 0]), most=30)


def test_ten_thousand_entries_in_any_order(tmp_path):
    path = write(tmp_path / "db", entries(10_000))
    pipeline = ps.from_lmdb(path)
    assert len(pipeline) == 10_000
    assert sorted(sample["key"] for sample in pipeline.shuffle()) == [key for key, _ in entries(10_000)]
    assert os.path.exists(tmp_path / "db" / ".data.mdb.index")
    assert list(ps.from_lmdb(path).take(3)) == expected(3)


def test_keys_choose_entries_and_missing_ones_are_named(tmp_path):
    path = write(tmp_path / "db", entries(5))
    assert [sample["value"] for sample in ps.from_lmdb(path, keys=["000003", b"000001"])] == [
        b"value 3",
        b"value 1",
    ]
    pipeline = ps.from_lmdb(path, keys=["000003", "none"])
    with pytest.raises(ps.ReadError, match=r"db: there is no entry with the key b'none'"):
        list(pipeline)
    assert len(list(ps.from_lmdb(path, keys=["000003", "none"], on_error="skip"))) == 1


def test_several_databases_follow_each_other(tmp_path):
    paths = [write(tmp_path / f"{number}", entries(3)) for number in range(2)]
    assert list(ps.from_lmdb(paths)) == expected(3) * 2
    with pytest.raises(ps.PlanError, match="keys="):
        ps.from_lmdb(paths, keys=["a"])


def test_two_pipelines_share_an_open_database(tmp_path):
    path = write(tmp_path / "db", entries(5))
    one, other = ps.from_lmdb(path), ps.from_lmdb(f"{path}/data.mdb")  # one database, by either name
    assert [*ps.zip(one, other)] == [(sample, sample) for sample in expected(5)]


def test_values_are_never_unpickled(tmp_path):
    value = pickle.dumps({"a": 1})
    path = write(tmp_path / "db", [(b"__keys__", value), (b"a", value)])
    assert [sample["value"] for sample in ps.from_lmdb(path)] == [value, value]


def test_a_database_that_grew_is_listed_again_and_one_that_changes_in_a_run_is_an_error(tmp_path):
    path = write(tmp_path / "db", entries(500))
    assert len(ps.from_lmdb(path)) == 500
    write(path, entries(2000))
    assert len(ps.from_lmdb(path)) == 2000
    with ps.from_lmdb(path).loader(inline=True) as loader:
        stream = iter(loader)
        next(stream)
        with open(tmp_path / "db" / "data.mdb", "ab") as file:
            file.write(b"x")
        with pytest.raises(ps.ReadError, match="has changed"):
            list(stream)


def test_files_cut_short_are_errors_and_end_no_process(tmp_path):
    path = write(tmp_path / "db", [(b"%d" % n, b"x" * 3000) for n in range(40)])
    whole = (tmp_path / "db" / "data.mdb").read_bytes()
    for cut in [*range(0, len(whole), 512 * 7), 4096, 8192, 12288, len(whole) - 4096]:
        (tmp_path / "db" / "data.mdb").write_bytes(whole[:cut])
        with pytest.raises(ps.ReadError, match="db"):
            list(ps.from_lmdb(path, index=False))


def test_what_is_no_database_is_said_to_be_none(tmp_path):
    (tmp_path / "data.mdb").write_bytes(b"x" * 100_000)
    with pytest.raises(ps.ReadError, match=str(tmp_path)):
        len(ps.from_lmdb(tmp_path))
    with pytest.raises(ps.PlanError, match="no such file"):
        ps.from_lmdb(tmp_path / "none")
    with pytest.raises(ps.PlanError, match="remote"):
        ps.from_lmdb("s3://bucket/db")
