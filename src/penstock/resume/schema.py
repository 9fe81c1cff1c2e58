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
    front  = at (and shards) of a source, or joint, own, inputs of a joint

A large `at` is compressed. All of it survives ``json`` and ``torch.save``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from penstock.errors import StateMismatch
from penstock.resume.places import places_from, plain_places

__all__ = ["VERSION", "Count", "Edge", "Front", "InputState", "Owed", "RankState", "State", "opened", "sealed"]

VERSION = 2
#: an `at` with more characters is compressed; one that unpacks to more is refused
_LONG, _LONGEST = 2_000, 200_000_000

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Owed(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Inputs that are owed: places, and how far some of them were taken, by their number."""

    places: Any = None
    after: dict[str, list[Count]] = {}

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


class Front(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A feed between two of its outputs: a source, or a joint."""

    #: the next position of a source
    at: Count | None = None
    #: of a stream: the parts opened last, each with the position of its first record
    shards: list[tuple[Count, Count]] = []
    #: the joint's name, what it says of itself, and its inputs
    joint: str | None = None
    own: Any = None
    inputs: list[InputState | None] = []


class Edge(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """From a feed to whoever takes its samples."""

    front: Front
    owed: Owed | None = None

    def held(self) -> list[tuple[Any, tuple[int, ...] | None]]:
        """The inputs before the front that are owed."""
        return [] if self.owed is None else self.owed.read()


class InputState(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """An input of a joint: its pass, where that stands, and how many samples were taken."""

    epoch: Count
    edge: Edge | None = None
    taken: Count = 0
    name: str | None = None
    note: Any = None


class RankState(msgspec.Struct, forbid_unknown_fields=True):
    """Which rank of how many."""

    rank: Count
    world: Count


class State(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """All that a loader saves."""

    version: int
    pipeline: list[Any] | None
    seed: int
    epoch: Count
    batch: Count
    step: Count
    at: Edge | None = None
    carried: dict[str, InputState] = {}
    rank: RankState | None = None
    approximate: bool = False


def sealed(state: State) -> dict[str, Any]:
    """The state as plain data with its checksum."""
    plain: dict[str, Any] = msgspec.to_builtins(state)
    plain.setdefault("pipeline", None)
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
    try:
        return msgspec.convert(body, State)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise StateMismatch(f"the state is damaged: {exc}") from None


def checksum(body: dict[str, Any]) -> str:
    """A hash over the state as canonical JSON: the same before and after ``json`` and ``torch.save``."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _unpacked(text: Any) -> Any:
    try:
        data = base64.b64decode(text, validate=True)
        unzip = zlib.decompressobj()
        plain = unzip.decompress(data, _LONGEST)
        if unzip.unconsumed_tail:
            raise ValueError("it unpacks to more than any state has")
        return json.loads(plain)
    except (TypeError, ValueError, zlib.error, RecursionError) as exc:
        raise StateMismatch(f"the state is damaged: {exc}") from None
