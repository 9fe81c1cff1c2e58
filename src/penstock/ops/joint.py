"""The contract of a joint: what brings samples together in the order of delivery.

A joint takes samples from its inputs and passes some on. It is serial, pure and cheap, and calls no function of the
user's: it runs under the lock of all loaders. It is never run again to get where it was. What it keeps between two
steps it names by place, and gets those samples back when the stream is resumed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from penstock.errors import StateMismatch
from penstock.provenance import Passed, Place

#: a number of samples, ``math.inf`` for no end, None for "not known before the run"
Length = float | int | None


class _Lost:
    """Stands in for a sample that cannot be made again."""

    def __repr__(self) -> str:
        return "LOST"

    def __reduce__(self) -> str:
        return "LOST"


LOST: Final = _Lost()


class Input(Protocol):
    """Samples of one upstream, waiting at a joint in the order of delivery."""

    count: int
    #: no more will come than the `count` that wait here
    ended: bool
    #: the upstream's epoch, -1 before it was started
    epoch: int
    #: samples taken since the upstream was first started
    taken: int
    #: how many samples an epoch of the upstream has, if that is known before the run
    length: Length
    #: whatever the joint notes of the upstream, saved with it between two epochs: plain data for JSON
    note: Any
    #: how many ops since the feed before this joint have made several samples of one
    depth: int
    #: all that was made of an input comes at once, from the first on; but for the first input after a resume
    ordered: bool

    @property
    def items(self) -> int:
        """How many samples wait here, those that were lost included."""

    def take(self, most: int) -> tuple[list[Any], Sequence[Place]]:
        """Remove and return the first samples, at most `most` of them. Losses before them are passed on."""

    def has_items(self, most: int) -> bool:
        """Whether `take_items` can be called: all that it would return is there, or no more will come."""

    def take_items(self, most: int) -> tuple[list[Any], Sequence[Place]]:
        """The same, with what was lost among them in its place, as an `Absent`.

        With a sample among the first `most`, as many more as it takes to end with a sample.
        """

    def renew(self, epoch: int) -> None:
        """Start the upstream again, as its epoch number `epoch`."""


class Absent(NamedTuple):
    """A lost sample among those that a joint takes by `take_items`; it passes it on as it does a sample."""

    loss: Any


class Ingredient(NamedTuple):
    """A sample that something was made of: the number of the joint's input, its epoch if that is not the one that
    runs, and the sample's place there.

    With `first` or `last`, `place` is that of an input of the ops before the joint, and all samples are meant that
    these ops made of it, from the sub-indices `first` to `last`.
    """

    place: Place
    input: int = 0
    epoch: int | None = None
    first: tuple[int, ...] | None = None
    last: tuple[int, ...] | None = None
    whole_input: bool = False


class Redone(Protocol):
    """What was made again of one `Ingredient`."""

    #: the samples, with their places
    found: list[tuple[Any, Place]]
    #: what was lost of it, and is reported; a joint removes what was reported before
    losses: list[Any]


class Memo(dict[str, Any]):
    """What the joints of one op share in a loader, from epoch to epoch. Each method is called under the lock."""

    @property
    def settled(self) -> bool:
        """Whether it will not change any more, so that epochs may overlap."""
        return True

    def left(self, whole: bool) -> None:
        """The training loop has left an epoch: at its end if `whole`, else before."""

    def forget(self) -> None:
        """The loader continues from another state: keep no samples."""

    def close(self) -> None:
        """The loader is closed: keep no samples, but what was counted."""

    def stats(self) -> dict[str, float]:
        """What it has counted, for ``loader.stats()``: each name gets the op's title in front."""
        return {}

    def store(self) -> Any:
        """For a joint that `remembers`: a new, empty store of single samples."""
        return None


