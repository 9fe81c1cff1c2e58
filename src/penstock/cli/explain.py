"""``penstock explain module:name``: the stages of a pipeline, what was fused, and why."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

from penstock.cli.command import UsageError
from penstock.pipeline import Pipeline

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
    from types import ModuleType


SUMMARY = "print the stages of a pipeline: what was fused, what is bounded, and why"


def add_target(parser: argparse.ArgumentParser) -> None:
    """The pipeline that a command is about."""
    parser.add_argument(
        "target",
        metavar="module:name",
        help="a Pipeline, or a function without arguments that returns one, e.g. train:data",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON, for programs")


def run(args: argparse.Namespace) -> int:
    """Print the explanation."""
    explanation = find_pipeline(args.target).explain()
    if args.json:
        import json

        print(json.dumps(explanation.to_dict(), indent=2))
    else:
        print(explanation)
    return 0


def find_pipeline(target: str) -> Pipeline[Any]:
    """The pipeline that ``module:name`` stands for; ``name`` may be dotted.

    Modules are looked for in the current directory first, then among the installed ones.
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"expected module:name, got {target!r}; for `data` in train.py write train:data")
    if module_name.endswith(".py"):
        path, here = os.path.relpath(module_name), ""
        if path.startswith(os.pardir):
            here = f" in the folder {os.path.dirname(os.path.abspath(module_name))!r}"
            path = os.path.basename(path)
        module = path.removesuffix(".py").replace(os.sep, ".")
        raise UsageError(f"{module_name!r} is a file; write the module's name{here}: {module}:{name}")
    if module_name.startswith("."):
        raise UsageError(
            f"{module_name!r} is relative, and there is no package around it; write the module's whole name, "
            f"as for import: package{'.' + module_name.lstrip('.') if module_name.strip('.') else ''}:{name}"
        )
    value: Any = _import(module_name)
    for part in name.split("."):
        value = _attribute(value, part, target)
    return _as_pipeline(value, target)


def _import(module_name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that exists but imports something missing is the user's own error, traceback and all.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
    except SystemExit as exit:
        raise UsageError(
            f"{module_name!r} ended the program while it was imported, by sys.exit({exit.code!r}); put what should "
            'run only as a script under if __name__ == "__main__":'
        ) from None
    near = _near(module_name, _modules_in(here))
    raise UsageError(
        f"there is no module {module_name!r} in {here} or among the installed ones"
        + (f"; did you mean {near}?" if near else "; run this in the directory that holds it, or install it")
    )


def _attribute(owner: Any, name: str, target: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        pass
    where = getattr(owner, "__name__", type(owner).__name__)
    fitting = [known for known in dir(owner) if not known.startswith("_") and _may_fit(owner, known)]
    near = _near(name, fitting)
    if near:
        hint = f"did you mean {near}?"
    else:
        pipelines = [known for known in fitting if _gives_pipeline(getattr(owner, known))]
        hint = f"its pipelines: {', '.join(pipelines)}" if pipelines else "no name in it is a Pipeline"
    raise UsageError(f"{where!r} has no {name!r} (from {target}); {hint}")


def _may_fit(owner: Any, name: str) -> bool:
    """Whether a user may have meant this name: what a module has imported from elsewhere is not a pipeline."""
    value = getattr(owner, name, None)
    from_here = getattr(value, "__module__", None) == getattr(owner, "__name__", None)
    return isinstance(value, Pipeline) or not inspect.ismodule(owner) or (callable(value) and from_here)


def _gives_pipeline(value: Any) -> bool:
    """Whether it is a pipeline, or a function that is said to return one and needs no arguments."""
    if isinstance(value, Pipeline):
        return True
    returned = getattr(value, "__annotations__", {}).get("return", "")
    return inspect.isfunction(value) and "Pipeline[" in str(returned) and not _required_parameters(value)


def _as_pipeline(value: Any, target: str) -> Pipeline[Any]:
    made = ""
    if not isinstance(value, Pipeline) and callable(value):
        needed = _required_parameters(value)
        if needed:
            raise UsageError(
                f"{target} needs the argument {', '.join(needed)}; "
                "name a Pipeline, or a function without arguments that returns one"
            )
        value, made = value(), "returns "
    if isinstance(value, Pipeline):
        return value
    raise UsageError(
        f"{target} {made or 'is '}{_a_type(value)}, not a Pipeline; "
        "name a Pipeline, or a function without arguments that returns one"
    )


def _required_parameters(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _modules_in(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [
            entry.name.removesuffix(".py")
            for entry in entries
            if entry.name.endswith(".py") or os.path.exists(os.path.join(entry.path, "__init__.py"))
        ]


def _near(name: str, known: Iterable[str]) -> str:
    return " or ".join(difflib.get_close_matches(name, list(known), n=3, cutoff=0.6))


def _a_type(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
