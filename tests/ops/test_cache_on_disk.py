"""cache(path=): samples in a folder, shared by processes and runs, intact whatever happens to either."""

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter, namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.cases import for_each
from tests.disk_stores import holds, put, sample_of, store_in
from tests.helpers import TWO_PROCESSES, few_layouts, plain, until_error, with_layouts
from tests.random_examples import seeds

import penstock as ps
from penstock.disk import segment as segments
from penstock.disk import store as stores
from penstock.disk.folder import content
from penstock.disk.segment import SUFFIX
from penstock.errors import NotCarried

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folders(tmp_path):
    """Makes new folders."""
    numbers = itertools.count()
    return lambda: tmp_path / f"cache-{next(numbers)}"


def files_in(path):
    return sorted(Path(path).rglob(f"*{SUFFIX}"))


# ---------------------------------------------------------------------- as in memory


@few_layouts
def test_ops_before_it_run_once_for_all_epochs_and_loaders(layout, counted, folders):
    fn, folder = counted(lambda x: {"x": np.full(5, x), "n": [x, str(x)]}), folders()
    pipeline = ps.from_sequence(range(50)).map(fn, **layout.place).cache(folder)
    expected = [{"x": [x] * 5, "n": [x, str(x)]} for x in range(50)]
    for _ in range(2):
        assert plain(layout.epochs(pipeline, 2)) == [expected] * 2
    assert fn.calls == Counter(range(50))


@few_layouts
def test_the_stream_with_it_is_the_stream_without_the_first_time_and_later(layout, folders):
    folder = folders()

    def build(cached):
        pipeline = ps.from_sequence(range(100)).shuffle().map(lambda x: x * 3, **layout.place)
        pipeline = pipeline.filter(lambda x: x % 2).flat_map(lambda x: [x, -x])
        return (pipeline.cache(folder) if cached else pipeline).shard(0, 2).batch(7)

    expected = plain(layout.epochs(build(False), 2))
    for _ in range(2):
        assert plain(layout.epochs(build(True), 2)) == expected


@few_layouts
def test_what_random_ops_before_it_draw_belongs_to_the_seed(layout, folders):
    drawn = ps.from_sequence(range(20)).map(lambda x, rng: rng.random(), rng=True, **layout.place).cache(folders())
    first, second = layout.epochs(drawn, 2)
    assert first == second == layout.run(drawn)
    assert not set(first) & set(layout.run(drawn, seed=1))
    assert first == layout.run(drawn, seed=0)


@with_layouts(TWO_PROCESSES)
def test_a_resumed_loader_goes_on_with_what_is_in_the_folder_even_in_another(layout, counted, folders):
    fn = counted()
    source = ps.from_sequence(range(40)).shuffle().map(fn, **layout.place)
    with source.cache(folders()).batch(4).loader() as loader:
        for number, _ in enumerate(loader):
            if number == 3:
                break
        state = loader.state_dict()
    expected = plain(layout.epochs(source.batch(4), 1)[0])
    with source.cache(folders(), version=2).batch(4).loader(state=state) as loader:
        assert plain(list(loader)) == expected[4:]


def test_an_isolated_loader_has_the_same_key(counted, folders):
    fn, items = counted(), list(range(5, 100_000))
    pipeline = ps.from_sequence(items, indices=range(30)).map(fn).cache(folders())
    expected = list(pipeline)
    with pipeline.loader(isolate=True, epochs=1) as loader:
        assert list(loader) == expected
    assert set(fn.calls.values()) == {1}


@few_layouts
def test_a_sample_that_failed_is_tried_again_and_kept_once_it_succeeds(layout, counted, folders):
    note = counted()

    def flaky(x):
        note(x)
        if x == 5 and note.calls[x] < 3:
            raise TimeoutError
        return x

    pipeline = ps.from_sequence(range(10)).map(flaky, on_error="skip", **layout.place).cache(folders())
    without = [x for x in range(10) if x != 5]
    assert layout.epochs(pipeline, 4) == [without, without, list(range(10)), list(range(10))]


