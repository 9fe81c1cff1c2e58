"""What a command is: a module with a summary, its arguments, and a ``run`` that returns an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import argparse


class Command(Protocol):
    """A module fits as it is: ``SUMMARY``, ``add_arguments`` and ``run`` at its top level."""

    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of this command."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the exit code. May raise ``UsageError`` or any ``PenstockError``."""


class UsageError(Exception):
    """What was typed cannot be done. The message says what to type instead; exit code 2."""
