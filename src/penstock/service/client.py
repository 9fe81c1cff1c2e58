"""`connect`: the batches of a data server as a pipeline.

Each pass over the source is one session per server. Which batch is record number p of a pass follows from the rank,
the world and p alone, so a state needs no more than p. It also says where the served pipeline stood, so that a
server that knows nothing of this client goes on there at once.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic, perf_counter
from typing import Any, ClassVar

from penstock.checks import check_positive, whole_number
from penstock.errors import CodecError, PlanError, ServiceError, StateMismatch
from penstock.memory.network import decode
from penstock.memory.scan import DOOR
from penstock.pipeline import Pipeline
from penstock.plan.world import world_now
from penstock.service.extra import zmq_module
from penstock.service.keys import Key, read_key
from penstock.service.lane import Arrived, Lane, Plan
from penstock.service.line import Line
from penstock.service.protocol import Welcome
from penstock.service.sockets import check_address
from penstock.service.split_lane import be_split, ready_lanes
from penstock.sources.source import Opening, StreamSource

#: positions for which it is remembered where the served pipeline stood
_REMEMBERED = 512


class ConnectSource(StreamSource):
    """Batches that a data server makes."""

    verb = "connect"
    deals_itself: ClassVar[bool] = True

    def __init__(
        self, addresses: Sequence[str], key: str | None, rank: int | None, world: int | None, timeout_s: float
    ) -> None:
        self.addresses = list(addresses)
        self.key = key
        self.rank = rank
        self.world = world
        self.timeout_s = timeout_s

    @property
    def label(self) -> str:
        more = f" and {len(self.addresses) - 1} more" if len(self.addresses) > 1 else ""
        return f"connect({self.addresses[0]}{more})"

    @property
    def saved_label(self) -> str:
        return "connect"

    def shards(self) -> Sequence[Any]:
        return (None,)

    def open(self, shard: Any, skip: int) -> Iterator[Any]:
        return self.opened(shard, skip, Opening(0))

    def opened(self, shard: Any, skip: int, opening: Opening) -> Iterator[Any]:
        if self.rank is not None and self.world is not None:
            rank, world = self.rank, self.world
        else:
            here = world_now()
            rank, world = here.rank, here.size
        subscription = Subscription(self, rank, world, skip, opening)
        try:
            yield from subscription
        finally:
            subscription.close()


class Subscription:
    """One pass over the batches of an epoch. Iterated by one thread at a time."""

    def __init__(self, source: ConnectSource, rank: int, world: int, skip: int, opening: Opening) -> None:
        self._source = source
        self._rank, self._world = rank, world
        self._epoch = opening.epoch
        self._position = self._start = skip
        self._mark = _checked_mark(opening.mark)
        #: record `_base[0]` of rank 0 is batch `_base[1]`
        self._base = (0, 0)
        self._stopped = False
        self._mode = self._ledger = ""
        #: by position: where a lane's part of the served pipeline stood before it
        self._stood: deque[tuple[int, int, int, bytes]] = deque(maxlen=_REMEMBERED)
        #: in mode "split": which lane each record of this pass came from
        self._sent_by = array("H")
        self._waited_s = 0.0
        #: bytes of the batch that was taken last
        self._nbytes = 0
        now = monotonic()
        count = len(source.addresses)
        known = str(self._mark.get("pipeline", ""))
        self._lanes = [Lane(self._plan_of(number), known, now) for number in range(count)]
        key: Key | None = None if source.key is None else read_key(source.key)
        self._line = Line(self._lanes, source.addresses, key, source.timeout_s)
        opening.mark_at, opening.stop, opening.ready = self.mark_at, self.stop, self.ready

    # ------------------------------------------------------------------ which batches

    def _plan_of(self, number: int) -> Any:
        return lambda welcome: self._plan(number, welcome)

    def _plan(self, number: int, welcome: Welcome) -> Plan | None:
        """What of this pass the server with this number sends. Called once for each lane, under the line's lock."""
        self._agree(welcome)
        servers = len(self._lanes)
        if welcome.mode == "split":
            return self._split_plan(number)
        first = self._first()
        step = math.lcm(self._world, servers)
        numbers = range(first, first + step, self._world)
        found = next((one for one in numbers if one % servers == number), None)
        if found is None:
            return None
        states = self._mark.get("states", {}) if self._mark.get("servers") == servers else {}
        at, state = states.get(str(number), (0, None))
        resume = (at, json.dumps(state).encode()) if state and at <= found else (number, b"")
        if state:
            self._stood.append((self._position, number, *resume))
        return Plan(self._epoch, found, step, servers, resume)

    def _split_plan(self, number: int) -> Plan:
        """The server chooses among its part; what clients were handed before is for the ledger to know."""
        servers = len(self._lanes)
        be_split(self._lanes[number], self._lanes)
        if not self._mark:
            return Plan(self._epoch, number, servers, servers)
        wanted = {name: self._mark[name] for name in ("ledger", "generation", "clients")}
        return Plan(self._epoch, number, servers, servers, (0, json.dumps(wanted, sort_keys=True).encode()))

    def _agree(self, welcome: Welcome) -> None:
        """All servers have the same mode, pipeline and ledger."""
        if not self._mode:
            self._mode, self._ledger = welcome.mode, welcome.ledger
            if welcome.mode == "each":
                self._rank, self._world = 0, 1
            self._set_base()
        others = {one.fingerprint for one in self._lanes} - {""}
        if self._mode != welcome.mode or len(others) > 1:
            raise ServiceError(
                f"the servers do not serve the same: modes {self._mode} and {welcome.mode}, pipelines "
                f"{' and '.join(sorted(others))}; serve one pipeline with one seed and mode on all of them"
            )
        if self._ledger != welcome.ledger:
            raise PlanError(
                "mode split over several servers needs one ledger, and two of the servers have different ones, or "
                "keep theirs in memory: both could hand out the same batch; start all of them with ledger= and the "
                "same file, connect to one of them, or serve with mode='shard'"
            )

    def _set_base(self) -> None:
        """Where the numbering of records begins: another number of ranks goes on where the one before stood."""
        mark = self._mark
        if not mark or mark["mode"] != self._mode:
            if mark:
                raise ServiceError(
                    f"the state is of a server in mode {mark['mode']}, and this one is in mode {self._mode}"
                )
            return
        if self._mode == "split":
            return
        record, number = mark["base"]
        if mark["world"] == self._world:
            self._base = (record, number)
        else:
            self._base = (mark["at"], number + (mark["at"] - record) * mark["world"])
        if self._position < self._base[0]:
            raise ServiceError(
                "the state owes batches from before the number of ranks changed; go on with as many ranks as before"
            )

    def _first(self) -> int:
        record, number = self._base
        return number + self._rank + (self._position - record) * self._world

    # ------------------------------------------------------------------ reading

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        arrived = self._next_arrived()
        if arrived is None:
            raise StopIteration
        header, *frames = arrived.frames
        try:
            return decode(header, frames, DOOR)
        except CodecError as exc:
            exc.add_note(f"in batch {arrived.number} of epoch {self._epoch} from {self._source.label}")
            raise

    def _next_arrived(self) -> Arrived | None:
        line, began = self._line, perf_counter()
        with line.lock:
            line.wait_for(self._due)
            if self._stopped:
                return None
            lane = self._turn_of()
            if lane is not None and lane.available:
                return self._taken(lane, lane.take(), perf_counter() - began)
            if line.error is not None:
                raise line.error
            error = next((one.error for one in self._lanes if one.error is not None), None)
            if isinstance(error, PlanError):
                raise error
            if error is not None:
                raise ServiceError(f"the data server at {self._source.label[8:-1]} refuses: {error}") from None
            return None

    def ready(self) -> bool:
        """Whether the next batch is here, if it is as large as the last one."""
        lane = self._turn_of()
        if lane is None or self._stopped:
            return False
        # In mode "split" a batch is the loop's only once the server has confirmed it.
        return bool(lane.available) or (
            self._mode != "split" and self._line.holds(self._lanes.index(lane), self._nbytes)
        )

    def _due(self) -> bool:
        """There is a batch, or none will come."""
        lane = self._turn_of()
        if lane is not None and (lane.available or lane.over):
            return True
        if self._stopped:
            return True
        return any(one.error is not None for one in self._lanes)

    def _turn_of(self) -> Lane | None:
        """The lane that has the next batch; None as long as that is not known."""
        if not self._mode:
            return None
        if len(self._lanes) == 1:
            return self._lanes[0]
        return self._split_turn() if self._mode == "split" else self._lanes[self._first() % len(self._lanes)]

    def _split_turn(self) -> Lane | None:
        """The lanes by turns, as far as they have batches; any of them once nothing more will come."""
        last = self._sent_by[-1] + 1 if self._sent_by else 0
        lanes = [*self._lanes[last:], *self._lanes[:last]]
        found = next((lane for lane in lanes if lane.available), None)
        return found or (lanes[0] if all(lane.over for lane in lanes) else None)

    def _taken(self, lane: Lane, arrived: Arrived, waited_s: float) -> Arrived:
        if self._mode != "split" and arrived.number != self._first():
            raise ServiceError(f"batch {arrived.number} came where {self._first()} was due")
        self._position += 1
        self._nbytes = arrived.nbytes
        self._waited_s += waited_s
        for one in self._lanes:
            one.waited_s = self._waited_s
        if arrived.state:
            servers = len(self._lanes)
            self._stood.append((self._position, arrived.number % servers, arrived.number + servers, arrived.state))
        number = self._lanes.index(lane)
        if self._mode == "split":
            self._sent_by.append(number)
        self._line.give_credit(number)
        return arrived

    # ------------------------------------------------------------------ where it stands, and the end

    def mark_at(self, position: int) -> Any:
        """What is saved besides the position."""
        if not self._mode:
            return None
        if self._mode == "split":
            return self._split_mark(position)
        states: dict[str, Any] = {}
        for at, lane, number, state in list(self._stood):
            if at <= position and state:
                states[str(lane)] = [number, json.loads(state)]
        return {
            "pipeline": self._lanes[0].fingerprint, "mode": self._mode, "base": list(self._base),
            "world": self._world, "at": position, "servers": len(self._lanes), "states": states,
        }  # fmt: skip

    def _split_mark(self, position: int) -> Any:
        """How many batches each lane of this client was handed, of which ledger."""
        count = position - self._start
        counts = Counter({0: count}) if len(self._lanes) == 1 else Counter(self._sent_by[:count])
        return {
            "mode": "split", "pipeline": self._lanes[0].fingerprint, "ledger": self._ledger,
            "generation": max((lane.generation for lane in ready_lanes(self._lanes)), default=0),
            "clients": {lane.token.hex(): counts[number] for number, lane in enumerate(self._lanes)},
        }  # fmt: skip

    def stop(self) -> None:
        """Let whoever waits return."""
        self._stopped = True
        self._line.wake()

    def close(self) -> None:
        self._stopped = True
        self._line.close()


