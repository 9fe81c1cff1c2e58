"""One sample of every kind that a user might send through a pipeline. Worker processes import this file."""

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import types
import uuid
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")

Point = collections.namedtuple("Point", "x y")


class Typed(NamedTuple):
    name: str
    values: Any = ()


@dataclasses.dataclass
class Record:
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any = None


@dataclasses.dataclass
class Computed(Generic[T]):
    x: Any
    twice: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        if hasattr(self, "twice"):
            raise RuntimeError("made a second time")
        self.twice = self.x * 2


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x
        self.again = [x, x]


class Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x: Any) -> None:
        self.x = x


class Own:
    """Says itself how it is pickled."""

    def __init__(self, x: Any, /, *, made: str) -> None:
        self.x, self.made = x, made

    def __reduce__(self) -> Any:
        return _own, (self.x, self.made)


def _own(x: Any, made: str) -> Own:
    return Own(x, made=made)


class Rows(np.ndarray):
    """A subclass of arrays with an attribute of its own."""

    def __reduce__(self) -> Any:
        make, args, state = super().__reduce__()
        return make, args, (state, vars(self))

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[0])
        vars(self).update(state[1])


class Text(str):
    pass


class Number(int):
    pass


class Table(dict):
    pass


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Flags(enum.IntFlag):
    A = 1
    B = 2


def rows() -> Rows:
    found = np.arange(6).reshape(2, 3).view(Rows)
    found.unit = "mm"
    return found


def local_values() -> dict[str, Any]:
    @dataclasses.dataclass
    class Local:
        x: Any

    LocalPoint = collections.namedtuple("LocalPoint", "x y")

    class Thing:
        def __init__(self) -> None:
            self.x = np.arange(3)

    return {"local dataclass": Local(np.arange(3)), "local namedtuple": LocalPoint(1, "a"), "local class": Thing()}


def deep(depth: int) -> Any:
    found: Any = [np.arange(3)]
    for _ in range(depth):
        found = {"in": (found,)}
    return found


def dtypes() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (
        "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "c8", "c16", "G", ">i4", ">f8",
        "M8[ns]", "M8[D]", "m8[us]", "S5", "U7", "V6",
    ):  # fmt: skip
        dtype = np.dtype(name)
        count = 12
        values = np.frombuffer(bytes(i % 7 for i in range(count * dtype.itemsize)), dtype).copy()
        if dtype.kind in "fcSU?gG":
            values = np.arange(count).astype(dtype)
        found[f"dtype {name}"] = values.reshape(3, 4)
    pair = np.dtype([("x", "f4", (2,)), ("y", "i8"), ("name", "U3")], align=True)
    found["dtype structured"] = np.array([([1, 2], 3, "abc"), ([4, 5], 6, "d")], pair)
    found["dtype object"] = np.array([1, "a", None, [2], {3: 4}], object)
    found["dtype string"] = (
        np.array(["a", "", "\u00e4\U0001f600"], np.dtypes.StringDType())
        if hasattr(np.dtypes, "StringDType")
        else np.array(["a"])
    )
    return found


def arrays() -> dict[str, Any]:
    base = np.arange(240).reshape(4, 6, 10)
    masked = np.ma.masked_array(np.arange(6.0), mask=[0, 1, 0, 0, 1, 0], fill_value=-1)
    return {
        "array 0-d": np.array(7.5),
        "array empty": np.empty(0),
        "array empty rows": np.empty((0, 3), "f4"),
        "array empty columns": np.empty((3, 0), "u1"),
        "array of many axes": np.zeros((1,) * 20),
        "array in Fortran's order": np.asfortranarray(base[0]),
        "array strided": base[::2, ::-1, 1::3],
        "array transposed": base.transpose(2, 0, 1),
        "array broadcast": np.broadcast_to(np.arange(3), (4, 3)),
        "array read-only": _frozen(np.arange(5)),
        "array of 3 MB": np.arange(3_000_000, dtype="u1"),
        "array masked": masked,
        "array masked, 2-d": np.ma.masked_greater(base[0], 30),
        "array of records": np.rec.array([(1, 2.5), (3, 4.5)], names="a,b"),
        "array of a subclass": rows(),
        "array of arrays": np.array([np.arange(2), np.arange(3)], object),
        "scalars": [np.float32(1.5), np.int8(-3), np.bool_(True), np.datetime64("2024-01-01"),
                    np.timedelta64(3, "s"), np.str_("\u00e4"), np.bytes_(b"a"), np.complex64(1j), np.void(b"ab"),
                    np.longdouble(1) / 3],
    }  # fmt: skip