def test_what_comes_the_first_time_is_what_comes_later(folders):
    odd = {"f": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "t": (1, [2, (3,)]), 4: None, "b": b"x", "s": "ä"}
    odd |= {"scalar": np.float32(1.5), "empty": np.empty((0, 3), "int16"), "big": np.arange(100_000)}
    pipeline = ps.from_sequence([0]).map(lambda _: odd).cache(folders())
    first, second = list(pipeline), list(pipeline)
    assert repr(first) == repr(second)
    assert plain(first) == [plain(odd)]
    for sample in (first[0], second[0]):
        assert sample["big"].dtype == odd["big"].dtype
        with pytest.raises(ValueError, match="read-only"):
            sample["big"][0] = 1
        with pytest.raises(ValueError, match="read-only"):
            sample["f"][0] = 1


# ---------------------------------------------------------------------- what is refused


@dataclass
class Pair:
    a: int


Named = namedtuple("Named", "a b")


@for_each("sample", [{1, 2}, Pair(1), Named(1, 2), object(), {(1, 2): 3}, np.array([None]), 1 << 70, [Pair(2)]])
def test_what_would_not_come_back_as_it_was_is_refused_and_named(folders, sample):
    pipeline = ps.from_sequence(range(3)).map(lambda x: sample if x else 0).cache(folders())
    with pipeline.loader() as loader:
        seen, exc = until_error(loader, NotCarried)
        assert seen == [0]
        (record,) = loader.errors()
    assert record.index == 1
    text = "\n".join([str(exc), *exc.__notes__])
    assert "cache('" in text
    assert type(sample).__qualname__ in text
    assert "cache() without path=" in text
    assert list(ps.from_sequence([1]).map(lambda x: sample).cache()) == [sample]


@for_each(
    "pipeline",
    [
        ps.from_iterable(lambda: range(3)),
        ps.from_sequence(range(9)).batch(3),
        ps.from_sequence(range(9)).shuffle(window=3),
        ps.from_sequence(range(9)).shard(0, 2),
        ps.zip(ps.from_sequence("ab"), ps.from_sequence("cd")),
        ps.from_sequence(range(9)).cache(),
    ],
)
def test_where_whole_epochs_would_be_kept_a_folder_is_refused_where_it_is_written(folders, pipeline):
    with pytest.raises(ps.PlanError, match="whole epochs"):
        pipeline.cache(folders())
    with (
        pytest.raises(ps.PlanError, match="whole epochs"),
        pipeline.apply(ps.ops.Cache(folders())).loader() as loader,
    ):
        list(loader)


@for_each("arguments", [{"path": ""}, {"path": 3}, {"version": 2}, {"path": "x", "version": 1.5}])
def test_arguments_that_mean_nothing_are_refused(arguments):
    with pytest.raises(ps.PlanError, match="cache"):
        ps.from_sequence([1]).cache(**arguments)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ps.PlanError, match="cannot be made"):
        ps.from_sequence([1]).cache(tmp_path / "file" / "cache").loader()


def test_ops_are_equal_if_their_folders_are(tmp_path):
    one, other = ps.ops.Cache(tmp_path / "a", max_bytes=5), ps.ops.Cache(tmp_path / "b", max_bytes=5)
    assert one == ps.ops.Cache(str(tmp_path / "a"), max_bytes=5) != other
    assert len({one, other, ps.ops.Cache(), ps.ops.Cache()}) == 3


# ---------------------------------------------------------------------- keys


def keys(folder):
    return {path.name for path in Path(folder).iterdir()}


def run_in(folder, pipeline, seed=0, **cache):
    with pipeline.cache(folder, **cache).loader(seed=seed, epochs=1) as loader:
        return list(loader)


def scaled(by):
    return lambda x: x * by


