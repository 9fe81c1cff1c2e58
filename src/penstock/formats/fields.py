"""What the members of an archive hold, by their extension: bytes to values and back.

Two uses. `decoder_of` is the light decoding of ``from_tar(decode=True)``: text, JSON, class numbers and arrays, by
the extensions that WebDataset gives them; whatever else stays bytes, pickles among them. `written` and `restored`
turn a sample tree into members and back, for archives that penstock writes: an array is a ``.npy`` member, text
``.txt``, what JSON can hold ``.json``, bytes a member under the field's own name, and the rest ``.msgpack``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np

from penstock.formats.npy import npy_array, npy_bytes
from penstock.formats.tree import from_msgpack, is_plain_json, to_msgpack

Decode = Callable[[bytes], Any]


def _text(data: bytes) -> str:
    return data.decode()


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc


_LIGHT: dict[str, Decode] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("json", "jsn"), _json),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), int),
    "npy": npy_array,
}

#: the field that holds a sample that is no dict, or one that members cannot hold
_WHOLE = "__sample__"
_ITEM = re.compile(r"_(\d+)")
#: what the name of a member cannot hold, or not be told by
_UNSAFE = re.compile(r"[%/\x00-\x1f\x7f]")
#: suffixes that say how a member is encoded, and so cannot end the name of a field of bytes
_OWN = ("npy", "txt", "json", "msgpack", "bin")


def decoder_of(field: str) -> Decode | None:
    """What makes a value of a field's bytes, or raises ValueError; None where they stay bytes.

    >>> decoder_of("cls")(b"42"), decoder_of("jpg") is None, decoder_of("pkl") is None
    (42, True, True)
    """
    return _LIGHT.get(field.rpartition(".")[2])


# ---------------------------------------------------------------------- sample trees


def written(sample: Any) -> dict[str, bytes]:
    """The members of a sample: their extensions and bytes. Raises NotCarried for what cannot be written.

    >>> written({"jpg": b"...", "label": 3, "box": np.zeros(4)}).keys()
    dict_keys(['jpg', 'label.json', 'box.npy'])
    >>> restored(written((1, "a"))), restored(written({}))
    ((1, 'a'), {})
    """
    if type(sample) is tuple and sample and not hasattr(sample, "_fields"):
        fields: Mapping[Any, Any] = {f"_{number}": value for number, value in enumerate(sample)}
    elif type(sample) is dict and sample and all(map(_is_field, sample)):
        fields = sample
    else:
        fields = {_WHOLE: sample}
    members = {}
    for name, value in fields.items():
        suffix, data = _encoded(value, name)
        quoted = _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", name)
        members[f"{quoted}.{suffix}" if suffix else quoted] = data
    return members


def _is_field(name: Any) -> bool:
    """Whether a field of this name can be a member of its own."""
    if type(name) is not str or not name or name == _WHOLE or _ITEM.fullmatch(name) or len(name) > 200:
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encoded(value: Any, name: str) -> tuple[str, bytes]:
    kind = type(value)
    if kind is bytes:
        return ("bin" if name.rpartition(".")[2] in _OWN or name == _WHOLE else ""), value
    if kind is str and is_plain_json(value):
        return "txt", value.encode()
    # An array without dimensions is left to MessagePack, so that "npy" of no dimensions is a single number.
    if (kind in (np.ndarray, np.memmap) and value.ndim) or isinstance(value, np.generic):
        try:
            return "npy", npy_bytes(np.asarray(value))
        except TypeError:
            pass  # the walk below names the field
    if is_plain_json(value):
        return "json", msgspec.json.encode(value)
    return "msgpack", _named(value, name)


def _named(value: Any, name: str) -> bytes:
    """The tree as MessagePack, with the field's name in what is raised."""
    return to_msgpack(value, "" if name == _WHOLE else name)


def restored(members: Mapping[str, bytes]) -> Any:
    """The sample that `written` took apart. Raises ValueError if a member is damaged."""
    fields = {}
    for extension, data in members.items():
        name, _, suffix = extension.rpartition(".")
        if not name or suffix not in _OWN:
            fields[unquote(extension)] = data
        else:
            fields[unquote(name)] = _decoded(suffix, data)
    if _WHOLE in fields:
        return fields[_WHOLE]
    if fields and all(map(_ITEM.fullmatch, fields)):
        return tuple(fields[f"_{number}"] for number in range(len(fields)))
    return fields


def _decoded(suffix: str, data: bytes) -> Any:
    if suffix == "npy":
        array = npy_array(data)
        return array if array.ndim else array[()]
    if suffix == "txt":
        return data.decode()
    if suffix == "json":
        return _json(data)
    return data if suffix == "bin" else from_msgpack(data)
