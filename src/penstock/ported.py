"""Arguments of torch's DataLoader that penstock has under another name: a TypeError says which."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: arguments of DataLoader, and what to write instead
_OURS = {
    "dataset": "ps.from_sequence(dataset), or ps.from_torch(dataset)",
    "batch_size": ".batch(n)",
    "shuffle": ".shuffle()",
    "sampler": ".shuffle(), .resample(weights) or indices=, or ps.from_torch(dataset, sampler=...)",
    "batch_sampler": ".bucket(...), or ps.from_torch(dataset, batch_sampler=...)",
    "num_workers": "loader(on='process', workers=n), or on='process', workers=n on the op that needs it",
    "collate_fn": ".batch(n, collate=fn)",
    "pin_memory": ".to('cuda'), which copies from pinned memory",
    "pin_memory_device": ".to('cuda:1'), which copies from pinned memory",
    "drop_last": ".batch(n, drop_last=True)",
    "timeout": "loader(timeout_s=...)",
    "worker_init_fn": "ps.per_worker(factory)",
    "multiprocessing_context": "ps.Processes(n, start=...)",
    "generator": "loader(seed=...)",
    "prefetch_factor": ".prefetch(batches)",
    "persistent_workers": "leave it out: workers stay warm between epochs",
    "in_order": "ordered=False on the op that may deliver in any order",
}

#: the same where `from_torch` has an answer of its own
_OF_FROM_TORCH = {
    "dataset": "from_torch(dataset), without the name",
    "num_workers": "workers=n",
    "persistent_workers": "leave it out: workers stay warm between epochs",
    "timeout": ".loader(timeout_s=...), or timeout_s=... for each read",
    "generator": ".loader(seed=...)",
    "multiprocessing_context": "leave it out: penstock starts its worker processes itself",
    "in_order": "from_torch(DataLoader(..., in_order=False))",
}
#: what DataLoader takes by position after the dataset
_BY_POSITION = ("batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")


def names_ours(function: Callable[P, R]) -> Callable[P, R]:
    """`function`; called with an argument of DataLoader that it does not have, it says what ours is called."""
    own = {one.name for one in inspect.signature(function).parameters.values()}
    name = function.__name__
    ours = {**_OURS, **_OF_FROM_TORCH} if name == "from_torch" else _OURS

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for unknown in sorted(kwargs.keys() - own):
            if unknown in ours:
                raise TypeError(
                    f"{name}() has no argument {unknown!r}, which torch's DataLoader has; {_advice(ours[unknown])}"
                )
            if named := get_close_matches(unknown, own, 1):
                raise TypeError(f"{name}() has no argument {unknown!r}; did you mean {named[0]!r}?")
            raise TypeError(f"{name}() got an unexpected keyword argument {unknown!r}")
        if name == "from_torch" and len(args) > 1:
            named = [f"{one}={value!r}" for one, value in zip(_BY_POSITION, args[1:], strict=False)]
            written = ", ".join(["dataset", *named]).replace("num_workers", "workers")
            raise TypeError(f"from_torch() takes only the dataset by position; write from_torch({written})")
        return function(*args, **kwargs)

    return call


def _advice(instead: str) -> str:
    return instead if instead.startswith("leave it out") else f"write {instead}"
