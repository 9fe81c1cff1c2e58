"""Sample trees as bytes and back, exactly: arrays with dtype and shape, numbers, strings, bytes, dicts and lists.

Two encodings, both open to other readers and neither a pickle. MessagePack keeps the whole tree; what MessagePack
does not have are extension types (the codes below), an array being a ``.npy`` file in one. JSON has what JSON can
hold, and an object with one key that begins with ``$`` for what it cannot. Anything else (an object of a class of
the user's, a tensor) raises `NotCarried`, naming its place in the tree.
"""

from __future__ import annotations

import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from penstock.errors import NotCarried
from penstock.formats.npy import npy_array, npy_bytes

#: the entry of an LMDB database whose values are trees, and what it holds when the database is complete
TREE_KEY, TREE_MARK = b"__penstock__", b"tree 1"

#: codes of our extension types in MessagePack
_ARRAY, _SCALAR, _TUPLE, _INTEGER, _COMPLEX, _STRING, _DICT = range(1, 8)
_PLAIN = (bool, float, bytes, type(None))
_KEYS = (str, int, float, bool, bytes, type(None))
_INT64 = range(-(1 << 63), 1 << 64)
#: nested deeper, neither encoding can be relied on
_DEEPEST = 200

Leaf = Callable[[str, Any], Any]


def _refused(value: Any, path: str, what: str = "") -> NotCarried:
    where = f"field {path!r}" if path else "the sample"
    return NotCarried(
        f"{where} is {what or 'a ' + type(value).__name__}, which is not written to files; make it an array, a "
        "number, a string, bytes, or a dict, list or tuple of these, with map()"
    )


def _walk(value: Any, path: str, leaf: Leaf, depth: int = 0) -> Any:
    """The tree with `leaf` applied to what neither encoding has: called with "array", "tuple" and so on."""
    kind = type(value)
    if kind is str:
        return value if _encodable(value) else leaf("string", value)
    if kind is int:
        return value if value in _INT64 else leaf("integer", value)
    if kind in _PLAIN:
        return leaf("bytes", value) if kind is bytes else leaf("float", value) if kind is float else value
    if depth > _DEEPEST:
        raise _refused(value, path, f"nested deeper than {_DEEPEST}")
    if kind is dict:
        return leaf("dict", {key: _walk(one, _join(path, key), leaf, depth + 1) for key, one in value.items()})
    if kind is list:
        return [_walk(one, _join(path, number), leaf, depth + 1) for number, one in enumerate(value)]
    if kind is tuple:
        return leaf("tuple", [_walk(one, _join(path, number), leaf, depth + 1) for number, one in enumerate(value)])
    if kind is complex:
        return leaf("complex", value)
    if isinstance(value, np.generic) or kind in (np.ndarray, np.memmap):
        try:
            return leaf("array" if isinstance(value, np.ndarray) else "scalar", npy_bytes(np.asarray(value)))
        except TypeError as exc:
            raise _refused(value, path, f"a value of dtype {value.dtype}") from exc
    raise _refused(value, path)


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _encodable(text: str) -> bool:
    """Whether a string has a UTF-8 form; one with half a surrogate pair has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _key(key: Any, leaf: Leaf) -> Any:
    """A key of a dict that an encoding has no keys for."""
    if type(key) not in _KEYS:
        raise _refused(key, "", f"a dict with the key {key!r}")
    return _walk(key, "", leaf)


# ---------------------------------------------------------------------- MessagePack


def to_msgpack(tree: Any, path: str = "") -> bytes:
    """`tree` as MessagePack; `path` names it in what is raised.

    >>> from_msgpack(to_msgpack({"x": np.zeros(2, "float32"), "n": (1, None, b"a")}))
    {'x': array([0., 0.], dtype=float32), 'n': (1, None, b'a')}
    """
    return msgspec.msgpack.encode(_walk(tree, path, _msgpack_leaf))


def _msgpack_leaf(kind: str, value: Any) -> Any:
    ext = msgspec.msgpack.Ext
    if kind == "dict":
        if all(type(key) is str and _encodable(key) for key in value):
            return value
        return ext(_DICT, msgspec.msgpack.encode([[_key(key, _msgpack_leaf), one] for key, one in value.items()]))
    if kind == "array":
        return ext(_ARRAY, value)
    if kind == "scalar":
        return ext(_SCALAR, value)
    if kind == "tuple":
        return ext(_TUPLE, msgspec.msgpack.encode(value))
    if kind == "integer":
        return ext(_INTEGER, str(value).encode())
    if kind == "complex":
        return ext(_COMPLEX, struct.pack("<dd", value.real, value.imag))
    if kind == "string":
        return ext(_STRING, value.encode("utf-8", "surrogatepass"))
    return value  # MessagePack has bytes and every float


def from_msgpack(data: bytes) -> Any:
    """The tree that `to_msgpack` wrote. Raises ValueError if the bytes are damaged."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, struct.error, TypeError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc


