"""Does decoding on two threads or two processes cost more than two loops that do nothing else?

Contestants: 1000 photo-like JPEGs of 500 x 375, made here and kept in memory; each is decoded, cropped at
random, resized to 224 x 224 and flipped at random with Pillow, then stacked in batches of 64;
  bare    two plain loops in two threads, each with half the images and a generator of its own
  ours    map(..., rng=True, workers=2).batch(64), whose draws are the same for any number of workers
and the same with processes:
  bare    two processes that are up, have the images and keep the batches to themselves; the allocator is set
          as in our workers
  ours    the same with on=pool, a pool of two processes that are up; every run is a new loader on it
  torch   DataLoader with two workers that are up, if it is installed           target: at least its rate
Target: at least 0.95 of the bare rate, in pairs in which the bare loops had two cores to themselves.

The same images from a folder, without augmentation, to batches of 64 x 224 x 224, on two threads:
  bare    two loops in two threads that read and call decode_image; and that call simplejpeg and OpenCV
  ours    from_folder().map(decode_image(size=(224, 224)), workers=2).batch(64)
  peers   torch DataLoader over ImageFolder (Pillow); SPDL, Grain and tensorpack with the same simplejpeg and OpenCV
          calls; two workers each; whoever is not installed is named             target: at least their rate
Scaled decoding by itself: decode_image(size=180), which decodes at half the size, over decode_image() and resize.
"""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import _peers
import numpy as np
from _measure import BareProcesses, Bench
from numpy.typing import NDArray
from PIL import Image

import penstock as ps

WIDTH, HEIGHT, SIDE, BATCH = 500, 375, 224, 64


def make_jpegs(count: int) -> list[bytes]:
    """Smooth random fields of several scales with a little grain: they compress like photos."""
    rng = np.random.default_rng(0)
    grain = rng.normal(0, 7, (2 * HEIGHT, 2 * WIDTH, 1)).astype(np.float32)
    return [_encode(_photo(rng, grain)) for _ in range(count)]


