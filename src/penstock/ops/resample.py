"""resample: draw the samples of an epoch by weight, or every class equally often."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.checks import whole_number
from penstock.errors import PlanError
from penstock.indices import class_lists
from penstock.ops.functions import function_name, where
from penstock.ops.joint import Length
from penstock.ops.op import Effect, In, Key, Op, Order
from penstock.randomness import derive, exponential, uniform

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

#: tables that are kept: of the epoch that is read, of the next, and of passes of a repeat
_KEPT = 6


@dataclass(frozen=True, eq=False)
class Resample(Op[In, In]):
    """Draw the samples of each epoch at random: by ``weights``, or by ``balance`` so that classes are equal.

    ``weights`` is one number per sample: one with twice the weight is drawn twice as often, one with 0 never.
    ``balance`` is one label per sample: every class has the same share of the draws, however rare it is.
    Either may be a function of the epoch that returns them. It may be called in any worker, more than once,
    and before the epoch in front of it has ended, so it must depend on the epoch alone.

    An epoch is `n` draws, as many as there are samples if not given. With ``replace=False`` no sample is drawn
    twice in an epoch: by weight, the heavier come sooner; by class, the classes take turns, each once per round,
    and one that has no more is left out. That needs a table of the epoch's order, and `n` is at most the number of
    samples with a weight; otherwise each draw is computed alone.

    >>> import penstock as ps
    >>> drawn = list(ps.from_sequence("abc").resample([1, 0, 2], n=3000))
    >>> drawn.count("b"), 1900 < drawn.count("c") < 2100
    (0, True)
    >>> sorted(ps.from_sequence("aaaaaabb").resample(balance="aaaaaabb", replace=False, n=4))
    ['a', 'a', 'b', 'b']
    """

    weights: Any = None
    _: KW_ONLY
    balance: Any = None
    replace: bool = True
    n: int | None = None

    verb = "resample"
    random = True
    effect: ClassVar[Effect] = Effect.PASSES

    def __post_init__(self) -> None:
        if (self.weights is None) == (self.balance is None):
            got = "neither" if self.weights is None else "both"
            raise PlanError(
                f"resample takes weights= (a number per sample) or balance= (a label per sample), got {got}"
            )
        if not isinstance(self.replace, (bool, np.bool_)):
            raise PlanError(f"resample(replace=) is True or False, got {self.replace!r}")
        if self.n is not None:
            object.__setattr__(self, "n", whole_number(self.n, "resample(n=)"))
        # A copy of our own: what the user does to theirs later must not change the pipeline.
        if not callable(self.given):
            object.__setattr__(self, self._kind, self._read(self.given, ""))

    @property
    def _kind(self) -> str:
        return "balance" if self.weights is None else "weights"

    @property
    def given(self) -> Any:
        """The weights, or the class of each sample as a number, or the function that returns either."""
        return self.balance if self.weights is None else self.weights

    def _read(self, values: Any, when: str) -> Any:
        what = f"resample({self._kind}=){when}"
        return _as_classes(values, what) if self.weights is None else _as_weights(values, what)

    @property
    def label(self) -> str:
        given = self.given
        if callable(given):
            told = function_name(given)
        else:
            told = f"{len(given)} numbers" if self.weights is not None else f"{given.max(initial=-1) + 1} classes"
        rest = ("" if self.n is None else f", n={self.n}") + ("" if self.replace else ", replace=False")
        return f"resample({self._kind}={told}{rest})"

    @property
    def where(self) -> str:
        return where(self.given) if callable(self.given) else ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Resample):
            return NotImplemented
        if (self._kind, bool(self.replace), self.n) != (other._kind, bool(other.replace), other.n):
            return False
        mine, theirs = self.given, other.given
        if callable(mine) or callable(theirs):
            return bool(mine is theirs or (callable(mine) and callable(theirs) and mine == theirs))
        return np.array_equal(mine, theirs)

    def __hash__(self) -> int:
        return hash((self._kind, bool(self.replace), self.n, self.label))

    def order(self) -> Order:
        return _Drawn(self)

    def draws(self, n: int) -> int:
        """How many are drawn of `n` samples. Raises PlanError if that cannot be."""
        fixed = not callable(self.given)
        if fixed:
            self.check_size(self.given, n, "")
        most = n
        if fixed and self.weights is not None and not self.replace:
            most = int(np.count_nonzero(self.weights))
        draws = most if self.n is None else self.n
        if not self.replace and draws > most and n:
            raise _too_few(draws, most)
        return draws if n else 0

    def check_size(self, given: Any, n: int, when: str) -> None:
        """Refuse weights or labels that are not one per sample."""
        if len(given) != n:
            things = "numbers" if self.weights is not None else "labels"
            raise PlanError(
                f"resample({self._kind}=){when} has {len(given)} {things}, but {n} samples come to it; "
                "give one per sample"
            )

    def of_epoch(self, epoch: int, n: int) -> _Chances:
        """What is drawn by in one epoch."""
        given = self.given
        if callable(given):
            when = f" of epoch {epoch}, from {function_name(given)},"
            try:
                returned = given(epoch)
            except BaseException as exc:
                exc.add_note(f"in {self.full_label}, called for epoch {epoch}")
                raise
            given = self._read(returned, when)
            self.check_size(given, n, when)
        return _ByClass(given) if self.weights is None else _ByWeight(given)


def _too_few(draws: int, most: int) -> PlanError:
    return PlanError(
        f"resample(replace=False) cannot draw {draws} of {most} samples with a weight above 0; "
        f"give n={most} or less, or replace=True"
    )


class _Drawn(Order):
    """The draws of an epoch. Each depends on (seed, epoch, op, position) alone."""

    def __init__(self, op: Resample[Any]) -> None:
        self.op = op
        self.stores = "with one table of weights or classes" if op.replace else "with one table per epoch"
        self.calls_user = callable(op.given)
        self._kept: dict[Any, Any] = {}
        #: so that a table, or a call of the user's function, is made by one worker while the others wait for it
        self._making = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Drawn, (self.op,)  # tables are made again where they are needed

    def length(self, n: int) -> Length:
        return self.op.draws(n)

    def trace(self, epoch: int, positions: Int64s, n: int, key: Key) -> tuple[int, Int64s]:
        derived = derive("resample", key.seed, epoch, key.op)
        if self.op.replace:
            return epoch, self._chances(epoch, n).draw(positions, derived)
        table: Int64s = self._once(derived, lambda: self._table(epoch, n, derived))
        return epoch, table[positions]

    def _table(self, epoch: int, n: int, key: int) -> Int64s:
        draws = self.op.draws(n)
        order = self._chances(epoch, n).order(key, draws)
        if len(order) < draws:
            raise _too_few(draws, len(order))
        return order

    def _chances(self, epoch: int, n: int) -> _Chances:
        changes = callable(self.op.given)
        chances: _Chances = self._once(("epoch", epoch if changes else 0), lambda: self.op.of_epoch(epoch, n))
        return chances

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        found = self._kept.get(key)
        if found is None:
            with self._making:
                found = self._kept.get(key)
                if found is None:
                    found = make()
                    if len(self._kept) >= _KEPT:
                        self._kept.pop(next(iter(self._kept)))
                    self._kept[key] = found
        return found


# ---------------------------------------------------------------------- drawing


class _ByWeight:
    def __init__(self, weights: Float64s) -> None:
        self.some: Int64s = np.flatnonzero(weights).astype(np.int64)
        # Divided by the largest first: the sum of numbers near the end of the range would be infinite.
        self.weights = weights / weights.max(initial=0.0) if weights.size else weights
        self.ends: Float64s = np.cumsum(self.weights)

    def draw(self, positions: Int64s, key: int) -> Int64s:
        """The sample drawn at each of `positions`, with replacement."""
        total = self.ends[-1]
        found = np.searchsorted(self.ends, uniform(positions, key) * total, side="right")
        # A product rounded up to the total would be behind the last sample that has a weight.
        drawn: Int64s = np.minimum(found, np.searchsorted(self.ends, total)).astype(np.int64)
        return drawn

    def order(self, key: int, most: int) -> Int64s:
        """The samples with a weight, in the order in which they are drawn without replacement.

        Each gets a waiting time, exponential with its weight as the rate; the order in which they
        end is that of drawing one after the other by weight among those that are left.
        """
        with np.errstate(all="ignore"):  # beside a huge weight, a tiny one waits for ever, and so comes last
            waits = np.nan_to_num(exponential(self.some, key) / self.weights[self.some], nan=np.inf, posinf=np.inf)
        return self.some[_smallest(waits, most)]


class _ByClass:
    def __init__(self, classes: Int64s) -> None:
        self.sizes: Int64s = np.bincount(classes).astype(np.int64)
        self.starts: Int64s = np.cumsum(self.sizes) - self.sizes
        self.members: Int64s = np.argsort(classes, kind="stable").astype(np.int64)

    def draw(self, positions: Int64s, key: int) -> Int64s:
        """The sample drawn at each of `positions`: first a class, then one of its samples."""
        count = len(self.sizes)
        numbers = np.minimum((uniform(positions, key) * count).astype(np.int64), count - 1)
        sizes = self.sizes[numbers]
        among = (uniform(positions, derive("member", key)) * sizes).astype(np.int64)
        drawn: Int64s = self.members[self.starts[numbers] + np.minimum(among, sizes - 1)]
        return drawn

    def order(self, key: int, most: int) -> Int64s:
        """The samples in rounds of one of each class; a class that has come to its end is left out."""
        of = np.repeat(np.arange(len(self.sizes)), self.sizes)
        # A whole number and a fraction, sorted as one: within each class at random, within each round too.
        members = self.members[np.argsort(of + uniform(self.members, key), kind="stable")]
        rounds = np.arange(len(members)) - self.starts[of]
        return members[_smallest(rounds + uniform(members, derive("turn", key)), most)]


_Chances = _ByWeight | _ByClass


def _smallest(values: Float64s, most: int) -> Int64s:
    """Where the `most` smallest stand, in ascending order; of equal ones the first."""
    if not 0 < most < len(values):
        return np.argsort(values, kind="stable")[:most].astype(np.int64)
    # Those up to the last one wanted are found without sorting all.
    near = np.flatnonzero(values <= np.partition(values, most - 1)[most - 1])
    return near[np.argsort(values[near], kind="stable")][:most].astype(np.int64)


# ---------------------------------------------------------------------- what is given


def _as_weights(values: Any, what: str) -> Float64s:
    try:
        array = np.asarray(values if hasattr(values, "__len__") else list(values))
    except Exception as exc:
        raise PlanError(f"{what} takes one number per sample, got {type(values).__name__}: {exc}") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "biuf"):
        raise PlanError(f"{what} takes one number per sample, got {array.dtype} {array.shape}")
    weights = array.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if bad.size:
        raise PlanError(
            f"{what} takes finite numbers that are not negative, got {weights[bad[0]]} for sample {bad[0]}"
        )
    if weights.size and not weights.any():
        raise PlanError(f"{what} has {len(weights)} weights and all are 0, so nothing can be drawn")
    weights.flags.writeable = False
    return weights


def _as_classes(values: Any, what: str) -> Int64s:
    try:
        lists = class_lists(values)
    except PlanError as exc:
        raise PlanError(f"{what}: {exc}") from None
    except TypeError as exc:
        raise PlanError(f"{what} takes one label per sample, got {type(values).__name__}: {exc}") from None
    classes = np.empty(sum(map(len, lists.values())), dtype=np.int64)
    for number, members in enumerate(lists.values()):
        classes[members] = number
    classes.flags.writeable = False
    return classes