def _extension(code: int, data: memoryview) -> Any:
    content = bytes(data)
    if code == _ARRAY:
        return npy_array(content)
    if code == _SCALAR:
        return npy_array(content)[()]
    if code == _TUPLE:
        return tuple(_DECODER.decode(content))
    if code == _INTEGER:
        return int(content)
    if code == _COMPLEX:
        return complex(*struct.unpack("<dd", content))
    if code == _STRING:
        return content.decode("utf-8", "surrogatepass")
    if code == _DICT:
        return dict(_DECODER.decode(content))
    raise ValueError(f"an extension type {code} that is not known")


_DECODER = msgspec.msgpack.Decoder(ext_hook=_extension)


# ---------------------------------------------------------------------- JSON


def to_json(tree: Any) -> bytes:
    """`tree` as one line of JSON.

    >>> to_json({"x": 1.5, "b": b"abc", "n": float("nan")})
    b'{"x":1.5,"b":{"$bytes":"YWJj"},"n":{"$float":"nan"}}'
    >>> from_json(to_json((np.int8(3), [2**70])))
    (np.int8(3), [1180591620717411303424])
    """
    return msgspec.json.encode(_walk(tree, "", _json_leaf))


def _json_leaf(kind: str, value: Any) -> Any:
    if kind == "float":
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind == "dict":
        if all(type(key) is str and not key.startswith("$") and _encodable(key) for key in value):
            return value
        return {"$dict": [[_key(key, _json_leaf), one] for key, one in value.items()]}
    if kind == "bytes":
        return {"$bytes": b64encode(value).decode()}
    if kind in ("array", "scalar"):
        # As a .npy file, so that dtype, shape and order need no notation of their own.
        return {f"${kind}": b64encode(value).decode()}
    if kind == "tuple":
        return {"$tuple": value}
    if kind == "complex":
        return {"$complex": [repr(value.real), repr(value.imag)]}
    if kind == "integer":
        return {"$integer": str(value)}
    return {"$string": b64encode(value.encode("utf-8", "surrogatepass")).decode()}


def from_json(data: bytes | memoryview) -> Any:
    """The tree that `to_json` wrote. Raises ValueError if the text is damaged."""
    try:
        return _restored(msgspec.json.decode(data))
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc


_RESTORE: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$bytes": lambda value: b64decode(value, validate=True),
    "$array": lambda value: npy_array(b64decode(value, validate=True)),
    "$scalar": lambda value: npy_array(b64decode(value, validate=True))[()],
    "$tuple": tuple,
    "$complex": lambda value: complex(*map(float, value)),
    "$integer": int,
    "$string": lambda value: b64decode(value, validate=True).decode("utf-8", "surrogatepass"),
    "$dict": lambda value: {key: one for key, one in value},  # noqa: C416 - it may be no list of pairs
}


def _restored(value: Any) -> Any:
    if type(value) is list:
        return [_restored(one) for one in value]
    if type(value) is not dict:
        return value
    found = {key: _restored(one) for key, one in value.items()}
    if len(found) == 1:
        ((key, one),) = found.items()
        if key in _RESTORE:
            try:
                return _RESTORE[key](one)
            except TypeError as exc:
                raise ValueError(f"{key} of {type(one).__name__}") from exc
    return found


def is_plain_json(tree: Any) -> bool:
    """Whether plain JSON gives back exactly this tree.

    >>> is_plain_json({"a": [1, 2.5, None, "x"]}), is_plain_json((1, 2)), is_plain_json([float("inf")])
    (True, False, False)
    """
    kind = type(tree)
    if kind is dict:
        return all(type(key) is str and _encodable(key) and is_plain_json(one) for key, one in tree.items())
    if kind is list:
        return all(map(is_plain_json, tree))
    if kind is str:
        return _encodable(tree)
    if kind is float:
        return math.isfinite(tree)
    return kind in (bool, type(None)) or (kind is int and tree in _INT64)
