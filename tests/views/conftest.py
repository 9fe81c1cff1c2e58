"""Notices of loaders go to a folder of the test; and a browser."""

import shutil

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


@pytest.fixture
def chromium():
    """Debian's Chromium, without a window."""
    webdriver = pytest.importorskip("selenium.webdriver")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.fail("there is no chromium or no chromedriver; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "window-size=1280,1000"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chromium = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield chromium
    finally:
        chromium.quit()
