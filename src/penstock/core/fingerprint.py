"""A hash over what an epoch delivers, by where every sample comes from: to prove two layouts or machines alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from penstock.core.engine import Engine
from penstock.errors import PlanError
from penstock.plan.rules import Options
from penstock.plan.world import dealt, world_now
from penstock.program.chunk import CountVaried
from penstock.program.program import Program
from penstock.provenance import Member, Part, Passed, Place, Row
from penstock.resume.state import described
from penstock.sources.source import Composite, Flow

_WORD = 1 << 128


def fingerprint(flow: Flow, epoch: int, seed: int, options: Options) -> str:
    """See `Pipeline.fingerprint`."""
    words = json.dumps([described(flow), seed, epoch])
    return _digest(words, *_epoch(dealt(flow, world_now()), epoch, seed, options))


def _epoch(flow: Flow, epoch: int, seed: int, options: Options) -> Iterator[str]:
    """What is hashed of an epoch: its own samples, and those of its parts."""
    engine = Engine(flow, options, seed, memory=None)
    try:
        if (op := engine.plan.approximate) is not None:
            raise PlanError(
                f"fingerprint(): which samples come out of {op.label} depends on who is faster; take that of the "
                "pipeline before it"
            )
        engine.last_epoch = epoch
        ordered = all(stage.ordered for stage in engine.plan.stages)
        whole, count = hashlib.blake2b(digest_size=16), 0
        heap = 0
        for line in _samples(engine, epoch):
            count += 1
            if ordered:
                whole.update(line.encode())
            else:
                # Without an order the sum of all is the same.
                heap += int.from_bytes(hashlib.blake2b(line.encode(), digest_size=16).digest(), "little")
    finally:
        engine.close()
    yield f"{count}"
    yield whole.hexdigest() if ordered else f"{heap % _WORD:032x}"
    if isinstance(flow.source, Composite):
        # Behind a joint of several pipelines a sample is known by its number: what stood there, the parts say.
        for name, part in flow.source.parts:
            yield name
            yield from _epoch(part, epoch, seed, replace(options, path=f"{options.path}{name}/"))


def _samples(engine: Engine, epoch: int) -> Iterator[str]:
    run = engine.enter(epoch)
    while (chunk := engine.read(run, None)) is not None:
        program = engine.lanes[engine.plan.root.number].program
        for place in chunk.places:
            yield json.dumps(_plain(program, epoch, place))
        if chunk.failure is None:
            continue
        if not isinstance(chunk.failure.exception, CountVaried):
            raise chunk.failure.exception
        run = engine.replan(run, chunk.failure.exception.position)


def _plain(program: Program, epoch: int, place: Place) -> Any:
    """The number of a sample in its source, the pass, and the way from there."""
    if isinstance(place, (list, range)):
        return [_plain(program, epoch, one) for one in place]
    if type(place) is Member:
        own = _plain(program, epoch, place.place)
        return own if place.had_place else {"of": own, "way": [place.number]}
    if type(place) is Row:
        return {"row": [_plain(program, epoch, one) for one in place.places]}
    if type(place) is Part:
        return {"part": place.name, "of": _plain(program, epoch, place.place)}
    if isinstance(place, tuple) and not isinstance(place, Passed):
        return {"of": _plain(program, epoch, place[0]), "way": list(place[1:])}
    if isinstance(place, Passed) and not isinstance(place.place, int):
        return {"pass": place.number, "of": _plain(program, epoch, place.place)}
    return program.index_of(epoch, place)


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=16).hexdigest()
