"""Samples on their way between our own processes: a small header, and one memory with everything large.

Pickle (protocol 5) describes the samples; arrays and tensors are left out of the pickle and copied into the memory.
That is up to three times as fast as `penstock.memory.network` for small values, and about as fast for arrays
(`benchmarks/payload.py`). Decode only what one of our own processes has sent: unpickling runs code.

* **Copied once.** `layout_of` only measures; `Layout.write` copies every array straight to its place.
* **Viewed, not copied.** Arrays and tensors that were decoded look into the memory and keep it alive. They can be
  written to if the memory can.
* **As they were**: type, values, the order of axes in memory, and what is shared between the samples of one layout.
  Arrays with gaps become contiguous, a memmap becomes an array, and tensors arrive on the CPU.
"""

from __future__ import annotations

import marshal
import pickle
import sys
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from penstock.errors import NotCarried
from penstock.memory.classes import find_class, needs_reference, reference
from penstock.tensors import ARRAY_DTYPES, array_of, dtype_name, tensor_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

#: where arrays begin in the memory: a multiple of the cache line, which suits every dtype
ALIGNMENT = 64
#: a pickle of at least this many bytes is in the memory too, and not in the header
LARGE_BYTES = 4096

#: stands in a pickle where an array was left out
_APART = pickle.PickleBuffer(bytearray())


class _Apart:
    """What was left out of a pickle. Not part of the pickler: the two would keep each other alive."""

    def __init__(self, least_bytes: int) -> None:
        self.arrays: list[NDArray[Any]] = []
        #: arrays that were left out, and whose place in the pickle comes next
        self.pending: list[NDArray[Any]] = []
        self.least_bytes = least_bytes

    def stays(self, buffer: pickle.PickleBuffer) -> bool:
        """Pickle calls this for each buffer, and writes the buffer into the pickle if the answer is true."""
        if buffer is _APART:
            self.arrays.append(self.pending.pop(0))
            return False
        try:  # the buffer of an object that is neither array nor tensor
            raw = np.frombuffer(buffer.raw(), np.uint8)
        except (BufferError, ValueError):  # it is not contiguous, or empty
            return True
        if raw.nbytes >= self.least_bytes:
            self.arrays.append(raw)
        return raw.nbytes < self.least_bytes


class ArrayPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves arrays and tensors out of the pickle: `arrays` has them, in the order in which unpickling wants them.

    Unpickling wants each as a buffer with its bytes in C order. Other objects of protocol 5 may leave buffers
    out too, of `least_bytes` and more.
    """

    def __init__(self, file: Any, least_bytes: int = 0) -> None:
        self._apart = _Apart(least_bytes)
        super().__init__(file, 5, buffer_callback=self._apart.stays)

    @property
    def arrays(self) -> list[NDArray[Any]]:
        return self._apart.arrays

    def apart(self, array: NDArray[Any]) -> Any:
        """Leave an array out. What this returns must be among the first arguments of the reduction."""
        self._apart.pending.append(array)
        return _APART

    def array(self, array: NDArray[Any], writeable: bool = True) -> Any:
        """The reduction of an array whose bytes are left out; NotImplemented if it holds Python objects."""
        dtype = array.dtype
        if dtype.hasobject:
            return NotImplemented
        plain, strides = (array, None) if array.flags.c_contiguous else in_memory_order(array)
        form = dtype.char if dtype.isbuiltin == 1 else dtype, array.shape, strides, writeable
        if dtype.names and array.size:
            # Copied as plain bytes, and not field by field.
            plain = plain.view(np.dtype((np.void, dtype.itemsize)))
        return make_array, (self.apart(plain), *form)

    def tensor(self, tensor: Any) -> Any:
        """The reduction of a tensor whose bytes are left out; NotImplemented if torch has to pickle it."""
        if not tensor.is_leaf:
            raise NotCarried(
                "a tensor that was computed from others that require grad cannot be sent, since its history "
                "would be lost; call .detach() on it, or compute it under torch.no_grad()"
            )
        name = None if vars(tensor) else dtype_name(tensor)
        if name is None:
            return NotImplemented
        array = array_of(tensor)
        plain, strides = (array, None) if array.flags.c_contiguous else in_memory_order(array)
        form = name, tuple(tensor.shape), strides, tensor.requires_grad
        return make_tensor, (self.apart(np.ascontiguousarray(plain)), *form)


def in_memory_order(array: NDArray[Any]) -> tuple[NDArray[Any], tuple[int, ...] | None]:
    """An array with its axes as they lie in memory, and its strides; itself and None if there are gaps between.

    So an array that was transposed is copied in one piece, and arrives as it was.
    """
    turned = array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
    return (turned, array.strides) if turned.flags.c_contiguous else (array, None)


def make_array(buffer: Any, dtype: Any, shape: tuple[int, ...], strides: Any, writeable: bool) -> NDArray[Any]:
    """An array that looks into a buffer."""
    array: NDArray[Any] = np.ndarray(shape, dtype, buffer, strides=strides)
    if not writeable:
        array.flags.writeable = False
    return array


def make_tensor(buffer: Any, name: str, shape: tuple[int, ...], strides: Any, requires_grad: bool) -> Any:
    """A tensor that looks into a buffer."""
    tensor = tensor_of(np.ndarray(shape, ARRAY_DTYPES[name], buffer, strides=strides), name)
    return tensor.requires_grad_() if requires_grad else tensor


def tensor_type() -> Any:
    """torch.Tensor, if the program has imported torch."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


