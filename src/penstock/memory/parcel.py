"""Parcels: a program, pickled once and sent to every worker process, with its large arrays in shared memory.

Guarantees:

* Lambdas, closures, local classes and whatever `__main__`, a notebook or a module that the worker could not
  import defines are sent by value.
* Contiguous data of 1 MB and more is in shared memory once, however many workers there are: arrays, tensors
  and whatever else hands pickle its buffers. Parcels that live at the same time share their copies.
* A worker gets the values of the moment of `pack`. It may write to an array that the parent could write to:
  that page becomes the worker's own, and nobody else sees it.
* A `np.memmap` is opened again by its file name, and never copied. No worker writes to the file.
* h5py files, groups and data sets are opened again by file and name, in each worker that uses them.
* A list of 1 MB and more of strings, numbers and tuples of these is in shared memory too, see `packed`.
* What cannot be sent is a PlanError that names it, before any worker has started.
* A parcel has few descriptors, whatever the number of arrays: one, and one for each parcel it shares with.
"""

from __future__ import annotations

import importlib
import io
import mmap
import os
import pickle
import struct
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, update_wrapper
from itertools import count
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeAlias

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from penstock import system
from penstock.errors import PenstockError, PlanError
from penstock.memory import SHARED_BYTES, hdf5
from penstock.memory.block import Block, single_block
from penstock.memory.modules import importable, imported_by
from penstock.memory.packed import PackedList, pack_list, worth_packing
from penstock.memory.segment import SENDABLE, Mapping, same_bytes
from penstock.memory.unsendable import Part, Unsendable, explained, heaviest

__all__ = ["Parcel", "pack", "unpack"]

#: a pickle of more than this takes long to load, and workers copy what they use of it
_MOST_BYTES = 10_000_000
#: a shorter list is pickled as it is
_LONG_LIST = 1000
#: where an array starts in its block: a page of its own, so that what one array has written copies no other
_ALIGN = 4096

#: at the end of a parcel's data: block, offset and size of each buffer, and how many there are
_PLACE = struct.Struct("<qqq")
_COUNT = struct.Struct("<q")

#: the dtypes of torch that have a storage class of their own, by which torch pickles them
_PICKLED_BY_TORCH = {
    "bool", "uint8", "int8", "int16", "int32", "int64", "bfloat16", "float16", "float32", "float64",
    "complex64", "complex128",
}  # fmt: skip

_NAMED = (FunctionType, BuiltinFunctionType)
_Reduced: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
_Cached = type(lru_cache(len))
_Bytes: TypeAlias = NDArray[np.uint8]
_Key: TypeAlias = tuple[int, int]


@dataclass(frozen=True, eq=False, weakref_slot=True, slots=True)
class _Copy:
    """Where in shared memory an array is."""

    block: Block
    offset: int
    nbytes: int


@dataclass(frozen=True, eq=False, repr=False)
class Parcel:
    """A pickled program. Its memory is free when the last parcel over it is dropped and no worker maps it."""

    #: the pickle
    data: bytes
    #: shared memory with its large arrays; send their descriptors in this order
    blocks: list[Block]
    _copies: list[_Copy]
    #: packages that unpacking it imports
    packages: frozenset[str] = frozenset()
    #: modules that its functions import when they are called, and that are imported here
    later: tuple[str, ...] = ()
    #: its name among the parcels of this process
    token: int = field(default_factory=count(1).__next__)

    @property
    def nbytes(self) -> int:
        """Bytes to send to each worker."""
        return len(self.data)

    @property
    def shared_bytes(self) -> int:
        """Bytes of its arrays in shared memory."""
        return sum(copy.nbytes for copy in set(self._copies))

    def __repr__(self) -> str:
        return f"<Parcel: {self.nbytes} bytes, {self.shared_bytes} in {len(self.blocks)} blocks>"


