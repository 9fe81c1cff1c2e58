"""The hash of functions and values: another one for other code or data, the same one everywhere else."""

import datetime
import enum
import functools
import operator
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from tests.cases import for_each

from penstock.disk.digest import digest

ROOT = Path(__file__).parents[2]


def module(text, filename="one.py", name="a_module"):
    """What a module with this text defines."""
    space = {"__name__": name}
    exec(compile(text, filename, "exec"), space)
    return space


BASE = """
import numpy as np
LIMIT = 3
mean = np.array([1.0, 2.0])
names = {"cat": 0, "dog": 1}
calls = 0

def helper(x):
    return x + 1

class Step:
    width = 2
    def __call__(self, x):
        return helper(x) * self.width

def fn(x, y=5, *, z=(1, 2)):
    global calls
    calls += 1
    def inner(u):
        return u if u in {"a", "b", "c"} else helper(u)
    return [inner(v) for v in x if v < LIMIT and v.shape] + [mean, names, Step()(y), z]
"""


@for_each(
    "old, new",
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("np.array([1.0, 2.0])", "np.array([1.0, 2.5])"),
        ('"dog": 1', '"dog": 2'),
        ("return x + 1", "return x + 2"),
        ("return x + 1", "return x - 1"),
        ("width = 2", "width = 3"),
        ("helper(x) * self", "helper(x) + self"),
        ("y=5", "y=6"),
        ("z=(1, 2)", "z=(1, 3)"),
        ('{"a", "b", "c"}', '{"a", "b", "d"}'),
        ("v.shape", "v.size"),
        ("v < LIMIT", "v <= LIMIT"),
        ("[inner(v) for v in x", "[inner(-v) for v in x"),
    ],
)
def test_a_change_of_anything_that_a_function_uses_is_seen(old, new):
    assert BASE.count(old) == 1
    assert digest(module(BASE)["fn"]) != digest(module(BASE.replace(old, new))["fn"])


def test_where_a_function_stands_and_what_its_variables_are_called_is_not_seen():
    moved = "\n\n# a comment\n" + BASE.replace("for v in x", "for each in x").replace("(v)", "(each)")
    moved = moved.replace("if v < LIMIT and v.shape", "if each < LIMIT and each.shape")
    assert digest(module(BASE)["fn"]) == digest(module(moved, "elsewhere/two.py")["fn"])


def test_what_a_function_assigns_itself_is_not_seen():
    space = module(BASE)
    before = digest(space["fn"])
    space["calls"] = 1000
    assert digest(space["fn"]) == before

    def counting():
        count = 0

        def fn(x):
            nonlocal count
            count += 1
            return x

        return fn

    fn = counting()
    before = digest(fn)
    fn(1)
    assert digest(fn) == before


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Transform:
    def __init__(self, size, file=None, content=""):
        self.size = size
        self._file = file
        if content:
            self.content = content

    def __call__(self, x):
        return x * self.size


def scaled(by):
    return lambda x: x * by


@functools.lru_cache
def cached(x):
    return x


@for_each(
    "one, other",
    [
        (scaled(2), scaled(3)),
        (scaled(scaled(2)), scaled(scaled(3))),
        (scaled([1, [2]]), scaled([1, [3]])),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (functools.partial(max, key=scaled(2)), functools.partial(max, key=scaled(3))),
        (functools.partial(max, 1), functools.partial(min, 1)),
        (Transform(2), Transform(3)),
        (Transform(2).__call__, Transform(3).__call__),
        (Transform(2, content="a"), Transform(2, content="b")),
        ({"a": 1}.get, {"a": 2}.get),
        (len, sum),
        (np.add, np.multiply),
        (operator.itemgetter(1), operator.itemgetter(2)),
        (datetime.date(2026, 1, 2), datetime.date(2026, 1, 3)),
        (np.zeros(3), np.zeros(3, "float32")),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.array(["a"], object), np.array(["b"], object)),
        (1, True),
        (1, 1.0),
        ("1", b"1"),
        (0.0, -0.0),
        ([1, 2], (1, 2)),
        ([[1], [2]], [[1, 2], []]),
        ({1: 2}, {2: 1}),
        ({1, 2}, {1, 3}),
        (Colour.RED, Colour.BLUE),
        (re.compile("a"), re.compile("a", re.I)),
        (Path("a"), Path("b")),
        (range(3), range(4)),
        ([(1, "a")], [(1, "b")]),
        (cached, scaled(1)),
    ],
)
def test_other_values_are_told_apart(one, other):
    assert digest(one) != digest(other)
    assert digest(one) == digest(one)


@for_each(
    "one, other",
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (scaled(2), scaled(2)),
        (Transform(2), Transform(2, file=open(os.devnull))),  # noqa: SIM115
        (Transform(2, content="a"), Transform(3, content="a")),
        (np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(6).reshape(2, 3)),
    ],
)
def test_equal_values_and_files_opened_since_are_not(one, other):
    assert digest(one) == digest(other)
    if isinstance(other, Transform) and other._file:
        other._file.close()


def test_a_large_array_is_sampled_and_its_size_counts():
    one = np.zeros(40_000_000, "uint8")
    other = one.copy()
    other[: 1 << 16] = 1
    assert digest(one) != digest(other)
    assert digest(one) != digest(one[:-1])


def test_objects_that_lead_back_to_themselves_have_a_hash():
    one = Transform(2)
    one.me = one
    assert digest(one) == digest(one)
    loop = []
    loop.append(loop)
    assert digest(loop) == digest(loop)


def test_a_long_list_and_its_look_alike_in_a_worker_are_one():
    from penstock.memory.packed import PackedList, pack_list

    items = [(f"{number}.jpg", number) for number in range(2000)]
    assert digest(items) == digest(PackedList(*pack_list(items)))


def test_the_hash_is_the_same_in_every_process():
    text = f"from penstock.disk.digest import digest\nimport sys; sys.path.insert(0, {str(ROOT)!r})\n"
    text += "from tests.disk.test_digest import BASE, Transform, module\n"
    text += "print(digest(module(BASE)['fn'], Transform(3), {'x', 'y', 'z'}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONHASHSEED": hashed, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hashed in "12"
    }
    assert found == {digest(module(BASE)["fn"], Transform(3), {"x", "y", "z"})}
