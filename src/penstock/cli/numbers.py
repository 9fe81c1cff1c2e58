"""Numbers as arguments of a command: argparse prints the message of what they raise."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from math import inf
from typing import TypeVar

N = TypeVar("N", int, float)


def whole(text: str) -> int:
    """Any whole number."""
    return _number(int, text, "a whole number")


def at_least_one(text: str) -> int:
    """A count."""
    value = _number(int, text, "a whole number")
    if value < 1:
        raise ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def positive(text: str) -> float:
    """A time or a size."""
    value = _number(float, text, "a number")
    if not value > 0:
        raise ArgumentTypeError(f"must be more than 0, got {value:g}")
    return value


def not_negative(text: str) -> float:
    """A time that may be nothing."""
    value = _number(float, text, "a number")
    if not 0 <= value < inf:
        raise ArgumentTypeError(f"must be 0 or more, and finite, got {value:g}")
    return value


def _number(kind: Callable[[str], N], text: str, what: str) -> N:
    try:
        return kind(text)
    except ValueError:
        raise ArgumentTypeError(f"must be {what}, got {text!r}") from None
