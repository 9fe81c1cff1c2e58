"""from_files and from_folder over URLs: every sample once and in order, whatever the server does."""

import random

import pytest
from tests.helpers import TWO_PROCESSES
from tests.stores import web

import penstock as ps
from penstock import storage
from penstock.storage import retry
from penstock.testing import check_source

pytest.importorskip("obstore")
pytestmark = [pytest.mark.usefixtures("warm_processes"), pytest.mark.usefixtures("warm_pool")]

FILES = {f"img/{number:03}.bin": bytes([number % 251]) * (100 + number) for number in range(200)}
#: a quick server and its client on one machine; real ones have other times
QUICK = {"attempt_s": 0.3, "tries": 8}


@pytest.fixture(scope="module", autouse=True)
def runtime():
    """obstore's threads and descriptors live as long as the process: have them before anything is counted."""
    with web({"a": b"1"}) as server:
        storage.file(f"{server.url}/a").read()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.001)


def data_of(sample):
    return sample["data"]


def faults(seed):
    """Five of a hundred requests fail, and one hangs."""
    dice = random.Random(seed)

    def fault(path, count):
        draw = dice.random()
        return 503 if draw < 0.04 else "cut" if draw < 0.05 else "slow" if draw < 0.06 else None

    return fault


def test_every_sample_comes_once_and_in_order_though_the_server_fails_and_hangs():
    with web(FILES) as server:
        server.fault = faults(1)
        data = ps.from_files(f"{server.url}/img/{{000..199}}.bin", storage_options=QUICK)
        found = list(data.map(data_of, workers=32).batch(10, collate=list))
        assert [value for batch in found for value in batch] == list(FILES.values())
        assert len(server.requests) > 200  # some were tried again


def test_the_source_keeps_the_contract_on_threads_and_processes():
    with web(FILES) as server:
        names = [f"{server.url}/{name}" for name in list(FILES)[:12]]
        check_source(ps.from_files(names, storage_options=QUICK))


def test_processes_get_the_same_from_a_server_that_fails():
    with web(FILES) as server:
        server.fault = faults(2)
        data = ps.from_files([f"{server.url}/{name}" for name in list(FILES)[:60]], storage_options=QUICK)
        assert list(map(data_of, TWO_PROCESSES.run(data))) == list(FILES.values())[:60]


def test_the_reads_of_one_batch_are_under_way_at_once():
    with web(FILES) as server:
        started = []

        def wait_for_eight(path, count):
            started.append(path)
            if len(started) < 8:
                return "hold"
            server.wake.set()
            return "hold"

        server.fault = wait_for_eight
        data = ps.from_files([f"{server.url}/{name}" for name in list(FILES)[:8]])
        batch = next(iter(data.map(data_of).batch(8, collate=list)))
        assert list(batch) == list(FILES.values())[:8]
        assert server.busiest == 8


def test_a_missing_object_is_named_and_can_be_skipped():
    with web(FILES) as server:
        names = [f"{server.url}/img/001.bin", f"{server.url}/img/none.bin", f"{server.url}/img/002.bin"]
        with pytest.raises(FileNotFoundError, match=f"{server.url}/img/none.bin"):
            list(ps.from_files(names))
        with ps.from_files(names, on_error="skip").loader(epochs=1) as loader:
            assert [sample["path"] for sample in loader] == [names[0], names[2]]
            (record,) = loader.errors()
        assert (record.index, "none.bin" in str(record.exception)) == (1, True)


def test_local_files_and_urls_go_together_in_one_list(tmp_path):
    (tmp_path / "here").write_bytes(b"here")
    with web(FILES) as server:
        data = ps.from_files([f"{server.url}/img/000.bin", str(tmp_path / "here"), f"file://{tmp_path}/here"])
        assert [sample["data"] for sample in data] == [FILES["img/000.bin"], b"here", b"here"]


def test_a_folder_of_another_file_system_has_classes_too(tmp_path):
    pytest.importorskip("fsspec")
    for name in ("b/1.jpg", "a/2.jpg", "a/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "c").mkdir()
    data = ps.from_folder(f"local://{tmp_path}")
    assert data.source.classes == ["a", "b", "c"]
    assert [(sample["image"], sample["label"]) for sample in data] == [(b"a/2.jpg", 0), (b"b/1.jpg", 1)]
    check_source(data)
    assert len(ps.from_files(f"local://{tmp_path}/", manifest=tmp_path / "m.json")) == 2
