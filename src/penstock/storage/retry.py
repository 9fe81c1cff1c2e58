"""Trying a remote read again: how often, how long, and what the error says in the end.

Try n + 1 begins ``25 ms × 4^(n-1)`` after try n began, at most 10 s, times a random factor from 0.5 to 1, so that
clients that failed together do not come back together; and at once if try n took longer than that. One failure in a
row of good answers is mostly bad luck, so the second try comes early; a store that goes on failing is soon left
alone for seconds. A failure that cannot pass (no such object, no permission) is raised at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from penstock.checks import whole_number
from penstock.errors import PlanError, ReadError

T = TypeVar("T")

_FIRST_PAUSE_S = 0.025
_LONGEST_PAUSE_S = 10.0
#: each pause, and each wait for a silent request, is so many times the one before
GROWTH = 4


@dataclass(frozen=True)
class Retries:
    """What the user may set in ``storage_options``."""

    #: how often a read is tried
    tries: int = 8
    #: a try that receives nothing for so long has failed; first tries wait less
    attempt_s: float = 15.0
    #: no try begins later than this after the first did, and none takes longer
    total_s: float = 300.0

    def run(self, call: Callable[[int], T], may_pass: Callable[[Exception], bool], what: str) -> T:
        """``call(1)``, then ``call(2)`` and so on, as long as it fails in a way that may pass."""
        began = time.monotonic()
        for tried in range(1, self.tries + 1):
            tried_at = time.monotonic()
            try:
                return call(tried)
            except Exception as exc:
                if not may_pass(exc):
                    raise
                apart = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * GROWTH ** (tried - 1)) * random.uniform(0.5, 1.0)
                now = time.monotonic()
                passed, pause = now - began, max(0.0, tried_at + apart - now)
                if tried == self.tries or passed + pause > self.total_s:
                    raise ReadError(
                        f"{what}: failed {tried} times in {passed:.1f} s; the last error: {first_line(exc)}"
                    ) from exc
            time.sleep(pause)
        raise AssertionError("a read is tried at least once")


def first_line(exc: BaseException) -> str:
    """An exception in a line; those of obstore have pages of details below."""
    return str(exc).strip().partition("\n")[0][:500] or type(exc).__name__


def split_options(options: Mapping[str, Any] | None) -> tuple[Retries, dict[str, Any]]:
    """The user's ``storage_options``: what is for penstock, and what is for the store."""
    rest = dict(options or {})
    own = {field.name: rest.pop(field.name) for field in fields(Retries) if field.name in rest}
    if "tries" in own:
        own["tries"] = whole_number(own["tries"], "storage_options: tries", least=1)
    for name in ("attempt_s", "total_s"):
        if name in own and not (isinstance(own[name], int | float) and own[name] > 0):
            raise PlanError(f"storage_options: {name} takes a number of seconds above 0, got {own[name]!r}")
    return Retries(**own), rest
