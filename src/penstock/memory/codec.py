"""Sample trees as a small header and raw buffers, for other processes and machines. Nothing is pickled.

The header says what the tree looks like and where in one memory its large leaves lie, each at a multiple
of 64 bytes; small leaves ride in the header.

* **Copied once.** `layout_of` only measures; `Layout.write` copies every leaf to its place.
* **Viewed, not copied.** Decoded arrays and tensors look into the memory, all through one root array, which
  lives as long as any view of it. Strings and bytes are copies, and so are tensors of a read-only memory.
* **Any header is safe to decode.** It gives a tree that holds no more than the header and the memory do, up
  to a constant, or a `CodecError`. With `classes=False` it imports nothing but torch, and that for a tensor.

Carried are dicts, lists, tuples, named tuples and dataclasses (by the name of the class, and without calling
it); arrays and scalars of numpy, unless they hold objects; tensors of torch, without their device, unless they were
computed from others that require grad, whose history cannot be carried;
str, bytes, bytearray, int, float, complex, bool and None. Arrays arrive in C order, whatever they had, and
a memmap as an array. Other subclasses of these types are not carried, since something would be lost.
"""

from __future__ import annotations

import dataclasses
import importlib
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.errors import BadHeader, CodecError, NotCarried
from penstock.memory.dtypes import Shape, Size, dtype_of, name_of
from penstock.tensors import ARRAY_DTYPES, array_of, dtype_name, tensor_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = ["Layout", "Other", "decode", "encode", "layout_of", "root_of"]

#: the first byte of every header; another one for each change that an older reader would misread
VERSION = 1
#: where leaves begin: a multiple of the cache line, which suits every dtype
ALIGNMENT = 64
#: strings, bytes and lists of plain values are buffers from this size on, and ride in the header below it
LARGE_BYTES = 1024
#: nodes inside of nodes
DEEPEST = 100

#: how to carry any other object: to bytes, and back
Other: TypeAlias = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]


# ---------------------------------------------------------------------- the header

# msgspec checks these types as it decodes, in the time that untyped lists would take.
_Plain: TypeAlias = bool | int | float | str | None


class _Array(msgspec.Struct, array_like=True, gc=False, tag=0):
    dtype: str
    shape: Shape
    offset: Size


class _Tensor(_Array, tag=1):
    """The same with a dtype of torch, and whether it requires grad."""

    grad: bool = False


class _Scalar(msgspec.Struct, array_like=True, gc=False, tag=2):
    dtype: str
    data: bytes


class _Blob(msgspec.Struct, array_like=True, gc=False, tag=3):
    """Bytes in the memory, and what to make of them."""

    kind: int
    offset: Size
    nbytes: Size


class _Small(msgspec.Struct, array_like=True, gc=False, tag=4):
    """The same in the header."""

    kind: int
    data: bytes


class _Items(msgspec.Struct, array_like=True, gc=False, tag=5):
    """A list, a tuple or a named tuple."""

    cls: str
    items: list[_Node]


class _Fields(msgspec.Struct, array_like=True, gc=False, tag=6):
    """A dict or a dataclass."""

    cls: str
    keys: list[_Node]
    items: list[_Node]


_Node: TypeAlias = _Plain | _Array | _Tensor | _Scalar | _Blob | _Small | _Items | _Fields

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[_Node] = msgspec.msgpack.Decoder(_Node)
_PLAIN_LIST: msgspec.msgpack.Decoder[list[_Plain]] = msgspec.msgpack.Decoder(list[_Plain])
_PLAIN_TYPES = frozenset({int, float, bool, str, type(None)})
_STR_ONLY = frozenset({str})

_BYTES, _BYTEARRAY, _STR, _INT, _COMPLEX, _NUMPY_STR, _NUMPY_BYTES, _PLAIN, _OTHER = range(9)

#: what to make of bytes, by their kind
_MAKE: dict[int, Callable[[ReadableBuffer], Any]] = {
    _BYTES: bytes,
    _BYTEARRAY: bytearray,
    _STR: lambda data: str(data, "utf-8", "surrogatepass"),
    _INT: lambda data: int.from_bytes(bytes(data), "little", signed=True),
    _COMPLEX: lambda data: complex(*struct.unpack("<dd", data)),
    _NUMPY_STR: lambda data: np.str_(str(data, "utf-8", "surrogatepass")),
    _NUMPY_BYTES: lambda data: np.bytes_(bytes(data)),
    _PLAIN: _PLAIN_LIST.decode,
}


# ---------------------------------------------------------------------- from a tree


