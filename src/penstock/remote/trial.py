"""What a death of a worker process says about the ticket it had in hand. Pure.

Processes die for many reasons that have nothing to do with the sample in hand, so a death never condemns
a ticket: it is run again. After two, its samples are run one at a time in a process of their own, a
*probe*, and only a sample that kills the probe three times running is held to be the cause. What a probe
cannot run, such as the making of a batch, is the cause if it kills three times running behind the probe.

An isolated process is judged in the same way, with its whole stream as one ticket. Its probe is a process that does
one thing after the other and shows what it has in hand.
"""

from __future__ import annotations

from penstock.program.task import CallKey

#: deaths after which a ticket's samples are run one at a time
_SUSPICIOUS = 2
#: deaths running with one sample in hand that are no accident
_CERTAIN = 3
#: processes that end one after the other before they have begun with a ticket or a sample; more where somebody
#: kills them
STILLBORN, STILLBORN_KILLED = 10, 60
#: processes of a crew that die without one answer in between, and processes of an isolated loader
DEATHS_RUNNING, DEATHS_RUNNING_ISOLATED = 100, 10


class Trial:
    """The deaths of one ticket, or of one isolated loader.

    >>> trial = Trial()
    >>> trial.death(None, "was killed"), trial.probing, trial.death(None, "was killed"), trial.probing
    (False, False, False, True)
    >>> for _ in range(3):
    ...     _ = trial.death((0, 7, 0), "was killed")
    >>> trial.condemned
    {(0, 7, 0): 'was killed'}
    """

    __slots__ = ("_deaths", "_kills", "_probed", "_suspect", "condemned", "probing")

    def __init__(self) -> None:
        #: samples that are not run any more, and how their worker ended
        self.condemned: dict[CallKey, str] = {}
        #: run its samples one at a time
        self.probing = False
        self._probed = False
        self._deaths = 0
        self._suspect: CallKey | None = None
        self._kills = 0

    def death(self, in_hand: CallKey | None, how: str, *, probeable: bool = True) -> bool:
        """A process has died with this ticket. True if the ticket is to be given up as a whole.

        `probeable` says whether a probe runs the call in hand: if it does, and lives, the sample is innocent.
        """
        self._kills = self._kills + 1 if in_hand == self._suspect else 1
        self._suspect = in_hand
        if not self.probing:
            self._deaths += 1
            self.probing = self._deaths >= _SUSPICIOUS and not self._probed
            self._kills = 0 if self.probing else self._kills
            certain = self._probed and self._kills >= _CERTAIN
            return certain and (probeable or not self._condemn(in_hand, how))
        if in_hand is None:
            return self._kills >= STILLBORN  # not even reading can begin
        if self._kills >= _CERTAIN:
            self._condemn(in_hand, how)
        return False

    def _condemn(self, in_hand: CallKey | None, how: str) -> bool:
        """Do not make a call any more; False if that is no help."""
        if in_hand is None or in_hand in self.condemned:
            return False
        self.condemned[in_hand] = how
        self._suspect, self._kills = None, 0
        return True

    def relieve(self) -> None:
        """Something new has come: deaths before that say nothing any more."""
        self.probing = False
        self._deaths = self._kills = 0
        self._suspect = None

    def probed(self) -> None:
        """All samples have been run one at a time; now the ticket can be run with what is known."""
        self.probing = False
        self._probed = True
        self._suspect, self._kills = None, 0
