"""Published checks for ops, sources and executors of your own, and tools for tests that use penstock.

* `check_op`, `check_source`, `check_executor`: one call each, an AssertionError that says what is wrong.
* `check_resume`: whether a pipeline of yours can be resumed behind every batch.
* `interleave`: real threads in an order that a seed decides, with deadlocks found and told.
* `no_leaks`, `snapshot`, `leaks_since`: threads, processes, descriptors and shared memory left behind.
* `assert_same`, `difference`: whether samples are the same, down to dtypes and shapes.

None of it needs a test framework, and penstock itself imports none of it.

>>> from penstock import ops, testing
>>> testing.check_op(ops.Batch(3), range(10))
"""

from penstock.testing.executors import check_executor
from penstock.testing.interleaving import Deadlock, Interleaving, interleave
from penstock.testing.layouts import Layout
from penstock.testing.leaks import leaks_since, no_leaks, snapshot
from penstock.testing.ops import check_op
from penstock.testing.resume import check_resume
from penstock.testing.same import assert_same, difference
from penstock.testing.sources import check_source

__all__ = [
    "Deadlock",
    "Interleaving",
    "Layout",
    "assert_same",
    "check_executor",
    "check_op",
    "check_resume",
    "check_source",
    "difference",
    "interleave",
    "leaks_since",
    "no_leaks",
    "snapshot",
]
