"""The optional dependency of the service."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock.errors import missing_extra


def zmq_module() -> Any:
    """pyzmq, or what to install."""
    try:
        return import_module("zmq")
    except ImportError:
        raise missing_extra("pyzmq", "service", "the data server") from None