class _SamplePickler(ArrayPickler):
    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is np.ndarray:
            return self.array(obj)
        if obj is make_array or obj is make_tensor:
            return NotImplemented  # cloudpickle would take ten times as long to find their names
        if kind is np.memmap:
            plain = obj.view(np.ndarray)
            reduced = self.array(plain)
            return plain.__reduce_ex__(5) if reduced is NotImplemented else reduced
        if kind is tensor_type():
            return self.tensor(obj)
        if issubclass(kind, type) and needs_reference(obj):
            return find_class, reference(obj)
        return super().reducer_override(obj)


class _Stream(list[bytes]):
    """A file that keeps what pickle writes. Large bytes objects are kept themselves, and not copied."""

    write = list.append


class Layout:
    """Samples that have been measured: their header, and how many bytes of memory they need.

    It looks at their arrays until it is dropped; what is written is what they hold by then.

    >>> layout = layout_of({"x": np.arange(3), "name": "a"})
    >>> memory = bytearray(layout.nbytes)
    >>> layout.write(memory)
    >>> decode(layout.header, memory)
    {'x': array([0, 1, 2]), 'name': 'a'}
    """

    __slots__ = ("_arrays", "_stream", "header", "nbytes")

    def __init__(self, stream: list[bytes], arrays: list[NDArray[Any]]) -> None:
        #: arrays, and where in the memory they go; the pickle comes after them if it is large
        self._arrays: list[tuple[NDArray[Any], int]] = []
        self._stream = stream
        end = 0
        for array in arrays:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            self._arrays.append((array, start))
            end = start + array.nbytes
        size = sum(map(len, stream))
        pickled: bytes | int = size
        if size < LARGE_BYTES:
            pickled, size = b"".join(stream), 0
            self._stream = []
        self.nbytes = end + size
        #: the size of each array, and the pickle, or its size if it is in the memory
        self.header = marshal.dumps(([array.nbytes for array in arrays], pickled))

    def write(self, memory: WriteableBuffer) -> None:
        """Copy everything to its place. What lies between is left as it is."""
        view = memoryview(memory).cast("B")
        if view.nbytes < self.nbytes:
            raise ValueError(f"the samples need {self.nbytes} bytes, the memory has {view.nbytes}")
        end = 0
        for array, start in self._arrays:
            np.copyto(np.ndarray(array.shape, array.dtype, view, start), array)
            end = start + array.nbytes
        for part in self._stream:
            view[end : end + len(part)] = part
            end += len(part)

    def buffers(self) -> list[bytearray]:
        """The memory itself, for a message that has no block."""
        memory = bytearray(self.nbytes)
        self.write(memory)
        return [memory]


def layout_of(samples: Any) -> Layout:
    """Measure samples. Raises what pickling raises; arrays and large bytes are not copied."""
    stream = _Stream()
    pickler = _SamplePickler(stream)
    pickler.dump(samples)
    return Layout(stream, pickler.arrays)


def decode(header: bytes, memory: ReadableBuffer = b"") -> Any:
    """The samples of a layout, with arrays that look into `memory`, to which the layout was written."""
    sizes, stream = marshal.loads(header)
    view = memoryview(memory).cast("B")
    buffers, end = [], 0
    for size in sizes:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + size
        buffers.append(view[start:end])
    return pickle.loads(view[end : end + stream] if type(stream) is int else stream, buffers=buffers)