def pack(value: Any, what: str, parts: Sequence[Part] = ()) -> Parcel:
    """Pickle `value` for workers. Raises PlanError where something in it cannot be sent.

    `what` is its name in messages. `parts` are things within it, each with a name of its own such as
    ``map(decode) at train.py:41``: where one of them is at fault, the message is about that.

    >>> parcel = pack({"table": np.zeros(500_000), "name": "a"}, "the program")
    >>> parcel.nbytes < 1000, parcel.shared_bytes
    (True, 4000000)
    >>> unpack(parcel.data, [os.dup(block.fd) for block in parcel.blocks])["table"].shape
    (500000,)
    """
    with _lock:
        try:
            file, pickler = _pickled(value)
        except (PenstockError, MemoryError):
            raise
        except Exception as exc:
            raise explained(exc, what, value, parts, _measured) from exc
        blocks, copies = _shared(pickler.sources, what)
        pickler.sources.clear()
        numbers = {id(block): number for number, block in enumerate(blocks)}
        for copy in copies:
            file.write(_PLACE.pack(numbers[id(copy.block)], copy.offset, copy.nbytes))
        file.write(_COUNT.pack(len(copies)))
        data = file.getvalue()
        if len(data) > _MOST_BYTES:
            warnings.warn(heaviest(len(data), what, value, parts, _measured), RuntimeWarning, stacklevel=2)
    return Parcel(data, blocks, copies, frozenset(pickler.packages), tuple(pickler.later))


def unpack(data: bytes | memoryview, fds: Sequence[int]) -> Any:
    """What was packed. `fds` are the descriptors of the parcel's blocks, in order.

    They are closed; receive them with `MSG_CMSG_CLOEXEC`. The arrays keep their memory mapped.
    """
    try:
        memory = [np.asarray(Mapping(fd, os.fstat(fd).st_size, private=True)) for fd in fds]
    finally:
        for fd in fds:
            os.close(fd)
    end = len(data) - _COUNT.size
    (count,) = _COUNT.unpack_from(data, end)
    buffers = []
    for block, start, nbytes in _PLACE.iter_unpack(data[end - count * _PLACE.size : end]):
        if block >= len(memory) or start + nbytes > len(memory[block]):
            raise PenstockError(
                f"{len(fds)} blocks came with the program, and they are not those it was packed with"
            )
        buffers.append(memory[block][start : start + nbytes])
    return _Unpickler(_Readable(data), buffers=buffers).load()  # heeds nothing behind the end of the pickle


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, packed: PackedList) -> PackedList:
        return packed


