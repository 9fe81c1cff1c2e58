"""An op as the call that adds it to a pipeline: code to copy into a program.

What a user may have written in another way, such as a lambda or a method, is left as ``...`` for them to fill in.
"""

from __future__ import annotations

import sys
from dataclasses import MISSING, fields
from typing import Any

from penstock.ops.call import CallOp, Retry
from penstock.ops.functions import PerWorker


def call_of(op: CallOp[Any, Any], **changed: Any) -> str:
    """The call of `op`, with the arguments that are not the default, and with those that are changed.

    >>> from penstock.ops.map import Map
    >>> call_of(Map(abs, key="x", workers="auto", name="size"), workers=3)
    '.map(abs, workers=3, key="x", name="size")'
    """
    given = {field.name: changed.get(field.name, getattr(op, field.name)) for field in fields(op) if field.kw_only}
    defaults = {field.name: field.default for field in fields(op) if field.default is not MISSING}
    arguments = [f"{name}={_value(value)}" for name, value in given.items() if value != defaults.get(name)]
    return f".{op.verb}({', '.join([_function(op.fn), *arguments])})"


def _function(fn: Any) -> str:
    if isinstance(fn, PerWorker):
        return f"ps.per_worker({_function(fn.factory)})"
    name = getattr(fn, "__qualname__", "...")
    if getattr(sys.modules["penstock"], name, None) is fn:
        return f"ps.{name}"
    bound = getattr(fn, "__self__", None)  # builtin functions are bound to their module
    known = name.isidentifier() and (bound is None or isinstance(bound, type(sys)))
    return name if known else "..."


def _value(value: Any) -> str:
    if isinstance(value, str):
        import json  # few programs print a call

        return json.dumps(value)
    if isinstance(value, Retry):
        return f"ps.{value!r}"
    return repr(value) if isinstance(value, bool | int | float | tuple) else "..."
