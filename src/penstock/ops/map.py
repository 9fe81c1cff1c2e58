"""map: a function of every sample."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from penstock.ops.call import CallOp, Retry
from penstock.ops.functions import gives_coroutine
from penstock.ops.op import In, Out


@dataclass(frozen=True)
class Map(CallOp[In, Out]):
    """Replace every sample by ``fn(sample)``.

    Samples leave in the order in which they came, whatever runs them, unless ``ordered=False``.

    ``workers=4`` runs four calls at once on threads; ``on`` names another place: ``"async"`` (for
    an ``async def``), ``"inline"``, or a pool such as ``ps.Threads(4)``. Without either, the op
    rides with the op before it, in the same worker and without a hop.

    ``key="image"`` hands the function that field and replaces it. ``star=True`` calls
    ``fn(*sample)``. ``rng=True`` calls ``fn(sample, rng)`` with a numpy Generator that depends on
    the seed, the epoch, this op and the sample alone. ``info=True`` calls ``fn(sample, info)``
    with ``info.epoch``, ``info.index`` and ``info.rng``. ``rng="global"`` seeds the global
    generators of Python, numpy and torch before every call.

    ``on_error`` is ``"raise"``, ``"skip"`` or ``ps.Retry(...)``; ``raise ps.Skip(...)`` inside the
    function drops the sample on purpose. A call longer than ``timeout_s`` fails with
    ``ps.StageTimeout``. A dict or a list in place of the function looks the samples up.

    >>> import penstock as ps
    >>> list(ps.from_sequence([1, 2, 3]).map(lambda x: x * 10, workers=2))
    [10, 20, 30]
    """

    verb = "map"

    @cached_property
    def elementwise(self) -> bool:  # type: ignore[override]
        if self.rng or self.info or self.timeout_s is not None or isinstance(self.on_error, Retry):
            return False
        return not self.asynchronous or gives_coroutine(self.fn)
