"""Exceptions that cross to another process: the same class, state, chain and traceback, whatever they hold."""

import abc
import asyncio
import builtins
import dataclasses
import gc
import json
import linecache
import os
import pickle
import socket
import subprocess
import sys
import threading
import traceback
import types
import weakref
from pathlib import Path

import cloudpickle
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import for_each
from tests.random_examples import examples

from penstock.errors import CodecError, LengthUnknown, PlanError, Skip
from penstock.memory import exceptions
from penstock.memory.exceptions import packed, unpacked

ROOT = Path(__file__).parent.parent.parent

CHILD = """
import pickle, sys
from penstock.memory.exceptions import packed
function = pickle.load(sys.stdin.buffer)
try:
    function()
except BaseException as exc:
    sys.stdout.buffer.write(packed(exc))
"""


def crossed(exc):
    return unpacked(packed(exc))


def raised(function, *args):
    """The exception of a call, with its traceback."""
    try:
        function(*args)
    except BaseException as exc:
        return exc
    raise AssertionError("nothing was raised")


def from_child(function, path=""):
    """The exception of a call in another process, which may have a `path` of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(path), os.getenv("PYTHONPATH")]))}
    run = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=cloudpickle.dumps(function),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=environment,
        timeout=120,
        check=True,
    )
    return unpacked(run.stdout)


def notes(exc):
    return getattr(exc, "__notes__", [])


# ---------------------------------------------------------------------- classes of all kinds


class Own(Exception):
    calls = 0

    def __init__(self, a, b, *, c):
        super().__init__("x")
        type(self).calls += 1
        self.a, self.b, self.c = a, b, c


class OwnOS(OSError):
    def __init__(self, tries, *args):
        super().__init__(*args)
        self.tries = tries


class OwnDecode(UnicodeDecodeError):
    def __init__(self, path):
        super().__init__("utf-8", b"ab\xff", 2, 3, "invalid start byte")
        self.path = path


class OwnNew(Exception):
    def __new__(cls, needed):
        return super().__new__(cls)


@dataclasses.dataclass
class Data(Exception):
    path: str
    line: int = 0


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    path: str


class Abstract(Exception, abc.ABC):
    @abc.abstractmethod
    def method(self): ...


class Group(ExceptionGroup):
    def __new__(cls, errors, extra):
        self = super().__new__(cls, "several", errors)
        self.extra = extra
        return self

    def __init__(self, errors, extra):
        super().__init__("several", errors)


def test_a_class_is_rebuilt_without_calling_it():
    exc = Own(1, [2], c={"three": 3.0})
    before = Own.calls
    back = crossed(exc)
    assert (type(back), back.args, vars(back), Own.calls) == (Own, ("x",), vars(exc), before)
    assert (type(crossed(OwnNew(1))), crossed(OwnNew(1)).args) == (OwnNew, (1,))


def test_state_in_c_is_kept_below_a_constructor_of_its_own():
    back = crossed(OwnOS(3, 2, "no such file", "a.txt", None, "b.txt"))
    assert (back.errno, back.strerror, back.filename, back.filename2, back.tries) == (
        2, "no such file", "a.txt", "b.txt", 3,
    )  # fmt: skip
    assert str(back) == str(OwnOS(3, 2, "no such file", "a.txt", None, "b.txt"))
    back = crossed(OwnDecode("p"))
    assert (back.object, back.start, back.path, str(back)) == (b"ab\xff", 2, "p", str(OwnDecode("p")))


@for_each("exc", [Data("p", 3), Frozen("p")])
def test_dataclasses_arrive(exc):
    back = crossed(raised(lambda: (_ for _ in ()).throw(exc)))
    assert type(back) is type(exc)
    assert vars(back) == vars(exc)
    assert back == exc


SPECIAL = {
    UnicodeDecodeError: ("utf-8", b"a\xffb", 1, 2, "bad"),
    UnicodeEncodeError: ("ascii", "aäb", 1, 2, "bad"),
    UnicodeTranslateError: ("aäb", 1, 2, "bad"),
    SyntaxError: ("bad", ("f.py", 3, 4, "x = = 1\n", 3, 5)),
    ExceptionGroup: ("some", [ValueError(1), KeyError("k")]),
    BaseExceptionGroup: ("some", [ValueError(1), KeyboardInterrupt()]),
    OSError: (9999, "unknown", "a", None, "b"),
}
BUILTINS = sorted(
    {cls for cls in vars(builtins).values() if isinstance(cls, type) and issubclass(cls, BaseException)},
    key=lambda cls: cls.__name__,
)


def state(exc):
    """All that an exception has, its own way of being printed included."""
    names = {
        name
        for cls in type(exc).__mro__
        for name, slot in vars(cls).items()
        if isinstance(slot, (types.MemberDescriptorType, types.GetSetDescriptorType))
    } - {"__dict__", "__traceback__", "__weakref__", "args", "obj", "exceptions", "__cause__", "__context__"}
    return type(exc), repr(exc), str(exc), vars(exc), {name: getattr(exc, name, "unset") for name in names}


@for_each("cls", BUILTINS)
def test_every_builtin_exception_arrives(cls):
    several = [SPECIAL[cls]] if cls in SPECIAL else [(), ("x",), ("x", 2)]
    for base, args in SPECIAL.items():
        if issubclass(cls, base) and cls not in SPECIAL:
            several = [args]
    for args in several:
        exc = cls(*args)
        exc.extra = [1]
        assert state(crossed(exc)) == state(exc)


@for_each(
    "exc",
    [
        OSError(2, "no file", "a", None, "b"),
        BlockingIOError(11, "busy", 7),
        ImportError("no", name="a", path="b"),
        StopIteration(5),
        SystemExit(3),
        KeyError(("a", 1)),
        NameError("n", name="nn"),
        AttributeError("n", name="nn"),
        LengthUnknown("how long"),
        Skip("blurred"),
        asyncio.CancelledError("c"),
        json.JSONDecodeError("bad", "{,", 1),
        subprocess.CalledProcessError(3, ["a"], b"out"),
        socket.gaierror(1, "x"),
        np.exceptions.AxisError(3, 2) if hasattr(np, "exceptions") else ValueError(),
    ],
)
def test_exceptions_of_libraries_arrive(exc):
    assert state(crossed(exc)) == state(exc)


def test_the_object_without_the_attribute_stays_in_the_worker():
    back = crossed(raised(lambda: threading.Lock().missing))
    assert (back.name, back.obj, notes(back)) == ("missing", None, [])


def test_groups_keep_their_members():
    inner = ValueError("v")
    exc = raised(throw, Group([inner, ExceptionGroup("deep", [Own(1, 2, c=3), TypeError("t")])], {"k": 1}))
    back = crossed(exc)
    assert (type(back), back.message, back.extra) == (Group, "several", {"k": 1})
    assert [type(member) for member in back.exceptions] == [ValueError, ExceptionGroup]
    assert [member.args for member in back.exceptions[1].exceptions] == [("x",), ("t",)]
    assert shown(back) == shown(exc)
    exc = ExceptionGroup("g", [inner])
    back = crossed(exc)
    assert back.args[1][0] is back.exceptions[0]
    inner.__context__ = exc
    back = crossed(inner)
    assert back.__context__.exceptions[0] is back


# ---------------------------------------------------------------------- chains, notes, loops


def throw(exc):
    raise exc


def shown(exc):
    return "".join(traceback.format_exception(exc))


def test_cause_context_and_notes_are_kept():
    def run():
        try:
            try:
                int("seven")
            except ValueError:
                {}["key"]
        except KeyError as exc:
            exc.add_note("looked it up")
            raise Own(1, 2, c=3) from exc

    exc = raised(run)
    exc.add_note("first")
    exc.add_note("second")
    back = crossed(exc)
    assert shown(back) == shown(exc)
    assert type(back.__cause__) is KeyError
    assert back.__cause__ is back.__context__
    assert back.__suppress_context__
    assert back.__cause__.__context__.args == ("invalid literal for int() with base 10: 'seven'",)
    assert not back.__cause__.__suppress_context__
    back.add_note("third")
    assert notes(back) == ["first", "second", "third"]


def test_loops_stay_loops():
    a, b = ValueError("a"), KeyError("b")
    a.__context__, b.__context__ = b, a
    a.me, a.other, b.others = a, [b], {"x": (a, b)}
    back = crossed(a)
    assert back.__context__.__context__ is back
    assert back.me is back
    assert back.__context__.others["x"] == (back, back.__context__)


# ---------------------------------------------------------------------- what cannot be sent


class NoRepr:
    def __repr__(self):
        raise SystemExit("no repr")

    def __reduce__(self):
        raise KeyboardInterrupt("no pickle")


def test_what_cannot_be_pickled_becomes_its_repr():
    with socket.socket() as connection:
        exc = ValueError("text", threading.Lock(), [1])
        exc.connection, exc.steps, exc.rest = connection, (n for n in range(3)), {"a": 1}
        back = crossed(exc)
        assert back.connection == repr(connection)
        assert f"attribute 'connection' could not be sent from the worker: {connection!r}" in notes(back)
    assert "generator" in back.steps
    assert (back.args[0], back.args[2], back.rest) == ("text", [1], {"a": 1})
    assert "lock" in back.args[1]
    assert [note.split(" could")[0] for note in notes(back)] == [
        "argument 1", "attribute 'connection'", "attribute 'steps'",
    ]  # fmt: skip


def test_what_cloudpickle_can_send_arrives():
    exc = ValueError()
    exc.function, exc.array, exc.local = lambda x: x + 1, np.arange(5), Local(3)
    back = crossed(exc)
    assert back.function(1) == 2
    assert back.array.tolist() == [0, 1, 2, 3, 4]
    assert back.local.value == 3
    assert not notes(back)


class Local:
    def __init__(self, value):
        self.value = value


def test_an_object_without_repr_is_named_by_its_class():
    exc = ValueError()
    exc.odd = NoRepr()
    assert crossed(exc).odd.endswith("NoRepr object, whose repr fails>")
    exc.odd = deep = []
    for _ in range(100_000):
        deep.append([])
        deep = deep[0]
    assert type(crossed(exc).odd) is str


class Rebuilding:
    def __reduce__(self):
        return int, ("seven",)


def test_damaged_data_are_an_exception_too():
    data = packed(raised(int, "seven"))
    for broken in (b"", data[:-5], b"nonsense", pickle.dumps([]), pickle.dumps([(1, 2)])):
        assert type(unpacked(broken)) is CodecError


# ---------------------------------------------------------------------- tracebacks


def outer(depth):
    return (
        outer(depth - 1) if depth
        else int("seven")
    )  # fmt: skip


def test_the_traceback_is_printed_as_in_the_worker():
    exc = raised(outer, 3)
    back = crossed(exc)
    assert shown(back) == shown(exc)
    assert "^^^" in shown(back)
    for ours, theirs in zip(
        traceback.walk_tb(back.__traceback__), traceback.walk_tb(exc.__traceback__), strict=True
    ):
        assert ours[1] == theirs[1]
        assert ours[0].f_code.co_qualname == theirs[0].f_code.co_qualname
        assert ours[0].f_globals["__name__"] == __name__
        assert (ours[0].f_back, dict(ours[0].f_locals)) == (None, {})


def test_raised_again_it_shows_both_sides():
    exc = raised(throw, crossed(raised(outer, 0)))
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(exc.__traceback__)]
    assert names == ["raised", "throw", "raised", "outer"]
    run = subprocess.run(
        [sys.executable, "-c", f"from penstock.memory.exceptions import unpacked\nraise unpacked({packed(exc)!r})"],
        stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=120,
    )  # fmt: skip
    ours = shown(exc).splitlines()[1:]
    assert run.stderr.splitlines()[-len(ours) :] == ours


def test_source_that_only_linecache_knows_is_shown():
    source = "def cell():\n\n    raise ValueError(\n        'ä', 1)\n"
    linecache.cache["<cell 1>"] = (len(source), None, source.splitlines(True), "<cell 1>")
    scope = {}
    exec(compile(source, "<cell 1>", "exec"), scope)
    exc = raised(scope["cell"])
    assert shown(crossed(exc)) == shown(exc)
    assert "raise ValueError(" in shown(crossed(exc))


def test_frames_of_penstock_are_left_out_at_the_outer_end_only():
    scope = {}
    exec(compile("def ours(call, *args):\n    call(*args)", exceptions._HERE + "imagined.py", "exec"), scope)
    ours = scope["ours"]

    def shown_of(*calls):
        exc = raised(*calls)
        back = crossed(exc.with_traceback(exc.__traceback__.tb_next))
        return [frame.f_code.co_name for frame, _ in traceback.walk_tb(back.__traceback__)]

    assert shown_of(ours, ours, throw, ValueError()) == ["throw"]
    assert shown_of(ours, outer, 1) == ["outer", "outer"]
    assert shown_of(ours, ours, int, "seven") == ["ours", "ours"]  # it comes out of penstock
    assert shown_of(ours, calling, ours, int, "seven") == ["calling", "ours"]


def calling(call, *args):
    call(*args)


def test_no_frame_lives_longer_because_of_it():
    class Big:
        pass

    def run(seen):
        big = Big()
        seen.append(weakref.ref(big))
        raise Own([1], {"b": Own(threading.Lock(), 0, c=0)}, c=2)

    seen = []
    gc.collect()
    gc.disable()
    try:
        try:
            run(seen)
        except Own as exc:
            data = packed(exc)
        assert seen[0]() is None
        back = unpacked(data)
        gone = weakref.ref(back.b["b"])
        del back
        assert gone() is None
    finally:
        gc.enable()


def test_a_class_lives_no_longer_because_of_it():
    def run():
        class Short(Exception):
            __slots__ = ("code",)

        exc = Short("x")
        exc.code = 1
        assert type(crossed(exc)) is Short
        return weakref.ref(Short)

    gone = run()
    gc.collect()
    assert gone() is None


def test_packing_changes_nothing():
    exc = raised(outer, 1)
    exc.lock = threading.Lock()
    before = (exc.args, dict(vars(exc)), exc.__traceback__, exc.__context__)
    packed(exc)
    assert (exc.args, vars(exc), exc.__traceback__, exc.__context__) == before


# ---------------------------------------------------------------------- any state


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner),
    max_leaves=8,
)


@given(
    args=st.lists(VALUES, max_size=3),
    attributes=st.dictionaries(st.text().filter(lambda name: name != "__notes__"), VALUES, max_size=3),
    cls=st.sampled_from([ValueError, Own, Data, KeyboardInterrupt]),
)
@examples(60)
def test_any_args_and_attributes_arrive(args, attributes, cls):
    exc = BaseException.__new__(cls)
    exc.args = args
    vars(exc).update(attributes)
    back = crossed(exc)
    assert (type(back), back.args, vars(back)) == (cls, tuple(args), attributes)


# ---------------------------------------------------------------------- a real child


def test_a_class_of_a_module_is_the_very_same():
    def run():
        raise LengthUnknown("how long")

    back = from_child(run)
    assert type(back) is LengthUnknown
    frame = traceback.extract_tb(back.__traceback__)[-1]
    assert (frame.filename, frame.name, frame.line) == (__file__, "run", 'raise LengthUnknown("how long")')


def test_a_local_class_that_was_sent_is_the_very_same_and_left_as_it_is():
    class LocalError(Exception):
        seen = []  # noqa: RUF012
        __slots__ = ("code",)

        def __init__(self, a, *, b):
            super().__init__(a)
            self.b, self.code = b, -b

        def method(self):
            return self.b

    LocalError.seen.append(1)
    method, seen = LocalError.method, LocalError.seen

    def run():
        raise LocalError("a", b=2)

    back = from_child(run)
    assert type(back) is LocalError
    assert (back.args, back.b, back.code, back.method()) == (("a",), 2, -2, 2)
    assert LocalError.method is method
    assert LocalError.seen is seen


MAIN = """
import os, subprocess, sys
import cloudpickle
from penstock.memory.exceptions import packed, unpacked