class _Readable:
    """Bytes as a file, without the copy that `io.BytesIO` would make."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data).cast("B")
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size < 0 else self._at + size
        found = bytes(self._data[self._at : end])
        self._at += len(found)
        return found

    def readinto(self, memory: Any) -> int:
        found = self._data[self._at : self._at + len(memory)]
        memory[: len(found)] = found
        self._at += len(found)
        return len(found)

    def readline(self) -> bytes:
        line = bytes(self._data[self._at :]).partition(b"\n")
        self._at += len(line[0]) + len(line[1])
        return line[0] + line[1]


# Pickling.


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """An array that is to be in shared memory, contiguous or not."""

    array: NDArray[Any]

    @property
    def flat(self) -> _Bytes | None:
        """Its memory, if it is contiguous."""
        if not (self.array.flags.c_contiguous or self.array.flags.f_contiguous):
            return None
        return self.array.reshape(-1, order="A").view(np.uint8)

    @property
    def key(self) -> _Key:
        """The same for all that look at the same memory."""
        return (_address(self.array), self.array.nbytes) if self.flat is not None else (id(self), -1)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves large buffers out of the pickle; they are `sources`, in the order in which they are wanted.

    Arrays are reductions, so that pickle remembers them by itself, and an array that is met twice is one array
    in the worker too. Lists can be caught by `persistent_id` only. What that returns is pickled in place of the
    list: a `_Long`, one for each list, and so pickle remembers that.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._buffer)
        self.sources: list[_Source] = []
        self.by_value: list[ModuleType] = []
        #: packages that unpickling imports, and modules that functions import when they are called
        self.packages: set[str] = set()
        self.later: dict[str, None] = {}
        self._long: dict[int, _Long] = {}
        self._pending: dict[int, _Source] = {}
        self._files: dict[int, _File] = {}
        self._special: dict[type, Callable[[Any], Any]] = {
            np.ndarray: self._array,
            np.memmap: self._memmap,
            io.TextIOWrapper: _text_file,
            _Cached: _cached,
            _Long: self._list,
            PackedList: self._packed_list,
        }
        if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "Tensor"):
            self._special[torch.Tensor] = self._tensor
        if (h5py := sys.modules.get("h5py")) is not None:
            self._special |= dict.fromkeys(hdf5.kinds(h5py), self._h5)

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        special = self._special.get(kind)
        if special is not None:
            return special(obj)
        if kind is FunctionType or issubclass(kind, type):
            self._look_at_module(getattr(obj, "__module__", None))
        elif kind is ModuleType:
            self._look_at_module(obj.__name__)
            self.packages.add(obj.__name__.partition(".")[0])
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented and (kind in _NAMED or issubclass(kind, type)):
            self.packages.add(str(getattr(obj, "__module__", None)).partition(".")[0])
        self.later |= dict.fromkeys(imported_by(obj))
        return reduced

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not list or len(obj) < _LONG_LIST or not SENDABLE:
            return None
        if (long := self._long.get(id(obj))) is None:
            long = self._long[id(obj)] = _Long(obj, worth_packing(obj, SHARED_BYTES))
        return long if long.packed else None

    def _list(self, long: _Long) -> _Reduced:
        return self._packed(*pack_list(long.items))

    def _packed_list(self, items: PackedList) -> Any:
        return (list, (items.real(),)) if items.memory is None else self._packed(*items.memory)

    def _packed(self, ends: NDArray[Any], data: NDArray[Any]) -> _Reduced:
        return PackedList, (self._apart(_Source(ends)), self._apart(_Source(data)))

    def _look_at_module(self, name: Any) -> None:
        if not isinstance(name, str) or name == "__main__":
            return
        if name not in sys.modules and name.partition(".")[0] in sys.modules:
            # A class may belong to a part of its package that is loaded late, as those of numpy.rec do.
            with suppress(Exception):
                importlib.import_module(name)
        module = sys.modules.get(name)
        if type(module) is not ModuleType or importable(module) or module.__name__ not in sys.modules:
            return
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            self.by_value.append(module)

    def _array(self, array: NDArray[Any]) -> Any:
        if array.nbytes < SHARED_BYTES or array.dtype.hasobject:
            return NotImplemented
        if (opened := self._from_file(array)) is not None:
            return opened
        if not SENDABLE:
            return NotImplemented
        order = "C" if array.flags.c_contiguous or not array.flags.f_contiguous else "F"
        buffer = self._apart(_Source(array))
        return _make_array, (buffer, array.dtype, array.shape, order, array.flags.writeable)

    def _memmap(self, array: NDArray[Any]) -> Any:
        if (opened := self._from_file(array)) is not None:
            return opened
        plain = array.view(np.ndarray)  # it has no file that could be opened
        reduced = self._array(plain)
        return plain.__reduce_ex__(5) if reduced is NotImplemented else reduced

    def _from_file(self, array: NDArray[Any]) -> _Reduced | None:
        """The array as a part of its file, if it has one. A file is opened once for all arrays from it."""
        root = _root_of(array)
        if root is None or not array.size:
            return None
        file = self._files.get(id(root))
        if file is None:
            file = self._files[id(root)] = _File(root, _is_there(root) and not _is_written(root))
        if not file.has_values:
            return None
        offset = _address(array) - _address(root)
        form = array.dtype, array.shape, offset, array.strides
        return _make_part, (file, *form, type(array) is np.memmap, array.flags.writeable)

    def _h5(self, obj: Any) -> _Reduced:
        self.packages.add("h5py")
        return hdf5.reopened(obj)

    def _tensor(self, tensor: Any) -> Any:
        torch = sys.modules["torch"]
        self.packages.add("torch")
        if tensor.device.type not in ("cpu", "meta"):
            raise Unsendable(f"a tensor on {tensor.device}", "move it to the CPU, with .cpu()")
        plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        plain = plain and tensor.is_leaf and not (tensor.is_conj() or tensor.is_neg() or vars(tensor))
        foreign = str(tensor.dtype).removeprefix("torch.") not in _PICKLED_BY_TORCH and not tensor.is_quantized
        if foreign and not plain and tensor.device.type == "cpu":
            advice = "make a plain one, with .detach().clone()"
            raise Unsendable(f"a tensor of {tensor.dtype}, which torch does not pickle", advice)
        # The size of the storage decides: torch would pickle all of it, also for a small view.
        if not plain or not (foreign or (tensor.numel() and tensor.untyped_storage().nbytes() >= SHARED_BYTES)):
            return NotImplemented
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        large = raw.nbytes >= SHARED_BYTES and SENDABLE
        buffer = self._apart(_Source(raw)) if large else raw.copy()
        return _make_tensor, (buffer, tensor.dtype, tuple(tensor.shape), tensor.requires_grad)

    def _apart(self, source: _Source) -> pickle.PickleBuffer:
        buffer = pickle.PickleBuffer(bytearray())
        self._pending[id(buffer)] = source
        return buffer

    def _buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether pickle should write the buffer itself."""
        source = self._pending.pop(id(buffer), None)
        if source is None:
            try:
                raw = np.frombuffer(buffer.raw(), np.uint8)
            except (BufferError, ValueError):  # it is not contiguous, or empty
                return True
            if raw.nbytes < SHARED_BYTES or not SENDABLE:
                return True
            source = _Source(raw)
        self.sources.append(source)
        return False


