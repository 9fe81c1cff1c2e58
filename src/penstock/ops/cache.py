"""cache: keep finished samples, in memory or in a folder, and serve them again."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from penstock.checks import saved_number
from penstock.errors import PlanError
from penstock.lazy import named
from penstock.ops.joint import Ingredient, Input, Joint, Memo
from penstock.ops.op import NOT_DELIVERED, Effect, In, Key, Op
from penstock.provenance import Place
from penstock.trees import nbytes, read_only

#: why a folder cannot be used
WHOLE_EPOCHS = (
    "{label} keeps single samples of a source that can be indexed, but here a cache has to keep whole epochs; "
    "put it before ops that regroup or count (batch, shuffle(window=), take behind a filter), before shard(), and "
    "behind no async def and no second place of work, or use cache() in memory"
)


@dataclass(frozen=True)
class Cache(Op[In, In]):
    """Keep what arrives here, and serve it from there in later epochs: in memory, or in the folder ``path``.

    Over a source that can be indexed, samples are kept one by one: the ops before the cache run
    once per sample of the source, and a shuffle on either side still gives a new order every
    epoch. Over a stream, or after an op that regroups, the first complete epoch is kept and
    replayed as it was. Random ops before the cache draw once.

    Arrays come out read-only, since the cache still holds them. With ``max_bytes`` what does not
    fit is made again every time. In memory, a cache belongs to one loader.

    With ``path`` samples are kept in a folder that any number of processes and runs share, under a key of the
    source, the ops and their functions. Change ``version`` where something else has changed. It keeps single
    samples of plain data only. ``max_bytes`` is for all that is in the folder; what no process uses makes room.

    >>> import penstock as ps
    >>> calls = []
    >>> def slow(x):
    ...     calls.append(x)
    ...     return x * 10
    >>> with ps.from_sequence([1, 2]).map(slow).cache().loader(epochs=2) as loader:
    ...     [list(samples) for _, samples in loader.epochs(2)], calls
    ([[10, 20], [10, 20]], [1, 2])
    """

    path: str | os.PathLike[str] | None = field(default=None, metadata=NOT_DELIVERED)
    _: KW_ONLY
    max_bytes: int | None = field(default=None, metadata=NOT_DELIVERED)
    version: str | int | None = field(default=None, metadata=NOT_DELIVERED)

    verb = "cache"
    effect: ClassVar[Effect] = Effect.PASSES

    def __post_init__(self) -> None:
        path, max_bytes, version = self.path, self.max_bytes, self.version
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 0):
            raise PlanError(f"cache(max_bytes=) takes a number of bytes, got {max_bytes!r}")
        if path is not None and (not isinstance(path, (str, os.PathLike)) or not os.fspath(path)):
            raise PlanError(f"cache(path=) takes a folder, got {path!r}; leave it out to keep samples in memory")
        if version is not None and type(version) not in (str, int):
            raise PlanError(f"cache(version=) takes a string or a number, got {version!r}")
        if version is not None and path is None:
            raise PlanError("cache(version=) is for samples in a folder; give path= too, or leave version= out")
        if path is not None:
            object.__setattr__(self, "path", os.path.abspath(path))

    @property
    def label(self) -> str:
        return "cache()" if self.path is None else f"cache({self.path!r})"

    def memo(self) -> Memo:
        return _Memo(self)

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        replay = _Replay(memo.setdefault("tape", _Tape(self.max_bytes)))
        replay.refused = "" if self.path is None else WHOLE_EPOCHS.format(label=self.label)
        return replay


class _Memo(Memo):
    """The tape of one loader, once a joint has been made."""

    def __init__(self, op: Cache[Any]) -> None:
        self.op = op

    def store(self) -> Any:
        op = self.op
        if op.path is None:
            return Store(op.max_bytes)
        return named("penstock.disk.store:DiskStore")(op.path, op.max_bytes, op.label)

    @property
    def settled(self) -> bool:
        tape = self.get("tape")
        return tape is not None and (tape.kept or tape.full)

    def left(self, whole: bool) -> None:
        # Workers may have recorded an epoch to its end that the training loop has broken off.
        tape = self.get("tape")
        if tape is not None and not tape.kept:
            tape.kept = tape.complete and whole
            if not tape.kept:
                tape.erase()


class Store:
    """Samples by a key of their origin. Each worker may read and write it at any time."""

    def __init__(self, max_bytes: int | None) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._kept: dict[Hashable, tuple[list[Any], list[Place]]] = {}

    def get(self, key: Hashable) -> tuple[list[Any], list[Place]] | None:
        """What was kept under `key`: any number of samples, safe to hand out."""
        found = self._kept.get(key)
        return None if found is None else ([read_only(sample) for sample in found[0]], found[1])

    def refresh(self) -> bool:
        """Look for what others have written: nobody else writes here."""
        return False

    def put(self, key: Hashable, samples: list[Any], places: list[Place]) -> list[Any]:
        """Keep `samples` if there is room; what to pass on in their place."""
        size = sum(map(nbytes, samples))
        if self.max_bytes is not None and self.bytes + size > self.max_bytes:
            return samples
        if key not in self._kept:
            self.bytes += size
        self._kept[key] = (samples, places)
        return [read_only(sample) for sample in samples]


class _Tape:
    """A whole epoch in its order, once it is complete."""

    def __init__(self, max_bytes: int | None) -> None:
        self.max_bytes = max_bytes
        #: an epoch does not fit
        self.full = False
        #: it has been read to its end too, and is there for good
        self.kept = False
        self.erase()

    def erase(self) -> None:
        self.samples: list[Any] = []
        self.places: list[Place] = []
        self.complete = False


class _Replay(Joint):
    """Records the first complete epoch; afterwards plays it back and leaves the upstream closed."""

    opens_inputs = True
    remembers = True

    def __init__(self, tape: _Tape) -> None:
        self.tape = tape
        self.next = 0
        self.playing = tape.complete
        #: begun in the middle, so it is not the whole epoch that passes by
        self.partial = False
        #: samples still to leave out after a resume: they were delivered before
        self.left_out = 0
        self._from_start = False
        self.bytes = 0
        self.samples: list[Any] = []
        self.places: list[Place] = []

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        if self.playing:
            return self._played(most)
        (source,) = inputs
        if source.epoch < 0 or self._from_start:
            self._from_start = False
            source.renew(0)  # what is kept is drawn once, and must not depend on when
        while True:
            samples, places = source.take(most)
            self.ended = source.ended and not source.count
            samples = self._recorded(samples, places)
            old = min(self.left_out, len(samples))
            self.left_out -= old
            self.next += len(samples)
            if old == 0 or old < len(samples) or self.ended:
                return samples[old:], places[old:]

    def _played(self, most: int) -> tuple[list[Any], Sequence[Place]]:
        first, self.next = self.next, self.next + most
        self.ended = self.next >= len(self.tape.samples)
        samples = self.tape.samples[first : self.next]
        return [read_only(sample) for sample in samples], self.tape.places[first : self.next]

    def _recorded(self, samples: list[Any], places: Sequence[Place]) -> list[Any]:
        tape = self.tape
        if self.partial:
            return samples
        if tape.max_bytes is not None and not tape.full:
            self.bytes += sum(map(nbytes, samples))
            tape.full = self.bytes > tape.max_bytes
        if tape.full:
            self.samples, self.places = [], []
            return samples
        self.samples += samples
        self.places += places
        if self.ended and not tape.complete:
            tape.samples, tape.places, tape.complete = self.samples, self.places, True
        return [read_only(sample) for sample in samples]

    def save(self) -> list[int]:
        return [self.next, self.playing]

    # What is kept is made as epoch 0, whatever epoch it is served in.
    def ingredients(self, place: Place) -> Sequence[Ingredient]:
        return (Ingredient(place, 0, 0),)

    def restore(self, saved: Any, held: Any) -> None:
        following, played = saved
        self.next = saved_number(following, "cache()")
        if self.playing:
            self.ended = self.next >= len(self.tape.samples)
        elif played:
            # There is no tape here yet: the epoch is made again from its start, and recorded.
            self.left_out, self.next = self.next, 0
            self._from_start = True
        else:
            self.partial = True