def test_other_data_code_arguments_seed_or_version_is_another_key(folders):
    folder = folders()
    source = ps.from_sequence(range(4))
    runs = [
        lambda: run_in(folder, source),
        lambda: run_in(folder, source, version=1),
        lambda: run_in(folder, source, version="1"),
        lambda: run_in(folder, ps.from_sequence(range(1, 5))),
        lambda: run_in(folder, ps.from_sequence([0, 1, 2, 4])),
        lambda: run_in(folder, ps.from_sequence(np.arange(4))),
        lambda: run_in(folder, ps.from_sequence(range(8), indices=[0, 1, 2, 3])),
        lambda: run_in(folder, ps.from_sequence(range(8), indices=[0, 1, 2, 4])),
        lambda: run_in(folder, ps.from_sequence(range(7), indices=[0, 1]).map(scaled(1)).split([0.5, 0.5])[0]),
        lambda: run_in(folder, ps.from_sequence(range(7), indices=[0, 1]).map(scaled(1)).split([0.5, 0.5])[1]),
        lambda: run_in(folder, source.map(scaled(2))),
        lambda: run_in(folder, source.map(scaled(3))),
        lambda: run_in(folder, source.map(scaled(2), name="other").filter(lambda x: x)),
        lambda: run_in(folder, source.map(lambda x: (x, x)).map(scaled(2), key=0)),
        lambda: run_in(folder, source.map(lambda x: (x, x)).map(scaled(2), key=1)),
        lambda: run_in(folder, source.map(lambda x, rng: x, rng=True)),
        lambda: run_in(folder, source.map(lambda x, rng: x, rng=True), seed=1),
        lambda: run_in(folder, source.map(lambda x, info: x, info=True), seed=1),
    ]
    found = set()
    for number, run in enumerate(runs):
        run()
        run()
        found |= keys(folder)
        assert len(found) == number + 1, "a key was made for the second run, or none for the first"


def test_how_it_runs_and_in_which_order_is_no_part_of_the_key(folders, counted):
    folder, fn = folders(), counted()
    source = ps.from_sequence(range(20))
    other = source.shuffle().map(fn, workers=3, ordered=False, on_error="skip", timeout_s=60, name="other")
    for pipeline in (source.map(fn), other):
        run_in(folder, pipeline)
        run_in(folder, pipeline, seed=3, max_bytes=10**6)
    assert fn.calls == Counter(range(20))
    assert len(keys(folder)) == 1


def program(body):
    """A program in a process of its own."""
    text = "import os, sys\n" + textwrap.dedent(body)
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    return [sys.executable, "-c", text], env


