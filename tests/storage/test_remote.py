"""Remote files, over a real HTTP server that fails, cuts and hangs; and the file systems of fsspec."""

import gzip
import os
import pickle
import signal

import pytest
from tests.cases import for_each
from tests.stores import web

from penstock import storage
from penstock.errors import MissingExtra, PenstockError, PlanError, ReadError
from penstock.storage import clients, retry

pytest.importorskip("obstore")

DATA = bytes(range(256)) * 40
QUICK = {"attempt_s": 0.3, "tries": 4}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.001)


@pytest.fixture(scope="module", autouse=True)
def runtime():
    """obstore's threads and descriptors live as long as the process: have them before anything is counted."""
    with web({"a": b"1"}) as server:
        storage.file(f"{server.url}/a").read()


def test_a_remote_file_is_read_whole_in_parts_and_forward():
    with web({"d/f.bin": DATA, "d/f.gz": gzip.compress(DATA)}) as server:
        one = storage.file(f"{server.url}/d/f.bin")
        assert server.requests == []
        assert (one.size, one.read(), one.read_at(10_000, 240)) == (len(DATA), DATA, DATA[10_000:])
        assert one.read_at(5, 0) == b""
        copy = pickle.loads(pickle.dumps(one))
        assert copy.read_at(3, 4) == DATA[3:7]
        assert copy.content == one.content
        with storage.file(f"{server.url}/d/f.gz").open() as stream, gzip.open(stream) as unzipped:
            assert unzipped.read() == DATA


@for_each("fault", [500, 503, 429, "cut", "slow"])
def test_a_failure_that_passes_costs_another_try(fault):
    with web({"f": DATA}) as server:
        server.fault = lambda path, count: fault if count % 2 else None
        one = storage.file(f"{server.url}/f", QUICK)
        assert one.read() == DATA
        assert one.read_at(100, 50) == DATA[100:150]
        assert len(server.requests) == 4


def test_a_file_that_was_moved_is_followed_and_a_ring_is_not():
    with web({"f": DATA}) as server:
        server.fault = lambda path, count: None if path.startswith("moved/") else "moved"
        one = storage.file(f"{server.url}/f", QUICK)
        assert (one.size, one.read(), one.read_at(100, 50)) == (len(DATA), DATA, DATA[100:150])
        server.fault = lambda path, count: "moved"
        with pytest.raises(ReadError, match=rf"{server.url}/f, all of it: failed .*redirect"):
            storage.file(f"{server.url}/f", QUICK).read()


def test_a_server_that_refuses_to_tell_the_size_alone_is_asked_for_a_byte():
    with web({"f": DATA}) as server:
        for fault in ("no head", 404, 403):
            server.fault = lambda path, count, fault=fault: fault if server.requests[-1][0] == "HEAD" else None
            one = storage.file(f"{server.url}/f", QUICK)
            assert one.size == len(DATA)
            assert one.content == f'{len(DATA)} bytes of "{len(DATA)}-{hash(DATA) & 0xFFFF:x}"'
        with pytest.raises(FileNotFoundError, match="nowhere: no such object"):
            len(storage.file(f"{server.url}/nowhere", QUICK).content)


@for_each("fault, said", [
    ("other", "failed 4 times .*Requested 100..150, got 101..151"), ("fewer", "it ends at 149"),
    ("more", "it ends at 151"),
])  # fmt: skip
def test_other_bytes_than_were_asked_for_are_never_taken_for_them(fault, said):
    with web({"f": DATA}) as server:
        server.fault = lambda path, count: fault
        with pytest.raises(ReadError, match=rf"{server.url}/f.* 50 bytes at position 100.*{said}"):
            storage.file(f"{server.url}/f", QUICK).read_at(100, 50)


def test_a_file_that_is_replaced_between_two_reads_is_an_error_with_both_versions():
    with web({"f": DATA}) as server:
        one = storage.file(f"{server.url}/f", QUICK)
        before = one.content
        server.files["f"] = DATA[::-1]
        with pytest.raises(
            ReadError, match=rf"{server.url}/f has changed since it was opened: it was {before}, and"
        ):
            one.read_at(100, 50)


def test_a_server_that_leaves_the_tag_out_of_some_answers_changes_nothing():
    with web({"f": DATA}) as server:
        server.fault = lambda path, count: "no tag"
        one = storage.file(f"{server.url}/f", QUICK)
        assert "-" in one.content
        assert one.read_at(100, 50) == DATA[100:150]


