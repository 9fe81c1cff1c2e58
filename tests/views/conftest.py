"""Notices of loaders go to a folder of the test."""

import pytest


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """The folder that stands for the user's runtime directory."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.delenv("PENSTOCK_DASHBOARD", raising=False)
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    return folder
