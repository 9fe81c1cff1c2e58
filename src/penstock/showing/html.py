"""HTML for notebooks. Styles are inline and follow the colours of the page, light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from penstock.plan.explain import Explanation, runs_on
from penstock.stats.report import RANK_HEAD, Diagnosis, duration, per_second, percent, rank_rows

#: working, waiting for input, waiting for room
_COLOURS = ("#2e9e5b", "#d9a520", "#4a7fd0")
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;border:0;background:none"


def escaped(text: Any) -> str:
    """Text as it may stand in HTML."""
    return escape(str(text))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A table of cells that are HTML."""
    said = f'<caption style="text-align:left;opacity:0.75">{escaped(caption)}</caption>' if caption else ""
    top = "".join(
        f'<th scope="col" style="{_CELL};font-weight:600;white-space:nowrap">{escaped(name)}</th>' for name in head
    )
    body = "".join("<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows)
    whole = "border-collapse:collapse;margin:0.3em 0"
    return f'<table style="{whole}">{said}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def pipeline_html(text: str, explanation: Explanation | None, why: str = "") -> str:
    """A pipeline, or a loader: its ops, and its stages if it can be planned."""
    pieces = [f"<p><code>{escaped(text)}</code></p>"]
    if explanation is None:
        return "".join([*pieces, f"<p><strong>{escaped(why)}</strong></p>"])
    rows = []
    for stage, shown in zip(explanation.plan.stages, explanation.to_dict()["stages"], strict=True):
        ops = "<br>".join(f"<code>{escaped(op['op'])}</code> {escaped(op['at'] or '')}" for op in shown["ops"])
        rows.append((str(stage.number), escaped(stage.label), escaped(runs_on(stage)), ops))
    pieces.append(table(("stage", "label", "runs on", "ops"), rows))
    pieces += [f'<p style="white-space: pre-wrap">{escaped(note)}</p>' for note in explanation.plan.notes]
    return "".join(pieces)


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """The verdict, and a bar for each stage and for the training loop."""
    rows = []
    for stage in diagnosis.stages:
        shares = (stage.working, stage.waiting_input, stage.waiting_room)
        name = escaped(stage.label)
        rows.append(
            (
                f"<strong>{name}</strong>" if stage.label == diagnosis.limiting else name,
                f"{stage.workers}&nbsp;{escaped(stage.on)}",
                _bar(shares),
                escaped(per_second(stage.capacity)),
                "<br>".join(
                    f"{escaped(op.op)} {percent(op.share)}, p50 {duration(op.p50_s)}, p99 {duration(op.p99_s)}"
                    for op in stage.ops
                    if op.share >= 0.01
                ),
            )
        )
    waited = diagnosis.wait_share
    loop = "<strong>training loop</strong>" if diagnosis.limiting == "training loop" else "training loop"
    rows.append((loop, "", _bar((1 - waited, waited, 0.0)), escaped(per_second(diagnosis.loop_capacity)), ""))
    legend = " ".join(
        f'<span style="color:{colour}">■</span> {name}'
        for colour, name in zip(_COLOURS, ("working", "waits for input", "waits for room"), strict=True)
    )
    head = ("", "workers", "time", "could do", "inside")
    ranks = [tuple(map(escaped, row)) for row in rank_rows(diagnosis.ranks)] if len(diagnosis.ranks) > 1 else []
    more = table(RANK_HEAD, ranks) if ranks else ""
    return f"<p><strong>{escaped(diagnosis.advice)}</strong></p>{table(head, rows)}<p>{legend}</p>{more}"


def _bar(shares: Sequence[float]) -> str:
    said = ", ".join(
        f"{name} {percent(share)}" for name, share in zip(("working", "input", "room"), shares, strict=True)
    )
    parts = "".join(
        f'<span style="height:0.8em;width:{share:.1%};background:{colour}"></span>'
        for share, colour in zip(shares, _COLOURS, strict=True)
    )
    one_line = "display:inline-flex;width:160px"  # a narrow cell would put the parts below each other
    return (
        f'<span role="img" aria-label="{escaped(said)}" title="{escaped(said)}" style="{one_line}">{parts}</span>'
    )
