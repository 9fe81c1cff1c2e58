"""Which sample ends an isolated process, judged by what it had in hand when it died. Pure."""

from __future__ import annotations

from penstock.program.desk import Desk

__all__ = ["Suspicion"]


class Suspicion:
    """Finds the sample that ends the process. A death alone says nothing: processes die for many reasons.

    After two deaths without anything new the next process does one thing after the other and shows what it has in
    hand. A sample that is in hand three times running is not run any more, and `on_error` decides.
    """

    def __init__(self) -> None:
        #: by the call: how the process ended
        self.condemned: dict[tuple[int, int, int], str] = {}
        self.desk: Desk | None = None
        self._deaths = 0
        self._suspect: tuple[int, int, int] | None = None
        self._kills = 0

    @property
    def careful(self) -> bool:
        """The next process shows what it has in hand."""
        return self._deaths >= 2

    def relieve(self) -> None:
        """Something new has come."""
        self._deaths = self._kills = 0
        self._suspect = self.desk = None

    def death(self, how: str) -> None:
        """A process has ended, in this way, without anything new from it."""
        self._deaths += 1
        sample = None if self.desk is None else self.desk.sample
        self.desk = None
        if sample is None:
            return
        call = (sample.step, sample.position, sample.way)
        self._kills = self._kills + 1 if call == self._suspect else 1
        self._suspect = call
        if self._kills >= 3:
            self.condemned[call] = how
            self.relieve()