class Mine(KeyError):
    class Inner(Exception): pass
    def __init__(self, a, *, b):
        super().__init__(a)
        self.b = b

def run():
    try:
        raise Mine.Inner("i")
    except Mine.Inner as exc:
        raise Mine("a", b=1) from exc

child = subprocess.run([sys.executable, "-c", sys.argv[1]], input=cloudpickle.dumps(run), stdout=subprocess.PIPE)
back = unpacked(child.stdout)
assert type(back) is Mine and back.b == 1, repr(back)
assert type(back.__cause__) is Mine.Inner

class Forked(Exception): pass
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, packed(Forked("x")))
    os._exit(0)
back = unpacked(os.read(read, 100_000))
assert type(back) is Forked, repr(back)
print("same")
"""


def test_a_class_of_main_is_the_very_same():
    run = subprocess.run(
        [sys.executable, "-c", MAIN, CHILD], stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=120, check=True
    )
    assert run.stdout == "same\n"


@for_each("cls", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_what_is_no_exception_travels_too(cls):
    def run():
        raise cls("x")

    back = from_child(run)
    assert (type(back), back.args) == (cls, ("x",))


def test_a_class_that_cannot_be_pickled_is_a_codec_error_with_its_repr():
    lock = threading.Lock()

    class Unsendable(PlanError):
        kept = lock

    back = crossed(Unsendable("x"))
    assert type(back) is CodecError
    assert "a worker raised Unsendable('x')" in str(back)


def test_a_value_that_cannot_be_rebuilt_becomes_its_repr():
    exc = ValueError("x")
    exc.value, exc.rest = Rebuilding(), 1
    back = crossed(exc)
    assert back.value == repr(exc.value)
    assert back.rest == 1
    assert "attribute 'value' could not be sent from the worker: <" in notes(back)[0]


def test_a_class_that_only_the_child_has_is_a_codec_error_with_its_repr_and_frames(tmp_path):
    (tmp_path / "only_in_the_child.py").write_text("class Special(Exception):\n    pass\n")

    def run():
        import only_in_the_child

        raise only_in_the_child.Special(3)

    back = from_child(run, tmp_path)
    assert type(back) is CodecError
    assert "a worker raised Special(3), which could not be sent" in str(back)
    assert "No module named 'only_in_the_child'" in str(back)
    assert traceback.extract_tb(back.__traceback__)[-1].name == "run"


@for_each("name", ["__cause__", "__context__", "inner"])
def test_a_chain_of_many_exceptions_arrives_in_some_way(name):
    exc = None
    for number in range(5000):
        before, exc = exc, ValueError(number)
        setattr(exc, name, before)
    back = crossed(exc)
    assert type(back) is CodecError
    assert "ValueError(4999)" in str(back)


def test_what_cannot_be_sent_at_all_is_a_codec_error_with_its_repr_and_frames():
    class Odd(Exception):
        __notes__ = property(lambda self: 1 / 0)

    back = crossed(raised(throw, Odd("x")))
    assert type(back) is CodecError
    assert "a worker raised Odd('x'), which could not be sent" in str(back)
    assert traceback.extract_tb(back.__traceback__)[-1].name == "throw"
