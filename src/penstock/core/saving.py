"""Where a loader stands, for `state_dict` and `load_state_dict`: which batches it has handed over, and of what.

Nothing is computed while batches are handed over: of the last chunks it is remembered where their samples came
from, and the state after one of their batches is worked out when somebody asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from penstock.errors import PenstockError
from penstock.program.chunk import Chunk
from penstock.provenance import Place
from penstock.resume.ranks import check_rank, for_rank, is_merged, merge_states
from penstock.resume.schema import VERSION, Edge, RankState, State, opened, sealed
from penstock.resume.state import check_pipeline, described
from penstock.sources.source import Flow

#: chunks behind which the stream can still be told to stand
_REMEMBERED = 48

#: a chunk that was handed over, without its batches: its origin and places, its epoch, and how many batches of that
#: epoch, and in all, came before it
Handed = tuple[Any, Sequence[Place], int, int, int]


class Saving:
    """What a loader knows about where it stands."""

    def __init__(self, flow: Flow, deals: Any, seed: int, engine: Any) -> None:
        self._flow = flow
        self._deals = deals
        self._seed = seed
        self._engine = engine
        #: the last chunks: enough to tell where the stream stood some batches ago
        self.chunks: deque[Handed] = deque(maxlen=_REMEMBERED)
        #: what a state says as long as nothing more is handed over, and how many batches had been by then
        self.moment, self._moment_at = self.start_of(0), 0

    @cached_property
    def _described(self) -> list[Any]:
        """The pipeline in words; what is made of many samples is hashed for it, once."""
        return described(self._flow)

    @property
    def _rank(self) -> RankState | None:
        """Which rank of what world this is, where ranks do not deliver in step."""
        if self._deals is None or self._deals.keeps:
            return None
        return RankState(self._deals.rank, self._deals.world)

    def _state(self, epoch: int, batch: int = 0, at: Edge | None = None) -> State:
        approximate = self._engine.plan.approximate is not None
        state = State(VERSION, self._described, self._seed, epoch, batch, 0, at=at, rank=self._rank)
        return replace(state, approximate=approximate)

    def start_of(self, epoch: int) -> State:
        """Where the stream stands before the first batch of an epoch."""
        return replace(self._state(epoch), carried=self._engine.carrying())

    def handed(self, chunk: Chunk, epoch: int, batch: int, first: int) -> None:
        """A chunk is being handed over, after so many batches of its epoch, and in all."""
        self.chunks.append((chunk.origin, chunk.places, epoch, batch, first))

    def stand(self, state: State, handed: int) -> None:
        """The stream stands here until another batch than the `handed` so far is handed over."""
        self.moment, self._moment_at = state, handed

    def after(self, handed: int, step: int, behind: int) -> dict[str, Any]:
        """The state after `handed` batches, at that `step`; `behind` is how long ago that was."""
        if handed == self._moment_at:
            return sealed(replace(self.moment, step=step))
        for origin, places, epoch, batch, first in reversed(self.chunks):
            if first < handed <= first + len(places):
                number = handed - first - 1
                edge = self._engine.standing(origin, places, number)
                return sealed(replace(self._state(epoch, batch + number + 1, edge), step=step))
        raise PenstockError(
            f"state_dict(behind={behind}): this loader has handed over {handed + behind} batches, and remembers "
            f"where the stream stood for the last {_REMEMBERED} chunks of them; ask for a batch that is nearer"
        )

    def read(self, state: Any, strict: bool) -> State:
        """A saved state that fits this loader; `StateMismatch` for any other."""
        if isinstance(state, (list, tuple)):
            state = merge_states(state)
        found = self._for_rank(state) if is_merged(state) else opened(state)
        if not strict:
            found.pipeline = None
        check_pipeline(found, self._flow, self._seed)
        if self._deals is not None or found.rank is not None:
            check_rank(found.rank, self._deals)
        return found

    def _for_rank(self, merged: dict[str, Any]) -> State:
        """What of the states of all ranks falls to this one."""
        plan = self._engine.plan
        return for_rank(merged, plan, self._deals, self._seed, plan.source_length(self._deals))
