"""How near does reading a format come to the bare loop of the same library, and how do other loaders compare?

Contestants, over the same samples, from a warm page cache but where a row says otherwise:
  tar           10 KB and a class per sample: our reads against positions that are known beforehand, against tarfile
                and against webdataset, if it is installed
  first 1000    of a global shuffle over a set of tar shards, against webdataset's shuffle buffer of 5 000
  lines         documents of 2 KB: JSON by msgspec, text by Python's file iteration
  tfrecord      records of 2 KB with their checksums, against the same loop by hand
  tables        batches of 1024 rows of three columns, against pyarrow's own batches as numpy arrays
  arrays        batches of 1024 rows of 3 KB, against slices of h5py and of a memmap
  lmdb          values of 10 KB against a cursor
  Hugging Face  rows of an Arrow data set against its own iteration, if `datasets` is installed
  files         of 4 KB and of 100 KB, against open().read(); a folder against ImageFolder with a DataLoader
  peers         samples of 10 KB and a class, ours from tar, theirs in their own formats (_peers.py), in order and
                shuffled; ours over HF's Parquet file where theirs is HF
Both sides give the same: arrays and bytes of their own, a dict per sample where we give one.
Targets: 0.95 of a bare loop, 1.0 of another loader, 0.5 of the order for a shuffle over Parquet, 5 for the first
1000. The time that each index takes is printed. ``--only tar,lines`` runs some of them.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import _peers
import msgspec
import numpy as np
from _measure import Bench, same_mallopt_as_our_workers
from _reading import BATCH, CAN_BE_COLD, PASSES, ROWS, Cold, held, indexed, ours, rows_in, rows_of

import penstock as ps
from penstock.formats.tfrecord import framed

# ---------------------------------------------------------------------- tar


def write_tar(path: Path, first: int, samples: int, data: bytes) -> None:
    with tarfile.open(path, "w") as archive:
        for number in range(first, first + samples):
            for name, content in ((f"{number:08}.jpg", data), (f"{number:08}.cls", b"%d" % (number % 10))):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def tar(bench: Bench, folder: Path) -> None:
    n = bench.size(10_000, quick=500)
    path = folder / "train-000.tar"
    write_tar(path, 0, n, os.urandom(10_000))
    pipeline = indexed("tar", ps.from_tar(path))
    with tarfile.open(path) as archive:
        spans = [(member.name, member.offset_data, member.size) for member in archive]

    def by_position() -> int:
        """What no reader can beat in Python: every position known, two reads and a dict per sample."""
        file = os.open(path, os.O_RDONLY)
        pairs = zip(spans[0::2], spans[1::2], strict=True)
        found = held(
            {"__key__": name[:8], "jpg": os.pread(file, size, at), "cls": os.pread(file, size_class, at_class)}
            for (name, at, size), (_, at_class, size_class) in pairs
        )
        os.close(file)
        return found

    def by_tarfile() -> int:
        with tarfile.open(path, "r|") as archive:
            return sum(len(archive.extractfile(member).read()) > 100 for member in archive)  # type: ignore[union-attr]

    def by_positions() -> int:
        return sum(by_position() for _ in range(PASSES))

    bench.versus("tar, in order, over known positions", ours(pipeline, PASSES), by_positions, at_least=0.95)
    shuffled = ours(pipeline.shuffle(), PASSES)
    bench.versus("tar, shuffled, over known positions in order", shuffled, by_positions, at_least=0.5)
    if CAN_BE_COLD:
        cold = Cold(ours(pipeline), [path]), Cold(by_position, [path])
        bench.versus("tar, in order, cold cache", *cold, at_least=0.95)
    bench.versus("tar, in order, over tarfile", ours(pipeline), by_tarfile, at_least=1.0)
    if find_spec("webdataset") is not None:
        import webdataset

        def by_webdataset() -> int:
            return held(webdataset.WebDataset(str(path), shardshuffle=False))

        bench.versus("tar, in order, over webdataset", ours(pipeline), by_webdataset, at_least=1.0)
        bench.versus(
            "tar, shuffled, over webdataset in order", ours(pipeline.shuffle()), by_webdataset, at_least=1.0
        )


def first_thousand(bench: Bench, folder: Path) -> None:
    if find_spec("webdataset") is None:
        return
    import webdataset

    shards, per_shard = bench.size(20, quick=3), bench.size(1_000, quick=400)
    data = os.urandom(100_000)
    for number in range(shards):
        write_tar(folder / f"large-{number:03}.tar", number * per_shard, per_shard, data)
    paths = [str(folder / f"large-{number:03}.tar") for number in range(shards)]
    pipeline = indexed(f"{shards} tar shards of {per_shard} samples", ps.from_tar(paths)).shuffle()

    def by_us() -> int:
        with pipeline.take(1000).loader(epochs=1) as loader:
            return held(loader)

    def by_webdataset() -> int:
        dataset = webdataset.WebDataset(paths, shardshuffle=shards).shuffle(5_000, initial=5_000)
        return sum(1 for _, _ in zip(range(1000), dataset, strict=False))

    bench.versus("first 1000 of a shuffle, over webdataset", by_us, by_webdataset, at_least=5.0)
    if CAN_BE_COLD:
        cold = Cold(by_us, paths), Cold(by_webdataset, paths)
        bench.versus("first 1000, cold cache, over webdataset", *cold, at_least=5.0)


# ---------------------------------------------------------------------- lines and records


def lines(bench: Bench, folder: Path) -> None:
    n = bench.size(50_000, quick=2_000)
    path = folder / "train.jsonl"
    record = b'{"text": "%s", "label": %d, "score": 0.5}\n'
    path.write_bytes(b"".join(record % (b"word " * 400, number % 10) for number in range(n)))
    decode = msgspec.json.Decoder().decode

    def by_json() -> int:
        with open(path, "rb") as file:
            return held(map(decode, file))

    def by_text() -> int:
        with open(path, encoding="utf-8") as file:
            return held(line.rstrip("\n") for line in file)

    bench.versus("JSON lines", ours(indexed("lines", ps.from_jsonl(path))), by_json, at_least=0.95)
    bench.versus("text lines", ours(ps.from_text(path)), by_text, at_least=0.95)


def tfrecord(bench: Bench, folder: Path) -> None:
    import google_crc32c

    n = bench.size(50_000, quick=2_000)
    path = folder / "train.tfrecord"
    path.write_bytes(framed(os.urandom(2_000)) * n)

    def mask(value: int) -> int:
        return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    def records() -> Iterator[bytes]:
        with open(path, "rb", buffering=1 << 20) as file:
            while header := file.read(12):
                length = int.from_bytes(header[:8], "little")
                assert mask(google_crc32c.value(header[:8])) == int.from_bytes(header[8:], "little")
                data = file.read(length)
                assert mask(google_crc32c.value(data)) == int.from_bytes(file.read(4), "little")
                yield data

    def by_hand() -> int:
        return held(records())

    pipeline = indexed("tfrecord", ps.from_tfrecord(path, raw=True))
    bench.versus("TFRecord, bytes with checksums", ours(pipeline), by_hand, at_least=0.95)


def lmdb(bench: Bench, folder: Path) -> None:
    import lmdb

    n = bench.size(20_000, quick=1_000)
    path = str(folder / "db")
    data = os.urandom(10_000)
    with lmdb.open(path, map_size=1 << 33) as database, database.begin(write=True) as transaction:
        for number in range(n):
            transaction.put(b"%08d" % number, data)

    def by_cursor() -> int:
        with lmdb.open(path, readonly=True, lock=False) as database, database.begin() as transaction:
            return sum(
                held({"key": key, "value": value} for key, value in transaction.cursor()) for _ in range(PASSES)
            )

    def by_us() -> int:
        # LMDB opens no file twice: ours is gone when theirs is opened, as garbage is collected between.
        return ours(ps.from_lmdb(path), PASSES)()

    indexed("lmdb", ps.from_lmdb(path))
    bench.versus("LMDB", by_us, by_cursor, at_least=0.95)


# ---------------------------------------------------------------------- tables and arrays


def tables(bench: Bench, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    n = bench.size(1_000_000, quick=20_000)
    rng = np.random.default_rng(0)
    columns = {"x": rng.random(n, dtype="float32"), "n": np.arange(n), "s": [f"row {i}" for i in range(n)]}
    table = pa.table(columns)
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=100_000)
    with pa.ipc.new_file(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=100_000)
    pyarrow.csv.write_csv(table, str(folder / "a.csv"))

    def as_numpy(batches: Iterable[Any]) -> int:
        """Arrays that own their memory, and a list of strings, as our batches are."""
        return rows_in(
            {
                "x": np.array(batch["x"].to_numpy()),
                "n": np.array(batch["n"].to_numpy()),
                "s": batch["s"].to_numpy(zero_copy_only=False).tolist(),
            }
            for batch in batches
        )

    def by_parquet() -> int:
        return as_numpy(pyarrow.parquet.ParquetFile(folder / "a.parquet").iter_batches(ROWS))

    def by_rows() -> int:
        file = pyarrow.parquet.ParquetFile(folder / "a.parquet")
        return held(row for batch in file.iter_batches(10_000) for row in batch.to_pylist())

    def by_arrow() -> int:
        with pa.memory_map(str(folder / "a.arrow")) as file:
            table = pa.ipc.open_file(file).read_all()
            return sum(as_numpy(table.to_batches(ROWS)) for _ in range(PASSES))

    def by_csv() -> int:
        return as_numpy(
            batch.slice(first, ROWS)
            for batch in pyarrow.csv.open_csv(str(folder / "a.csv"))
            for first in range(0, len(batch), ROWS)
        )

    def parquet() -> Any:
        return ps.from_parquet(folder / "a.parquet")

    bench.versus("Parquet, batches", rows_of(parquet), by_parquet, at_least=0.95)
    bench.versus("Parquet, rows as dicts", lambda: ours(parquet())(), by_rows, at_least=0.95)
    shuffled = rows_of(lambda: parquet().shuffle())
    bench.versus("Parquet, shuffled over ordered batches", shuffled, rows_of(parquet), at_least=0.5)
    from_arrow = rows_of(lambda: ps.from_arrow(folder / "a.arrow"), PASSES)
    bench.versus("Arrow file, batches", from_arrow, by_arrow, at_least=0.95)
    kept = folder / "csv-index"
    indexed("csv", ps.from_csv(folder / "a.csv", index=kept))
    bench.versus("CSV, batches", rows_of(lambda: ps.from_csv(folder / "a.csv", index=kept)), by_csv, at_least=0.95)
    large_groups(bench, folder)


def large_groups(bench: Bench, folder: Path) -> None:
    """A shuffle over row groups of 64 MB, all of which are kept; and as a stream in windows."""
    import pyarrow as pa
    import pyarrow.parquet

    n = bench.size(4 * 16_000, quick=4_000)
    images = list(np.random.default_rng(0).integers(0, 256, (n, 4_096), dtype="uint8"))
    table = pa.table({"y": np.arange(n), "x": pa.array(images, pa.list_(pa.uint8(), 4_096))})
    pyarrow.parquet.write_table(table, folder / "large.parquet", row_group_size=n // 4, compression=None)
    path = folder / "large.parquet"

    def ordered() -> Any:
        return ps.from_parquet(path)

    def stream() -> Any:
        return ps.from_parquet(path, stream=True).shuffle(window=2_000)

    bounded = {"memory": "1GB"}
    shuffled = rows_of(lambda: ordered().shuffle(), **bounded)
    bench.versus("Parquet, 64 MB groups, shuffle()", shuffled, rows_of(ordered, **bounded), at_least=0.5)
    windows = rows_of(stream, **bounded)
    bench.versus("Parquet, 64 MB groups, shuffle(window=)", windows, rows_of(ordered, **bounded), at_least=0.5)


def arrays(bench: Bench, folder: Path) -> None:
    import h5py

    n = bench.size(50_000, quick=2_000)
    x = np.random.default_rng(0).integers(0, 256, (n, 32, 32, 3), dtype="uint8")
    np.save(folder / "x.npy", x)
    with h5py.File(folder / "x.h5", "w") as file:
        file["plain"] = x
        file.create_dataset("chunked", data=x, chunks=(64, 32, 32, 3))

    def by_memmap() -> int:
        mapped = np.load(folder / "x.npy", mmap_mode="r")
        return rows_in(np.array(mapped[first : first + ROWS]) for _ in range(PASSES) for first in range(0, n, ROWS))

    def by_h5py(name: str) -> Callable[[], int]:
        def run() -> int:
            with h5py.File(folder / "x.h5") as file:
                rows = file[name]
                return rows_in(rows[first : first + ROWS] for _ in range(PASSES) for first in range(0, n, ROWS))

        return run

    from_npy = rows_of(lambda: ps.from_npy(folder / "x.npy"), PASSES)
    bench.versus(".npy, batches", from_npy, by_memmap, at_least=0.95)
    for name in ("plain", "chunked"):

        def hdf5(name: str = name) -> Any:
            return ps.from_hdf5(folder / "x.h5", fields=name)

        bench.versus(f"HDF5, {name}, batches", rows_of(hdf5, PASSES), by_h5py(name), at_least=0.95)


def hugging_face(bench: Bench, folder: Path) -> None:
    if find_spec("datasets") is None:
        print("  (datasets is not installed: no comparison with Hugging Face)", flush=True)
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets

    n = bench.size(50_000, quick=2_000)
    rows = {"text": ["word " * 40] * n, "label": list(range(n)), "v": [[0.5] * 16] * n}
    datasets.Dataset.from_dict(rows).save_to_disk(str(folder / "hf"))
    dataset = datasets.load_from_disk(str(folder / "hf"))
    files = [one["filename"] for one in dataset.cache_files]

    def by_them() -> int:
        return held(dataset)

    def batches_of_them() -> int:
        return held(dataset.with_format("numpy").iter(BATCH))

    def shuffled_by_them() -> int:
        return held(dataset.shuffle(seed=0))

    bench.versus("HF rows, by from_sequence", ours(ps.from_sequence(dataset)), by_them, at_least=0.95)
    with_workers(bench, dataset)
    bench.versus("HF rows, by from_arrow", ours(ps.from_arrow(files)), by_them, at_least=1.0)
    bench.versus(
        "HF batches, by from_arrow", ours(ps.from_arrow(files).batch(BATCH)), batches_of_them, at_least=1.0
    )
    bench.versus(
        "HF shuffled rows, by from_arrow", ours(ps.from_arrow(files).shuffle()), shuffled_by_them, at_least=1.0
    )


def with_workers(bench: Bench, dataset: Any) -> None:
    """The same rows by two worker processes that are up, ours and torch's."""
    if find_spec("torch") is None:
        return
    from torch.utils.data import DataLoader

    theirs = DataLoader(dataset, BATCH, num_workers=2, persistent_workers=True, collate_fn=_peers.map_list)
    sum(1 for _ in theirs)
    # Ours is one loader too, with an epoch per run. It has begun the next epoch by up to 6 of its 196 batches.
    pipeline = ps.from_sequence(dataset).map(_same, on="process", workers=2).batch(BATCH, collate=list)
    with pipeline.loader() as loader:
        name = "HF rows, two processes, over torch DataLoader"
        bench.versus(name, lambda: held(loader), lambda: held(theirs), at_least=1.0)


