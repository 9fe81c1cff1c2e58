"""An interrupt at any point of the engine leaves a loader that can be read again, and closed.

A test reads an epoch with a trace that counts the points at which Python looks for signals (the beginning of a
function, the end of a call, a jump backwards), inside penstock and in the main thread, and raises
KeyboardInterrupt at point number k. Each k is one interrupt, at the same place every time.
"""

import dis
import sys
import weakref
from contextlib import suppress
from pathlib import Path

import pytest

import penstock as ps

# Between the opening of a file and its block, Python leaves the file to the garbage collector, with a warning.
# Which files a loader opens, to see what limits the machine, depends on the machine.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

_SOURCE = str(Path(ps.__file__).parent)
#: the largest number of points that is tried; the runs below have fewer
_MANY = 100_000


class Interrupt:
    """A trace that raises KeyboardInterrupt at point number `k`."""

    def __init__(self, k):
        self.k = k
        self.points = 0
        self.where = ""

    def __enter__(self):
        sys.settrace(self)
        return self

    def __exit__(self, *exc):
        sys.settrace(None)

    def __call__(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(_SOURCE):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._point(frame)
        return self._opcode

    def _opcode(self, frame, event, arg):
        if event == "opcode" and frame.f_lasti in _points(frame.f_code):
            self._point(frame)
        return self._opcode

    def _point(self, frame):
        if _in_finalizer(frame):
            return  # Python itself drops what is raised there
        self.points += 1
        if self.points == self.k:
            self.where = f"{frame.f_code.co_filename[len(_SOURCE) + 1 :]}:{frame.f_lineno}"
            raise KeyboardInterrupt


def _in_finalizer(frame):
    while frame is not None:
        if frame.f_code is weakref.finalize.__call__.__code__:
            return True
        frame = frame.f_back
    return False


_found = {}


def _points(code):
    """Where in `code` Python may raise what a signal handler raises.

    That is at the end of a call, so the exception belongs to the call. The trace can raise it only before the next
    instruction, which is the same unless another handler begins there.
    """
    found = _found.get(code)
    if found is None:
        entries = dis.Bytecode(code).exception_entries
        found = _found[code] = set()
        called = None
        for instruction in dis.get_instructions(code):
            handler = [entry for entry in entries if entry.start <= instruction.offset < entry.end]
            if instruction.opname == "JUMP_BACKWARD" or (called is not None and called == handler):
                found.add(instruction.offset)
            called = handler if instruction.opname.startswith("CALL") else None
    return found


def times_ten(sample):
    return sample * 10


def reads(sample):
    return sum(ps.from_sequence([sample, 1]).map(times_ten).loader(inline=True))


def data(**place):
    return ps.from_sequence(range(4)).map(times_ten, **place)


#: pipelines that deliver two batches, and how their loaders are made
RUNS = {
    "inline": (lambda: data().filter(str).batch(2), {"inline": True}),
    "inline window": (lambda: data().filter(str).shuffle(window=3).batch(2), {"inline": True}),
    "inline stream": (lambda: ps.from_iterable(range(4)).map(times_ten).batch(2), {"inline": True}),
    "inline bounded": (lambda: data().filter(str).batch(2), {"inline": True, "memory": "1MB"}),
    "inline reservoir": (lambda: data().reservoir(2, draws=4).batch(2), {"inline": True}),
    "inline nested": (lambda: ps.from_sequence(range(4)).map(reads).batch(2), {"inline": True}),
    "one thread": (lambda: data().filter(str).batch(2), {}),
    "threads": (lambda: data(workers=2).filter(str).batch(2), {}),
    "threads and the reader": (lambda: data(workers=2).filter(str, on="inline").batch(2), {}),
    "coroutines": (lambda: data(on="thread").map(fetched, workers=2).batch(2), {}),
}


async def fetched(sample):
    return sample


def interrupted_at(run, k):
    """Read an epoch that is interrupted at point `k`, then another one, which must be whole. Returns the trace."""
    pipeline, options = RUNS[run]
    loader = pipeline().loader(**options)
    trace = Interrupt(k)
    with suppress(KeyboardInterrupt), trace:
        for _ in loader:
            pass
    batches = list(loader)
    loader.close()
    assert len(batches) == 2, f"after an interrupt at {trace.where}, point {k}: {batches}"
    return trace


@pytest.mark.parametrize("run", RUNS)
def test_after_an_interrupt_the_next_epoch_is_whole(run):
    points = interrupted_at(run, _MANY).points
    assert points > 300
    for k in range(7, points, points // 3):
        interrupted_at(run, k)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("run", RUNS)
def test_after_an_interrupt_at_any_point_the_next_epoch_is_whole(run):
    k = 1
    while interrupted_at(run, k).where:
        k += 1
    assert k > 300
