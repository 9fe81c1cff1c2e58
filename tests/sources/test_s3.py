"""Object stores, against a real server that speaks S3 (moto), also through a proxy that fails and hangs."""

import http.client
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import penstock as ps
from penstock import storage
from penstock.storage import retry
from penstock.storage.clients import forget_clients
from penstock.testing import check_source

pytestmark = [pytest.mark.stores, pytest.mark.usefixtures("warm_pool")]

ODD = ["a b.bin", "a+b.bin", "per%20cent.bin", "ümlaut.bin", "hash#1.bin", "q?x=1.bin"]
MANY = {f"many/{number:04}.bin": bytes([number % 251]) * (number % 90 + 1) for number in range(1010)}
IMAGES = {
    f"train/{name}/{number}.jpg": f"{name} {number}".encode() for name in ("dog", "cat") for number in range(20)
}


@pytest.fixture(scope="module")
def s3():
    """The address of a server with a bucket, filled."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        settings(patch, f"http://{host}:{port}")
        fill()
        storage.file("s3://bucket/one.bin").read()  # obstore's threads and descriptors stay until the process ends
        forget_clients()
        yield f"{host}:{port}"
    forget_clients()
    server.stop()


def settings(patch, endpoint):
    """What users set in the environment."""
    patch.setenv("AWS_ENDPOINT_URL", endpoint)
    patch.setenv("AWS_ALLOW_HTTP", "true")
    patch.setenv("AWS_ACCESS_KEY_ID", "key")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    patch.setenv("AWS_REGION", "us-east-1")


def fill():
    boto3 = pytest.importorskip("boto3")
    import os

    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
    client.create_bucket(Bucket="bucket")
    files = {
        **MANY,
        **IMAGES,
        **{f"odd/{name}": name.encode() for name in ODD},
        "train/": b"",
        "train/cat/": b"",
        "one.bin": b"12345",
    }
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: client.put_object(Bucket="bucket", Key=item[0], Body=item[1]), files.items()))
    client.close()


@pytest.fixture(autouse=True)
def connections_end(s3):
    yield
    forget_clients()


def data_of(sample):
    return sample["data"]


def test_a_bucket_is_listed_in_order_however_many_objects_it_has(s3):
    assert storage.listed("s3://bucket/many") == [name.removeprefix("many/") for name in MANY]
    assert storage.expanded("s3://bucket/many/000[1-3].bin", "x") == [
        f"s3://bucket/many/000{n}.bin" for n in (1, 2, 3)
    ]
    assert storage.expanded("s3://bucket/many", "x")[:1] == ["s3://bucket/many/0000.bin"]
    assert storage.expanded("s3://bucket/one.bin", "x") == ["s3://bucket/one.bin"]
    assert storage.folders("s3://bucket") == ["many", "odd", "train"]
    with pytest.raises(ps.PlanError, match="nothing matches"):
        storage.expanded("s3://bucket/none/*", "x")


def test_keys_of_odd_letters_are_listed_and_read(s3):
    data = ps.from_files("s3://bucket/odd/")
    assert sorted(sample["data"].decode() for sample in data) == sorted(ODD)
    assert all(sample["path"] == f"s3://bucket/odd/{sample['data'].decode()}" for sample in data)


def test_an_object_is_read_in_parts_and_tells_its_version(s3):
    one = storage.file("s3://bucket/one.bin")
    assert (one.size, one.read(), one.read_at(1, 3)) == (5, b"12345", b"234")
    assert one.content.startswith("5 bytes of ")
    with pytest.raises(ps.ReadError, match=r"s3://bucket/one\.bin: 9 bytes at position 2 .* ends at 5"):
        one.read_at(2, 9)
    with pytest.raises(FileNotFoundError, match="s3://bucket/none: no such object"):
        storage.file("s3://bucket/none").read()
    with pytest.raises(OSError, match="s3://nobucket/none"):
        storage.file("s3://nobucket/none").read()


def test_a_folder_of_images_in_a_bucket_is_one_on_disk(s3, tmp_path):
    data = ps.from_folder("s3://bucket/train", manifest=tmp_path / "m.json")
    assert data.source.classes == ["cat", "dog"]
    assert [sample["label"] for sample in data] == [0] * 20 + [1] * 20
    assert {sample["path"]: sample["image"] for sample in data} == {
        f"s3://bucket/{k}": v for k, v in IMAGES.items()
    }
    check_source(data)
    check_source(ps.from_folder("s3://bucket/train", manifest=tmp_path / "m.json", indices=[3, 1]))


def test_options_take_the_place_of_the_environment(s3, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    options = {"endpoint": f"http://{s3}", "client_options": {"allow_http": True}}
    data = ps.from_files("s3://bucket/one.bin", storage_options=options)
    assert [sample["data"] for sample in data] == [b"12345"]


# ---------------------------------------------------------------------- a store that fails


class Proxy(ThreadingHTTPServer):
    """Passes requests on, but answers 5 of 100 with an error and 1 not at all."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target, seed):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.dice = random.Random(seed)
        self.lock = threading.Lock()
        self.wake = threading.Event()
        self.failed = 0

    def fault(self):
        with self.lock:
            draw = self.dice.random()
            self.failed += draw < 0.06
        return 500 if draw < 0.025 else 503 if draw < 0.05 else "slow" if draw < 0.06 else None

    def handle_error(self, request, client_address):
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    timeout = 30

    def log_message(self, *args):
        pass

    def pass_on(self):
        fault = self.server.fault()
        if fault == "slow":
            self.server.wake.wait(30)
            self.close_connection = True
            return
        if fault:
            self.send_response(fault)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        connection = http.client.HTTPConnection(self.server.target)
        connection.request(self.command, self.path, headers=dict(self.headers))
        answer = connection.getresponse()
        body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        connection.close()

    do_GET = do_HEAD = pass_on


@contextmanager
def failing(target, seed):
    proxy = Proxy(target, seed)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            settings(patch, f"http://127.0.0.1:{proxy.server_port}")
            patch.setattr(retry, "_FIRST_PAUSE_S", 0.001)
            forget_clients()
            yield proxy
    finally:
        proxy.wake.set()
        proxy.shutdown()
        thread.join()
        proxy.server_close()
        forget_clients()


def test_every_sample_comes_once_and_in_order_from_a_store_that_fails(s3):
    with failing(s3, 1) as proxy:
        data = ps.from_files("s3://bucket/many/{0000..0399}.bin", storage_options={"attempt_s": 1.0})
        found = list(data.map(data_of, workers=16))
        assert found == list(MANY.values())[:400]
        assert proxy.failed > 10


def test_processes_get_the_same_from_a_store_that_fails(s3):
    # Processes of its own: those of other tests would keep their connections, and have another environment.
    with failing(s3, 2) as proxy, ps.Processes(2) as pool:
        server = {"endpoint": f"http://127.0.0.1:{proxy.server_port}", "client_options": {"allow_http": True}}
        data = ps.from_files("s3://bucket/many/{0000..0099}.bin", storage_options={"attempt_s": 1.0, **server})
        with data.loader(on=pool, epochs=1) as loader:
            assert list(map(data_of, loader)) == list(MANY.values())[:100]
        assert proxy.failed > 2
