"""Where other threads stand, for what says where a worker is stuck."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType


def frame_of(thread: threading.Thread | None) -> FrameType | None:
    """The frame that `thread` runs, or None if it has not begun or has ended.

    For the thread that asks it is the frame of the function that calls this one.
    """
    if thread is None or thread.ident is None:
        return None
    if thread.ident == threading.get_ident():
        return sys._getframe(1)
    # Before Python 3.11.9, garbage may be collected inside of `_current_frames`, which holds a lock that every
    # thread takes when it ends: a finalizer that lets such a thread run would stop the process for ever.
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread.ident)
    finally:
        if collects:
            gc.enable()
