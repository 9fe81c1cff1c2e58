"""Ctrl-C typed in a terminal reaches the training loop, and the process ends."""

import _thread
import os
import pty
import signal
import textwrap
import threading

import pytest
from tests import nursery
from tests.cases import for_each
from tests.runtime.helpers import SOON_S, await_main_thread

import penstock as ps
from penstock.core.stage import StageRun

# The child makes the terminal its own, so that what is typed there is a signal for it. Warnings are not errors.
PRELUDE = """
import asyncio, fcntl, itertools, sys, termios, threading, warnings
warnings.simplefilter("default")
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
import penstock as ps

def f(sample):
    return sample

async def fetch(sample):
    return sample

def said(sample):
    "Says that it was called, and never returns."
    print("ready", flush=True)
    threading.Event().wait()

async def said_async(sample):
    print("ready", flush=True)
    await asyncio.Event().wait()

def train(batches):
    try:
        for number, batch in enumerate(batches):
            if number == 3:
                print("ready", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise
"""

ENDLESS = "ps.from_iterable(lambda: itertools.count())"
LOOPS = {
    "inline, running": f"with {ENDLESS}.map(f).loader(inline=True) as l: train(l)",
    "threads, running": f"with {ENDLESS}.map(f, workers=2).loader() as l: train(l)",
    "async, running": f"with {ENDLESS}.map(fetch, workers=4).loader() as l: train(l)",
    "pipeline, running": f"train({ENDLESS}.map(f, workers=2))",
    "loader without close, running": f"l = {ENDLESS}.map(f, workers=2).loader(); train(l)",
    "inline, in a call": "with ps.from_sequence([1]).map(said).loader(inline=True) as l: train(l)",
    "threads, the reader waits": "train(ps.from_sequence([1]).map(said, workers=2).loader())",
    "async, the reader waits": "with ps.from_sequence([1]).map(said_async, workers=2).loader() as l: train(l)",
    "async inline, in a call": "with ps.from_sequence([1]).map(said_async).loader(inline=True) as l: train(l)",
}


def pressed_ctrl_c(code):
    """The exit code and output of a script in a terminal of its own in which Ctrl-C is pressed once it is ready."""
    ours, theirs = pty.openpty()
    script = nursery.Forked(textwrap.dedent(PRELUDE) + code, terminal=theirs, server=False)
    os.close(theirs)
    watchdog = threading.Timer(SOON_S, os.kill, (script.pid, signal.SIGKILL))
    watchdog.start()
    text = ""
    try:
        while (part := _read(ours)) and "ready" not in (text := text + part):
            pass
        os.write(ours, b"\x03")
        while part := _read(ours):
            text += part
        return script.wait(SOON_S), text
    finally:
        watchdog.cancel()
        watchdog.join()
        script.kill()
        script.close()
        os.close(ours)


def _read(descriptor):
    try:
        return os.read(descriptor, 4096).decode(errors="replace")
    except OSError:  # the other side of a terminal has been closed
        return ""


@for_each("loop", LOOPS)
def test_ctrl_c_reaches_the_training_loop_and_ends_the_process(loop):
    code, text = pressed_ctrl_c(LOOPS[loop])
    assert code == -signal.SIGINT, text
    assert "interrupted" in text
    assert text.count("Traceback") == 1


@for_each("place", [{"on": "inline"}, {"workers": 1}, {"workers": 2}])
def test_a_keyboard_interrupt_raised_by_a_function_arrives_and_the_loader_goes_on(place):
    once = [KeyboardInterrupt()]

    def interrupted(sample):
        if sample == 3 and once:
            raise once.pop()
        return sample

    with ps.from_sequence(range(6)).map(interrupted, **place).loader(epochs=2) as loader:
        with pytest.raises(KeyboardInterrupt):
            list(loader)
        assert list(loader) == list(range(6))


def _send():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


# `interrupt_main` does not wake a thread that waits. Neither does a signal that comes just before the wait begins.
@for_each("send", [_send, _thread.interrupt_main])
def test_a_signal_while_the_reader_waits_leaves_the_loader_usable(send):
    waiting, go_on = threading.Event(), threading.Event()
    in_time = []

    def first_waits(sample):
        if sample == 0:
            waiting.set()
            in_time.append(go_on.wait(SOON_S))
        return sample

    def interrupt():
        waiting.wait(SOON_S)
        await_main_thread("LockSpot.park")
        send()

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ps.from_sequence(range(4)).map(first_waits, workers=1).loader() as loader:
            sender = threading.Thread(target=interrupt)
            sender.start()
            with pytest.raises(KeyboardInterrupt):
                list(loader)
            go_on.set()
            sender.join()
            assert list(loader) == [0, 1, 2, 3]
        assert all(in_time), "the interrupt came only when the wait for a batch was over"
    finally:
        go_on.set()
        signal.signal(signal.SIGINT, handler)


def test_ctrl_c_before_the_first_batch_of_a_resumed_epoch_keeps_its_place(monkeypatch):
    data = ps.from_sequence(range(6)).map(abs, workers=1)
    with data.loader() as loader:
        batches = iter(loader)
        assert [next(batches), next(batches)] == [0, 1]
        state = loader.state_dict()
    with data.loader(state=state) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(loader._engine, "read", lambda *_: _interrupt())
            with pytest.raises(KeyboardInterrupt):
                list(loader)
        assert list(loader) == [2, 3, 4, 5]
        assert list(loader) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("place", [{"workers": 3}, {"on": "process", "workers": 2}], ids=["threads", "processes"])
def test_ctrl_c_just_before_workers_are_started_leaves_none_counted(place, monkeypatch):
    with ps.from_sequence(range(30)).map(abs, **place).batch(3).loader(timeout_s=SOON_S) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(loader._engine.reader, "_start", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(iter(loader))
        assert [crew._starting for crew in loader._engine.crews.values()] == [set()]
        assert len(list(loader)) == 10


def _interrupt():
    raise KeyboardInterrupt


def test_ctrl_c_while_work_is_looked_for_is_called_no_fault(monkeypatch):
    def interrupted(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    with ps.from_sequence(range(4)).map(str, workers=1).loader() as loader:
        monkeypatch.setattr(StageRun, "runnable", interrupted)
        with pytest.raises(KeyboardInterrupt) as raised:
            list(loader)
    assert not getattr(raised.value, "__notes__", [])