def _cached(function: Any) -> Any:
    """A function behind `lru_cache`. Pickle would send its name, and a worker has no such name in `__main__`."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    if type(module) is ModuleType and module.__name__ != "__main__" and importable(module):
        found: Any = module
        for name in function.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is function:
            return NotImplemented
    settings = function.cache_parameters()
    return _make_cached, (settings["maxsize"], settings["typed"]), function.__wrapped__, None, None, _fill_cached


class _Later:
    """Calls a function that comes later: one that calls itself is not there before its cache."""

    __slots__ = ("function",)
    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _make_cached(maxsize: int | None, typed: bool) -> Any:
    return lru_cache(maxsize, typed)(_Later())


def _fill_cached(cached: Any, function: Any) -> None:
    cached.__wrapped__.function = function
    update_wrapper(cached, function)


def _text_file(file: io.TextIOWrapper) -> Any:
    if file in (sys.stdout, sys.stderr):
        return NotImplemented
    # cloudpickle would send the whole text of it.
    name = getattr(file, "name", "in memory")
    raise Unsendable(f"an open file ({name})", "open it inside the function, or use ps.per_worker")


def _make_array(buffer: _Bytes, dtype: Any, shape: tuple[int, ...], order: Any, writeable: bool) -> NDArray[Any]:
    array: NDArray[Any] = np.ndarray(shape, dtype, buffer, order=order)
    array.flags.writeable = writeable
    return array


def _make_tensor(buffer: _Bytes, dtype: Any, shape: tuple[int, ...], requires_grad: bool) -> Any:
    tensor = importlib.import_module("torch").from_numpy(buffer).view(dtype).reshape(shape)
    return tensor.requires_grad_() if requires_grad else tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Long:
    """A list that was met, and is kept, so that no other gets its id."""

    items: list[Any]
    packed: bool


def _pickled(value: Any) -> tuple[io.BytesIO, _Pickler]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    with _unregistered_after(pickler.by_value):
        pickler.dump(value)
    return file, pickler


def _measured(value: Any) -> int:
    """The size of the pickle. Raises what pickling raises."""
    return _pickled(value)[0].tell()


@contextmanager
def _unregistered_after(modules: list[ModuleType]) -> Iterator[None]:
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


# Arrays of files.


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    """The memory of a `np.memmap` as bytes. Pickled, it is opened again."""

    root: np.memmap[Any, Any]
    has_values: bool

    def __reduce__(self) -> _Reduced:
        # "c" keeps what is written in the process: a worker never changes the file.
        mode = "r" if self.root.mode == "r" else "c"
        return np.memmap, (self.root.filename, np.uint8, mode, self.root.offset, (self.root.nbytes,))


def _root_of(array: NDArray[Any]) -> np.memmap[Any, Any] | None:
    """The memmap that opened the file of which `array` is a view. Views of it have its `offset`, not theirs."""
    found: Any = array
    while isinstance(found, np.ndarray):
        base: Any = found.base
        if isinstance(found, np.memmap) and isinstance(base, mmap.mmap):
            return found
        found = base
    return None


def _is_there(root: np.memmap[Any, Any]) -> bool:
    try:
        return root.filename is not None and os.stat(root.filename).st_size >= root.offset + root.nbytes
    except OSError:
        return False


def _is_written(root: np.memmap[Any, Any]) -> bool:
    """Whether this process has values of its own, which the file does not have. Only Linux can tell."""
    if root.mode != "c":
        return False
    start, inside = _address(root), False
    try:
        with open("/proc/self/smaps", "rb") as smaps:
            for line in smaps:
                first, _, rest = line.partition(b" ")
                if not first.endswith(b":"):  # a new range
                    low, high = (int(end, 16) for end in first.split(b"-"))
                    inside = low < start + root.nbytes and start < high
                elif inside and first == b"Anonymous:" and int(rest.split()[0]):
                    return True
    except OSError:
        pass
    return False


def _make_part(
    file: _Bytes, dtype: Any, shape: tuple[int, ...], offset: int, strides: Any, mapped: bool, writeable: bool
) -> NDArray[Any]:
    array: NDArray[Any] = np.ndarray(shape, dtype, file, offset, strides)
    if mapped:
        array = array.view(np.memmap)
        vars(array).update(vars(file), offset=vars(file)["offset"] + offset)
    array.flags.writeable = writeable
    return array


# Copying. What has been copied is found again by its address, and compared: an array that was changed in
# place, or another at the same address, is copied anew. So nothing has to be known about who owns it.


def _shared(sources: list[_Source], what: str) -> tuple[list[Block], list[_Copy]]:
    """The blocks that hold these arrays, and where in them each is. All new copies are in one block."""
    copies: dict[_Key, _Copy] = {}
    new: dict[_Key, tuple[_Source, int]] = {}
    size = 0
    for source in sources:
        key = source.key
        if key in copies or key in new:
            continue
        if (copy := _made_before(source)) is not None:
            copies[key] = copy
        else:
            new[key] = source, size
            size += -(-source.array.nbytes // _ALIGN) * _ALIGN
    if new:
        block = _block(size, what)
        for key, (source, start) in new.items():
            copies[key] = _copied(source, block, start)
    found = [copies[source.key] for source in sources]
    return list({id(copy.block): copy.block for copy in found}.values()), found


def _block(size: int, what: str) -> Block:
    try:
        return single_block(size)
    except PenstockError as exc:
        raise PlanError(
            f"the arrays of {what}, {size / 1e6:.1f} MB, do not fit into shared memory: {exc.__cause__}; "
            "keep them in a file and open it with np.load(mmap_mode='r'), or raise the limit on memory"
        ) from exc


def _copied(source: _Source, block: Block, start: int) -> _Copy:
    array, flat = source.array, source.flat
    copy = _Copy(block, start, array.nbytes)
    memory = block.view()[start : start + array.nbytes]
    if flat is None:
        np.ndarray(array.shape, array.dtype, memory)[...] = array
    else:
        memory[:] = flat
        _copies[source.key] = copy
    return copy


def _made_before(source: _Source) -> _Copy | None:
    copy = _copies.get(source.key)
    if copy is None:
        return None
    there = _address(copy.block.view()) + copy.offset
    return copy if same_bytes(there, _address(source.array), copy.nbytes) else None


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


#: by address and size of what was copied, as long as a parcel holds the copy
_copies: weakref.WeakValueDictionary[_Key, _Copy] = weakref.WeakValueDictionary()
#: cloudpickle's list of modules to send by value is one for the process. A `__getstate__` may pack, too.
_lock = threading.RLock()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # nobody may be left to release the other


system.at_fork(after_in_child=_after_fork_in_child)
