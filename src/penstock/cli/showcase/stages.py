"""Where the time went, from ``loader.stats()``: one row per stage, and the one that limits. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["StageShares", "limiting_sentence", "stage_shares"]

_PREFIX, _SUFFIX = "stage.", ".working_s"

# A loop that waits less than this is as good as always fed: the rest is scheduling noise.
FED = 0.05


@dataclass(frozen=True, slots=True)
class StageShares:
    """How the workers of one stage spent their time; the three shares add up to one."""

    label: str
    workers: int
    samples: int
    working: float
    waiting_input: float
    waiting_room: float


def stage_shares(stats: Mapping[str, float]) -> list[StageShares]:
    """One row per stage, in the order of the counters; a stage that has not run yet is left out.

    >>> stats = {"stage.load.working_s": 3.0, "stage.load.waiting_room_s": 1.0}
    >>> [(row.label, row.working, row.waiting_room) for row in stage_shares(stats)]
    [('load', 0.75, 0.25)]
    """
    rows = []
    for key in stats:
        if not (key.startswith(_PREFIX) and key.endswith(_SUFFIX)):
            continue
        label = key.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        stage = f"{_PREFIX}{label}."
        times = [stats.get(f"{stage}{name}_s", 0.0) for name in ("working", "waiting_input", "waiting_room")]
        total = sum(times)
        if total > 0:
            workers, samples = (int(stats.get(f"{stage}{name}", 0)) for name in ("workers", "samples"))
            rows.append(StageShares(label, workers, samples, *(spent / total for spent in times)))
    return rows


def limiting_sentence(stats: Mapping[str, float]) -> str:
    """Which part limits the run, and what that means.

    The training loop, while it hardly waits; otherwise the stage that worked the largest share of
    its time, since every other one had time to spare.
    """
    waited = stats.get("wait_share", 0.0)
    rows = stage_shares(stats)
    if waited < FED or not rows:
        return (
            f"The training loop limits: it waited {waited:.0%} of its time for data, "
            "so faster loading would change nothing."
        )
    busiest = max(rows, key=lambda row: row.working)
    who = "its worker was" if busiest.workers == 1 else f"its {busiest.workers} workers were"
    return (
        f"{busiest.label} limits: {who} at work {busiest.working:.0%} of the time, and the training "
        f"loop still waited {waited:.0%}. More workers help while cores are idle; after that, only less "
        "work per sample does."
    )