def test_a_failure_that_stays_names_the_url_the_bytes_and_the_tries():
    with web({"f": DATA}) as server:
        server.fault = lambda path, count: 503
        with pytest.raises(ReadError, match=rf"{server.url}/f, 50 bytes at position 100: failed 4 times .* 503"):
            storage.file(f"{server.url}/f", QUICK).read_at(100, 50)
        with pytest.raises(ReadError, match="all of it: failed 1 times"):
            storage.file(f"{server.url}/f", {"tries": 1}).read()
        with pytest.raises(ReadError, match="all of it: failed 1 times"):
            storage.file(f"{server.url}/f", {"total_s": 0.0001}).read()


@for_each(
    "path, call, error, said",
    [
        ("none", lambda one: one.read(), FileNotFoundError, "/none: no such object"),
        ("none", lambda one: one.size, FileNotFoundError, "/none: no such object"),
        (
            "f",
            lambda one: one.read_at(10_000, 9999),
            ReadError,
            "/f: 9999 bytes at position 10000 .* ends at 10240",
        ),
        ("f", lambda one: one.read_at(99_999, 1), ReadError, "/f: 1 bytes at position 99999 were .* ends before"),
        ("whole/f", lambda one: one.read_at(1, 1), ReadError, "/whole/f: the server does not give 1 bytes at"),
    ],
)
def test_what_cannot_pass_is_raised_at_the_first_try(path, call, error, said):
    with web({"f": DATA, "whole/f": DATA}) as server:
        with pytest.raises(error, match=said):
            call(storage.file(f"{server.url}/{path}"))
        # A server that knows no HEAD may say so with "not found": the size is then asked for in another way.
        assert len(server.requests) == len(set(server.requests)) <= 2


def test_a_refusal_is_a_permission_error():
    with web({"f": DATA}) as server:
        server.fault = lambda path, count: 403
        with pytest.raises(PermissionError, match="/f: the store refuses to give all of it"):
            storage.file(f"{server.url}/f").read()


@for_each("name", ["a b.bin", "a%20b.bin", "q.bin?key=1&other=%2F", "x//y.bin"])
def test_odd_addresses_arrive_as_they_are_written(name):
    with web({"a b.bin": b"1", "q.bin": b"1", "x//y.bin": b"1"}) as server:
        assert storage.file(f"{server.url}/{name}").read() == b"1"
        assert server.requests[0][1].replace("%20", " ") == f"/{name}".replace("%20", " ")


def test_an_http_folder_cannot_be_listed_and_braces_say_what_to_do():
    with pytest.raises(PlanError, match="HTTP cannot list a folder; give the names"):
        storage.expanded("http://127.0.0.1:1/a/*.tar", "from_tar")
    assert storage.expanded("http://h/t-{0..1}.tar", "from_tar") == ["http://h/t-0.tar", "http://h/t-1.tar"]


