"""reservoir: finished samples to draw from, renewed in the background, so that the training loop never waits."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass
from time import monotonic
from typing import Any, ClassVar

from penstock.checks import saved_number, whole_number
from penstock.errors import PlanError
from penstock.ops.content import Content
from penstock.ops.joint import Input, Joint, Length, Memo
from penstock.ops.op import Effect, In, Key, Op
from penstock.provenance import Place
from penstock.randomness import derive
from penstock.trees import read_only

_WORD = 2**64 - 1


@dataclass(frozen=True)
class Reservoir(Op[In, In]):
    """Keep up to `size` finished samples and draw from them; workers renew them in the background.

    As long as the ops before it keep up, this is a shuffle buffer: every sample is served once. When the
    training loop would have to wait, it gets a sample that was served before: one of those used least, at
    random. So once `min_fill` samples are there (by default half of `size`, or a batch if that is more) no
    draw waits. Only ``max_reuse``, how often a sample may be served at the most, can forbid to serve any.

    What arrives takes the place of the oldest sample that was served, or of its own copy of the pass before; with
    neither, what comes before waits. Nothing is replaced that was not served.

    An epoch is `draws` draws, by default as many as a pass of what comes before has samples; the content stays
    from epoch to epoch. Where that number is not known before the run, the first pass serves every sample once.

    Which samples come, and how often, depends on who is faster: the stream is not the same for every layout, and
    a saved state is approximate. It goes on behind the last sample that had arrived, with an empty reservoir.

    >>> import penstock as ps
    >>> sorted(ps.from_sequence(range(6)).reservoir(3).peek(6))
    [0, 1, 2, 3, 4, 5]
    """

    size: int
    _: KW_ONLY
    min_fill: int | None = None
    max_reuse: int | None = None
    draws: int | None = None

    verb = "reservoir"
    random = True
    effect: ClassVar[Effect] = Effect.PASSES

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("min_fill", 1), ("max_reuse", 1), ("draws", 1)):
            value = getattr(self, name)
            if value is not None or name == "size":
                object.__setattr__(self, name, whole_number(value, f"reservoir({name}=)", least=least))
        if self.min_fill is not None and self.min_fill > self.size:
            raise PlanError(
                f"reservoir(min_fill={self.min_fill}) is more than it holds, size={self.size}; "
                "it would never be filled: make size larger or min_fill smaller"
            )

    @property
    def label(self) -> str:
        rest = "".join(
            f", {name}={value}" for name in ("min_fill", "max_reuse", "draws") if (value := getattr(self, name))
        )
        return f"reservoir({self.size}{rest})"

    def memo(self) -> Memo:
        return _Memo(self)

    def joint(self, key: Key, epoch: int, memo: dict[str, Any]) -> Joint:
        held: _Reserve | None = memo.get("reserve")
        if held is None:
            held = memo["reserve"] = _Reserve(self, derive("reservoir", key.seed, key.op) & _WORD)
        return _Drawing(self, held)

    def length(self, n: Length) -> Length:
        return 0 if n == 0 else self.draws or n


class _Memo(Memo):
    """The reserve of one loader, once a joint has been made."""

    def __init__(self, op: Reservoir[Any]) -> None:
        self.op = op

    def stats(self) -> dict[str, float]:
        held: _Reserve = self.get("reserve") or _Reserve(self.op, 0)
        return held.stats()

    def left(self, whole: bool) -> None:
        if "reserve" in self:
            self["reserve"].waits_now(False, False)

    def forget(self) -> None:
        if "reserve" in self:
            self["reserve"] = self["reserve"].emptied(self.op)

    def close(self) -> None:
        if "reserve" in self:
            count = len(self["reserve"].content)
            self.forget()
            self["reserve"].last_fill = count


class _Reserve:
    """What stays from epoch to epoch: the content, and what has come and found no place yet."""

    def __init__(self, op: Reservoir[Any], key: int) -> None:
        self.key = key
        self.content = Content(op.size, op.max_reuse, key)
        #: sample, what it is, and the pass it came in; or `_END` and the pass that is over
        self.waiting: deque[tuple[Any, Hashable, int]] = deque()
        #: `min_fill` has been reached
        self.filled = False
        #: something was served again of late: new samples come too slowly
        self.behind = False
        #: how many have come in the pass that runs, and whether that was begun here
        self.come = 0
        self.whole = False
        #: of a loader that is closed: how many there were
        self.last_fill: int | None = None
        #: how often, and how long, nothing could be drawn because of `max_reuse`
        self.waits = 0
        self.wait_s = 0.0
        self._waits_since: float | None = None
        self._stuck_since = 0.0
        #: nothing has come for a while, so what rests is served
        self.in_need = False

    def waits_now(self, hungry: bool, stuck: bool) -> bool:
        """If it is `hungry`, the training loop waits; if it is `stuck`, for samples that may not be served again.

        True if new ones have been waited for long enough.
        """
        now = monotonic()
        if self._waits_since is not None:
            self.wait_s += now - self._waits_since
        elif stuck:
            self.waits += 1
            self._stuck_since = now
        self._waits_since = now if hungry and (stuck or self._waits_since is not None) else None
        late = stuck and not self.in_need and now - self._stuck_since > _PATIENCE_S
        self.in_need = self.in_need or late
        return late

    def arrived(self) -> None:
        """New samples have come: what rests may rest again."""
        self.in_need = False
        self._stuck_since = monotonic()

    def emptied(self, op: Reservoir[Any]) -> _Reserve:
        """A new reserve without samples, which continues the counts of this one."""
        new = _Reserve(op, self.key)
        new.waits, new.wait_s = self.waits, self.wait_s
        new.content.go_on_from(self.content)
        return new

    def stats(self) -> dict[str, float]:
        found = {**self.content.stats(), "waits": self.waits, "wait_s": self.wait_s}
        return found if self.last_fill is None else found | {"fill": self.last_fill}


#: with `max_reuse`, how long new samples are waited for before what was just drawn is served again
_PATIENCE_S = 0.1
#: stands for the end of a pass among those that wait
_END = object()
#: empty passes in a row after which an epoch begins no other
_EMPTY_PASSES = 100


class _Drawing(Joint):
    """The draws of one epoch."""

    opens_inputs: ClassVar[bool] = True
    eager: ClassVar[bool] = True
    approximate: ClassVar[bool] = True
    carries: ClassVar[bool] = True
    per_output = 0

    def __init__(self, op: Reservoir[Any], reserve: _Reserve) -> None:
        self.op = op
        self.reserve = reserve
        self.hoards = op.label
        #: how many have been drawn, of how many; None as long as that is not known
        self.next = 0
        self.stop: float | None = op.draws
        #: passes without a sample, one after the other
        self.empty = 0

    @property
    def lacks(self) -> str:
        count = len(self.reserve.content)
        if not self.reserve.filled:
            return f"{self.op.label}, which has {count} samples and waits for the first draw until there are more"
        return f"{self.op.label}, which has {count} samples and may serve none of them again"

    @property
    def kept(self) -> int:
        return len(self.reserve.content) + len(self.reserve.waiting)

    def save(self) -> list[float | None]:
        # What has no end is known by the upstream, and is no number for JSON.
        return [self.next, *(None if n == math.inf else n for n in (self.stop, self.reserve.content.per_pass))]

    @staticmethod
    def plain(saved: Any, owed: int) -> Any:
        return [max(saved[0] - owed, 0), *saved[1:]]

    def restore(self, saved: Any, held: Any) -> None:
        following, self.stop, self.reserve.content.per_pass = saved
        self.next = saved_number(following, "reservoir()")

    def drained(self, inputs: Sequence[Input]) -> Sequence[int]:
        return ()

    # ------------------------------------------------------------------ what arrives

    def absorb(self, inputs: Sequence[Input]) -> bool:
        (source,) = inputs
        reserve, content = self.reserve, self.reserve.content
        if source.epoch < 0:
            self._begin(source, 0)
        if content.per_pass is None:
            content.per_pass = source.length if source.length is not None else source.note
        if self.stop is None:
            self.stop = content.per_pass
        while True:
            self._place_waiting()
            if reserve.waiting or self._has_all():
                return False
            if source.count:
                self._arrived(source)
            elif not source.ended or self.empty >= _EMPTY_PASSES:
                return not source.ended
            else:
                self._passed(source)

    def _begin(self, source: Input, number: int) -> None:
        source.renew(number)
        self.reserve.come, self.reserve.whole = 0, True

    def _place_waiting(self) -> None:
        """Find a place for what waits, as far as there is one."""
        waiting, content = self.reserve.waiting, self.reserve.content
        while waiting:
            sample, key, number = waiting[0]
            if sample is _END:
                content.passed(number)
            elif not content.offer(sample, key, number):
                return
            waiting.popleft()

    def _arrived(self, source: Input) -> None:
        number = source.epoch
        samples, places = source.take(source.count)
        self.reserve.arrived()
        self.reserve.come += len(samples)
        keys = [None] * len(samples) if self.identify is None else self.identify(number, places)
        self.reserve.waiting.extend((sample, key, number) for sample, key in zip(samples, keys, strict=True))

    def _passed(self, source: Input) -> None:
        """A pass is over, and all that came in it has found a place: begin the next one."""
        reserve, content = self.reserve, self.reserve.content
        if source.length is None and reserve.whole:
            content.per_pass = source.note = reserve.come or content.per_pass
        if reserve.come:
            self.empty = 0
            reserve.filled = True
            reserve.waiting.append((_END, None, source.epoch))
        else:
            self.empty += 1
        if self.stop is None and (reserve.come or self.empty >= _EMPTY_PASSES):
            # Of a pass that was resumed, it is what is left.
            self.stop = reserve.come if reserve.whole else self.next + content.unserved
        if self.empty < _EMPTY_PASSES:
            self._begin(source, source.epoch + 1)

    def _has_all(self) -> bool:
        """Whether nothing more will be needed: this is the last epoch, and all that it still draws is here."""
        return self.final and self.stop is not None and self.reserve.content.unserved >= self.stop - self.next

    # ------------------------------------------------------------------ what is drawn

    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        first, content = self.next, self.reserve.content
        samples: list[Any] = []
        if self._filled():
            samples = self._drawn(min(most, (math.inf if self.stop is None else self.stop) - first))
        self.next += len(samples)
        nothing = self.empty >= _EMPTY_PASSES and not len(content)
        self.ended = nothing or (self.stop is not None and self.next >= self.stop)
        return samples, range(first, self.next)

    def _filled(self) -> bool:
        """Whether draws may begin."""
        reserve = self.reserve
        if not reserve.filled:
            batch = 0 if self.op.min_fill else min(self.op.size, self.lacked)
            enough = len(reserve.content) >= batch or bool(reserve.waiting) or self._has_all()
            reserve.filled = enough and self._plenty(len(reserve.content))
        return reserve.filled

    def _plenty(self, count: int) -> bool:
        """Whether `count` samples are enough to choose from, or all that there will be."""
        reserve, content = self.reserve, self.reserve.content
        least = min(self.op.min_fill or -(-self.op.size // 2), content.per_pass or math.inf)
        # That something finds no place shows that there is nothing to wait for.
        return count >= least or bool(reserve.waiting) or self._has_all()

    @property
    def _reuses(self) -> bool:
        """Whether something may be served again: the loop waits, or is going to, as samples come too slowly."""
        # As long as the number of draws is not known, an epoch is a pass, and serves every sample once.
        return self.stop is not None and (self.hungry or self.reserve.behind)

    @property
    def _rested(self) -> bool:
        """Whether what was drawn a moment ago is not served again, although nothing else may be.

        With `max_reuse` new samples would be used up one by one as they come, each several times in a batch.
        """
        return self.op.max_reuse is not None and not self.reserve.in_need

    def drawable(self) -> bool:
        if self.stop is not None and self.next >= self.stop:
            return True
        content = self.reserve.content
        if not self._filled() or not (self.lacked or self._plenty(content.unserved)):
            return False
        return content.has_one(self.lacked > 0 and self._reuses, self._rested)

    def _drawn(self, most: float) -> list[Any]:
        """Up to `most` samples. What is not lacking yet is drawn only from plenty: the choice stays large."""
        reserve, content = self.reserve, self.reserve.content
        reuse = self.lacked if self._reuses else 0
        before = content.first_draws
        samples: list[Any] = []
        while len(samples) < most and (len(samples) < self.lacked or self._plenty(content.unserved)):
            one = content.draw(reuse=len(samples) < reuse, rested=self._rested)
            if one is None:
                break
            samples.append(read_only(one.sample))
        if content.first_draws - before < len(samples):
            reserve.behind = True
        elif self._plenty(content.unserved):
            reserve.behind = False
        late = reserve.waits_now(self.hungry, not samples and self.hungry and reuse > 0 and most > 0)
        return self._drawn(most) if late else samples
