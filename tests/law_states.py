"""What a saved state names, and ways to change it: for law 5 of tests/test_laws.py."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from typing import Any

from penstock.places import places_from
from penstock.provenance import key_of
from penstock.resume.schema import Edge, checksum, opened, plain_data


def named_twice(edge: Edge | None) -> list[Any]:
    """The samples that two holders of a state name: a joint, what is owed of its outputs, or of its inputs."""
    if edge is None:
        return []
    inputs = [one.edge for one in edge.front.inputs if one is not None]
    names = [place for place, _ in edge.held() if isinstance(place, (range, list))]
    members = [*held_by(edge.front.own), *(one for group in names for one in group)]
    if len(inputs) == 1 and inputs[0] is not None:
        members += [place for place, after in inputs[0].held() if after is None]
    counts = Counter(map(key_of, members)) | Counter(key_of(place) for place, _ in edge.held())
    twice = [key for key, count in counts.items() if count > 1]
    return [*twice, *(one for inner in inputs for one in named_twice(inner))]


def held_by(own: Any) -> list[Any]:
    """The samples that a joint keeps as a whole."""
    if isinstance(own, dict):
        return [place for name in ("held", "open") if own.get(name) for place in places_from(own[name])]
    if not isinstance(own, list) or not all(isinstance(one, dict) and "of" in one for one in own):
        return []
    spans = [(one, *numbered) for one in own for numbered in enumerate(places_from(one["of"]))]
    return [place for one, number, place in spans if not {str(number)} & {*one["first"], *one["last"]}]


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values in a state."""
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        found += spots(one, (*path, key))
    return found


def unpacked(state: Any) -> Any:
    """A copy of the state in which single values can be changed even if it was compressed."""
    plain = json.loads(json.dumps(state))
    if set(plain.get("at", ())) == {"z"}:
        plain["at"] = plain_data(opened(state).at)
    return sealed_again(plain)


def sealed_again(state: Any) -> Any:
    """The state with a checksum that fits."""
    body = {key: value for key, value in state.items() if key != "sum"}
    return body | {"sum": checksum(body)}


def changed(state: Any, path: tuple[Any, ...], how: Any, rng: random.Random) -> Any:
    """The state with one value changed; None if that changes nothing."""
    other = copy.deepcopy(state)
    inside = other
    for key in path[:-1]:
        inside = inside[key]
    key, before = path[-1], inside[path[-1]]
    if how == "removed":
        del inside[key]
    elif how == "duplicated":
        if not isinstance(inside, list):
            return None
        inside.insert(key, copy.deepcopy(before))
    elif how == "swapped":
        if len(inside) < 2:
            return None
        second = rng.choice(
            [one for one in (inside if isinstance(inside, dict) else range(len(inside))) if one != key]
        )
        inside[key], inside[second] = inside[second], inside[key]
    else:
        inside[key] = how
    return None if json.dumps(other, sort_keys=True) == json.dumps(state, sort_keys=True) else other


HOW: list[Any] = [-1, 1.5, True, None, 1 << 30, 1 << 70, "x", [], {}, "swapped", "removed", "duplicated"]
