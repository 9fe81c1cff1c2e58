"""The functions that make a pipeline from data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from penstock.errors import OnError
from penstock.ops.call import Retry
from penstock.pipeline import Pipeline
from penstock.ported import names_ours
from penstock.sources.arrays import ArraySource
from penstock.sources.combine import ConcatSource, ZipSource
from penstock.sources.fake import FakeSource
from penstock.sources.iterable import IterableSource
from penstock.sources.sequence import SequenceSource

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal
    from fractions import Fraction
    from os import PathLike

    #: what `mix` takes of each pipeline
    Component = Pipeline[T] | tuple[Pipeline[T], float | Fraction | Decimal]


class Dataset(Protocol[T_co]):
    """Anything with a length and samples by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


@names_ours
def from_sequence(
    dataset: Dataset[T],
    *,
    indices: Iterable[int] | None = None,
    with_index: bool = False,
    on_error: OnError | Retry = "raise",
    timeout_s: float | None = None,
) -> Pipeline[T]:
    """Samples ``dataset[i]``: a list, a torch map-style dataset, a Hugging Face dataset.

    Several at once by ``dataset.__getitems__`` where there is one. ``indices`` are the samples to
    use, in their order; ``with_index=True`` makes each sample ``(index, sample)``.

    ``on_error`` and ``timeout_s`` are those of ``map``, for the reads: a sample that cannot be read is skipped or
    read again, a read that takes too long fails. Samples are then read one by one.

    >>> list(from_sequence("abc", indices=[2, 0]))
    ['c', 'a']
    """
    source = SequenceSource(dataset, indices, with_index)
    if on_error == "raise" and timeout_s is None:
        return Pipeline(source)
    from penstock.ops.read import Fetch, Read
    from penstock.sources.numbers import Items, Numbers

    fetch = Fetch(Items(source), written=type(dataset))
    read = Read(fetch, on_error=on_error, timeout_s=timeout_s, name=type(dataset).__name__)
    return Pipeline(Numbers(source)).apply(read)


def from_arrays(*arrays: Any, indices: Iterable[int] | None = None, with_index: bool = False) -> Pipeline[Any]:
    """Rows of arrays: a tuple of rows for several, a row for one, a dict of rows for a dict.

    An array is anything with ``len`` and ``[]``: numpy arrays and memmaps, h5py, zarr, or an
    accessor of your own that takes an int or a 1-D integer array. Over real arrays a batch is one
    vectorised read. Rows are read-only, as they are still the array's own; a batch is yours.

    ``indices`` are the rows to use, in their order. ``with_index=True`` puts the row's number
    first in a tuple, or into the field ``"index"`` of a dict.

    >>> import numpy as np
    >>> x, y = np.arange(6).reshape(3, 2), np.array([0, 1, 0])
    >>> [(a.tolist(), b.tolist()) for a, b in from_arrays(x, y).batch(2)]
    [([[0, 1], [2, 3]], [0, 1]), ([[4, 5]], [0])]
    """
    if len(arrays) == 1 and isinstance(arrays[0], Mapping):
        return Pipeline(ArraySource(arrays[0], indices, with_index))
    return Pipeline(ArraySource(arrays, indices, with_index))


