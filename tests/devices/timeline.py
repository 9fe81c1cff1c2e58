"""Draws which copy runs during which step, from the timeline of the fake CUDA device.

The code for CUDA decides what is on which stream, what waits for what, and when the host may go on. How long a copy
and a step take is assumed: 6 ms and 10 ms.

    python -m tests.devices.timeline docs/images/staging.svg
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

import penstock as ps
from penstock.devices import torch as torch_device

COPY_S = 0.006
STEP_S = 0.010
BATCHES = 6

#: of the drawing: pixels for a second, and the left edge of time 0
SCALE, LEFT = 5600, 90
COLOURS = {"copy": "#9ecae1", "step": "#fdae6b"}


class Span(NamedTuple):
    """A copy or a step, the batch that it is about, and its simulated time."""

    kind: str
    batch: int
    begin: float
    end: float


def simulate(depth, inline=False):
    """The copies and steps of one epoch whose loop reads the loss after each step, and so waits for it."""
    from tests.devices.fake_cuda import FakeTorch

    fake = FakeTorch()
    device = fake.device_state
    device.copy_s = COPY_S
    data = ps.from_sequence(range(BATCHES)).map(lambda x: np.full(10, x)).batch(1).to("cuda", depth=depth)
    with (
        mock.patch.object(torch_device, "import_torch", return_value=fake),
        data.loader(epochs=1, inline=inline) as loader,
    ):
        for taken, _ in enumerate(loader, 1):
            stream = fake.cuda.current_stream()
            stream.put("step", lambda: None, STEP_S)
            if not inline:
                _wait_for_copies(device, min(BATCHES, taken + depth))
            stream.record_event().synchronize()
        device.run()
    return spans_of(device)


def _wait_for_copies(device, count):
    """Let the transfer worker, which is a real thread, start what it may at this simulated time."""
    late = time.monotonic() + 60
    while copies_started(device) < count:
        assert time.monotonic() < late, f"{copies_started(device)} copies were started, not {count}"
        time.sleep(0.001)


def copies_started(device):
    waiting = sum(kind == "copy" for stream in device.streams for kind, *_ in list(stream.work))
    return waiting + sum(kind == "copy" for _, kind, *_ in list(device.spans))


def spans_of(device):
    spans = []
    for kind in COLOURS:
        times = [(begin, end) for _, one, begin, end in device.spans if one == kind]
        spans += [Span(kind, batch, *both) for batch, both in enumerate(times)]
    return spans


# ---------------------------------------------------------------------- the drawing


def draw(spans, top, title):
    """One panel: copies in the upper row, steps in the lower one."""
    parts = [f'<text x="10" y="{top + 14}" font-weight="bold">{title}</text>']
    for row, kind in enumerate(COLOURS):
        y = top + 24 + 30 * row
        parts.append(
            f'<text x="{LEFT - 10}" y="{y + 17}" text-anchor="end">{"copies" if kind == "copy" else "steps"}</text>'
        )
        for span in spans:
            if span.kind == kind:
                x, width = LEFT + SCALE * span.begin, SCALE * (span.end - span.begin)
                look = f'fill="{COLOURS[kind]}" stroke="white"'
                parts.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="25" {look}/>'
                    f'<text x="{x + width / 2:.1f}" y="{y + 17}" text-anchor="middle">{span.batch}</text>'
                )
    return "\n".join(parts)


def axis(top, last):
    parts = []
    for ms in range(0, int(1000 * last) + 1, 20):
        x = LEFT + SCALE * ms / 1000
        parts.append(f'<text x="{x:.1f}" y="{top + 14}" text-anchor="middle">{ms}</text>')
    parts.append(f'<text x="{LEFT - 10}" y="{top + 14}" text-anchor="end">ms</text>')
    return "\n".join(parts)


def picture():
    """The loop that copies each batch itself, above the one whose batches are staged."""
    alone, staged = simulate(1, inline=True), simulate(1)
    last = max(span.end for span in [*alone, *staged])
    width = round(LEFT + SCALE * last + 20)
    body = [
        draw(alone, 4, "copied when the loop asks: loader(inline=True)"),
        draw(staged, 104, "copied ahead: .to(&quot;cuda&quot;, depth=1)"),
        axis(194, last),
        f'<text x="10" y="232">Simulated: a stand-in for the GPU, copies of {1000 * COPY_S:.0f} ms, steps of '
        f"{1000 * STEP_S:.0f} ms; numbers are batches.</text>",
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 244" font-family="sans-serif" font-size="12"'
    )
    back = f'<rect width="{width}" height="244" fill="white"/>'
    return "\n".join([f'{head} fill="#333">{back}', *body, "</svg>\n"])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(), encoding="utf-8")
