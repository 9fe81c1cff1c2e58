"""show: what samples are made of, as a table and as pictures."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

from penstock.errors import PlanError
from penstock.showing.describe import Field, described, fields
from penstock.showing.html import escaped, table
from penstock.showing.sheet import images_in, png, sheet

#: samples of a list that are described one by one
_MOST = 8


class Shown:
    """Samples on show: printed, a table; in a notebook, a table and the images; `save` writes the images."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples
        self._listed = isinstance(samples, list)

    def __str__(self) -> str:
        if not self._listed:
            return described(self._samples)
        texts = [f"[{number}]\n{described(one)}" for number, one in enumerate(self._samples[:_MOST])]
        if len(self._samples) > _MOST:
            texts.append(f"… and {len(self._samples) - _MOST} more")
        return "\n".join(texts) or "no samples"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        pieces = []
        image = self.png()
        if image is not None:
            data = base64.b64encode(image).decode()
            pieces.append(f'<img alt="the images, side by side" src="data:image/png;base64,{data}">')
        for number, sample in enumerate(self._samples[:_MOST] if self._listed else [self._samples]):
            rows: list[Field] = fields(sample)
            caption = f"sample {number}" if self._listed else ""
            pieces.append(table(("field", "what", "value"), [tuple(map(escaped, row)) for row in rows], caption))
        return "".join(pieces)

    def png(self) -> bytes | None:
        """All images as one PNG, up to 64 side by side; None if there is none."""
        image = sheet(images_in(self._samples))
        return None if image is None else png(image)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the images side by side to a PNG file."""
        image = self.png()
        if image is None:
            raise PlanError(
                "show().save(): there is no image in these samples: an image is an array of (height, width) or "
                "(height, width, channels), at least 8 by 8"
            )
        Path(path).write_bytes(image)


def show(samples: Any) -> Shown:
    """What a sample, a batch or a list of samples is made of: fields, shapes, dtypes, ranges; and its images.

    Print it, or let a notebook display it. ``save("sheet.png")`` writes the images side by side.

    >>> import penstock as ps
    >>> print(ps.show(ps.fake({"x": ((2, 2), "uint8"), "y": ((), "int64")}, constant=True).peek(1)[0]))
    x  uint8 (2, 2)  0 to 0
    y  int64 ()      0
    """
    return Shown(samples)