def from_files(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    read: bool = True,
    indices: Iterable[int] | None = None,
    manifest: str | PathLike[str] | None = None,
    allow_empty: bool = False,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Pipeline[Any]:
    """The bytes of files with their paths: ``{"data": bytes, "path": str}``; with ``read=False`` the path alone.

    ``paths`` is a folder (all files below it), a glob (``"data/**/*.wav"``), a pattern with braces
    (``"part-{000..099}.bin"``), or a list, each a local path or a URL: ``s3://``, ``gs://``, ``az://``, ``https://``
    (``pip install "penstock[cloud]"``), or any other that fsspec knows. Folders and globs are sorted, and hidden
    names left out; lists and braces keep their order. A list of names is taken as it is: a file that is missing is
    found when it is read.

    ``manifest`` names a file that keeps the listing, so that a million names are listed once; delete it to list
    again. A file that is missing, unreadable or empty (unless ``allow_empty``) is an error with its name;
    ``on_error="skip"`` leaves it out and counts it in ``loader.errors()``. ``storage_options`` are for the store;
    its keys ``tries``, ``attempt_s`` and ``total_s`` say how often and how long a remote read is tried.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "a.txt").write_bytes(b"penstock")
    ...     [sample["data"] for sample in from_files(f"{folder}/*.txt")]
    [b'penstock']
    """
    from penstock.sources.files import FileSource

    return Pipeline(
        FileSource(
            paths,
            read=read,
            indices=indices,
            manifest=manifest,
            allow_empty=allow_empty,
            on_error=on_error,
            storage_options=storage_options,
        )
    )


def from_folder(
    path: str | PathLike[str],
    *,
    pattern: str = "**/*",
    read: bool = True,
    labels: Literal["folder"] | None = "folder",
    indices: Iterable[int] | None = None,
    manifest: str | PathLike[str] | None = None,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Pipeline[dict[str, Any]]:
    """A folder of images with a folder for each class: ``{"image": bytes, "label": int, "path": str}``.

    The label is the number of the file's first-level folder among the sorted names of all such folders, which are
    ``pipeline.source.classes``; ``pipeline.source.labels`` are the labels of all files. ``labels=None`` leaves the
    label out, ``read=False`` the bytes. ``pattern`` says which files below the folder are used. The folder may be a
    URL; ``manifest``, ``on_error`` and ``storage_options`` are those of `from_files`.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("dog", "cat"):
    ...         pathlib.Path(folder, name).mkdir()
    ...         _ = pathlib.Path(folder, name, "1.jpg").write_bytes(name.encode())
    ...     data = from_folder(folder)
    ...     data.source.classes, [(sample["label"], sample["image"]) for sample in data]
    (['cat', 'dog'], [(0, b'cat'), (1, b'dog')])
    """
    from penstock.sources.folder import FolderSource

    return Pipeline(
        FolderSource(
            path,
            pattern=pattern,
            read=read,
            labels=labels,
            indices=indices,
            manifest=manifest,
            on_error=on_error,
            storage_options=storage_options,
        )
    )


@names_ours
def from_iterable(factory: Callable[[], Iterable[T]] | Iterable[T]) -> Pipeline[T]:
    """Samples of an iterable, read forward: a function that makes a new one for every epoch, or
    one that can be iterated again.

    >>> def numbers():
    ...     yield from range(3)
    >>> list(from_iterable(numbers))
    [0, 1, 2]
    """
    return Pipeline(IterableSource(factory))


def fake(spec: Any, length: int = 1_000, *, constant: bool = False) -> Pipeline[Any]:
    """Made-up samples, to measure everything else: ``{"x": ((224, 224, 3), "uint8")}``.

    Random ones depend on their index alone; with ``constant=True`` all are the same zeros.

    >>> sample, = fake({"x": ((2, 2), "uint8")}, length=1)
    >>> sample["x"].shape, sample["x"].dtype
    ((2, 2), dtype('uint8'))
    """
    return Pipeline(FakeSource(spec, length, constant))


def zip(*pipelines: Pipeline[Any]) -> Pipeline[Any]:
    """Tuples of one sample of each pipeline; ends with the shortest.

    >>> list(zip(from_sequence("ab"), from_sequence([1, 2, 3])))
    [('a', 1), ('b', 2)]
    """
    return Pipeline(ZipSource(pipelines))


def concat(*pipelines: Pipeline[T]) -> Pipeline[T]:
    """One pipeline after the other.

    >>> list(concat(from_sequence([1, 2]), from_sequence([3])))
    [1, 2, 3]
    """
    return Pipeline(ConcatSource(pipelines))


def mix(
    components: Mapping[str, Component[T]] | Iterable[Component[T]],
    *,
    stop: Literal["first", "all", "cycle"] = "first",
) -> Pipeline[T]:
    """Samples of several pipelines, drawn in given proportions: ``mix({"a": (p, 0.7), "b": (q, 0.3)})``.

    After any number of draws, each component has given its share of them, rounded down or up. Within
    that bound the order is random, and new in every epoch: a fixed one would have a period, so that what
    is taken from it at regular steps (every second sample, for one of two ranks) could be one
    component's alone. Weights need not add up to 1, and are taken as written: 0.7 is seven tenths.
    Without weights all are equal. The components of a list are called ``"0"``, ``"1"``, ...

    ``stop`` says when the epoch ends:

    * ``"first"``: when the first component cannot give its share any more;
    * ``"all"``: when all have ended; the others go on in their proportions when one has;
    * ``"cycle"``: when every component has been run through at least once. One that has ended before
      begins again, as an epoch of its own: a shuffle in it has a new order.

    >>> letters, numbers = from_sequence("abc"), from_sequence(range(100))
    >>> data = mix({"letters": (letters, 0.25), "numbers": (numbers, 0.75)})
    >>> len(data), sum(isinstance(sample, str) for sample in data)
    (12, 3)
    """
    from penstock.sources.mix import MixSource

    return Pipeline(MixSource(components, stop))
