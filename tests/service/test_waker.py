"""What wakes a thread that waits for its sockets."""

import os
import select
from contextlib import ExitStack

from penstock.service.waker import Waker


def readable(waker):
    return bool(select.select([waker], [], [], 0)[0])


def test_it_is_readable_after_any_number_of_wakes_and_until_it_is_cleared():
    waker = Waker()
    assert not readable(waker)
    for _ in range(3000):
        waker.wake()
    assert readable(waker)
    waker.clear()
    waker.clear()
    assert not readable(waker)
    waker.close()
    waker.close()


def test_a_late_wake_writes_to_no_file_that_was_opened_since(tmp_path):
    waker = Waker()
    number = waker.fileno()
    waker.close()
    with ExitStack() as stack:
        files = [stack.enter_context(open(tmp_path / str(i), "w+b", buffering=0)) for i in range(8)]
        assert any(file.fileno() == number for file in files)
        waker.wake()
        assert all(os.fstat(file.fileno()).st_size == 0 for file in files)
