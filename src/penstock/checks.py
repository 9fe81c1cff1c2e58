"""What many parts check alike of what a user gives them, or a saved state."""

from __future__ import annotations

import operator
import sys
from typing import Any

from penstock.errors import OnError, PlanError, StateMismatch


def whole_number(value: Any, what: str, least: int = 0) -> int:
    """A count, as an int, from an int or one of numpy's; refuses what is none, or more than can be counted.

    >>> import numpy as np
    >>> whole_number(np.int64(3), "take(n)")
    3
    >>> whole_number(True, "take(n)")
    Traceback (most recent call last):
    penstock.errors.PlanError: take(n) takes a whole number, at least 0, got True
    """
    number = any_number(value, what, least)
    if number > sys.maxsize:
        raise PlanError(f"{what} takes a whole number, at most {sys.maxsize}, got {value!r}")
    return number


def any_number(value: Any, what: str, least: int = 0) -> int:
    """As `whole_number`, of any size: a seed."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise PlanError(f"{what} takes a whole number, at least {least}, got {value!r}")
    return number


def saved_number(value: Any, op: str) -> int:
    """A count that the joint of `op` has saved; refuses what is none.

    >>> saved_number(3, "take()")
    3
    >>> saved_number(-1, "take()")
    Traceback (most recent call last):
    penstock.errors.StateMismatch: the state is damaged: take() saves a count, and the state has -1
    """
    try:
        return whole_number(value, op)
    except PlanError:
        raise StateMismatch(f"the state is damaged: {op} saves a count, and the state has {value!r}") from None


def check_positive(value: Any, what: str) -> None:
    """Refuse a number that is zero, negative or none at all. None stands for no limit.

    >>> check_positive(0, "loader(cpus=)")
    Traceback (most recent call last):
    penstock.errors.PlanError: loader(cpus=) must be positive, got 0
    """
    try:
        positive = value is None or value > 0
    except TypeError:
        positive = False
    if not positive:
        raise PlanError(f"{what} must be positive, got {value!r}")


def check_on_error(on_error: Any, what: str) -> OnError:
    """``on_error=`` of a source."""
    if on_error not in ("raise", "skip"):
        raise PlanError(f"{what}: on_error= is 'raise' or 'skip', got {on_error!r}")
    return on_error  # type: ignore[no-any-return]