def _same(row: Any) -> Any:
    return row


# ---------------------------------------------------------------------- files, and other loaders


def files(bench: Bench, folder: Path) -> None:
    for size, n in ((4_000, bench.size(10_000, quick=500)), (100_000, bench.size(2_000, quick=200))):
        root = folder / f"files-{size}"
        paths = []
        for number in range(n):
            path = root / str(number % 10) / f"{number:06}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_peers.sample(number, size)["jpg"])
            paths.append(str(path))

        def by_open(paths: list[str] = paths) -> int:
            return held({"data": _peers.read_bytes(path), "path": path} for path in paths)

        bench.versus(f"files of {size // 1000} KB", ours(ps.from_files(paths)), by_open, at_least=0.95)
    for workers in (0, 2):
        image_folder(bench, folder / "files-4000", workers)


def image_folder(bench: Bench, folder: Path, workers: int) -> None:
    try:
        theirs = _peers.image_folder(folder, BATCH, workers)
    except Exception as exc:
        _peers.absent("ImageFolder", exc)
        return

    def by_them() -> int:
        return sum(len(batch) for batch in theirs)

    by_them()
    pipeline = ps.from_folder(folder).batch(BATCH, collate=list)
    options = {"on": "thread", "workers": workers} if workers else {}

    def by_us() -> int:
        with pipeline.loader(epochs=1, **options) as loader:
            return sum(len(batch) for batch in loader)

    name = f"folder, over ImageFolder, {workers} workers" if workers else "folder, over ImageFolder, no workers"
    bench.versus(name, by_us, by_them, at_least=1.0)


