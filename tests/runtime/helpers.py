"""What several tests of the runtime need: layouts, staged functions, children with a terminal."""

import subprocess
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests import nursery

import penstock as ps
from penstock.frames import frame_of
from penstock.plan.rules import Options, make_plan
from penstock.program.sizing import Sizer

#: an upper bound for anything that is expected at once: generous, since the machine may be slow and busy
SOON_S = 60.0

#: where a plain function can run: what to give to map()
LAYOUTS: dict[str, dict[str, Any]] = {
    "background": {},
    "inline": {"on": "inline"},
    "one thread": {"workers": 1},
    "four threads": {"workers": 4},
    "pool": {"on": "pool"},
}


def placed(layout: str) -> dict[str, Any]:
    """The placement of a layout; a pool is made anew each time."""
    place = dict(LAYOUTS[layout])
    if place.get("on") == "pool":
        place["on"] = ps.Threads(2)
    return place


def await_event(event: threading.Event, what: str = "the event") -> None:
    """Wait for what must happen, and say so if it does not."""
    assert event.wait(SOON_S), f"{what} did not come"


def await_main_thread(function: str) -> None:
    """Wait, in another thread, until the main thread is inside the function with this name."""
    main = threading.main_thread()
    while (frame := frame_of(main)) is None or frame.f_code.co_qualname != function:
        time.sleep(0)


class Clock:
    """`perf_counter` as some modules see it, which a test can set forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        self.ahead_s = 0.0
        for module in modules:
            monkeypatch.setattr(module, "perf_counter", lambda: time.perf_counter() + self.ahead_s)

    @contextmanager
    def runs_out(self, of: str, after: Callable[[], Any]) -> Iterator[None]:
        """From when `after` has returned on, `SOON_S` pass whenever the main thread waits in a call of `of`."""
        done, main = threading.Event(), threading.main_thread()

        def forward() -> None:
            after()
            while not done.is_set():
                frame = frame_of(main)
                caller = frame and frame.f_back
                if caller is not None and caller.f_code.co_qualname == of:
                    self.ahead_s += SOON_S
                    done.wait(1.0)  # until it has noticed
                time.sleep(0)

        beside = threading.Thread(target=forward)
        beside.start()
        try:
            yield
        finally:
            done.set()
            beside.join()


def begin_with(monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    """Tickets are of `units` units from the first one on, as they are once work has proved to be quick."""
    as_usual = Sizer.__init__

    def large(sizer: Sizer, *args: Any) -> None:
        as_usual(sizer, *args)
        sizer.size = units

    monkeypatch.setattr(Sizer, "__init__", large)


class Gate:
    """A function that stops at chosen samples until it is told to go on."""

    def __init__(self, *stops: Any) -> None:
        self.reached = {stop: threading.Event() for stop in stops}
        self.open = {stop: threading.Event() for stop in stops}

    def __call__(self, sample: Any) -> Any:
        if sample in self.reached:
            self.reached[sample].set()
            await_event(self.open[sample], f"leave for sample {sample}")
        return sample

    def await_reached(self, stop: Any) -> None:
        await_event(self.reached[stop], f"sample {stop}")

    def release(self) -> None:
        for event in self.open.values():
            event.set()


class Peak:
    """Counts how many are inside at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = self.calls = 0

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            self.calls += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *exc: object) -> None:
        with self.lock:
            self.inside -= 1


def fail_at(*bad: Any, error: Callable[[str], BaseException] = ValueError) -> Callable[[Any], Any]:
    """A function that fails for these samples."""

    def sometimes(sample: Any) -> Any:
        if sample in bad:
            raise error(f"bad {sample}")
        return sample

    return sometimes


def until_error(stream: Any) -> tuple[list[Any], BaseException | None]:
    """What a stream delivers, and the exception that ends it."""
    got: list[Any] = []
    try:
        for sample in stream:
            got.append(sample)
    except BaseException as exc:
        return got, exc
    return got, None


def in_thread(fn: Callable[[], Any]) -> Any:
    """What `fn` returns when another thread calls it, within a bounded time."""
    box: list[Any] = []
    thread = threading.Thread(target=lambda: box.append(fn()), daemon=True)
    thread.start()
    thread.join(SOON_S)
    assert not thread.is_alive(), "the call hangs"
    assert box, "the call failed; see the thread's traceback"
    return box[0]


def run_script(code: str, *args: Any, timeout_s: float = SOON_S) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, where warnings are errors."""
    return nursery.run(textwrap.dedent(code), *args, timeout_s=timeout_s, server=False)


def plan_of(pipeline: Any, **options: Any) -> Any:
    """The plan of a pipeline under these options of the loader."""
    return make_plan(pipeline, Options(**options))
