"""A ticket that runs for long is paused, and any worker goes on with it: with its own functions and generator."""

import threading
import time

import penstock as ps
from penstock.core import work


def test_a_worker_that_goes_on_with_a_ticket_uses_its_own_functions(monkeypatch):
    monkeypatch.setattr(work, "PAUSE_S", 0)  # after every slice of a ticket
    shared = []

    class Once:
        """What one worker has; it notices when two threads are inside."""

        def __init__(self):
            self.inside = threading.Lock()

        def __call__(self, sample):
            if not self.inside.acquire(blocking=False):
                shared.append(sample)
                return sample
            try:
                time.sleep(0.0001)
                return sample
            finally:
                self.inside.release()

    data = ps.from_sequence(range(2000)).map(ps.per_worker(Once), workers=4)
    assert list(data) == list(range(2000))
    assert not shared
