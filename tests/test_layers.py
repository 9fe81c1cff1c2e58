"""Imports go downwards only. This page is the order; a module may import from the lines above its own.

Each line is one layer. Modules of one layer do not import each other, unless the layer is a package
that is one subject (``plan``, ``core``, ``cli``) or is said to be a chain.
"""

import ast
from functools import cache
from pathlib import Path

from tests.cases import for_each

ROOT = Path(__file__).parent.parent / "src" / "penstock"

#: lowest first; a name stands for the module and, if it is a package, for all in it that has no line of its own
LAYERS = [
    ["errors", "frames", "interrupts", "lazy", "machine", "system"],
    # how a process is started, and how it ends
    ["executors.newborn"],
    ["executors.ending", "executors.servers"],
    ["executors.startup"],
    ["executors.templates"],
    ["bar", "checks", "tensors", "generators", "ported"],
    # files wherever they are
    ["storage"],
    # what their bytes mean
    ["formats"],
    ["image"],
    ["provenance", "randomness", "trees", "executors.parking", "memory"],
    ["places"],
    # samples kept in files
    ["disk"],
    # which samples of a source to use, and whose turn it is
    ["indices", "turns"],
    ["executors.executor"],
    # where batches go
    ["devices.device"],
    ["devices.host"],
    ["devices.cuda"],
    ["ops.joint"],
    ["ops.op"],
    ["sources.source"],
    ["sources.chosen"],
    ["sources.shards"],
    ["sources.blocks", "sources.streams", "sources.tables"],
    # what ops and sources say and check alike: names of functions, fields, counts, samples kept
    ["ops.functions", "ops.fields", "ops.residents", "ops.content", "sources.listing"],
    ["ops.call", "ops.rows", "executors.threads"],
    ["ops.*", "sources.*", "executors.*", "devices.*"],
    # what only from_torch runs: reads and collates that are like map and batch
    ["ops.read"],
    ["ops", "sources", "executors", "devices"],
    ["stats"],
    ["dashboard"],
    ["plan"],
    ["showing"],
    ["resume"],
    ["program"],
    ["core"],
    ["remote"],
    ["writers"],
    ["runnable"],
    ["pipeline"],
    ["construct", "readers", "evaluation", "frameworks", "measuring", "service"],
    ["penstock"],
    ["testing", "cli"],
    ["__main__"],
]

CONCRETE = LAYERS.index(["ops.*", "sources.*", "executors.*", "devices.*"])

#: one subject in several files: they may import each other, without a cycle
SUBJECTS = {"memory", "plan", "program", "resume", "core", "remote", "cli", "testing", "stats", "dashboard"}
SUBJECTS |= {"disk", "storage", "image", "formats", "readers", "writers", "frameworks", "measuring", "service"}
SUBJECTS |= {"showing"}

#: What only some users need is imported by the function that needs it, here and nowhere else. What needs an
#: optional dependency, so that others run without; and what takes long, so that others need not wait for it.
LATE = {
    "cli.measure": {"measuring.measure"},
    "cli.top": {"dashboard.client", "dashboard.notices"},
    "cli.demo": {f"cli.showcase.{name}" for name in ("photos", "race", "results", "scoreboard")},
    "construct": {"ops.read", "sources.files", "sources.folder", "sources.mix", "sources.numbers"},
    "executors": {f"executors.{name}" for name in ("coroutines", "inline", "processes", "threads")},
    "runnable": {"core.fingerprint", "core.peek", "writers.write"},
    "readers.records": {f"sources.{name}" for name in ("lines", "lmdb", "tar", "tfrecord")},
    "readers.tables": {f"sources.{name}" for name in ("arrow", "csv", "hdf5", "npy", "parquet")},
    "program.desk": {"memory.segment"},
    "program.calls": {"generators"},
    "core.setup": {"executors.processes"},
    "core.views": {"core.reporting"},
}


def modules():
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name or "penstock"] = path
    return found


MODULES = modules()


def layer(name):
    """The number of the layer, and the subject that `name` belongs to, if it is part of one."""
    family, _, rest = name.partition(".")
    for number, names in enumerate(LAYERS):
        if name in names:
            return number, name if name in SUBJECTS else None
    for number, names in enumerate(LAYERS):
        if rest and f"{family}.*" in names:
            return number, None
        if family in names:
            return number, family
    raise AssertionError(f"{name} has no place in the order: add it to LAYERS")


def imports(node):
    """The penstock modules that `node` imports, by their names below the package."""
    if isinstance(node, ast.Import):
        paths = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are written out in full"
        paths = [f"{node.module}.{alias.name}" for alias in node.names]
        # "from penstock.ops import Map" is an import of penstock.ops, "from penstock import ops" too
        paths = [path if _module(path) in MODULES else node.module or "" for path in paths]
    else:
        return set()
    return {_module(path) for path in paths if path.split(".")[0] == "penstock"}


def _module(path):
    return path.removeprefix("penstock.") if path.startswith("penstock.") else path


def statements(body, function=""):
    """Every statement and the function that it stands in, except below `if TYPE_CHECKING`.

    Expressions, of which a file mostly consists, cannot import.
    """
    for node in body:
        yield node, function
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from statements(node.orelse, function)
            continue
        inner = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        for field in ("body", "handlers", "cases", "orelse", "finalbody"):
            yield from statements(getattr(node, field, ()), inner)


@cache
def imports_of(name):
    """What a module imports, each with the function that does.

    Its tree is not kept: garbage collections would go through the trees of all modules until pytest ends.
    """
    body = ast.parse(MODULES[name].read_text()).body
    return {(function, found) for node, function in statements(body) for found in imports(node)}


def imported_by(name):
    return {found for _, found in imports_of(name)}


@for_each("name", MODULES)
def test_imports_go_downwards_only(name):
    number, subject = layer(name)
    for found in sorted(imported_by(name)):
        below, other = layer(found)
        inside = subject is not None and subject == other
        assert below < number or inside, f"{name} imports {found}, which is not below it"


@for_each("name", [name for name in MODULES if layer(name)[0] == CONCRETE])
def test_no_family_imports_another(name):
    """Concrete ops, sources and executors know the contracts and what is written for all, not each other."""
    assert not {found for found in imported_by(name) if layer(found)[0] >= CONCRETE}


def test_there_is_no_import_cycle():
    graph = {name: imported_by(name) - {name} for name in MODULES}
    done, path = set(), []

    def visit(name):
        if name in path:
            raise AssertionError(f"a cycle: {' -> '.join([*path[path.index(name) :], name])}")
        if name not in done:
            path.append(name)
            for found in graph.get(name, ()):
                visit(found)
            path.pop()
            done.add(name)

    for name in graph:
        visit(name)


@for_each("name", MODULES)
def test_no_function_imports_a_penstock_module(name):
    late = LATE.get(name, set())
    for function, found in sorted(imports_of(name)):
        assert not function or found in late, f"{name}.{function} imports {found}"


@for_each("name", [name for name in MODULES if not name.startswith("testing")])
def test_nothing_outside_the_test_tools_imports_them(name):
    assert not {found for found in imported_by(name) if found.partition(".")[0] == "testing"}
