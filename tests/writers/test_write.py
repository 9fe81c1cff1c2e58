"""Pipeline.write: what is written comes back as it was, whatever ends the process in between."""

import gc
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests import nursery
from tests.cases import for_each

import penstock as ps
from penstock.errors import NotCarried
from penstock.testing.same import assert_same
from penstock.writers import writer as writer_module
from penstock.writers.write import Written

pytest.importorskip("pyarrow")
lmdb = pytest.importorskip("lmdb")

READ = {
    "tar": ps.from_tar,
    "parquet": ps.from_parquet,
    "lmdb": ps.from_lmdb,
    "jsonl": lambda path: ps.from_jsonl(path, tree=True),
}
FORMATS = list(READ)

SAMPLES = {
    "dicts": [
        {"x": np.full((3, 2), n, "float32"), "v": np.arange(n % 4), "n": n, "np": np.int16(n), "f": n / 3,
         "s": f"é{n}", "b": bytes([n]), "flag": n % 2 == 0, "maybe": None if n % 3 else n,
         "nested": {"a": [n, (n, None)], "e": {}}}
        for n in range(25)
    ],
    "tuples": [(np.arange(n), n, "text") for n in range(7)],
    "arrays": [np.full(4, n, "uint8") for n in range(7)],
    "numbers": list(range(7)),
    "floats": [0.5, float("nan"), float("inf"), -0.0],
    "texts": ["a", "", "line\nfeed", "\0", "half \ud800"],
    "bytes": [b"", b"\xff\n", b"abc"],
    "keys": [{"__key__": f"folder.x/{n:03d}", "jpg": b"j", "label": n} for n in range(7)],
    "odd": [
        {"a.npy": b"x", "A": 1, "a/b": 2, "%": 3, "_0": 4},
        {"a.npy": b"y", "A": 2**70, "a/b": [], "%": 1j, "_0": ()},
    ],
    "varied": [{}, {}, {}],
    "tensors": [
        {"mask": np.eye(3, dtype=bool), "maybe": None if n % 2 else np.full((2, 3), n), "boxes": np.zeros((0, 4))}
        for n in range(7)
    ],
    "scalars": [np.float64(1.5), np.float64(2.5)],
    "nothing": [],
}  # fmt: skip