def _photo(rng: np.random.Generator, grain: NDArray[np.float32]) -> NDArray[np.uint8]:
    top, left = rng.integers(0, HEIGHT), rng.integers(0, WIDTH)
    field = grain[top : top + HEIGHT, left : left + WIDTH] + np.zeros(3, np.float32)
    for cells, strength in ((3, 0.55), (12, 0.3), (48, 0.15)):
        small = Image.fromarray(rng.integers(0, 256, (cells * 3 // 4 + 1, cells, 3), dtype=np.uint8))
        field += strength * np.asarray(small.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32)
    return field.clip(0, 255).astype(np.uint8)


def _encode(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=85)
    return file.getvalue()


def augment(jpeg: bytes, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Decode, crop a random square of at least 60 % of the height, resize, flip every second time."""
    image = Image.open(io.BytesIO(jpeg))
    side = int(rng.integers(HEIGHT * 6 // 10, HEIGHT + 1))
    left, top = int(rng.integers(0, WIDTH - side + 1)), int(rng.integers(0, HEIGHT - side + 1))
    box = (left, top, left + side, top + side)
    small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
    if rng.random() < 0.5:
        small = small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(small)


def plain_loop(jpegs: Sequence[bytes], seed: int) -> Iterable[NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    for first in range(0, len(jpegs), BATCH):
        yield np.stack([augment(jpeg, rng) for jpeg in jpegs[first : first + BATCH]])


def consume(batches: Iterable[Any]) -> int:
    samples = 0
    for batch in batches:
        if batch.shape[1:] != (SIDE, SIDE, 3):
            raise AssertionError(f"expected images of {(SIDE, SIDE, 3)}, got a batch of {batch.shape}")
        samples += len(batch)
    return samples


def two_threads(items: Sequence[Any], loop: Any = plain_loop) -> int:
    """`loop(half, seed)` in two threads, each over half of the items."""
    counts: list[int] = []
    halves = items[: len(items) // 2], items[len(items) // 2 :]
    threads = [
        threading.Thread(target=lambda half=half, seed=seed: counts.append(consume(loop(half, seed))))
        for seed, half in enumerate(halves)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


class Augmented:
    """A data set for torch, with a generator per worker."""

    def __init__(self, jpegs: Sequence[bytes]) -> None:
        self.jpegs = jpegs
        self.rng: np.random.Generator | None = None

    def __len__(self) -> int:
        return len(self.jpegs)

    def __getitem__(self, i: int) -> NDArray[np.uint8]:
        if self.rng is None:
            self.rng = np.random.default_rng()
        return augment(self.jpegs[i], self.rng)


def on_processes(bench: Bench, jpegs: Sequence[bytes]) -> None:
    # An even number of whole batches: with an odd one, somebody has to make the last while the other waits.
    batches = 2 * (len(jpegs) // BATCH)
    jpegs = [jpegs[i % len(jpegs)] for i in range(batches * BATCH)]
    shares = [(jpegs[seed::2], seed) for seed in range(2)]
    bare = BareProcesses(lambda share: consume(plain_loop(*share)), shares)
    loader = _torch_loader(jpegs)  # forks its workers, which a process with threads had better not
    with ps.Processes(2) as pool:
        pipeline = ps.from_sequence(jpegs).map(augment, rng=True, on=pool).batch(BATCH)
        bench.versus("two processes", lambda: consume(pipeline), bare, at_least=0.95, cores=2)
        if loader is not None:
            ours, torch = (lambda: consume(pipeline)), (lambda: consume(loader))
            bench.versus("two processes, torch DataLoader", ours, torch, at_least=1)
    bare.close()


def _torch_loader(jpegs: Sequence[bytes]) -> Any:
    try:
        from torch.utils.data import DataLoader
    except ImportError as exc:
        print(f"  torch: left out, {exc}", flush=True)
        return None
    loader = DataLoader(Augmented(jpegs), BATCH, num_workers=2, persistent_workers=True)  # type: ignore[arg-type]
    consume(loader)
    return loader


# ---------------------------------------------------------------------- from a folder


def by_hand(path: str) -> NDArray[np.uint8]:
    """What `decode_image` does to such a file, without its checks."""
    import cv2
    import simplejpeg

    image = simplejpeg.decode_jpeg(_peers.read_bytes(path), "RGB", min_height=SIDE, min_width=SIDE)
    return cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)  # type: ignore[no-any-return]


DECODE = ps.decode_image(size=(SIDE, SIDE))


def by_decode_image(path: str) -> NDArray[np.uint8]:
    return DECODE(_peers.read_bytes(path))  # type: ignore[no-any-return]


def folder_loop(paths: Sequence[str], seed: int, decode: Any) -> Iterable[NDArray[np.uint8]]:
    for first in range(0, len(paths), BATCH):
        yield np.stack([decode(path) for path in paths[first : first + BATCH]])


def from_folder(bench: Bench, jpegs: Sequence[bytes], folder: Path) -> None:
    import cv2

    cv2.setNumThreads(1)  # on all sides: two workers are two threads
    paths = []
    for number, jpeg in enumerate(jpegs):
        path = folder / str(number % 10) / f"{number:05}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg)
        paths.append(str(path))
    pipeline = ps.from_folder(folder).map(DECODE, key="image", workers=2).batch(BATCH)

    def ours() -> int:
        return consume(batch["image"] for batch in pipeline)

    for name, one in (("decode_image", by_decode_image), ("simplejpeg and OpenCV", by_hand)):
        bare = partial(two_threads, paths, partial(folder_loop, decode=one))
        bench.versus(f"folder, over two loops of {name}", ours, bare, at_least=1.0, cores=2)
    for name, make in (("torch", torch_folder), ("SPDL", spdl), ("Grain", grain), ("tensorpack", tensorpack)):
        try:
            theirs = make(folder, paths)
            assert theirs() == len(paths)
        except Exception as exc:
            _peers.absent(name, exc)
            continue
        bench.versus(f"folder, over {name}", ours, theirs, at_least=1.0)


def torch_folder(folder: Path, paths: Sequence[str]) -> Any:
    _peers.import_torchvision()
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = v2.Compose([v2.Resize((SIDE, SIDE)), v2.PILToTensor()])
    loader = DataLoader(ImageFolder(str(folder), steps), BATCH, num_workers=2, persistent_workers=True)
    return lambda: consume(images.permute(0, 2, 3, 1) for images, _ in loader)


def spdl(folder: Path, paths: Sequence[str]) -> Any:
    from spdl.pipeline import PipelineBuilder

    def run() -> int:
        builder = PipelineBuilder().add_source(paths).pipe(by_hand, concurrency=2, output_order="input")
        pipeline = builder.aggregate(BATCH).pipe(np.stack).add_sink(3).build(num_threads=2)
        with pipeline.auto_stop():
            return consume(pipeline)

    return run


def grain(folder: Path, paths: Sequence[str]) -> Any:
    from grain import MapDataset
    from grain.python import ReadOptions

    data = MapDataset.source(list(paths)).map(by_hand).batch(BATCH)
    return lambda: consume(data.to_iter_dataset(ReadOptions(num_threads=2, prefetch_buffer_size=8)))


def tensorpack(folder: Path, paths: Sequence[str]) -> Any:
    from tensorpack.dataflow import BatchData, DataFromList, MultiThreadMapData

    items = DataFromList([(path,) for path in paths], shuffle=False)
    # Its threads decode so many of the next run before that begins: few, so that they do not count.
    mapped = MultiThreadMapData(items, 2, lambda item: (by_hand(item[0]),), buffer_size=8, strict=True)
    batches = BatchData(mapped, BATCH, remainder=True)
    batches.reset_state()
    return lambda: consume(batch for (batch,) in batches)


def scaled(bench: Bench, jpegs: Sequence[bytes]) -> None:
    half, full, resize = ps.decode_image(size=180), ps.decode_image(), ps.image.resize((188, 250))

    def by_scale() -> int:
        return sum(half(jpeg).shape == (188, 250, 3) for jpeg in jpegs)

    def by_resize() -> int:
        return sum(resize(full(jpeg)).shape == (188, 250, 3) for jpeg in jpegs)

    bench.versus("scaled decoding, over decoding and resize", by_scale, by_resize, at_least=1.0)


def main() -> None:
    bench = Bench("decode", __doc__)
    jpegs = make_jpegs(bench.size(1000, quick=128))
    print(f"  {len(jpegs)} JPEGs, {sum(map(len, jpegs)) / len(jpegs) / 1000:.0f} KB on average", flush=True)
    pipeline = ps.from_sequence(jpegs).map(augment, rng=True, workers=2).batch(BATCH)

    bare = partial(two_threads, jpegs)
    bench.versus("two threads", lambda: consume(pipeline), bare, at_least=0.95, cores=2)
    on_processes(bench, jpegs)
    with tempfile.TemporaryDirectory() as folder:
        from_folder(bench, jpegs, Path(folder))
    scaled(bench, jpegs)
    bench.finish()


if __name__ == "__main__":
    main()