def peers(bench: Bench, folder: Path) -> None:
    n = bench.size(10_000, quick=500)
    with tarfile.open(folder / "peer.tar", "w") as archive:
        for number in range(n):
            one = _peers.sample(number)
            for name, content in ((f"{number:08}.jpg", one["jpg"]), (f"{number:08}.cls", b"%d" % one["cls"])):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    for name, make in _peers.PEERS.items():
        try:
            in_order, shuffled = make(folder, n)
            in_order()
        except Exception as exc:
            _peers.absent(name, exc)
            continue
        hf = name.startswith("Hugging Face")
        pipeline = ps.from_parquet(folder / "peer.parquet") if hf else ps.from_tar(folder / "peer.tar", decode=True)
        bench.versus(f"in order, over {name}", _counted(pipeline), in_order, at_least=1.0)
        bench.versus(f"shuffled, over {name}", _counted(pipeline.shuffle()), shuffled, at_least=1.0)


def _counted(pipeline: Any) -> Callable[[], int]:
    def run() -> int:
        with pipeline.loader(epochs=1) as loader:
            return _peers.count(loader)

    return run


PARTS = (tar, first_thousand, lines, tfrecord, lmdb, tables, arrays, hugging_face, files, peers)


def main() -> None:
    arguments, chosen = sys.argv[1:], [part.__name__ for part in PARTS]
    if "--only" in arguments:
        at = arguments.index("--only")
        chosen = arguments[at + 1].split(",")
        del arguments[at : at + 2]
    bench = Bench("formats", __doc__, arguments)
    same_mallopt_as_our_workers()  # for both sides: otherwise page faults of new memory are what is measured
    with tempfile.TemporaryDirectory() as name:
        os.environ["PENSTOCK_CACHE"] = f"{name}/cache"
        for part in PARTS:
            if part.__name__ in chosen:
                part(bench, Path(name))
    bench.finish()


if __name__ == "__main__":
    main()
