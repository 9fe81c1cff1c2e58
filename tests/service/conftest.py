"""Servers of tests keep their secret in a folder of the tests."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def secret_elsewhere(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
