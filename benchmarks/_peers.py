"""Other loaders over the same samples, each in its own format: 10 KB of bytes and a class number per sample.

A peer that cannot be imported is named and left out. None of them is a dependency of the tests:
``pip install -r requirements-bench.txt`` brings them.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

CLASSES = 10
DATA = os.urandom(1 << 20)

#: runs over all samples, in order or shuffled, and says how many there were
Run = Callable[[], int]


def sample(number: int, size: int = 10_000) -> dict[str, Any]:
    """The same bytes for everybody; all different, so that nothing is saved by compression."""
    at = number * 997 % (len(DATA) - size)
    return {"jpg": DATA[at : at + size], "cls": number % CLASSES}


def absent(name: str, exc: BaseException) -> None:
    reason = str(exc).strip().splitlines()
    print(f"  {name}: absent ({type(exc).__name__}: {reason[0] if reason else ''})", flush=True)


def count(samples: Iterable[Any]) -> int:
    number = 0
    for one in samples:
        assert len(one["jpg"]) == 10_000
        number += 1
    return number


def import_torchvision() -> Any:
    """torchvision, also where its compiled ops do not load because torch is another build.

    Data sets and transforms are Python. Only the declarations of two ops are needed to import them;
    ``torchvision.io`` does not decode then.
    """
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for _ in range(10):
        try:
            import torchvision

            return torchvision
        except RuntimeError as exc:
            found = re.search(r"torchvision::(\w+) does not exist", str(exc))
            if found is None:
                raise
            library.define(f"{found[1]}(Tensor a) -> Tensor")
            for name in [name for name in sys.modules if name.startswith("torchvision")]:
                del sys.modules[name]
    raise ImportError("torchvision cannot be imported")


# ---------------------------------------------------------------------- peers: (in order, shuffled)


def webdataset(folder: Path, n: int) -> tuple[Run, Run]:
    import webdataset

    path = str(folder / "peer.tar")  # which the caller has written, since we read it too

    def samples(shuffled: bool) -> Iterable[Any]:
        dataset = webdataset.WebDataset(path, shardshuffle=False)
        return dataset.shuffle(1000) if shuffled else dataset

    return lambda: count(samples(False)), lambda: count(samples(True))


def grain_array_record(folder: Path, n: int) -> tuple[Run, Run]:
    import grain
    from array_record.python.array_record_module import ArrayRecordWriter

    path = str(folder / "peer.array_record")
    writer = ArrayRecordWriter(path, "group_size:1,uncompressed")
    for number in range(n):
        one = sample(number)
        writer.write(one["cls"].to_bytes(4, "little") + one["jpg"])
    writer.close()
    source = grain.sources.ArrayRecordDataSource(path)
    parsed = grain.MapDataset.source(source).map(_parsed)
    return lambda: count(parsed.to_iter_dataset()), lambda: count(parsed.shuffle(seed=0).to_iter_dataset())


def _parsed(record: bytes) -> dict[str, Any]:
    return {"jpg": record[4:], "cls": int.from_bytes(record[:4], "little")}


def litdata(folder: Path, n: int) -> tuple[Run, Run]:
    """LitData maps a chunk into memory, and in order Arrow makes some 250 samples of it in one call in C.

    Ours reads with system calls, so that a file that is cut short is an error and does not end the process.
    """
    import litdata

    path = str(folder / "litdata")
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        litdata.optimize(sample, list(range(n)), path, num_workers=1, chunk_bytes="64MB")
    in_order = litdata.StreamingDataset(path, shuffle=False)
    shuffled = litdata.StreamingDataset(path, shuffle=True)
    return lambda: count(in_order), lambda: count(shuffled)


def mosaicml(folder: Path, n: int) -> tuple[Run, Run]:
    import_torchvision()  # which it imports by way of transformers
    from streaming import MDSWriter, StreamingDataset

    path = str(folder / "mds")
    with MDSWriter(out=path, columns={"jpg": "bytes", "cls": "int"}, size_limit="64mb") as writer:
        for number in range(n):
            writer.write(sample(number))
    in_order = StreamingDataset(local=path, shuffle=False, batch_size=64)
    shuffled = StreamingDataset(local=path, shuffle=True, batch_size=64, num_canonical_nodes=1)
    return lambda: count(in_order), lambda: count(shuffled)


def hf_parquet(folder: Path, n: int) -> tuple[Run, Run]:
    dataset = _hf(folder, n)
    return lambda: count(dataset), lambda: count(dataset.shuffle(seed=0))


def hf_streaming(folder: Path, n: int) -> tuple[Run, Run]:
    _hf(folder, n)
    import datasets

    path = str(folder / "peer.parquet")
    stream = datasets.load_dataset("parquet", data_files=path, split="train", streaming=True)
    return lambda: count(stream), lambda: count(stream.shuffle(seed=0, buffer_size=1000))


def _hf(folder: Path, n: int) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets

    datasets.disable_progress_bars()
    path = folder / "peer.parquet"
    if not path.exists():
        rows = [sample(number) for number in range(n)]
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    return datasets.Dataset.from_parquet(str(path), cache_dir=str(folder / "hf-cache"))


PEERS: dict[str, Callable[[Path, int], tuple[Run, Run]]] = {
    "webdataset": webdataset,
    "Grain over ArrayRecord": grain_array_record,
    "LitData": litdata,
    "MosaicML Streaming": mosaicml,
    "Hugging Face, Arrow from Parquet": hf_parquet,
    "Hugging Face, Parquet as a stream": hf_streaming,
}


# ---------------------------------------------------------------------- folders


def read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def image_folder(folder: Path, batch: int, workers: int) -> Any:
    """torch DataLoader over torchvision's ImageFolder, with workers that are up; batches are lists."""
    import_torchvision()
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(str(folder), loader=read_bytes)
    options = {"num_workers": workers, "persistent_workers": True} if workers else {}
    return DataLoader(dataset, batch, collate_fn=partial(map_list), **options)  # type: ignore[arg-type]


def map_list(samples: list[Any]) -> list[Any]:
    return samples