@for_each("format, name", [(format, name) for format in FORMATS for name in SAMPLES])
def test_samples_come_back_as_they_were(tmp_path, format, name):
    samples, folder = SAMPLES[name], tmp_path / f"{format}-{name}"
    done = ps.from_sequence(samples).write(folder, format=format, shard_size=20)
    assert (done.samples, done.shards) == (len(samples), -(-len(samples) // 20))
    if samples:
        back = list(READ[format](folder))
        assert_same(samples, back, f"{name} as {format}")
        assert [kinds(one) for one in back] == [kinds(one) for one in samples]


def kinds(tree):
    if isinstance(tree, dict):
        return {key: kinds(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [type(tree), *map(kinds, tree)]
    return type(tree), getattr(tree, "dtype", None), getattr(tree, "shape", None)


@for_each("format", FORMATS)
def test_thousands_of_samples_are_written_and_read_in_any_order(tmp_path, format):
    n = 10_000 if format == "parquet" else 600
    pipeline = ps.from_arrays({"x": np.arange(2 * n, dtype="int32").reshape(n, 2), "y": np.arange(n)})
    done = pipeline.write(tmp_path / format, format=format, shard_size="90kB" if format == "parquet" else "25kB")
    assert done.samples == n
    assert done.shards > 1
    back = READ[format](tmp_path / format)
    assert len(back) == n
    numbers = np.concatenate([batch["x"][:, 0] for batch in back.shuffle().batch(500)])
    assert np.array_equal(np.sort(numbers), np.arange(0, 2 * n, 2))
    batch = next(iter(back.batch(3)))
    assert (batch["x"].dtype, batch["y"].tolist()) == (np.int32, [0, 1, 2])


@for_each("format", FORMATS)
def test_the_same_samples_give_the_same_files_on_any_layout(tmp_path, format):
    pipeline = ps.from_sequence(SAMPLES["dicts"]).shuffle().map(dict, workers=3)
    one, two = tmp_path / f"{format}-one", tmp_path / f"{format}-two"
    for folder, options in [(one, {}), (two, {"memory": "1MB"})]:
        pipeline.write(folder, format=format, shard_size=7, seed=3, **options)
    assert contents(one, format) == contents(two, format)


def contents(folder, format):
    """All that was written, without the state: of LMDB its entries, since its pages depend on its history."""
    if format == "lmdb":
        gc.collect()  # LMDB opens no database twice, and a pipeline over it may still wait for the collector
        with lmdb.open(str(folder), readonly=True, lock=False) as database, database.begin() as transaction:
            return list(transaction.cursor())
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


# ---------------------------------------------------------------------- other readers


def test_tarfile_and_json_read_what_is_written(tmp_path):
    ps.from_sequence([{"jpg": b"image", "label": 3, "box": np.eye(2), "text": "cat"}]).write(tmp_path)
    with tarfile.open(tmp_path / "000000.tar") as archive:
        members = {member.name: archive.extractfile(member).read() for member in archive}
    assert members["000000000.jpg"] == b"image"
    assert json.loads(members["000000000.label.json"]) == 3
    assert members["000000000.text.txt"] == b"cat"
    assert np.load(io.BytesIO(members["000000000.box.npy"])).tolist() == [[1, 0], [0, 1]]
    assert ps.from_tar(tmp_path, decode=False).peek()[0]["label.json"] == b"3"


def test_pyarrow_and_json_see_natural_types(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    ps.from_sequence(SAMPLES["dicts"]).write(tmp_path / "p", format="parquet")
    table = parquet.read_table(tmp_path / "p" / "000000.parquet")
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert types["n"] == "int64"
    assert types["np"] == "int16"
    assert types["s"] == "string"
    assert types["v"] == "list<element: int64>"
    assert types["x"].startswith("extension<arrow.fixed_shape_tensor[value_type=float, shape=[3,2]")
    assert ps.from_parquet(tmp_path / "p", columns=["n", "s"]).peek(index=3) == [{"n": 3, "s": "é3"}]
    ps.from_sequence([{"n": 1, "s": "a", "l": [1.5, None]}]).write(tmp_path / "j", format="jsonl")
    assert json.loads((tmp_path / "j" / "000000.jsonl").read_text()) == {"n": 1, "s": "a", "l": [1.5, None]}


@pytest.mark.soak  # it imports torch
@pytest.mark.filterwarnings("ignore")
def test_webdataset_reads_what_is_written(tmp_path):
    wds = pytest.importorskip("webdataset")
    ps.from_sequence([{"__key__": f"s{n}", "x": np.arange(n), "cls": str(n)} for n in range(5)]).write(tmp_path)
    dataset = wds.WebDataset(str(tmp_path / "000000.tar"), shardshuffle=False).decode()
    with closing(iter(dataset)) as stream:
        assert [(one["__key__"], one["x.npy"].tolist(), one["cls.txt"]) for one in stream] == [
            (f"s{n}", list(range(n)), str(n)) for n in range(5)
        ]


# ---------------------------------------------------------------------- kills


class Deadly:
    """Ends this process with SIGKILL at the n-th step towards the disk."""

    def __init__(self, at):
        self.left = at

    def __getattr__(self, name):
        value = getattr(os, name)
        return self.counted(value) if name in ("fsync", "replace") else value

    def counted(self, function):
        def call(*args):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            function(*args)
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        return call


def kill_while(work, at):
    """Run `work` in a child that is killed at step `at`; whether it was."""
    child = os.fork()
    if not child:
        try:
            writer_module.os = Deadly(at)
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("format", ["jsonl", pytest.param("tar", marks=pytest.mark.soak)])
def test_a_run_killed_at_any_step_is_finished_by_the_next_with_the_same_bytes(tmp_path, format, every):
    numbers = ps.from_sequence(range(13)).shuffle().filter(lambda n: n % 5)
    pipeline = numbers.map(lambda n: {"n": n, "x": np.arange(n)})

    def work(folder):
        return pipeline.write(folder, format=format, shard_size=6, seed=1)

    work(tmp_path / format)
    golden = contents(tmp_path / format, format)
    steps = 0
    for at in range(1, 100, every):
        folder = tmp_path / f"{format}-{at}"
        if not kill_while(lambda folder=folder: work(folder), at):
            break
        steps += every
        assert all(golden[name] == found for name, found in contents(folder, format).items())
        assert work(folder) == Written(str(folder), 10, 2)
        assert contents(folder, format) == golden
    # Three calls for the first state and six for each shard, before and after each of them.
    assert 6 + 2 * 12 <= steps < 6 + 2 * 12 + every


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_killed_again_and_again_gets_to_its_end(tmp_path):
    pipeline = ps.from_sequence(range(40)).map(lambda n: {"n": n})

    def work():
        pipeline.write(tmp_path / "a", format="jsonl", shard_size=4)

    kills = 0
    while kill_while(work, 15):
        kills += 1
    assert kills >= 5
    assert [sample["n"] for sample in ps.from_jsonl(tmp_path / "a")] == list(range(40))


SCRIPT = """
import os, signal
import numpy as np
import penstock as ps

def slow(n):
    if n == 17 and not os.path.exists("go on"):
        open("reached", "w").close()
        signal.pause()
    return {"n": n, "x": np.full(100, n)}

data = ps.from_sequence(range(30)).map(slow, workers=2)
"""


def cli(folder, format, *more):
    command = [sys.executable, "-m", "penstock", "write", "script:data", f"{folder}/out", "--format", format]
    return [*command, "--shard-size", "5", *more]


@pytest.mark.parametrize(
    "format", ["tar", *(pytest.param(one, marks=pytest.mark.soak) for one in FORMATS if one != "tar")]
)
def test_a_real_process_is_killed_and_the_command_run_again(tmp_path, format):
    (tmp_path / "script.py").write_text(SCRIPT)
    first = subprocess.Popen(cli(tmp_path, format), cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "reached").exists() and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    (tmp_path / "go on").touch()
    told = subprocess.run(cli(tmp_path, format), cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert told == f"30 samples in 6 shards in {tmp_path}/out\n"
    assert [int(sample["n"]) for sample in READ[format](tmp_path / "out")] == list(range(30))
    pipeline = ps.from_sequence(range(30)).map(lambda n: {"n": n, "x": np.full(100, n)})
    pipeline.write(tmp_path / "golden", format=format, shard_size=5)
    assert contents(tmp_path / "out", format) == contents(tmp_path / "golden", format)


# ---------------------------------------------------------------------- what is refused, and when


@for_each("format", FORMATS)
def test_a_finished_folder_is_left_as_it_is(tmp_path, format):
    def times():
        return {name: os.stat(tmp_path / name).st_mtime_ns for name in os.listdir(tmp_path) if name != "lock.mdb"}

    pipeline = ps.from_sequence([{"n": n} for n in range(9)])
    first = pipeline.write(tmp_path, format=format, shard_size=4)
    before = times()
    assert pipeline.write(tmp_path, format=format, shard_size=4) == first
    assert times() == before
    with pytest.raises(ps.StateMismatch, match="another pipeline"):
        ps.from_sequence([{"n": 1}]).write(tmp_path, format=format, shard_size=4)
    for options, words in [({"seed": 1}, "seed=0"), ({"shard_size": 5}, "shard_size='4'")]:
        with pytest.raises(ps.PlanError, match=rf"was begun with {words}"):
            pipeline.write(tmp_path, format=format, **{"shard_size": 4, **options})
    assert ps.from_sequence([{"n": 7}]).write(tmp_path, format=format, overwrite=True).samples == 1
    assert list(READ[format](tmp_path)) == [{"n": 7}]


def test_a_database_without_its_state_is_finished_all_the_same(tmp_path):
    pipeline = ps.from_sequence([{"n": n} for n in range(9)])
    pipeline.write(tmp_path, format="lmdb", shard_size=4)
    (tmp_path / writer_module.STATE).unlink()
    assert pipeline.write(tmp_path, format="lmdb", shard_size=4).samples == 9
    assert len(ps.from_lmdb(tmp_path)) == 9


def test_an_error_of_the_pipeline_is_not_taken_for_another_writer(tmp_path):
    def busy(number):
        raise BlockingIOError(11, "the camera is busy")

    with pytest.raises(BlockingIOError, match="the camera is busy"):
        ps.from_sequence([1]).map(busy).write(tmp_path)


def test_files_of_somebody_else_are_not_mixed_with_ours(tmp_path):
    (tmp_path / "000000.tar").write_bytes(b"mine")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ps.PlanError, match=r"has '000000\.tar' in it"):
        ps.from_sequence([1]).write(tmp_path)
    ps.from_sequence([1]).write(tmp_path, overwrite=True)
    assert (tmp_path / "notes.txt").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ps.PlanError, match="is a file"):
        ps.from_sequence([1]).write(tmp_path / "file")


@for_each("format", FORMATS)
def test_a_sample_that_cannot_be_written_is_named_and_the_run_can_go_on_without_it(tmp_path, format):
    samples = [{"n": n, "bad": object() if n == 5 else n} for n in range(8)]
    with pytest.raises(NotCarried, match="field 'bad'"):
        ps.from_sequence(samples).write(tmp_path / format, format=format, shard_size=2)
    assert not [name for name in os.listdir(tmp_path / format) if name.endswith(".tmp")]


@for_each("samples, words", [
    ([{"n": 1}, {"n": "a"}], "field 'n' of sample 1 is 'str', and was 'int'"),
    ([{"n": 1}, {"m": 1}], "has the fields 'm'"), ([{"n": 1}, (1,)], "sample 1 is a tuple"),
])  # fmt: skip
def test_parquet_refuses_a_later_sample_of_another_type(tmp_path, samples, words, monkeypatch):
    monkeypatch.setattr("penstock.writers.parquet._GROUP_ROWS", 1)
    with pytest.raises(NotCarried, match=words):
        ps.from_sequence(samples).write(tmp_path / "p", format="parquet", overwrite=True)


@for_each("keys, words", [
    (["a", "a"], "samples 0 and 1 have the same '__key__'"), (["a.b"], "cannot name"), (["../a"], "cannot name"),
    (["/a"], "cannot name"), ([""], "cannot name"), (["a/"], "cannot name"), (["a\0"], "cannot name"),
    (["a", None], "no '__key__'"),
])  # fmt: skip
def test_keys_that_could_not_be_read_back_are_refused(tmp_path, keys, words):
    samples = [{"__key__": key, "n": 1} if key is not None else {"n": 1} for key in keys]
    with pytest.raises(NotCarried, match=words):
        ps.from_sequence(samples).write(tmp_path / "t", overwrite=True)


FULL = """
import resource, sys
import numpy as np
import penstock as ps

resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
random = np.random.default_rng(0).bytes
data = ps.from_sequence(range(100)).map(lambda n: {"x": random(1000 if n < 20 else 50_000)})
data.write(sys.argv[1], format=sys.argv[2], shard_size=10)
"""


@for_each("format", ["tar", "parquet", "jsonl"])
def test_a_disk_without_room_is_named_and_nothing_unfinished_stays(tmp_path, format):
    folder = tmp_path / format
    done = nursery.run(FULL, folder, format)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert f"while writing to '{folder}'; make room and call write() again" in done.stderr
    assert done.stderr.count("Traceback") == 1
    left = {path.name for path in folder.iterdir()} - {".penstock-write.json"}
    assert len(left) == 2
    assert not any(name.startswith(".") for name in left)


def test_two_processes_do_not_write_to_one_folder(tmp_path):
    pipeline = ps.from_sequence([1]).map(lambda n: ps.from_sequence([2]).write(tmp_path) and n)
    with pytest.raises(ps.PenstockError, match="another process is writing"):
        pipeline.write(tmp_path)


@for_each("size", [0, -1, 1.5, True, "many", "12", "12QB", None])
def test_sizes_of_nonsense_are_refused(tmp_path, size):
    with pytest.raises(ps.PlanError, match="shard_size="):
        ps.from_sequence([1]).write(tmp_path, shard_size=size)
    with pytest.raises(ps.PlanError, match="format="):
        ps.from_sequence([1]).write(tmp_path, format="csv")


def test_skipped_samples_are_counted(tmp_path):
    def odd(n):
        if n % 2:
            raise ps.Skip("odd")
        return n

    assert ps.from_sequence(range(10)).map(odd).write(tmp_path, shard_size=2).skipped == 5


def test_an_unfinished_database_says_so(tmp_path):
    def fail(n):
        return n if n < 5 else 1 // 0

    with pytest.raises(ZeroDivisionError):
        ps.from_sequence(range(9)).map(fail).write(tmp_path, format="lmdb", shard_size=2)
    with pytest.raises(ps.ReadError, match="writing it was not finished"):
        len(ps.from_lmdb(tmp_path))


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("length", [20, None])
def test_progress_is_shown_on_a_terminal_alone(length, tmp_path, monkeypatch):
    numbers = ps.from_sequence(range(20)) if length else ps.from_iterable(lambda: iter(range(20)))
    for out in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stderr", out)
        numbers.write(tmp_path / str(out.isatty()), format="jsonl", shard_size=10)
        last = out.getvalue().rpartition("\r")[2]
        assert bool(last) == out.isatty()
    bar = f" [{'#' * 24}]" if length else ""
    assert last.startswith(f"writing jsonl{bar} 20 samples, 2 shards, ")
    assert last.endswith("\n")


def test_the_command_line_says_what_is_wrong(tmp_path):
    path = Path(tmp_path, "data.py")
    path.write_text("import penstock as ps\ndata = ps.from_sequence([{'n': 1}])\n")
    command = [sys.executable, "-m", "penstock", "write", "data:data", "out", "--shard-size", "many"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "penstock write: write(shard_size=) takes" in done.stderr


def test_what_never_ends_and_a_url_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ps.PlanError, match=r"write reads one epoch.*endless.*take\(n\)"):
        ps.from_sequence([1]).repeat().write(tmp_path / "a")
    with pytest.raises(ps.PlanError, match=r"'s3://bucket/a' is a URL"):
        ps.from_sequence([1]).write("s3://bucket/a")
    assert not list(tmp_path.iterdir())
    assert not Path("s3:").exists()
