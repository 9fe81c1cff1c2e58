"""Modules that are imported when a test uses them, not when pytest collects its file, as every process does."""

from typing import Any

import pytest


class Later:
    """A module that is imported when something is read from it; without it, that test is skipped."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks every name of a module what it is
            raise AttributeError(attribute)
        return getattr(pytest.importorskip(self._name), attribute)

    def __reduce__(self) -> tuple[Any, ...]:
        return Later, (self._name,)
