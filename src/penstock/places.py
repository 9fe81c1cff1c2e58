"""Places as plain data for JSON, and lists of them in few characters.

A list of positions is written as runs, and so is a list of groups of positions; places under a part or a
pass are written once for each part or pass. Order is kept. Whatever is read is checked: what is no place
raises `StateMismatch`, however it was damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from penstock.errors import StateMismatch
from penstock.provenance import Member, Part, Passed, Piece, Place, Row, as_range

#: positions, sub-indices and lengths end here; more of them than the second are not read from one state
_MOST, _MOST_PLACES = 1 << 62, 5_000_000
#: places within places
_DEEPEST = 200


def plain_places(places: Sequence[Place]) -> Any:
    """A list of places as plain data.

    >>> plain_places([3, 4, 5, 9])
    [3, 3, 3, 1]
    >>> plain_places([(7, 2), range(0, 4), Part(3, "a")])
    {'x': [{'s': [7, 2]}, {'g': [0, 4]}, {'n': [3, 'a']}]}
    """
    if all(type(place) is int for place in places):
        return _runs(places)
    kind = type(places[0])
    if kind in _WRAPPED and all(type(place) is kind for place in places):
        name, tail = _WRAPPED[kind]
        if tail == 1:
            out = []
            for label, some in groupby(places, key=lambda place: place[1]):
                out.append([label, plain_places([place[0] for place in some])])
            return {name.upper(): out}
    if kind in (range, list) and all(_is_flat_group(place) for place in places):
        sizes = [len(place) for place in places]
        return {"G": [_pairs(sizes), _runs([number for place in places for number in place])]}
    return {"x": [_plain(place) for place in places]}


def places_from(saved: Any, budget: list[int] | None = None, depth: int = 0) -> list[Place]:
    """The places that `plain_places` was made of.

    >>> some = [Part((3, 1), "a"), Part(9, "a"), Part(range(1, 3), "b")]
    >>> places_from(plain_places(some)) == some
    True
    """
    left = budget if budget is not None else [_MOST_PLACES]
    if depth > _DEEPEST:
        raise StateMismatch("the state is damaged: its places are nested too deep")
    if isinstance(saved, list):
        return list(_read_runs(saved, left))
    if not isinstance(saved, dict) or len(saved) != 1:
        raise _damaged(saved)
    ((name, inner),) = saved.items()
    if not isinstance(inner, list):
        raise _damaged(saved)
    if name == "x":
        return [_place(one, left, depth + 1) for one in inner]
    if name == "G":
        return _read_groups(inner, left)
    for kind, (short, tail) in _WRAPPED.items():
        if name == short.upper() and tail == 1:
            out: list[Place] = []
            for one in inner:
                label, members = _two(one)
                checked = _CHECKS[kind](label)
                out += [kind(place, checked) for place in places_from(members, left, depth + 1)]
            return out
    raise _damaged(saved)


def _plain(place: Place) -> Any:
    kind = type(place)
    if kind is int:
        return place
    if kind is tuple:
        return {"s": [_plain(place[0]), *place[1:]]}
    if kind is range or kind is list:
        return {"g": _grouped(place)}
    if kind is Row:
        return {"r": [_plain(one) for one in place.places]}
    name, _ = _WRAPPED[kind]
    return {name: [_plain(place[0]), *place[1:]]}


def _grouped(place: Sequence[Place]) -> Any:
    if isinstance(place, range) and place.step == 1:
        return [place.start, len(place)]
    return plain_places(list(place)) if len(place) else [0, 0]


def _place(saved: Any, left: list[int], depth: int) -> Place:
    if depth > _DEEPEST:
        raise StateMismatch("the state is damaged: its places are nested too deep")
    left[0] -= 1
    if left[0] < 0:
        raise StateMismatch("the state is damaged: it has more places than any loader saves")
    if type(saved) is int:
        return _number(saved)
    if not isinstance(saved, dict) or len(saved) != 1:
        raise _damaged(saved)
    ((name, inner),) = saved.items()
    if name == "g":
        group = places_from(inner, left, depth + 1)
        return _group(group)
    if name == "r" and isinstance(inner, list):
        return Row(tuple(_place(one, left, depth + 1) for one in inner))
    if not isinstance(inner, list) or len(inner) < 2:
        raise _damaged(saved)
    first = _place(inner[0], left, depth + 1)
    if name == "s":
        if type(first) is tuple:
            raise _damaged(saved)
        return (first, *map(_number, inner[1:]))
    for kind, (short, tail) in _WRAPPED.items():
        if name == short and len(inner) == tail + 1:
            return kind(first, *map(_CHECKS[kind], inner[1:]))
    raise _damaged(saved)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise StateMismatch(f"the state is damaged: {value!r} is no number of a sample")
    return value


def _name(value: Any) -> str:
    if type(value) is not str:
        raise StateMismatch(f"the state is damaged: {value!r} is no name of a part")
    return value


#: the name of each kind, and how many values follow the inner place
_WRAPPED: dict[Any, tuple[str, int]] = {Passed: ("p", 1), Part: ("n", 1), Piece: ("c", 2), Member: ("m", 1)}
_CHECKS: dict[Any, Callable[[Any], Any]] = {Passed: _number, Part: _name, Piece: _number, Member: _number}


# ---------------------------------------------------------------------- runs


def _runs(numbers: Sequence[int]) -> list[int]:
    """Numbers as runs: how far each begins after the end of the one before, and its length."""
    out: list[int] = []
    end = 0
    for number in numbers:
        if out and number == end:
            out[-1] += 1
        else:
            out += [number - end, 1]
        end = number + 1
    return out


def _read_runs(saved: list[Any], left: list[int]) -> list[int]:
    if len(saved) % 2:
        raise _damaged(saved)
    out: list[int] = []
    end = 0
    for gap, count in zip(saved[::2], saved[1::2], strict=True):
        if type(gap) is not int or type(count) is not int or count < 0:
            raise _damaged(saved)
        left[0] -= count
        if left[0] < 0:
            raise StateMismatch("the state is damaged: it has more places than any loader saves")
        start = _number(end + gap)
        end = _number(start + count)
        out += range(start, end)
    return out


def _pairs(sizes: list[int]) -> list[int]:
    return [number for size, some in groupby(sizes) for number in (size, len(list(some)))]


def _read_groups(inner: list[Any], left: list[int]) -> list[Place]:
    pairs, runs = _two(inner)
    if not isinstance(pairs, list) or not isinstance(runs, list) or len(pairs) % 2:
        raise _damaged(inner)
    numbers = _read_runs(runs, left)
    out: list[Place] = []
    start = 0
    for size, count in zip(pairs[::2], pairs[1::2], strict=True):
        left[0] -= _number(count)
        if left[0] < 0:
            raise StateMismatch("the state is damaged: it has more places than any loader saves")
        for _ in range(count):
            out.append(_group(numbers[start : start + _number(size)]))
            start += size
    if start != len(numbers):
        raise _damaged(inner)
    return out


def _group(members: list[Place]) -> Sequence[Place]:
    """Positions at equal distances are a range, which is what workers call them."""
    return (as_range(members) or members) if members else members


def _is_flat_group(place: Place) -> bool:
    return isinstance(place, range) or (isinstance(place, list) and all(type(one) is int for one in place))


def _two(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise _damaged(value)
    return value[0], value[1]


def _damaged(what: Any) -> StateMismatch:
    return StateMismatch(f"the state is damaged: {str(what)[:60]} stands where samples should be named")