class Layout:
    """A tree that has been measured: its header, and how many bytes of memory its leaves need.

    It looks at the tree's arrays until it is dropped; what is written is what they hold by then.

    >>> layout = layout_of({"x": np.arange(3), "name": "a"})
    >>> memory = bytearray(layout.nbytes)
    >>> layout.write(memory)
    >>> decode(layout.header, memory)
    {'x': array([0, 1, 2]), 'name': 'a'}
    """

    __slots__ = ("_leaves", "header", "nbytes")

    def __init__(self, header: bytes, nbytes: int, leaves: list[tuple[NDArray[Any], int]]) -> None:
        self.header = header
        self.nbytes = nbytes
        self._leaves = leaves

    def write(self, memory: WriteableBuffer) -> None:
        """Copy every leaf to its place. What lies between them is left as it is."""
        view = memoryview(memory)
        if view.nbytes < self.nbytes:
            raise ValueError(f"the leaves need {self.nbytes} bytes, the memory has {view.nbytes}")
        for leaf, offset in self._leaves:
            np.copyto(np.ndarray(leaf.shape, leaf.dtype, view, offset), leaf)

    def buffers(self) -> list[memoryview]:
        """The leaves and zeros between them: one after the other, they are the memory.

        They look at the tree's arrays, unless those are not contiguous.
        """
        found, end = [], 0
        for leaf, offset in self._leaves:
            if offset > end:
                found.append(memoryview(bytes(offset - end)))
            found.append(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
            end = offset + leaf.nbytes
        return found


def layout_of(tree: Any, *, other: Other | None = None, private: Collection[str] = ()) -> Layout:
    """Measure a tree. Large leaves are not copied.

    `other` carries leaves that have no place in a header, as bytes that only its like can read. `private`
    are modules that the reader cannot import, such as `"__main__"`: values of their classes are such leaves.

    >>> layout_of({"x": [1, {2, 3}]})
    Traceback (most recent call last):
    ...
    penstock.errors.NotCarried: field 'x'[1]: a leaf of type set cannot be carried; ...
    """
    for careful in (False, True):
        measuring = _Measuring(other, private, careful)
        try:
            node = measuring.node(tree)
        except _Refused as exc:
            raise NotCarried(f"{exc.where()}{exc}") from None
        try:
            header = _ENCODER.encode(node)
            break
        except UnicodeEncodeError:
            # A lone surrogate. Looking for it in every short string would cost more than the string.
            continue
    return Layout(bytes((VERSION,)) + header, measuring.nbytes, measuring.leaves)


def encode(
    tree: Any, *, other: Other | None = None, private: Collection[str] = ()
) -> tuple[bytes, list[memoryview]]:
    """The header of a tree, and the buffers that make up its memory.

    >>> header, buffers = encode((1.5, np.arange(3)))
    >>> decode(header, b"".join(buffers))
    (1.5, array([0, 1, 2]))
    """
    layout = layout_of(tree, other=other, private=private)
    return layout.header, layout.buffers()


class _Refused(Exception):
    """Why a leaf is not carried. The nodes that it passes through add their step to it, the last one first."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.steps: list[str] = []

    def where(self) -> str:
        if not self.steps:
            return ""
        first, *rest = reversed(self.steps)
        return f"field {first}{''.join(step if step.startswith('[') else f'[{step}]' for step in rest)}: "


class _Measuring:
    """Walks through one tree: makes its nodes, and gives its leaves their places."""

    def __init__(self, other: Other | None, private: Collection[str], careful: bool) -> None:
        self.other = other
        self.private = private
        self.careful = careful  # of strings that are not Unicode
        self.nbytes = 0
        self.leaves: list[tuple[NDArray[Any], int]] = []
        self.depth = 0

    def node(self, value: Any) -> _Node:
        return _CARRIERS[type(value)](self, value)

    def nodes(self, values: Iterable[Any], names: Sequence[Any] | None = None) -> list[_Node]:
        self.depth += 1
        if self.depth > DEEPEST:
            raise _Refused(f"nested deeper than {DEEPEST}, or inside of itself")
        nodes: list[_Node] = []
        try:
            for value in values:
                nodes.append(_CARRIERS[type(value)](self, value))
        except _Refused as exc:
            number = len(nodes)
            exc.steps.append(f"[{number}]" if names is None else repr(names[number]))
            raise
        self.depth -= 1
        return nodes

    def place(self, leaf: NDArray[Any]) -> int:
        """The offset of a leaf. An empty one needs none."""
        nbytes = leaf.nbytes
        if not nbytes:
            return 0
        offset = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        self.leaves.append((leaf, offset))
        self.nbytes = offset + nbytes
        return offset

    def blob(self, kind: int, data: bytes | bytearray) -> _Node:
        if len(data) < LARGE_BYTES:
            return _Small(kind, bytes(data))
        return _Blob(kind, self.place(np.frombuffer(data, np.uint8)), len(data))

    def of_int(self, value: int) -> _Node:
        if -(1 << 63) <= value < 1 << 64:
            return value
        return self.blob(_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))

    def of_str(self, value: str) -> _Node:
        if len(value) < LARGE_BYTES and not self.careful:
            return value
        return self.blob(_STR, value.encode("utf-8", "surrogatepass"))

    def of_array(self, value: NDArray[Any]) -> _Node:
        dtype = value.dtype
        name = name_of(dtype)
        if name is None:
            return self.opaque(value, f"an array of dtype {dtype}")
        if dtype.names and value.size:
            # Copied as plain bytes, and not field by field.
            value = value.view(np.dtype((np.void, dtype.itemsize)))
        return _Array(name, value.shape, self.place(value))

    def of_scalar(self, value: np.generic) -> _Node:
        if isinstance(value, np.str_):
            return self.blob(_NUMPY_STR, value.encode("utf-8", "surrogatepass"))
        if isinstance(value, np.bytes_):
            return self.blob(_NUMPY_BYTES, value)
        name = None if isinstance(value, np.record) else name_of(value.dtype)
        return self.opaque(value) if name is None else _Scalar(name, value.tobytes())

    def of_tensor(self, value: Any) -> _Node:
        if not value.is_leaf:
            raise _Refused(
                "a tensor that was computed from others that require grad cannot be carried, since its history "
                "would be lost; call .detach() on it, or compute it under torch.no_grad()"
            )
        name = dtype_name(value)
        if name is None:
            return self.opaque(value, f"a tensor of {value.dtype}, {value.layout}, on {value.device}")
        array = array_of(value)
        return _Tensor(name, array.shape, self.place(array), value.requires_grad)

    def too_deep(self) -> bool:
        """It goes deeper than nodes may: what is left is carried as an object, where that is possible."""
        return self.depth >= DEEPEST and self.other is not None

    def of_list(self, value: list[Any]) -> _Node:
        if value and type(value[0]) in _PLAIN_TYPES and _PLAIN_TYPES.issuperset(map(type, value)):
            try:
                return self.blob(_PLAIN, _ENCODER.encode(value))
            except (OverflowError, UnicodeEncodeError):
                pass  # a very large number, or a lone surrogate: one by one, then
        return self.opaque(value) if self.too_deep() else _Items("list", self.nodes(value))

    def of_tuple(self, value: tuple[Any, ...]) -> _Node:
        return self.opaque(value) if self.too_deep() else _Items("tuple", self.nodes(value))

    def of_named(self, value: Any) -> _Node:
        name = None if self.too_deep() else self.class_name(type(value))
        return self.opaque(value) if name is None else _Items(name, self.nodes(value, value._fields))

    def of_dict(self, value: dict[Any, Any]) -> _Node:
        return self.opaque(value) if self.too_deep() else self.fields("dict", value)

    def of_data(self, value: Any) -> _Node:
        cls = None if self.too_deep() else self.class_name(type(value))
        if cls is None:
            return self.opaque(value)
        names = [field.name for field in dataclasses.fields(value)]
        fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
        # What its methods have set besides belongs to it too.
        return self.fields(cls, fields | getattr(value, "__dict__", {}))

    def fields(self, cls: str, fields: dict[Any, Any]) -> _Node:
        names = list(fields)
        plain = not self.careful and _STR_ONLY.issuperset(map(type, names))
        return _Fields(cls, names if plain else self.nodes(names, names), self.nodes(fields.values(), names))

    def class_name(self, cls: type) -> str | None:
        """None if the reader could not import it."""
        module, name = cls.__module__, cls.__qualname__
        if "<locals>" in name or module in self.private:
            return None
        # A class of the script is found there by the process that runs it, if not by this one.
        if module != "__main__" and _found(sys.modules.get(module), name) is not cls:
            return None
        return f"{module}:{name}"

    def opaque(self, value: Any, what: str = "") -> _Node:
        if self.other is not None:
            return self.blob(_OTHER, self.other[0](value))
        cls = type(value)
        what = what or f"a leaf of type {cls.__module__}.{cls.__qualname__}".replace("builtins.", "")
        raise _Refused(
            f"{what} cannot be carried; make it an array, a number, a string or bytes, "
            "or a dict, list, tuple or dataclass (at the top of a module) of these"
        )


_Carrier: TypeAlias = Callable[[_Measuring, Any], _Node]


class _Carriers(dict[type, _Carrier]):
    """The way in which values of a type are carried, found when the type is first seen."""

    def __missing__(self, cls: type) -> _Carrier:
        if len(self) > 1000:
            return self.found(cls)  # classes that are made again and again are not kept alive here
        return self.setdefault(cls, self.found(cls))

    def found(self, cls: type) -> _Carrier:
        if issubclass(cls, np.generic):
            return _Measuring.of_scalar
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return _Measuring.of_named
        if dataclasses.is_dataclass(cls) and cls.__new__ is object.__new__:
            return _Measuring.of_data
        if "torch" in sys.modules and cls is getattr(sys.modules["torch"], "Tensor", None):
            return _Measuring.of_tensor
        return _Measuring.opaque


_CARRIERS = _Carriers()
_CARRIERS[type(None)] = _CARRIERS[bool] = _CARRIERS[float] = lambda measuring, value: value
_CARRIERS[int] = _Measuring.of_int
_CARRIERS[complex] = lambda measuring, value: measuring.blob(_COMPLEX, struct.pack("<dd", value.real, value.imag))
_CARRIERS[str] = _Measuring.of_str
_CARRIERS[bytes] = lambda measuring, value: measuring.blob(_BYTES, value)
_CARRIERS[bytearray] = lambda measuring, value: measuring.blob(_BYTEARRAY, value)
_CARRIERS[np.ndarray] = _CARRIERS[np.memmap] = _Measuring.of_array
_CARRIERS[list] = _Measuring.of_list
_CARRIERS[tuple] = _Measuring.of_tuple
_CARRIERS[dict] = _Measuring.of_dict


# ---------------------------------------------------------------------- to a tree


def root_of(memory: ReadableBuffer, *, readonly: bool = False) -> NDArray[np.uint8]:
    """The bytes of `memory` as an array that views of it keep alive, and that keeps `memory` alive.

    Decode from such an array: a `weakref.finalize` on it then runs when the last decoded array has died.
    """
    view = memoryview(memory)
    if not view.nbytes:
        return np.empty(0, np.uint8)
    # Over a memoryview, since views of an array over an array keep only the inner one alive.
    return np.frombuffer(view.toreadonly() if readonly else view, np.uint8)


def decode(
    header: ReadableBuffer,
    memory: ReadableBuffer = b"",
    *,
    classes: bool = True,
    readonly: bool = False,
    other: Other | None = None,
) -> Any:
    """The tree that a header describes. Its arrays are views, and keep `memory` alive, whatever it is.

    They can be written to if the memory can, unless they are to be `readonly`. With `classes=False`, for
    headers from the network, named tuples become tuples and dataclasses dicts. `other` reads what the
    writer's has carried.
    """
    data = memoryview(header)
    if not data.nbytes or data[0] != VERSION:
        found = f"of version {data[0]}" if data.nbytes else "empty"
        raise BadHeader(f"the header is {found}, and not of version {VERSION}; use one penstock on both sides")
    try:
        node = _DECODER.decode(data[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadHeader(f"the header is damaged: {exc}") from None
    return _Reading(root_of(memory, readonly=readonly), classes, other).value(node)


class _Reading:
    """Rebuilds one tree. msgspec has checked the types; sizes, places and names are checked here."""

    def __init__(self, root: NDArray[np.uint8], classes: bool, other: Other | None) -> None:
        self.root = root
        self.classes = classes
        self.other = other
        self.end = 0
        self.depth = 0

    def value(self, node: _Node) -> Any:
        read = _READERS.get(type(node))
        return node if read is None else read(self, node)

    def values(self, nodes: list[_Node]) -> list[Any]:
        self.depth += 1
        if self.depth > DEEPEST:
            raise BadHeader(f"the header is nested deeper than {DEEPEST}")
        get = _READERS.get
        values = [node if (read := get(type(node))) is None else read(self, node) for node in nodes]
        self.depth -= 1
        return values

    def claim(self, offset: int, nbytes: int) -> None:
        # No byte is claimed twice, or a short header could ask for the same large string a million times.
        if offset < self.end or offset % ALIGNMENT or offset + nbytes > self.root.size:
            raise BadHeader(
                f"the header puts {nbytes} bytes at {offset}, which is not a multiple of {ALIGNMENT} "
                f"between {self.end} and the end of the memory at {self.root.size}"
            )
        self.end = offset + nbytes

    def array(self, node: _Array) -> NDArray[Any]:
        return self.view(dtype_of(node.dtype), node)

    def view(self, dtype: np.dtype[Any], node: _Array) -> NDArray[Any]:
        shape, offset = node.shape, node.offset
        nbytes = prod(shape) * dtype.itemsize
        if nbytes:
            self.claim(offset, nbytes)
        try:
            return np.ndarray(shape, dtype, self.root, offset) if nbytes else np.ndarray(shape, dtype)
        except (ValueError, TypeError, OverflowError) as exc:
            raise BadHeader(f"the header names an array of shape {shape} that cannot be made: {exc}") from None

    def tensor(self, node: _Tensor) -> Any:
        name = node.dtype
        if name not in ARRAY_DTYPES:
            raise BadHeader(f"the header names a tensor of {name[:80]!r}, which is not carried")
        array = self.view(ARRAY_DTYPES[name], node)
        try:
            tensor = tensor_of(array, name)
            return tensor.requires_grad_() if node.grad else tensor
        except (AttributeError, TypeError) as exc:
            raise CodecError(f"no tensor of {name} can be made here: {exc}; use one torch on both sides") from exc
        except RuntimeError as exc:
            raise BadHeader(f"the header names a tensor that cannot be made: {exc}") from None

    def scalar(self, node: _Scalar) -> Any:
        dtype = dtype_of(node.dtype)
        if len(node.data) != dtype.itemsize or dtype.kind in "SU":  # strings are not carried like this
            raise BadHeader(f"the header gives {len(node.data)} bytes for a scalar of dtype {dtype}")
        return np.ndarray((), dtype, bytearray(node.data))[()]

    def blob(self, node: _Blob) -> Any:
        self.claim(node.offset, node.nbytes)
        return self.made(node.kind, self.root[node.offset : node.offset + node.nbytes].data)

    def small(self, node: _Small) -> Any:
        return self.made(node.kind, node.data)

    def made(self, kind: int, data: ReadableBuffer) -> Any:
        if kind == _OTHER:
            if self.other is None:
                raise CodecError("the tree holds an object as opaque bytes, and there is no other= to read them")
            return self.other[1](bytes(data))
        if kind not in _MAKE:
            raise BadHeader(f"the header names bytes of kind {kind}, which is not known")
        try:
            return _MAKE[kind](data)
        except (msgspec.DecodeError, struct.error, ValueError, RecursionError) as exc:
            raise BadHeader(f"the header names bytes that cannot be read: {exc}") from None

    def items(self, node: _Items) -> Any:
        values = self.values(node.items)
        if node.cls == "list":
            return values
        if node.cls == "tuple" or not self.classes:
            return tuple(values)
        cls = _imported(node.cls)
        if not issubclass(cls, tuple) or len(getattr(cls, "_fields", ())) != len(values):
            raise CodecError(f"class {node.cls} is not a named tuple with {len(values)} fields here")
        return tuple.__new__(cls, values)

    def fields(self, node: _Fields) -> Any:
        keys = node.keys if _STR_ONLY.issuperset(map(type, node.keys)) else self.values(node.keys)
        values = self.values(node.items)
        try:
            fields = dict(zip(keys, values, strict=True))
        except (TypeError, ValueError) as exc:
            raise BadHeader(f"the header names a dict that cannot be made: {exc}") from None
        if node.cls == "dict" or not self.classes:
            return fields
        cls = _imported(node.cls)
        if not dataclasses.is_dataclass(cls) or cls.__new__ is not object.__new__:
            raise CodecError(f"class {node.cls} is not a dataclass here")
        new = object.__new__(cls)
        for name, value in fields.items():
            try:
                object.__setattr__(new, name, value)
            except (AttributeError, TypeError):
                raise CodecError(f"class {node.cls} has no field {name!r} here") from None
        return new


_READERS: dict[type, Callable[[_Reading, Any], Any]] = {
    _Array: _Reading.array,
    _Tensor: _Reading.tensor,
    _Scalar: _Reading.scalar,
    _Blob: _Reading.blob,
    _Small: _Reading.small,
    _Items: _Reading.items,
    _Fields: _Reading.fields,
}


def _imported(name: str) -> type:
    module, _, qualname = name.partition(":")
    try:
        found = _found(sys.modules.get(module) or importlib.import_module(module), qualname)
    except (ImportError, ValueError, TypeError) as exc:
        raise CodecError(f"class {name[:200]} cannot be imported here: {exc}") from exc
    if not isinstance(found, type):
        raise CodecError(f"class {name[:200]} cannot be imported here: it is not in its module")
    return found


def _found(module: Any, qualname: str) -> Any:
    found = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found
