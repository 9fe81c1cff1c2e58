"""The key of a cache in a folder: all that the samples in it depend on, as far as it can be seen. Pure.

It is the same in every process and every run of one Python version. It is made of the source (its label, content
and length, and the data that it has in memory), of the ops before the cache with their arguments and functions, of
the seed if one of them draws random numbers, and of `version=`. Workers, executors and orders are no part of it.
"""

from __future__ import annotations

import sys
from typing import Any

from penstock.disk.digest import digest
from penstock.plan.plan import Indexed, Stage, Step
from penstock.sources.source import Source

#: goes up when older records would be misread
_FORMAT = 1
#: arguments that have no say in what an op makes of a sample
_NO_MATTER = {"workers", "on", "ordered", "on_error", "timeout_s", "name"}


def cache_key(stage: Stage, seed: int | None, version: Any) -> tuple[str, dict[str, Any]]:
    """The name of the sub-folder for what `stage` keeps, and what it stands for in words.

    Without a seed, the name is that of every seed, without the end that says which.
    """
    assert isinstance(stage.feed, Indexed)
    source = stage.feed.source
    steps = stage.steps[: stage.cache_step]
    label = source.label.replace("PackedList", "list")  # in another process a long list is one
    machine = [_FORMAT, sys.implementation.cache_tag, sys.byteorder]
    key = digest(
        machine, label, source.content, len(source), _held(source), [_step(step) for step in steps], version
    )
    random = any(_draws(step) for step in steps)
    about: dict[str, Any] = {
        "source": label,
        "content": source.content,
        "ops": [step.op.full_label for step in steps],
        "version": repr(version),
        "python": sys.implementation.cache_tag,
    }
    if random:
        about["seed"] = seed
    return (f"{key}-seed{seed}" if random and seed is not None else key), about


def _held(source: Source) -> dict[str, Any]:
    """What a source was made of: samples in memory, a listing, another source."""
    known = getattr(source, "__dict__", {})
    return {name: _held(one) if isinstance(one, Source) else one for name, one in known.items() if name[0] != "_"}


def _step(step: Step) -> list[Any]:
    op = step.op
    arguments = {
        name: getattr(op, name) for name in getattr(op, "__dataclass_fields__", {}) if name not in _NO_MATTER
    }
    # What is drawn hangs on the op's name and place among those of that name.
    return [type(op), arguments, step.key if _draws(step) else ""]


def _draws(step: Step) -> bool:
    return bool(step.op.random) or bool(getattr(step.op, "info", False))