def _frozen(found: Any) -> Any:
    found.flags.writeable = False
    return found


def plain_values() -> dict[str, Any]:
    values: list[Any] = [
        None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**70), 10**400,
        0.1, -0.0, float("nan"), float("inf"), 5e-324, 1 + 2j, complex("nan"),
        "", "ascii", "\u00e4\u20ac\U0001f600", "\ud800 alone", "\0zero", "long " * 1000, "\u00e4" * 1000,
        b"", b"\0\xff", b"long" * 1000, bytearray(b"abc"), bytearray(5000),
        (), [], {}, {1, 2}, frozenset("ab"), range(2, 20, 3), slice(1, None, 2), ..., NotImplemented,
        int, len, Plain, Colour.RED, Colour.BLUE, Flags.A | Flags.B,
        datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC), datetime.timedelta(3),
        decimal.Decimal("1.10"), fractions.Fraction(1, 3), uuid.UUID(int=5), pathlib.PurePosixPath("a/b"),
        array.array("d", [1, 2]), types.SimpleNamespace(a=[1]), Text("text"), Number(5), Table(a=1),
        collections.OrderedDict(b=1, a=2), collections.Counter("abca"), collections.deque([1, 2], 5),
        collections.defaultdict(list, a=[1]), ValueError("a", 1),
    ]  # fmt: skip
    return {f"value {number} {value!r:.30}": value for number, value in enumerate(values)}


def trees() -> dict[str, Any]:
    x = np.arange(6, dtype="f4").reshape(2, 3)
    twice = [x, x]
    return {
        "dict": {"image": x, "label": 3, "name": "a", "in": {"deep": [x, (x, None)], "t": ()}},
        "dict with other keys": {1: x, (2, "a"): x, None: 1, 2.5: 2, b"k": 3, False: 4},
        "dict of 500 fields": {f"field-{number}": number for number in range(500)},
        "list of arrays": [np.full(number, number) for number in range(50)],
        "list of numbers": list(range(2000)),
        "list of floats": [number / 7 for number in range(300)],
        "list of strings": [str(number) * (number % 5) for number in range(300)],
        "list of mixed": [1, "a", None, 2.5, True, 2**70, [], [1], "\ud800"],
        "tuple": (x, 1, "a", [x, (x,)], {"y": x}),
        "tuple of one": (5,),
        "namedtuple": Point(x, [Point(1, 2)]),
        "namedtuple, typed": Typed("a", x),
        "dataclass": Record(x, Record(1, "a")),
        "dataclass, frozen with slots": Frozen(x, (Frozen(1),)),
        "dataclass that computes": Computed(x),
        "dataclass with more": _with_more(Record(x)),
        "object": Plain(x),
        "object with slots": Slotted(x),
        "object with its own pickle": Own(x, made="here"),
        "objects in a list": [Plain(number) for number in range(5)],
        "the same array twice": twice,
        "deep": deep(40),
        **local_values(),
    }


def _with_more(record: Record) -> Record:
    record.more = "set later"  # type: ignore[attr-defined]
    return record


def values() -> dict[str, Any]:
    """All kinds, by name."""
    return {**plain_values(), **dtypes(), **arrays(), **trees()}


def tensors() -> dict[str, Any]:
    """Tensors of torch, by name."""
    import torch

    found: dict[str, Any] = {}
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
                 "complex64", "complex128"):  # fmt: skip
        found[f"tensor {name}"] = torch.arange(12).reshape(3, 4).to(getattr(torch, name))
    base = torch.arange(60.0).reshape(3, 4, 5)
    grad = torch.ones(3, requires_grad=True)
    return {
        **found,
        "tensor 0-d": torch.tensor(2.5),
        "tensor empty": torch.empty(0, 3),
        "tensor transposed": base.permute(2, 0, 1),
        "tensor strided": base[:, ::2, 1:],
        "tensor expanded": torch.arange(3).expand(4, 3),
        "tensor conjugate": torch.tensor([1 + 2j]).conj(),
        "tensor of 3 MB": torch.arange(3_000_000, dtype=torch.uint8),
        "tensor detached": grad.detach(),
        "tensors in a tree": {"x": base, "y": [base, (base, 1)], "p": Point(base, "a"), "r": Record(base)},
    }


#: makes the values of a worker process, so that nothing is sent there
MAKERS: dict[str, Callable[[], dict[str, Any]]] = {"values": values, "tensors": tensors}
