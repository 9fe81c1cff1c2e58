"""Where other threads stand."""

import threading

from tests.runtime.process_helpers import run_alone

from penstock.frames import frame_of

COLLECTED_WHILE_ASKED = """
import gc, threading, weakref
from penstock.frames import frame_of

class Cycle:
    pass

end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()

def finish():
    end.set()
    thread.join()
    for _ in range(100):  # lets the thread run to its very end
        threading.Event().wait(0.001)

gc.disable()
cycle = Cycle()
cycle.self = cycle
weakref.finalize(cycle, finish)
del cycle
gc.set_threshold(1)
gc.enable()
frame_of(thread)
print(gc.isenabled())
"""


def test_garbage_whose_finalizer_ends_a_thread_does_not_stop_who_asks_where_it_stands():
    code, printed, errors = run_alone(COLLECTED_WHILE_ASKED)
    assert (code, printed) == (0, "True\n"), errors


def test_a_thread_that_has_not_begun_or_has_ended_stands_nowhere():
    thread = threading.Thread(target=int)
    assert frame_of(thread) is None
    thread.start()
    thread.join()
    assert frame_of(thread) is None
    assert frame_of(None) is None


def test_a_thread_that_asks_where_it_stands_itself_stands_where_it_asks():
    frame = frame_of(threading.current_thread())
    assert frame is not None
    assert frame.f_code.co_filename == __file__
