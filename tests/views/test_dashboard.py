"""The page of a loader: who may see it, what it says, and that nothing stays of it."""

import gc
import http.client
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.dashboard.feed import Feed
from penstock.dashboard.notices import Notice, notices, post
from penstock.errors import PenstockError, PlanError

pytestmark = pytest.mark.usefixtures("runtime")


def double(x):
    return 2 * x


def fussy(x):
    if x == 3:
        raise ValueError("<b>three</b>")
    return x


def ask(url, path="/stats.json", *, host=None, token=None, **headers):
    """The status, headers and text of an answer."""
    parts = urlsplit(url)
    token = parse_qs(parts.query)["token"][0] if token is None else token
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    try:
        connection.putrequest("GET", f"{path}?token={token}", skip_host=True)
        for name, value in {"Host": host or parts.netloc, **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def loader(capsys):
    with ps.from_sequence(range(40)).map(double, workers=2).batch(4).loader(dashboard=True) as loader:
        yield loader


# ---------------------------------------------------------------------- what it says


def test_its_address_is_printed_once(loader, capsys):
    list(loader)
    assert capsys.readouterr().err == f"penstock: watch this loader at {loader.dashboard_url}\n"


def test_the_snapshot_has_the_counters_the_verdict_and_every_stage(loader):
    list(loader)
    status, _, text = ask(loader.dashboard_url)
    found = json.loads(text)
    assert status == 200
    assert (found["samples"], found["batches"], found["pid"]) == (40, 10, os.getpid())
    assert found["verdict"]["advice"]
    (stage,) = found["stages"]
    assert (stage["label"], stage["workers"], stage["on"]) == ("double+batch", 2, "thread")
    assert 0 <= stage["fill"] <= 1
    assert all(0 <= op["share"] <= 1 for op in stage["op_times"])


def test_errors_are_shown_with_their_samples():
    data = ps.from_sequence(range(8)).map(fussy, on_error="skip")
    with data.loader(inline=True, dashboard=True) as loader:
        list(loader)
        (error,) = json.loads(ask(loader.dashboard_url)[2])["recent_errors"]
    assert (error["sample"], error["type"], error["message"]) == ("3", "ValueError", "<b>three</b>")
    assert "fussy" in error["op"]


def test_the_metrics_are_those_of_the_loader(loader):
    list(loader)
    status, headers, text = ask(loader.dashboard_url, "/metrics")
    assert (status, headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
    assert "penstock_samples_total 40\n" in text


def test_events_come_until_the_loader_ends(loader):
    parts = urlsplit(loader.dashboard_url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(f"GET /events?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        stream = connection.makefile("rb")
        while stream.readline().strip():
            pass  # the headers
        first = json.loads(stream.readline().removeprefix(b"data: "))
        assert first["samples"] == 0
        list(loader)
        loader.close()
        *_, last, end = [line for line in stream.read().decode().split("\n\n") if line]
        assert json.loads(last.strip().removeprefix("data: "))["samples"] == 40
        assert end.startswith("event: end")


def test_a_page_that_is_opened_late_has_the_curves_from_before(loader):
    feed = Feed(lambda: loader)
    feed.tick()
    list(loader)
    feed.tick()
    (point,) = feed.snapshot()["curves"]
    assert point[1] > 0
    assert feed.snapshot(since=point[0])["curves"] == []


@pytest.mark.usefixtures("warm_processes")
def test_an_isolated_loader_has_a_page_too():
    data = ps.from_sequence(range(8)).map(double, workers=1)
    with data.loader(isolate=True, epochs=1, dashboard=True) as loader:
        list(loader)
        found = json.loads(ask(loader.dashboard_url)[2])
    assert (found["samples"], found["stages"][0]["samples"]) == (8, 8)


# ---------------------------------------------------------------------- who may see it


@for_each("path", ["/", "/stats.json", "/events", "/metrics", "/other"])
@for_each("token", ["", "wrong", "é"])
def test_without_the_token_nothing_is_said(path, token, loader):
    status, _, text = ask(loader.dashboard_url, path, token=token.encode().hex() if token == "é" else token)
    assert status == 403
    assert "token" in text


def test_a_token_may_come_as_a_header_as_monitors_send_it(loader):
    token = parse_qs(urlsplit(loader.dashboard_url).query)["token"][0]
    assert ask(loader.dashboard_url, "/metrics", token="", Authorization=f"Bearer {token}")[0] == 200
    assert ask(loader.dashboard_url, "/metrics", Authorization="Bearer wrong")[0] == 403


@for_each(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1"]
)
def test_a_foreign_name_that_points_here_is_refused(host, loader):
    status, _, text = ask(loader.dashboard_url, host=host)
    assert status == 403
    assert "not this machine" in text


@for_each("host", ["localhost", "localhost:9999", "127.0.0.1:9999", "[::1]:9999"])
def test_a_forwarded_port_keeps_working(host, loader):
    assert ask(loader.dashboard_url, host=host)[0] == 200


def test_pages_of_other_origins_are_refused(loader):
    parts = urlsplit(loader.dashboard_url)
    for refused in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}):
        assert ask(loader.dashboard_url, **refused)[0] == 403
    status, headers, _ = ask(loader.dashboard_url, Origin=f"http://{parts.netloc}", Sec_Fetch_Site="same-origin")
    assert status == 200
    assert "Access-Control-Allow-Origin" not in headers
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def test_it_listens_on_loopback_alone(loader):
    assert urlsplit(loader.dashboard_url).hostname == "127.0.0.1"
    assert loader._dashboard._http.socket.getsockname()[0] == "127.0.0.1"


def test_only_reading_is_possible(loader):
    parts = urlsplit(loader.dashboard_url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    connection.request("POST", f"/stats.json?{parts.query}", body=b"{}")
    assert connection.getresponse().status == 501
    connection.close()


@for_each(
    "request_line, host",
    [
        (b"GET / HTTP/1.1", b"[::1"),
        (b"GET / HTTP/1.1", b"localhost:port"),
        (b"GET / HTTP/1.1", b"\xff\xfe"),
        (b"GET //[ HTTP/1.1", b"localhost"),
        (b"GET http://[ HTTP/1.1", b"localhost"),
        (b"GET /?token=\xff HTTP/1.1", b"localhost"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_writes_nothing_to_the_terminal(
    request_line, host, loader, capsys
):
    capsys.readouterr()
    parts = urlsplit(loader.dashboard_url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(request_line + b"\r\nHost: " + host + b"\r\n\r\n")
        with connection.makefile("rb") as answer:
            assert answer.read().startswith(b"HTTP/1.0 403")
    assert capsys.readouterr().err == ""


def test_a_connection_that_says_nothing_holds_up_nobody(loader):
    parts = urlsplit(loader.dashboard_url)
    silent = [socket.create_connection((parts.hostname, parts.port)) for _ in range(3)]
    assert ask(loader.dashboard_url)[0] == 200
    loader.close()  # and does not hold up the end either: the leak check sees threads
    for one in silent:
        one.close()


# ---------------------------------------------------------------------- its end


def test_a_request_that_comes_byte_by_byte_is_given_up(loader, monkeypatch):
    monkeypatch.setattr("penstock.dashboard.server._PATIENCE_S", 0.0)
    parts = urlsplit(loader.dashboard_url)
    given_up = False
    with socket.create_connection((parts.hostname, parts.port), timeout=0.2) as connection:
        while not given_up:
            try:
                connection.sendall(b"G")
                given_up = connection.recv(1) == b""
            except TimeoutError:
                continue  # nothing has been said yet
            except OSError:
                given_up = True


def test_nothing_is_left_after_close(loader, runtime):
    (notice,) = notices()
    assert notice.url == loader.dashboard_url
    (file,) = (runtime / "penstock").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    loader.close()
    loader.close()
    assert notices() == []
    assert list((runtime / "penstock").iterdir()) == []
    assert not any(thread.name.startswith("penstock-dashboard") for thread in threading.enumerate())


def test_a_loader_that_nobody_holds_ends_its_page(runtime):
    loader = ps.from_sequence(range(8)).loader(dashboard=True)
    thread = loader._dashboard._thread
    del loader
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
    assert notices() == []


def test_a_killed_process_leaves_a_notice_that_the_next_look_removes(runtime):
    script = (
        "import os, signal, penstock as ps\n"
        "loader = ps.from_sequence(range(8)).loader(dashboard=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], env=os.environ, capture_output=True, check=False)
    assert len(list((runtime / "penstock").iterdir())) == 1
    assert notices() == []
    assert list((runtime / "penstock").iterdir()) == []


def test_the_end_of_the_interpreter_takes_the_notice_along(runtime):
    script = (
        "import penstock as ps\nloader = ps.from_sequence(range(8)).loader(dashboard=True)\nnext(iter(loader))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=os.environ, capture_output=True, check=True)
    assert b"watch this loader" in done.stderr
    assert list((runtime / "penstock").iterdir()) == []


def test_notices_of_other_machines_are_left_alone(runtime):
    path = post(Notice(1, "elsewhere", 1, "t", "train.py", 0.0))
    assert notices() == []
    assert path.exists()


def test_a_folder_that_others_can_read_is_refused(runtime):
    (runtime / "penstock").mkdir(mode=0o755)
    with pytest.raises(PenstockError, match=r"others may\s+read it"):
        notices()
    with pytest.warns(RuntimeWarning, match="penstock top will not find this loader"):
        ps.from_sequence(range(8)).loader(dashboard=True).close()


# ---------------------------------------------------------------------- how it is asked for


def test_there_is_no_page_unless_it_is_asked_for():
    with ps.from_sequence(range(8)).loader() as loader:
        assert loader.dashboard_url is None
        assert loader._engine.witness is None
        assert notices() == []


def test_the_environment_asks_for_loaders_that_say_nothing(monkeypatch):
    monkeypatch.setenv("PENSTOCK_DASHBOARD", "1")
    with ps.from_sequence(range(8)).loader() as loader, ps.from_sequence(range(8)).loader(dashboard=False) as other:
        assert loader.dashboard_url is not None
        assert other.dashboard_url is None
    monkeypatch.setenv("PENSTOCK_DASHBOARD", "yes")
    with pytest.raises(PlanError, match="set it to 1"):
        ps.from_sequence(range(8)).loader()


def test_a_port_and_a_token_can_be_chosen(loader, monkeypatch):
    monkeypatch.setenv("PENSTOCK_TOKEN", "0123456789abcdef")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ps.from_sequence(range(8)).loader(dashboard=port) as chosen:
        assert chosen.dashboard_url == f"http://127.0.0.1:{port}/?token=0123456789abcdef"
        with pytest.raises(PlanError, match="dashboard=True takes a free one"):
            ps.from_sequence(range(8)).loader(dashboard=port)
    with pytest.raises(PlanError, match="takes a port, at most 65535, got 80000"):
        ps.from_sequence(range(8)).loader(dashboard=80000)
    monkeypatch.setenv("PENSTOCK_TOKEN", "short")
    with pytest.raises(PlanError, match="PENSTOCK_TOKEN has 5 characters"):
        ps.from_sequence(range(8)).loader(dashboard=True)
