"""What is imported, and when: what a user does not use must not take time or memory."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps

INIT = Path(ps.__file__)

#: what takes long to import, and what nobody needs before a pipeline runs
HEAVY = {
    "asyncio",
    "cloudpickle",
    "concurrent",
    "ctypes",
    "dataclasses",
    "decimal",
    "email",
    "fractions",
    "hashlib",
    "importlib.metadata",
    "inspect",
    "json",
    "logging",
    "msgspec",
    "multiprocessing",
    "numpy",
    "pickle",
    "random",
    "secrets",
    "select",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "typing_extensions",
    "urllib",
}
#: what only some pipelines need; numpy itself imports the others
RARE = HEAVY - {"ctypes", "dataclasses", "inspect", "numpy", "pickle", "threading"}
#: modules of ours for which that is so
OURS = {
    f"penstock.{name}"
    for name in [
        "executors.coroutines",
        "executors.ending",
        "executors.newborn",
        "executors.processes",
        "executors.servers",
        "executors.startup",
        "memory.block",
        "memory.codec",
        "memory.exceptions",
        "memory.parcel",
        "memory.segment",
        "runtime.cargo",
        "runtime.fingerprint",
        "runtime.isolated",
        "runtime.peek",
        "runtime.portable",
        "runtime.remote",
        "runtime.serving",
        "runtime.wire",
        "sources.mix",
        "stats.diagnose",
        "stats.report",
        "testing",
        "turns",
    ]
}

RUN = "import penstock as ps; list(ps.from_sequence(range(10)).map(float{on}).batch(2){loader})"


def imported_by(code):
    """The modules that a new interpreter has after `code`, beyond those that it starts with."""
    told = f"import sys; before = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    command = [sys.executable, "-I", "-c", told]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_importing_penstock_imports_next_to_nothing():
    found = imported_by("import penstock")
    assert not found & HEAVY
    assert {name for name in found if name.startswith("penstock")} == {"penstock", "penstock.lazy"}


@pytest.mark.parametrize(
    "code",
    [
        RUN.format(on="", loader=".loader(inline=True)"),
        RUN.format(on=", workers=2", loader=""),
    ],
    ids=["inline", "threads"],
)
def test_what_only_processes_and_coroutines_need_is_not_imported_for_threads(code):
    found = imported_by(code)
    assert "penstock.core.engine" in found
    assert not found & (RARE | OURS)


#: what is used in turn, and the module that nothing before it has needed
USES = {
    "ps.mix([ps.from_sequence([1])])": "penstock.sources.mix",
    "ps.from_sequence([1]).loader().diagnose()": "penstock.stats.diagnose",
    "list(ps.from_sequence([1]).map(float, on='process', workers=1))": "penstock.remote.front",
    "list(ps.from_sequence([1]).loader(isolate=True))": "penstock.remote.isolated",
}


def test_what_is_used_is_imported_then():
    found = imported_by(
        "import penstock as ps\n"
        f"for code, needed in {USES!r}.items():\n"
        "    assert needed not in sys.modules, needed\n"
        "    exec(code)\n"
        "    assert needed in sys.modules, needed"
    )
    assert found >= set(USES.values())


# ---------------------------------------------------------------------- the names, as if they were there


def test_type_checkers_see_the_names_that_are_imported_when_used():
    """The two lists of `__init__.py` say the same."""
    (choice,) = (node for node in ast.parse(INIT.read_text()).body if isinstance(node, ast.If))
    written = {}
    for node in choice.body:
        assert isinstance(node, ast.ImportFrom)
        if node.module == "penstock":
            written |= {f"penstock.{alias.name}": [] for alias in node.names}
        else:
            written[node.module] = [alias.name for alias in node.names]
    (table,) = (node for node in ast.walk(choice) if isinstance(node, ast.Dict))
    assert ast.literal_eval(table) == written
    assert {*(name for names in written.values() for name in names), "image", "indices", "ops"} == set(ps.__all__)


def test_dir_knows_all_names_before_any_is_used():
    code = (
        "import penstock; assert set(penstock.__all__) <= set(dir(penstock)); assert '__version__' in dir(penstock)"
    )
    assert not imported_by(code) & HEAVY


def test_a_name_can_be_the_first_that_is_used():
    # Each in a fork of an interpreter that has used none.
    imported_by(
        "import os, penstock\n"
        "for name in ('Pipeline', 'ops', 'indices', 'zip'):\n"
        "    if (pid := os.fork()) == 0:\n"
        "        getattr(penstock, name)\n"
        "        exec(f'from penstock import {name}')\n"
        "        os._exit(7)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7, name"
    )


def test_a_name_that_is_not_there_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Pipelines'"):
        ps.Pipelines  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Pipelines'"):
        from penstock import Pipelines  # noqa: F401
    assert not hasattr(ps, "__wrapped__")


def test_several_threads_may_be_the_first_to_use_a_name():
    imported_by(
        "import threading, penstock as ps\n"
        "gate, seen = threading.Barrier(8), []\n"
        "def use():\n"
        "    gate.wait()\n"
        "    seen.append((ps.Pipeline, ps.Loader, ps.from_sequence))\n"
        "threads = [threading.Thread(target=use) for _ in range(8)]\n"
        "[thread.start() for thread in threads], [thread.join() for thread in threads]\n"
        "assert len(seen) == 8 and len(set(seen)) == 1"
    )
