"""Every test must end as it began: no thread, process, descriptor or shared memory left behind."""

from collections.abc import Iterator

import pytest

from penstock.executors import servers
from penstock.executors.startup import keep_warm
from penstock.testing.leaks import leaks_since, snapshot

_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture(scope="module")
def warm_processes() -> Iterator[None]:
    """The tests of a module share one server, so that a worker process starts in milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        # Functions of a test module are imported from there, and that imports pytest.
        patch.setattr(servers, "PRELOAD", (*servers.PRELOAD, "pytest"))
        with keep_warm():
            yield


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    layout = getattr(request.node, "callspec", None) and request.node.callspec.params.get("layout")
    if getattr(layout, "processes", False):
        request.getfixturevalue("warm_processes")
    # Autouse comes first and so is torn down last: what a test's own fixtures close is closed by then.
    before = snapshot()
    yield
    # The traceback of a failed test keeps its objects alive; a second error would only hide the first.
    if not request.node.stash.get(_failed, False) and (found := leaks_since(before)):
        pytest.fail("left behind:\n  " + "\n  ".join(found), pytrace=False)