class Joint(ABC):
    """Brings samples of one or several upstreams together, in the order of delivery.

    What it does not take stays in its inputs. What it takes and keeps between two steps it names in what it
    saves, by place: when the stream is resumed these samples are made again, and given to `restore`. A joint is
    never run again to get where it was.

    What comes out of it must depend on what it has saved and on its inputs from there on alone, never on how
    many samples a step is asked for or on how many have arrived.
    """

    # ------------------------------------------------------------------ what the runtime reads, in every joint

    #: the joint sets this when it will pass nothing more on, even if its inputs still have samples
    ended: bool = False
    #: how many samples of its one input make an output; 0 if that varies, or if there are several inputs
    per_output: int = 1
    #: what `explain()` says of work before it that is done for nothing
    wasted: str = ""
    #: how many samples, of those that make an output each, the last step took first and did not pass on
    passed_over: int = 0
    #: the outputs are groups of samples
    groups: ClassVar[bool] = False
    #: the joint starts its inputs itself, by `Input.renew`; otherwise they start with the epoch
    opens_inputs: ClassVar[bool] = False
    #: the joint takes lost samples itself, by `Input.take_items`: each waits for its turn, as samples do
    takes_losses: ClassVar[bool] = False
    #: what the joint must hold before it can pass anything on, in words, if that is much
    hoards: str = ""

    # ------------------------------------------------------------------ what the plan reads, each for an op or two

    #: the joint continues in the next epoch where it stood, with the same inputs
    carries: ClassVar[bool] = False
    #: the joint serves samples again. Over an indexed source the plan uses no joint: the `store` of its memo keeps
    #: single samples
    remembers: ClassVar[bool] = False
    #: why this joint cannot run; a plan that needs it is refused with these words
    refused: str = ""
    #: the size of the groups, if all the joint does is to cut its input into them: then workers may do that; else 0
    group_size: int = 0
    #: the most samples that a group has; 0 if that is not known, or if the joint makes no groups
    largest_group: int = 0
    #: a group is stacked plainly, so a source that reads batches may make it in one read
    one_read: bool = False
    #: if the joint deals samples to ranks: rank, number of ranks, and how (`ops/shard.py`). Over an indexed source
    #: the plan deals positions instead
    portion: Any = None
    #: `shard_order` says in which order the shards of a stream are opened
    orders_shards: ClassVar[bool] = False

    # ------------------------------------------------------------------ for a joint that keeps samples ready

    #: the joint takes samples in whenever some have arrived, by `absorb`, so the ops after it never wait for the
    #: workers before it. The runtime sets the four attributes that follow
    eager: ClassVar[bool] = False
    #: how many samples are missing for the next output of the stage, with none on their way
    lacked: int = 0
    #: the training loop waits
    hungry: bool = False
    #: no epoch follows this one
    final: bool = False
    #: which samples stand at some places of an epoch, whatever the epoch; None where that is not known
    identify: Callable[[int, Sequence[Place]], Sequence[Hashable]] | None = None
    #: the outputs depend on which worker is faster, so they are no recipes and are not made again
    approximate: ClassVar[bool] = False

    # ------------------------------------------------------------------ running

    @abstractmethod
    def step(self, inputs: Sequence[Input], most: int) -> tuple[list[Any], Sequence[Place]]:
        """What can be passed on now, at the most `most` samples; empty if more input is needed."""

    def lacking(self, inputs: Sequence[Input]) -> Sequence[int]:
        """Which inputs must get more samples before `step` can pass anything on."""
        return [number for number, one in enumerate(inputs) if not one.ended]

    def next_taken(self, lacking: Sequence[int]) -> Sequence[int]:
        """Of the inputs that it lacks, those that it takes a sample of next, as soon as there is one."""
        return lacking

    def needs(self, inputs: Sequence[Input]) -> int:
        """About how many more samples it needs before `step` can pass anything on."""
        return 1

    def absorb(self, inputs: Sequence[Input]) -> bool:
        """If it is `eager`: take in what has come, as far as there is room. True if more would be welcome."""
        return False

    @property
    def lacks(self) -> str:
        """If it is `eager`: what it waits for when it passes nothing on, in words."""
        return ""

    def drawable(self) -> bool:
        """If it is `eager`: whether `step` would pass something on."""
        return False

    @property
    def kept(self) -> int:
        """How many samples it keeps."""
        return 0

    def keeps_group(self, count: int) -> bool:
        """With a `group_size`: whether a last group of `count` samples is passed on."""
        return True

    def large_state(self, groups: Sequence[int]) -> str:
        """What `explain()` says of the size of a saved state, if it is large because the inputs are groups.

        `groups` are the largest sizes of these, of the groups in them, and so on; 0 where that is not known.
        """
        return ""

    def shard_order(self, count: int) -> Sequence[int] | None:
        """In which order the `count` shards of a stream before this op are to be opened in its epoch."""
        return None

    def output_of(self, number: int, taken: int, outputs: int) -> int:
        """The output of the last step that the sample taken as number `taken` of input `number` went into.

        What was lost before that sample stands before that output.
        """
        return min(max(taken - self.passed_over, 0) // self.per_output, outputs) if self.per_output else 0

    def drained(self, inputs: Sequence[Input]) -> Sequence[int]:
        """Once it has ended: the inputs that it has read to their ends. Losses after their last samples pass on."""
        return [number for number, one in enumerate(inputs) if one.ended and not one.count]

    # ------------------------------------------------------------------ being resumed

    def save(self) -> Any:
        """Where it stands between two steps: small, and plain data for JSON, or what `plain` makes that of."""
        return None

    @staticmethod
    def plain(saved: Any, owed: int) -> Any:
        """What `save` returned, as plain data. Only called when somebody asks for the state.

        Of the outputs made before, the last `owed` have not been taken. They will be made again by their places, so
        only a joint that is `approximate` has to think of them.
        """
        return saved

    def held(self, saved: Any, inputs: Sequence[Input]) -> Sequence[Ingredient]:
        """The samples that a joint kept when it was saved: they are made again before `restore`.

        `saved` may have been damaged: raise `StateMismatch`, or anything, if it makes no sense.
        """
        return ()

    def restore(self, saved: Any, held: Sequence[Redone]) -> None:
        """Go on where another joint of the same op was saved.

        `held` are the samples that one kept, for each of what `held` asked for; one that cannot be made again is
        missing there.
        """

    def merged(self, saved: Sequence[Any], rank: int, world: int) -> Any:
        """What one of `world` ranks saves in the place of others, whose joints have saved these.

        Only a joint can that does not count: what all of them kept is dealt to the new ranks.
        """
        raise StateMismatch("it goes by what one rank has delivered")

    def passed_on(self, place: Place, number: int, epoch: int) -> Place:
        """What the place of a sample of input `number` is behind the joint, where samples pass it unchanged.

        `epoch` is that of the upstream.
        """
        return place

    def ingredients(self, place: Place) -> Sequence[Ingredient]:
        """What the output at `place` was made of."""
        return (Ingredient(place),)

    def remake(self, place: Place, samples: Sequence[Any]) -> Any:
        """The output at `place` again, of its members. `LOST` stands for one of either that cannot be made."""
        return samples[0]


class Repeating(Joint):
    """Starts its one input again when that has ended. The place of a sample names the pass that it came in."""

    opens_inputs = True

    def passed_on(self, place: Place, number: int, epoch: int) -> Place:
        return Passed(place, epoch)

    def ingredients(self, place: Place) -> Sequence[Ingredient]:
        return (Ingredient(place.place, 0, place.number),)
