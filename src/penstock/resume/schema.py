"""The format of a saved state: what is in it, how it is checked, and how it is summed. Version 2.

::

    version   of this format; a state of another one is refused by name
    pipeline  the source and the ops, each in words
    seed      what all random choices depend on
    epoch     the epoch to go on with; `batch` and `step` count the batches of it, and in all
    at        the edge that leads to the reader; missing at the start of an epoch
    carried   inputs that go on from epoch to epoch, between two epochs
    rank      this rank and the number of ranks, where ranks do not deliver in step
    approximate  what comes depends on who is faster (reservoir), so the state is not exact
    sum       a checksum over all of it as canonical JSON

    edge   = front: of the feed; owed: inputs before the front that are still owed
    front  = at (and shards, own) of a source, or joint, own, inputs of a joint

A large `at` is compressed. All of it survives ``json`` and ``torch.save``. What only saving and loading need is
imported then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from penstock.errors import StateMismatch
from penstock.places import places_from, plain_places

VERSION = 2
#: an `at` with more characters is compressed; one that unpacks to more is refused
_LONG, _LONGEST = 2_000, 200_000_000
#: numbers in a state are counts and positions, and none is larger
_MOST = 1 << 62

Kind = TypeVar("Kind")


@dataclass(slots=True)
class Owed:
    """Inputs that are owed: places, and how far some of them were taken, by their number."""

    places: Any = None
    after: dict[str, list[int]] = field(default_factory=dict)

    @staticmethod
    def of(held: Sequence[tuple[Any, tuple[int, ...] | None]]) -> Owed | None:
        """What is `held`, as plain data; None if nothing is."""
        if not held:
            return None
        after = {str(number): list(one[1]) for number, one in enumerate(held) if one[1] is not None}
        return Owed(plain_places([one[0] for one in held]), after)

    def read(self) -> list[tuple[Any, tuple[int, ...] | None]]:
        """The places, and what of each was taken."""
        places = places_from(self.places)
        after: dict[int, tuple[int, ...]] = {}
        for number, way in self.after.items():
            if not number.isdecimal() or not number.isascii() or int(number) >= len(places) or not way:
                raise StateMismatch(f"the state is damaged: {number!r} is no number of an input")
            after[int(number)] = tuple(way)
        return [(place, after.get(number)) for number, place in enumerate(places)]


@dataclass(slots=True)
class Front:
    """A feed between two of its outputs: a source, or a joint."""

    #: the next position of a source
    at: int | None = None
    #: of a stream: the parts opened last, each with the position of its first record
    shards: list[tuple[int, int]] = field(default_factory=list)
    #: the joint's name, what it (or a stream) says of itself, and its inputs
    joint: str | None = None
    own: Any = None
    inputs: list[InputState | None] = field(default_factory=list)


@dataclass(slots=True)
class Edge:
    """From a feed to whoever takes its samples."""

    front: Front
    owed: Owed | None = None

    def held(self) -> list[tuple[Any, tuple[int, ...] | None]]:
        """The inputs before the front that are owed."""
        return [] if self.owed is None else self.owed.read()


@dataclass(slots=True)
class InputState:
    """An input of a joint: its pass, where that stands, and how many samples were taken."""

    epoch: int
    edge: Edge | None = None
    taken: int = 0
    name: str | None = None
    note: Any = None


@dataclass(slots=True)
class RankState:
    """Which rank of how many."""

    rank: int
    world: int


@dataclass(slots=True)
class State:
    """All that a loader saves."""

    version: int
    pipeline: list[Any] | None
    seed: int
    epoch: int
    batch: int
    step: int
    at: Edge | None = None
    carried: dict[str, InputState] = field(default_factory=dict)
    rank: RankState | None = None
    approximate: bool = False


# ---------------------------------------------------------------------- to plain data, and back


def plain_data(value: Any) -> Any:
    """`value` as dicts, lists and numbers; entries that say nothing are left out."""
    if is_dataclass(value):
        found = {one.name: plain_data(getattr(value, one.name)) for one in fields(value)}
        return {
            name: one for name, one in found.items() if one is not None and one != [] and one != {} and one != ""
        }
    if isinstance(value, dict):
        return {name: plain_data(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(one) for one in value]
    return value


def checked(plain: Any, kind: type[Kind]) -> Kind:
    """What `plain_data` made of a `kind`; `StateMismatch` if it is anything else."""
    import msgspec

    try:
        found: Kind = msgspec.convert(plain, kind)
        _check_numbers(found)
    except (msgspec.ValidationError, RecursionError, ValueError) as exc:
        raise StateMismatch(f"the state is damaged: {exc}") from None
    return found


def _check_numbers(value: Any, free: bool = False) -> None:
    """Refuse numbers that no position or count can be. What a joint says of itself is for the joint to check."""
    if is_dataclass(value):
        hints = get_type_hints(type(value))
        for one in fields(value):
            if one.name not in ("seed", "pipeline"):
                _check_numbers(getattr(value, one.name), hints[one.name] is Any)
    elif free:
        return
    elif isinstance(value, dict):
        for one in value.values():
            _check_numbers(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _check_numbers(one)
    elif type(value) is int and not 0 <= value <= _MOST:
        raise ValueError(f"{value} is no count")


def sealed(state: State) -> dict[str, Any]:
    """The state as plain data with its checksum."""
    import base64
    import json
    import zlib

    plain: dict[str, Any] = plain_data(state)
    plain.setdefault("pipeline", None)
    if not plain["approximate"]:
        del plain["approximate"]
    if "at" in plain:
        text = json.dumps(plain["at"], separators=(",", ":"))
        if len(text) > _LONG:
            plain["at"] = {"z": base64.b64encode(zlib.compress(text.encode(), 9)).decode()}
    return plain | {"sum": checksum(plain)}


def opened(plain: Any) -> State:
    """The state that `sealed` was given; `StateMismatch` for anything that is no state, or was changed since."""
    if not isinstance(plain, dict) or "version" not in plain:
        raise StateMismatch(f"this is no state of a penstock loader: {type(plain).__name__} without a version")
    if plain["version"] != VERSION or type(plain["version"]) is not int:
        raise StateMismatch(
            f"the state has version {plain['version']!r}, and this penstock reads version {VERSION}; "
            "load it with the release that saved it"
        )
    body = {key: value for key, value in plain.items() if key != "sum"}
    try:
        known = checksum(body)
    except (TypeError, ValueError, RecursionError) as exc:
        raise StateMismatch(f"the state is damaged: {exc}") from None
    if plain.get("sum") != known:
        raise StateMismatch(
            "the state was changed or damaged since it was saved: its checksum does not fit; if you changed it on "
            "purpose, seal it again with penstock.edit_state()"
        )
    at = body.get("at")
    if isinstance(at, dict) and set(at) == {"z"}:
        body = body | {"at": _unpacked(at["z"])}
    return checked(body, State)


def edit_state(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy of a saved state with some of its entries changed, and a checksum that fits them.

    A state that was changed in any other way is refused. ``epoch=3`` begins with epoch 3, and
    forgets the place in the epoch that was saved; the other entries are those of the format.

    >>> import penstock as ps
    >>> data = ps.from_sequence(range(4)).shuffle()
    >>> with data.loader(seed=1) as loader:
    ...     state = ps.edit_state(loader.state_dict(), epoch=7)
    >>> with data.loader(seed=1, state=state) as loader:
    ...     loader.epochs(1).__iter__().__next__()[0]
    7
    """
    plain = {key: value for key, value in sealed(opened(state)).items() if key != "sum"}
    unknown = sorted(set(changes) - {one.name for one in fields(State)})
    if unknown:
        raise StateMismatch(
            f"a state has no entry {unknown[0]!r}; it has {', '.join(one.name for one in fields(State))}"
        )
    if "epoch" in changes and "at" not in changes:
        plain.pop("at", None)
        plain |= {"batch": 0, "carried": {}}
    plain |= changes
    return sealed(opened(plain | {"sum": checksum(plain)}))


def checksum(body: dict[str, Any]) -> str:
    """A hash over the state as canonical JSON: the same before and after ``json`` and ``torch.save``."""
    import hashlib
    import json

    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _unpacked(text: Any) -> Any:
    import base64
    import json
    import zlib

    try:
        data = base64.b64decode(text, validate=True)
        unzip = zlib.decompressobj()
        plain = unzip.decompress(data, _LONGEST)
        if unzip.unconsumed_tail:
            raise ValueError("it unpacks to more than any state has")
        return json.loads(plain)
    except (TypeError, ValueError, zlib.error, RecursionError) as exc:
        raise StateMismatch(f"the state is damaged: {exc}") from None
