"""Parcels: a program, pickled once and sent to every worker process, with its large arrays in shared memory.

* Lambdas, closures, local classes and whatever `__main__`, a notebook or a module that the worker could not
  import defines are sent by value.
* Data of 1 MB and more is in shared memory once, however many workers there are: arrays, tensors, whatever else
  hands pickle its buffers, and long lists of plain values (see `packed`). Parcels that live at the same time
  share copies.
* A worker gets the values of the moment of `pack`. It may write to an array that the parent could write to:
  that page becomes the worker's own, and nobody else sees it.
* Arrays of `np.memmap` files and objects of h5py are opened again by name, and never copied.
* What cannot be sent is a PlanError that names it, before any worker has started.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeAlias

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from penstock import system
from penstock.errors import PenstockError, PlanError
from penstock.memory import SHARED_BYTES, hdf5
from penstock.memory.block import Block, single_block
from penstock.memory.codec import ArrayPickler, tensor_type
from penstock.memory.memmaps import OpenFiles, address_of
from penstock.memory.modules import importable, imported_by
from penstock.memory.packed import PackedList, pack_list, worth_packing
from penstock.memory.segment import SENDABLE, Mapping, same_bytes
from penstock.memory.unsendable import Labelled, Unsendable, explained, heaviest

#: a pickle of more than this takes long to load, and workers copy what they use of it
_MOST_BYTES = 10_000_000
#: a shorter list is pickled as it is
_LONG_LIST = 1000
#: where an array starts in its block: a page of its own, so that what one array has written copies no other
_ALIGN = 4096

_NAMED = (FunctionType, BuiltinFunctionType)
_Cached = type(lru_cache(len))
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

    #: the pickle, and where in the blocks its arrays are
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


def pack(value: Any, what: str, parts: Sequence[Labelled] = ()) -> Parcel:
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
            stream, pickler = _pickled(value)
        except (PenstockError, MemoryError):
            raise
        except Exception as exc:
            raise explained(exc, what, value, parts, _measured) from exc
        if len(stream) > _MOST_BYTES:
            warnings.warn(heaviest(len(stream), what, value, parts, _measured), RuntimeWarning, stacklevel=2)
        copies = _shared(pickler.arrays, what)
        pickler.let_go()
    blocks = list({copy.block.number: copy.block for copy in copies}.values())
    places = [(blocks.index(copy.block), copy.offset, copy.offset + copy.nbytes) for copy in copies]
    data = pickle.dumps((places, stream), 5)
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
    places, stream = pickle.loads(data)
    if any(block >= len(memory) or end > len(memory[block]) for block, _, end in places):
        raise PenstockError(f"{len(fds)} blocks came with the program, and they are not those it was packed with")
    buffers = [memory[block][start:end] for block, start, end in places]
    return _Unpickler(io.BytesIO(stream), buffers=buffers).load()


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, packed: PackedList) -> PackedList:
        return packed


# Pickling.


class _Pickler(ArrayPickler):
    """Leaves out what is large, and opens files again by name.

    Arrays are reductions, so that pickle remembers them by itself, and an array that is met twice is one array
    in the worker too. Lists can be caught by `persistent_id` only. What that returns is pickled in place of the
    list: a `_Long`, one for each list, and so pickle remembers that.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, least_bytes=SHARED_BYTES if SENDABLE else sys.maxsize)
        #: modules that this has told cloudpickle to send by value
        self.by_value: list[ModuleType] = []
        #: packages that unpickling imports, and modules that functions import when they are called
        self.packages: set[str] = set()
        self.later: dict[str, None] = {}
        self._files = OpenFiles()
        self._long: dict[int, _Long] = {}
        self._special: dict[type, Callable[[Any], Any]] = {
            np.ndarray: self._array,
            np.memmap: self._memmap,
            io.TextIOWrapper: _text_file,
            _Cached: _cached,
            _Long: lambda long: self._packed(*pack_list(long.items)),
            PackedList: self._packed_list,
        }
        if (tensor := tensor_type()) is not None:
            self._special[tensor] = self._tensor
        if (h5py := sys.modules.get("h5py")) is not None:
            self._special |= dict.fromkeys(hdf5.kinds(h5py), self._h5)

    def let_go(self) -> None:
        """Drop what was pickled. It would stay until garbage is collected: the pickler refers to itself."""
        self.clear_memo()
        self.arrays.clear()
        self._long.clear()
        self._special.clear()

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if (special := self._special.get(kind)) is not None:
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

    def _look_at_module(self, name: Any) -> None:
        """Send the functions of a module by value if a worker could not import it."""
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

    def apart(self, array: NDArray[Any]) -> Any:
        return super().apart(array) if array.nbytes >= SHARED_BYTES and SENDABLE else array

    def _array(self, array: NDArray[Any]) -> Any:
        if array.nbytes < SHARED_BYTES:
            return NotImplemented
        if (opened := self._files.reduction(array)) is not None:
            return opened
        return self.array(array, writeable=array.flags.writeable) if SENDABLE else NotImplemented

    def _memmap(self, array: NDArray[Any]) -> Any:
        if (opened := self._files.reduction(array)) is not None:
            return opened
        plain = array.view(np.ndarray)  # it has no file that could be opened
        reduced = self._array(plain)
        return plain.__reduce_ex__(5) if reduced is NotImplemented else reduced

    def _packed(self, ends: NDArray[Any], data: NDArray[Any]) -> Any:
        return PackedList, (super().apart(ends), super().apart(data))

    def _packed_list(self, items: PackedList) -> Any:
        return (list, (items.real(),)) if items.memory is None else self._packed(*items.memory)

    def _h5(self, obj: Any) -> Any:
        self.packages.add("h5py")
        return hdf5.reopened(obj)

    def _tensor(self, tensor: Any) -> Any:
        self.packages.add("torch")
        if tensor.device.type not in ("cpu", "meta"):
            raise Unsendable(f"a tensor on {tensor.device}", "move it to the CPU, with .cpu()")
        return self.tensor(tensor) if tensor.is_leaf else NotImplemented


