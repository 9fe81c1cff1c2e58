"""What many parts check alike of what a user gives them."""

from __future__ import annotations

import operator
from typing import Any

from penstock.errors import PlanError

__all__ = ["whole_number"]


def whole_number(value: Any, what: str, least: int = 0) -> int:
    """`value` as an int, numpy's integers too; refuses what is none.

    >>> import numpy as np
    >>> whole_number(np.int64(3), "take(n)")
    3
    >>> whole_number(True, "take(n)")
    Traceback (most recent call last):
    penstock.errors.PlanError: take(n) takes a whole number, at least 0, got True
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise PlanError(f"{what} takes a whole number, at least {least}, got {value!r}")
    return number