def test_several_files_are_read_at_once_and_the_first_error_in_their_order_is_raised():
    files = {f"{number}": bytes([number]) * 10 for number in range(40)}
    with web(files) as server:
        gate = [name for name in files if int(name) % 10 == 3]
        server.fault = lambda path, count: 503 if path in gate and count == 1 else None
        names = [*files, "missing-1", "missing-2"]
        found = [storage.file(f"{server.url}/{name}") for name in names]
        assert storage.read_all(found[:40]) == list(files.values())
        with pytest.raises(FileNotFoundError, match="missing-1"):
            storage.read_all(found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_that_obstore_would_hang_in_gets_an_error():
    with web({"f": DATA}) as server:
        one = storage.file(f"{server.url}/f")
        one.read()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            try:
                one.read()
            except PenstockError as exc:
                os._exit(0 if "forked" in str(exc) else 2)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0


@for_each("options", [{"tries": 0}, {"tries": 1.5}, {"attempt_s": -1}, {"total_s": "long"}])
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(PlanError, match="storage_options: "):
        storage.file("http://127.0.0.1:1/x", options)


def test_an_option_that_the_store_does_not_know_is_refused():
    with pytest.raises(PlanError, match="s3://bucket: storage_options do not fit"):
        storage.file("s3://bucket/x", {"regionn": "x"}).read()


def test_options_of_the_client_may_stand_among_those_of_the_store():
    with web({"f": DATA}) as server:
        assert storage.file(f"{server.url}/f", {"user_agent": "x", "timeout": "3s"}).read() == DATA


def test_a_client_waits_longer_after_each_silent_try_and_less_where_reads_are_quick_and_even():
    client = clients.Client("http://127.0.0.1:1", {"attempt_s": 12.0})
    assert [client.patience_s(silent) for silent in (0, 1, 2, 3)] == [1.0, 4.0, 12.0, 12.0]  # nothing is known
    for _ in range(20):
        client.took(0.03)
    assert [client.patience_s(silent) for silent in (0, 1, 2, 9)] == [0.125, 0.5, 2.0, 12.0]
    for _ in range(200):
        client.took(0.9)
    assert [client.patience_s(silent) for silent in (0, 1)] == [2.0, 8.0]


def test_a_client_has_patience_with_a_store_that_is_slow_with_some_objects():
    client = clients.Client("http://127.0.0.1:1", None)
    for number in range(1000):
        client.took(0.2 if number % 10 == 0 else 0.01)
    assert client.patience_s(0) >= 0.25


def test_the_first_try_after_a_failure_comes_soon_and_those_after_it_are_ever_further_apart(monkeypatch):
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.025)
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: high)
    now, pauses = [0.0], []
    monkeypatch.setattr(retry.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        retry.time, "sleep", lambda pause: (pauses.append(round(pause, 3)), now.append(now.pop() + pause))
    )

    def fails_after(seconds):
        def call(tried):
            now[0] += seconds
            raise OSError("no answer")

        return call

    for seconds, expected in (
        (0.0, [0.025, 0.1, 0.4, 1.6, 6.4, 10.0, 10.0]),
        (0.5, [0.0, 0.0, 0.0, 1.1, 5.9, 9.5, 9.5]),  # the time that a try took is part of its pause
    ):
        pauses.clear()
        with pytest.raises(ReadError, match=r"x: failed 8 times .*no answer"):
            retry.Retries().run(fails_after(seconds), lambda exc: True, "x")
        assert pauses == expected


def test_a_request_that_got_lost_is_given_up_soon_where_reads_are_quick():
    with web({"f": DATA}) as server:
        server.fault = lambda path, count: "slow" if count == 41 else None
        one = storage.file(f"{server.url}/f", {"attempt_s": 60.0})
        for _ in range(42):
            assert one.read() == DATA
        assert server.counts["f"] >= 43  # on a busy machine another one may seem to be lost
        assert server.held == 1  # the server still holds the one that was given up


def test_a_process_keeps_a_limited_number_of_clients(monkeypatch):
    monkeypatch.setattr(clients, "_MOST_CLIENTS", 4)
    with web({"f": DATA}) as server:
        for number in range(10):
            assert storage.file(f"{server.url}/f?number={number}", QUICK).read_at(0, 3) == DATA[:3]
        assert len(clients._clients) == 4


@for_each("module, path, said", [("obstore.store", "s3://b/x", "[cloud]"), ("fsspec.core", "hf://b/x", "[fsspec]")])
def test_without_the_extra_the_message_says_how_to_install_it(module, path, said):
    clients.forget_clients()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(MissingExtra) as caught:
            storage.file(path).read()
    assert said in str(caught.value)


# ---------------------------------------------------------------------- fsspec


def test_other_schemes_are_read_by_fsspec(tmp_path):
    pytest.importorskip("fsspec")
    (tmp_path / "x").mkdir()
    for name in ("b.bin", "a.bin", "x/c.bin"):
        (tmp_path / name).write_bytes(DATA + name.encode())
    one = storage.file(f"local://{tmp_path}/a.bin")
    assert (one.size, one.read()) == (len(DATA) + 5, DATA + b"a.bin")
    assert one.read_at(len(DATA), 5) == b"a.bin"
    assert pickle.loads(pickle.dumps(one)).content == one.content
    with one.open() as stream:
        assert stream.read() == DATA + b"a.bin"
    with pytest.raises(ReadError, match=r"a\.bin: 9 bytes at position 10240 .* ends at 10245"):
        one.read_at(len(DATA), 9)
    with pytest.raises(FileNotFoundError, match=r"local://.*/none: no such file"):
        storage.file(f"local://{tmp_path}/none").read()
    assert storage.listed(f"local://{tmp_path}") == ["a.bin", "b.bin", "x/c.bin"]
    assert storage.expanded(f"local://{tmp_path}/*.bin", "from_files") == [
        f"local://{tmp_path}/a.bin",
        f"local://{tmp_path}/b.bin",
    ]
    with pytest.raises(PlanError, match="nosuch"):
        storage.file("nosuch://x").read()