@dataclass(frozen=True, slots=True, eq=False)
class _Long:
    """A list that was met, and is kept, so that no other gets its id."""

    items: list[Any]
    packed: bool


def _cached(function: Any) -> Any:
    """A function behind `lru_cache`. Pickle would send its name, and a worker has no such name in `__main__`."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    if type(module) is ModuleType and module.__name__ != "__main__" and importable(module):
        with suppress(AttributeError):
            if attrgetter(function.__qualname__)(module) is function:
                return NotImplemented
    return _make_cached, (function.__wrapped__, function.cache_parameters())


def _make_cached(function: Any, parameters: dict[str, Any]) -> Any:
    return lru_cache(**parameters)(function)


def _text_file(file: io.TextIOWrapper) -> Any:
    if file in (sys.stdout, sys.stderr):
        return NotImplemented
    # cloudpickle would send the whole text of it.
    name = getattr(file, "name", "in memory")
    raise Unsendable(f"an open file ({name})")


def _pickled(value: Any) -> tuple[bytes, _Pickler]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    finally:
        for module in pickler.by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return file.getvalue(), pickler


def _measured(value: Any) -> int:
    """The size of the pickle. Raises what pickling raises."""
    stream, pickler = _pickled(value)
    pickler.let_go()
    return len(stream)


# Copying. What has been copied is found again by its address, and compared: an array that was changed in
# place, or another at the same address, is copied anew. So nothing has to be known about who owns it.


def _shared(arrays: list[NDArray[Any]], what: str) -> list[_Copy]:
    """Where in shared memory each of the arrays is. All new copies are in one block."""
    keys = [_key(array) for array in arrays]
    found: dict[_Key, _Copy] = {}
    new: dict[_Key, tuple[NDArray[Any], int]] = {}
    size = 0
    for key, array in zip(keys, arrays, strict=True):
        if key in found or key in new:
            continue
        copy = _copies.get(key)
        if copy is not None and same_bytes(address_of(copy.block.view()) + copy.offset, key[0], copy.nbytes):
            found[key] = copy
        else:
            new[key] = array, size
            size += -(-array.nbytes // _ALIGN) * _ALIGN
    if new:
        block = _block(size, what)
        for key, (array, start) in new.items():
            np.ndarray(array.shape, array.dtype, block.view().data, start)[...] = array
            found[key] = _Copy(block, start, array.nbytes)
            if array.flags.c_contiguous:
                _copies[key] = found[key]
    return [found[key] for key in keys]


def _key(array: NDArray[Any]) -> _Key:
    """The same for all arrays that look at the same memory."""
    return (address_of(array), array.nbytes) if array.flags.c_contiguous else (id(array), -1)


def _block(size: int, what: str) -> Block:
    try:
        return single_block(size)
    except PenstockError as exc:
        raise PlanError(
            f"the arrays of {what}, {size / 1e6:.1f} MB, do not fit into shared memory: {exc.__cause__}; "
            "keep them in a file and open it with np.load(mmap_mode='r'), or raise the limit on memory"
        ) from exc


#: by address and size of what was copied, as long as a parcel holds the copy
_copies: weakref.WeakValueDictionary[_Key, _Copy] = weakref.WeakValueDictionary()
#: cloudpickle's list of modules to send by value is one for the process. A `__getstate__` may pack, too.
_lock = threading.RLock()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # nobody may be left to release the other


system.at_fork(after_in_child=_after_fork_in_child)