def output_of(body, *arguments, hashed=0):
    command, env = program(body)
    env["PYTHONHASHSEED"] = str(hashed)
    done = subprocess.run([*command, *map(str, arguments)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


SECOND_PROGRAM = """
    import penstock as ps

    calls = 0

    def known(x, table={"a": 1, "b": 2}, also=frozenset({"p", "q", "r"})):
        return x if x in {"one", "two", "three"} else [table, len(also)]

    def fn(x):
        global calls
        calls += 1
        return known(x)

    list(ps.from_sequence([f"{n}" for n in range(10)]).map(fn).cache(sys.argv[1]))
    print(calls, *os.listdir(sys.argv[1]))
"""


def test_a_second_program_with_other_hashes_finds_what_the_first_has_made(folders):
    folder = folders()
    calls, key = output_of(SECOND_PROGRAM, folder, hashed=1)
    assert calls == "10"
    assert output_of(SECOND_PROGRAM, folder, hashed=2) == ["0", key]


def test_explain_shows_the_folder_the_key_and_how_much_is_in_it(folders):
    folder = folders()
    pipeline = ps.from_sequence(range(4)).map(lambda x: np.zeros(1000)).cache(folder, max_bytes=10**9)
    assert "0 bytes so far, at most 1.0 GB" in pipeline.explain()
    list(pipeline)
    (key,) = keys(folder)
    size = files_in(folder)[0].stat().st_size
    assert (
        f"cache('{folder}') keeps its samples in {folder}/{key}: {size / 1000:.3g} KB so far" in pipeline.explain()
    )
    drawn = ps.from_sequence(range(4)).map(lambda x, rng: rng.random(), rng=True).cache(folder)
    with drawn.loader(seed=7, epochs=1) as loader:
        list(loader)
    (other,) = keys(folder) - {key}
    assert other.endswith("-seed7")
    assert other.replace("-seed7", "-seed<seed>") in drawn.explain()


@for_each("isolate", [False, True])
def test_explain_of_a_loader_shows_the_folder_of_its_seed(folders, isolate):
    folder = folders()
    drawn = ps.from_sequence(range(4)).map(lambda x, rng: rng.random(), rng=True).cache(folder)
    with drawn.loader(seed=7, epochs=1, isolate=isolate) as loader:
        assert "-seed7: 0 bytes so far" in loader.explain()
        list(loader)
        (key,) = keys(folder)
        size = files_in(folder)[0].stat().st_size
        assert f"keeps its samples in {folder}/{key}: {size} bytes so far" in loader.explain()
    with ps.from_sequence(range(4)).loader() as loader:
        assert "keeps its samples" not in loader.explain()


# ---------------------------------------------------------------------- processes at once


FILL = """
    from tests.disk_stores import put, store_in
    first, last, size = map(int, sys.argv[2:])
    store = store_in(sys.argv[1], size=100_000)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(first, last):
        put(store, number, size=size)
        print(number, flush=True)
"""


def filling(folder, first, last, size=300):
    command, env = program(FILL)
    child = subprocess.Popen(
        [*command, str(folder), str(first), str(last), str(size)],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    return child


def finish(child):
    child.stdin.close()
    child.stdout.close()
    return child.wait()


def test_two_processes_and_a_reader_use_one_folder_at_once(folders):
    folder = folders()
    reader = store_in(folder)
    assert not holds(reader, 0)
    children = [filling(folder, 0, 60), filling(folder, 20, 80)]
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        for line in child.stdout:
            assert reader.refresh() in (True, False)
            assert holds(reader, int(line)), "what was put is seen by others at once"
        assert finish(child) == 0
    assert all(holds(store_in(folder), number) for number in range(80))
    assert len(files_in(folder)) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_writes_a_segment_of_its_own(folders):
    store = store_in(folders())
    put(store, 1)
    pid = os.fork()
    if not pid:
        try:
            put(store, 2)
            os._exit(0 if holds(store, 1) and holds(store, 2) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    put(store, 3)
    store.refresh()
    assert holds(store, 1)
    assert holds(store, 2)
    assert holds(store, 3)
    assert len(files_in(store.path)) == 2


def killed(folder, moment, first, size=300):
    """What a process said to have put before it was killed, after so many lines."""
    child = filling(folder, first, 100_000, size)
    child.stdin.write("\n")
    child.stdin.flush()
    said = []
    for line in itertools.islice(child.stdout, moment):
        said.append(int(line))
    child.send_signal(signal.SIGKILL)
    said += map(int, child.stdout)
    assert finish(child) == -signal.SIGKILL
    return said


def test_what_was_put_is_there_after_a_kill_and_the_segment_is_gone_on_with(folders):
    folder = folders()
    for moment in (1, 40):
        said = killed(folder, moment, 0)
        store = store_in(folder, size=100_000)
        assert said
        assert all(holds(store, number) for number in said)
        assert len(files_in(folder)) == 1


@pytest.mark.soak
@pytest.mark.parametrize("size", [300, 2_000_000])
@pytest.mark.parametrize("seed", seeds(3))
def test_kills_at_any_moment_lose_nothing_that_was_put(folders, seed, size):
    folder, moments = folders(), random.Random(seed)
    all_said = set()
    for _ in range(30):
        moment = moments.randrange(1, 200 if size < 1000 else 5)
        all_said.update(killed(folder, moment, moments.randrange(50_000), size))
        store = store_in(folder, size=100_000)
        assert all(holds(store, number, size) for number in all_said)
    files = files_in(folder)
    assert all(file.stat().st_size >= stores.SEGMENT_BYTES for file in files[:-1]), (
        "each was filled before the next"
    )


def test_a_half_written_record_is_ignored_and_its_place_used_again(folders):
    for cut in (1, 30, 64, 65, 200, 400):
        folder = folders()
        put(store_in(folder), 1, 2)
        (file,) = files_in(folder)
        whole = file.stat().st_size
        length = whole // 2
        os.truncate(file, whole - length + cut if cut < length else whole - 1)
        store = store_in(folder)
        assert holds(store, 1)
        assert not holds(store, 2)
        put(store, 3, 2)
        assert files_in(folder) == [file]
        assert file.stat().st_size == whole + length
        assert all(holds(store_in(folder), number) for number in (1, 2, 3))


def test_a_segment_that_somebody_writes_is_left_to_them(folders):
    folder = folders()
    one, other = store_in(folder), store_in(folder)
    put(one, 1)
    put(other, 2)
    assert len(files_in(folder)) == 2
    del one
    third = store_in(folder)
    put(third, 3)
    assert len(files_in(folder)) == 2
    assert all(holds(third, number) for number in (1, 2, 3))


def test_a_new_segment_is_locked_before_others_can_find_it(folders, monkeypatch):
    folder, seen = folders(), []
    store, other = store_in(folder), store_in(folder)

    def meanwhile(old, new):
        put(other, 2)
        os.replace(old, new)
        seen.extend(files_in(folder))

    monkeypatch.setattr(segments.os, "rename", lambda old, new: (monkeypatch.undo(), meanwhile(old, new)))
    put(store, 1)
    assert len(seen) == 2
    put(store, 3)
    put(other, 4)
    later = store_in(folder)
    assert all(holds(later, number) for number in (1, 2, 3, 4))


# ---------------------------------------------------------------------- damage


@pytest.fixture
def small_segments(monkeypatch):
    monkeypatch.setattr(stores, "SEGMENT_BYTES", 20_000)


@pytest.mark.usefixtures("small_segments")
@for_each("seed, size", [(seed, size) for seed in seeds(1) for size in (50, 17_000, 70_000)])
def test_a_flipped_byte_costs_its_own_record_which_is_made_again_and_replaced(folders, seed, size):
    folder, chance = folders(), random.Random(seed)
    put(store_in(folder), *range(8), size=size)
    files = files_in(folder)
    for _ in range(15):
        file = chance.choice(files)
        at, flip = chance.randrange(file.stat().st_size), chance.randrange(1, 256)
        with open(file, "r+b") as opened:
            opened.seek(at)
            old = opened.read(1)
            opened.seek(at)
            opened.write(bytes([old[0] ^ flip]))
        store = store_in(folder)
        lost = [number for number in range(8) if not holds(store, number, size)]
        assert len(lost) <= 1
        put(store, *lost, size=size)
        assert all(holds(store, number, size) for number in lost)
        later = store_in(folder)
        assert all(holds(later, number, size) for number in range(8)), "the replacement is found instead"


@pytest.mark.usefixtures("small_segments")
def test_a_full_segment_is_known_by_its_table_and_walked_through_without(folders):
    folder = folders()
    put(store_in(folder), *range(100))
    assert len(files_in(folder)) > 2
    store = store_in(folder)
    assert all(holds(store, number) for number in range(100))
    for file in files_in(folder)[:-1]:
        os.truncate(file, file.stat().st_size - 64)
    store = store_in(folder)
    assert all(holds(store, number) for number in range(100))


def test_a_damaged_record_is_made_again_by_a_pipeline_and_never_delivered(folders, counted):
    folder, fn = folders(), counted(lambda x: np.full(1000, x))
    pipeline = ps.from_sequence(range(20)).map(fn).cache(folder)
    expected = plain(list(pipeline))
    (file,) = files_in(folder)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)
    for _ in range(2):
        assert plain(list(pipeline)) == expected
    assert sorted(fn.calls.values()) == [1] * 19 + [2]


# ---------------------------------------------------------------------- room


def test_no_more_than_max_bytes_are_kept_and_what_does_not_fit_is_made_again(folders, counted):
    folder, fn = folders(), counted(lambda x: np.full(1000, x, "uint8"))
    pipeline = ps.from_sequence(range(20)).shuffle().map(fn).cache(folder, max_bytes=10_000)
    with pipeline.loader(epochs=3) as loader:
        for _, samples in loader.epochs(3):
            assert sorted(int(one[0]) for one in samples) == list(range(20))
            assert content(str(folder)) <= 10_000
    kept = sum(calls == 1 for calls in fn.calls.values())
    assert kept == 10_000 // 1152
    assert set(fn.calls.values()) == {1, 3}


def test_keys_that_nobody_uses_make_room_the_one_used_longest_ago_first(folders):
    folder = folders()
    for number, key in enumerate("bcd"):
        store = store_in(folder, key * 24)
        put(store, *range(20), size=1000)
        os.utime(Path(store.folder) / "about.json", (number, number))
    used = store_in(folder, "b" * 24)
    assert holds(used, 0, 1000)
    before = content(str(folder))
    store = store_in(folder, "e" * 24, max_bytes=before)
    put(store, *range(20), size=1000)
    assert content(str(folder)) <= before
    assert all(holds(store, number, 1000) for number in range(20))
    assert store.stats()["evicted"] > 0
    assert keys(folder) == {key * 24 for key in "bde"}, "what is in use stays, and of the others the oldest goes"
    assert all(holds(used, number, 1000) for number in range(20))


def test_without_anything_to_remove_nothing_more_is_written(folders):
    folder = folders()
    first = store_in(folder, "b" * 24)
    put(first, *range(20), size=1000)
    second = store_in(folder, "c" * 24, max_bytes=content(str(folder)) + 3000)
    put(second, *range(20), size=1000)
    assert sum(holds(second, number, 1000) for number in range(20)) == 2
    assert all(holds(first, number, 1000) for number in range(20))


def test_other_files_in_the_folder_are_never_removed(folders):
    folder = folders()
    strange = folder / "photos" / f"mine{SUFFIX}"
    strange.parent.mkdir(parents=True)
    strange.write_bytes(b"x" * 50_000)
    store = store_in(folder, max_bytes=5_000)
    put(store, *range(20), size=1000)
    assert strange.stat().st_size == 50_000


@for_each("size", [300, 100_000])
def test_a_reader_that_has_a_segment_open_goes_on_when_it_is_removed(folders, size):
    folder = folders()
    put(store_in(folder), 1, 2, size=size)
    reader = store_in(folder)
    assert holds(reader, 1, size)
    (sample,), _ = reader.get(2)
    for file in files_in(folder):
        file.unlink()
    assert holds(reader, 2, size)
    assert plain(sample) == plain(sample_of(2, size))
    assert not holds(store_in(folder), 1)


# ---------------------------------------------------------------------- disks that refuse


REFUSED = """
    import resource, warnings
    from tests.disk_stores import holds, put, store_in
    store = store_in(sys.argv[1])
    {refuse}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        put(store, *range(100, 140))
    print(len(caught), str(caught[0].message).count("made again every time") if caught else 0)
    print(*[number for number in range(200) if holds(store, number)])
"""


def test_a_full_disk_ends_no_run_and_costs_no_record(folders):
    folder = folders()
    put(store_in(folder), 1, 2)
    limit = files_in(folder)[0].stat().st_size * 3
    refuse = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    warned, said, *kept = output_of(REFUSED.format(refuse=refuse), folder)
    assert (warned, said) == ("1", "1")
    assert kept == ["1", "2", "100", "101", "102", "103"]
    assert all(holds(store_in(folder), int(number)) for number in kept)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_that_may_only_be_read_serves_what_is_in_it():
    # Another run of pytest takes the permissions of the folder that all runs share away again.
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        folder = Path(made, "cache")
        put(store_in(folder), 1, 2)
        warned, said, *kept = output_of(REFUSED.format(refuse="os.setuid(65534)"), folder)
        assert (warned, said, kept) == ("1", "1", ["1", "2"])


# ---------------------------------------------------------------------- counts


@few_layouts
def test_hits_and_misses_are_counted_wherever_they_happen(layout, folders):
    pipeline = ps.from_sequence(range(30)).map(lambda x: x, **layout.place).cache(folders())
    with pipeline.loader(epochs=3, **layout.loader) as loader:
        for _, samples in loader.epochs(3):
            list(samples)
        (lane,) = loader._engine.lanes.values()
        counts = lane.program.store.stats()
    assert (counts["hits"], counts["misses"], counts["evicted"]) == (60, 30, 0)
    assert counts["bytes"] > 0
