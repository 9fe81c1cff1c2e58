"""What users may rely on: the names, the arguments, and that everything says what it is for."""

import dataclasses
import inspect
import pydoc
import subprocess
import sys
import types
from pathlib import Path

import pytest
from tests.cases import for_each

import penstock as ps
from penstock import ops, testing
from penstock.pipeline import Calling

PAGE = Path(__file__).parent.parent / "docs" / "api.md"

#: fluent methods of Pipeline and the ops behind them
OPS = {
    "map": ops.Map,
    "filter": ops.Filter,
    "flat_map": ops.FlatMap,
    "tap": ops.Tap,
    "batch": ops.Batch,
    "unbatch": ops.Unbatch,
    "bucket": ops.Bucket,
    "pack": ops.Pack,
    "shuffle": ops.Shuffle,
    "shard": ops.Shard,
    "resample": ops.Resample,
    "reservoir": ops.Reservoir,
    "repeat": ops.Repeat,
    "take": ops.Take,
    "skip": ops.SkipFirst,
    "epoch": ops.Epoch,
    "cache": ops.Cache,
    "prefetch": ops.Prefetch,
    "to": ops.To,
}
OTHER_METHODS = {"apply", "constant", "explain", "fingerprint", "loader", "ops", "peek", "source", "split", "write"}


def public_names(module):
    """Names without an underscore that are not modules of the package, which come with importing it."""
    return {
        name
        for name in dir(module)
        if not name.startswith("_") and not isinstance(getattr(module, name), types.ModuleType)
    }


def parameters(function):
    return [
        (one.name, one.kind, one.default)
        for one in inspect.signature(function).parameters.values()
        if one.name != "self"
    ]


def members(cls):
    """Public methods and properties that the class itself defines, or that a base of penstock's gives it."""
    own = [base for base in reversed(cls.__mro__) if base.__module__.startswith("penstock")]
    defined = {name: value for base in own for name, value in vars(base).items()}
    return {name: value for name, value in defined.items() if not name.startswith("_") and _documentable(value)}


def _documentable(value):
    return callable(value) or isinstance(value, (property, classmethod, staticmethod))


@for_each("module", [ps, ops, testing])
def test_all_names_exactly_what_is_public(module):
    assert set(module.__all__) - {"image", "indices", "ops"} == public_names(module)
    assert list(module.__all__) == sorted(module.__all__, key=_as_ruff_sorts)


def _as_ruff_sorts(name):
    """Constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_a_star_import_gives_what_all_names():
    names = {}
    exec("from penstock import *", names)
    assert set(names) - {"__builtins__"} == set(ps.__all__)


def test_the_package_does_not_import_its_own_test_tools():
    code = "import sys, penstock; sys.exit(any(name.startswith('penstock.testing') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@for_each("name", ps.__all__)
def test_every_public_thing_says_what_it_is_for(name):
    value = getattr(ps, name)
    assert inspect.getdoc(value), name
    if isinstance(value, type):
        own = value.__doc__
        assert own, f"{name} has only the documentation of its base"
        assert not own.startswith(f"{name}("), f"{name} has only what dataclass wrote"
        for member, function in members(value).items():
            assert inspect.getdoc(function), f"{name}.{member}"


@for_each("name", ops.__all__)
def test_every_op_says_what_it_does(name):
    value = getattr(ops, name)
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}(")


def test_every_method_of_pipeline_is_an_op_or_known_to_be_none():
    assert set(members(ps.Pipeline)) == {*OPS, *OTHER_METHODS}


def test_every_op_has_a_method():
    classes = [value for value in vars(ops).values() if dataclasses.is_dataclass(value)]
    concrete = {value for value in classes if issubclass(value, ops.Op)}
    assert concrete == set(OPS.values())


@for_each("name", OPS)
def test_a_method_takes_what_its_op_takes(name):
    assert parameters(getattr(ps.Pipeline, name)) == parameters(OPS[name])


def test_type_checkers_know_all_arguments_of_an_op_that_calls_a_function():
    assert Calling.__optional_keys__ == {name for name, *_ in parameters(ops.Map)} - {"fn"}


@for_each("name", OPS)
def test_a_method_is_documented_as_its_op(name):
    assert getattr(ps.Pipeline, name).__doc__ == OPS[name].__doc__


@for_each("name", OPS)
def test_an_op_is_called_what_its_method_is_called(name):
    assert OPS[name].verb == name


ARGUMENTS = {
    "map": ((str,), {"workers": 2, "on": "thread", "rng": True, "ordered": False, "name": "n"}),
    "filter": ((bool,), {"key": "x", "on_error": "skip", "timeout_s": 3.0}),
    "flat_map": ((list,), {"interleave": 3, "info": True, "workers": 4}),
    "tap": ((print,), {"star": True, "on_error": ps.Retry(2)}),
    "batch": ((3,), {"drop_last": True, "pad": 0}),
    "unbatch": ((), {}),
    "bucket": (("x", [4]), {"size": [2, 1], "budget": 8, "pad": -1}),
    "pack": ((8,), {"key": "x", "how": "fit", "eos": 0, "long": "drop"}),
    "shard": ((1, 4), {"equal": "wrap", "steps": 7}),
    "shuffle": ((8,), {"seed": 4}),
    "resample": (([1, 2],), {"replace": False, "n": 1}),
    "reservoir": ((4,), {"min_fill": 2, "max_reuse": 3, "draws": 5}),
    "repeat": ((3,), {}),
    "take": ((3,), {}),
    "skip": ((3,), {}),
    "epoch": ((3,), {}),
    "cache": ((), {"max_bytes": 100}),
    "prefetch": ((3,), {}),
    "to": (("cpu",), {"depth": 3, "dtype": "float32"}),
}
#: keywords that have no default
REQUIRED = {"bucket": ["size"], "pack": ["key"]}


@for_each("name", OPS)
def test_a_method_hands_every_argument_to_its_op(name):
    args, options = ARGUMENTS[name]
    *implied, made = getattr(ps.from_sequence([1]), name)(*args, **options).ops
    assert made == OPS[name](*args, **options)
    assert len(implied) == (name in ("bucket", "pack"))
    required = {one: options[one] for one in REQUIRED.get(name, ())}
    assert made != OPS[name](*args, **required) or not options


def test_help_shows_what_a_method_does_and_takes():
    text = pydoc.render_doc(ps.Pipeline.map, renderer=pydoc.plaintext)
    assert "Replace every sample by ``fn(sample)``." in text
    assert "workers" in text


@for_each("name", [name for name in ps.__all__ if name.startswith("from_")] + ["fake", "zip", "concat", "mix"])
def test_a_function_that_makes_a_pipeline_shows_an_example_that_runs(name):
    assert ">>> " in getattr(ps, name).__doc__


@pytest.mark.skipif(not PAGE.exists(), reason="there is no API page yet")
@for_each("name", [*ps.__all__, *(f".{name}" for name in [*OPS, *sorted(OTHER_METHODS)])])
def test_the_api_page_mentions_every_public_name(name):
    assert name.lstrip(".") in PAGE.read_text()
