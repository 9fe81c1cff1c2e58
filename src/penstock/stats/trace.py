"""A trace: what each worker did when, as rows of numbers, and the file that Perfetto and Chrome show.

The file is JSON in Chrome's trace event format. What may be relied on: the events of a file are in the order of
their times; the spans of one track never overlap, unless one lies inside the other; a recording holds at most
`limit` rows, keeps the first ones, and counts the later ones. It reads no clock and takes no lock: the caller does.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from typing import IO, Any

#: the track of the training loop; workers are numbered from the next number on
LOOP_TRACK = 1

#: what a row can be
_SPANS = ("ticket", "read", "wait")
_TICKET, _LEVEL = 0, len(_SPANS)
#: numbers per row: kind, track, name, began, ended, units, samples, CPU seconds (less than 0: not measured)
_WIDTH = 8
_NOT_MEASURED = -1.0
#: events that are written at once
_AT_ONCE = 1000


class Recording:
    """Rows of one trace.

    >>> recording = Recording(began=100.0, limit=10)
    >>> recording.span("ticket", recording.track("thread-1.1"), "decode", 100.5, 100.75, units=8, samples=8)
    >>> recording.level("decode", 100.75, 3)
    >>> [(event["name"], event["ph"], event["ts"]) for event in recording.events(pid=7) if event["ph"] != "M"]
    [('decode', 'X', 500000.0), ('decode', 'C', 750000.0)]
    """

    def __init__(self, began: float, limit: int) -> None:
        self.began = began
        self.limit = limit
        #: rows that came when it was full, and the time of the last row that is in it
        self.dropped = 0
        self.last = began
        self._rows = array("d")
        self._tracks: dict[str, int] = {"training loop": LOOP_TRACK}
        self._names: dict[str, int] = {}
        #: where the last span of each track ends
        self._ends: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._rows) // _WIDTH

    def track(self, name: str) -> int:
        """The number of the track with that name."""
        return self._tracks.setdefault(name, len(self._tracks) + LOOP_TRACK)

    def span(
        self,
        kind: str,
        track: int,
        name: str,
        began: float,
        ended: float,
        units: int = 0,
        samples: int = 0,
        cpu_s: float | None = None,
    ) -> None:
        """Something took from `began` to `ended`. Only a wait may contain spans that came before it."""
        began = max(began, self.began)
        if kind != "wait":
            began = max(began, self._ends.get(track, began))
            self._ends[track] = ended
        if ended < began:
            return  # it was over before the recording began
        self._add(_SPANS.index(kind), track, name, began, ended, units, samples, cpu_s)

    def level(self, name: str, now: float, held: int) -> None:
        """From now on so many finished tickets or samples are ready."""
        self._add(_LEVEL, 0, name, max(now, self.began), now, held, 0, None)

    def _add(
        self,
        kind: int,
        track: int,
        name: str,
        began: float,
        ended: float,
        units: int,
        samples: int,
        cpu_s: float | None,
    ) -> None:
        if len(self) >= self.limit:
            self.dropped += 1
            return
        self.last = ended
        number = self._names.setdefault(name, len(self._names))
        cpu_s = _NOT_MEASURED if cpu_s is None else cpu_s
        self._rows.extend((kind, track, number, began, ended, units, samples, cpu_s))

    # ------------------------------------------------------------------ the file

    def write(self, file: IO[str], pid: int, notes: dict[str, Any]) -> None:
        """Write all of it as one JSON object; `notes` say what the trace is of, and what it lacks."""
        file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(notes)}, "traceEvents": [\n')
        lines: list[str] = []
        separator = ""
        for event in self.events(pid):
            lines.append(json.dumps(event))
            if len(lines) == _AT_ONCE:
                file.write(separator + ",\n".join(lines))
                separator = ",\n"
                lines.clear()
        file.write((separator if lines else "") + ",\n".join(lines) + "\n]}\n")

    def events(self, pid: int) -> Iterator[dict[str, Any]]:
        """The events in the order of their times, after those that name the tracks."""
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": "penstock loader"}}
        for name, track in self._tracks.items():
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": track, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": track, "args": {"sort_index": track}}
        names = list(self._names)
        for row in self._sorted():
            yield self._event(names[int(row[2])], row) | {"pid": pid}

    def _event(self, name: str, row: tuple[float, ...]) -> dict[str, Any]:
        kind, track, _, began, ended, units, samples, cpu_s = row
        ts = self._us(began)
        if kind == _LEVEL:
            return {"name": name, "ph": "C", "ts": ts, "args": {"ready": int(units)}}
        event: dict[str, Any] = {"name": name, "cat": _SPANS[int(kind)], "ph": "X", "ts": ts, "tid": int(track)}
        event["dur"] = round(self._us(ended) - ts, 3)
        if kind == _TICKET:
            event["args"] = {"units": int(units), "samples": int(samples)}
            if cpu_s != _NOT_MEASURED:
                event["args"]["cpu_ms"] = round(cpu_s * 1e3, 3)
        return event

    def _us(self, moment: float) -> float:
        """Microseconds since the beginning; to the nanosecond, which is what viewers keep."""
        return round((moment - self.began) * 1e6, 3)

    def _sorted(self) -> Iterable[tuple[float, ...]]:
        rows = self._rows
        whole = (tuple(rows[at : at + _WIDTH]) for at in range(0, len(rows), _WIDTH))
        # Of two that begin together, the longer one contains the other.
        return sorted(whole, key=lambda row: (row[3], -row[4]))