def _checked_mark(mark: Any) -> Mapping[str, Any]:
    """What `mark_at` has saved; StateMismatch for anything else."""
    if mark is None:
        return {}
    try:
        if mark["mode"] == "split":
            counts = [whole_number(one, "clients") for one in mark["clients"].values()]
            if not counts or not isinstance(mark["ledger"], str) or whole_number(mark["generation"], "it") < 0:
                raise ValueError("its entries make no sense")
            return dict(mark)
        base = tuple(whole_number(one, "base") for one in mark["base"])
        numbers = [whole_number(mark[name], name) for name in ("world", "at", "servers")]
        sound = len(base) == 2 and numbers[0] > 0 and isinstance(mark["mode"], str) and base[0] <= mark["at"]
        for at, state in mark["states"].values():
            sound = sound and isinstance(state, dict) and whole_number(at, "at") >= 0
        if not sound:
            raise ValueError("its entries make no sense")
    except (LookupError, TypeError, ValueError, AttributeError, PlanError) as exc:
        raise StateMismatch(f"the state is damaged: what connect() saved: {exc}") from None
    found: Mapping[str, Any] = mark
    return found


def connect(
    addresses: str | Sequence[str],
    *,
    key: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    world: int | None = None,
    timeout_s: float | None = 60,
) -> Pipeline[Any]:
    """The batches of a data server; several addresses are several servers of the same pipeline.

    Nothing is sent before the pipeline is read. ``rank`` and ``world`` say which part a client of a server in mode
    ``"shard"`` reads; by default as the environment or ``torch.distributed`` have it. A server that has not
    answered for ``timeout_s`` is a `ServiceError`; None waits for ever.
    """
    zmq_module()
    given: list[Any] = list(addresses) if isinstance(addresses, (list, tuple)) else [addresses]
    for address in given:
        check_address(address, "connect()", bound=False)
    if not given or len(set(given)) != len(given):
        raise PlanError(f"connect() takes one address, or several different ones, got {addresses!r}")
    if world is not None:
        world = whole_number(world, "connect(world=)", least=1)
    if rank is not None:
        rank = whole_number(rank, "connect(rank=)")
    if (rank is None) != (world is None) or (rank is not None and world is not None and rank >= world):
        raise PlanError(f"connect(rank={rank}, world={world}): give both, with rank below world, or neither")
    check_positive(timeout_s, "connect(timeout_s=)")
    path = None if key is None else os.fspath(key)
    if path is not None and not read_key(path).server:
        raise PlanError(
            f"connect(key=): {path} does not name the server; make it with: penstock keygen FILE --server X.pub"
        )
    return Pipeline(ConnectSource(given, path, rank, world, math.inf if timeout_s is None else timeout_s))
