"""The page in a real browser: it lives, it can be read by everybody, and it asks nobody but its loader."""

import threading
from urllib.parse import urlsplit

import pytest
from tests.cases import for_each

import penstock as ps

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("runtime")]

TIMEOUT_S = 60

#: every visible piece of text whose contrast with what lies behind it is too low (WCAG AA)
_LOW_CONTRAST = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (color) => rgb(color).slice(0, 3).map((c) => c / 255)
  .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const color = rgb(getComputedStyle(at).backgroundColor);
    if (color.length < 4 || color[3] > 0) return getComputedStyle(at).backgroundColor;
  }
};
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort(); return (y + 0.05) / (x + 0.05); };
const low = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || element.closest(".away, script, [hidden]")) continue;
  const colors = [behind(element)];
  if (element.closest(".tank")) colors.push(getComputedStyle(element.closest(".tank").firstChild).backgroundColor);
  const worst = Math.min(...colors.map((color) => ratio(getComputedStyle(element).color, color)));
  if (worst < 4.5) low.push(`${walker.currentNode.textContent.trim()}: ${worst.toFixed(2)}`);
}
return low;
"""


def decode(x):
    if x == 3:
        raise ValueError("<b id=injected>three</b>")
    return x


class Run:
    """A training loop in a thread of its own, which goes on as long as it is let."""

    def __init__(self):
        pipeline = ps.from_sequence(range(1000)).map(decode, workers=2, on_error="skip").batch(4)
        self.loader = pipeline.loader(dashboard=True)
        self._go = threading.Semaphore(0)
        self._ends = False
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _train(self):
        for _ in self.loader.steps(1_000_000):
            self._go.acquire()
            if self._ends:
                return

    def step(self, count):
        self._go.release(count)

    def close(self):
        self._ends = True
        self._go.release()
        self._thread.join()
        self.loader.close()


@pytest.fixture
def run():
    run = Run()
    yield run
    run.close()


@pytest.fixture
def browser(chromium):
    """Chromium; a test that uses it fails if the page writes anything to its console."""
    yield chromium
    assert chromium.get_log("browser") == []


def text(browser, css):
    return browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? null", css)


def wait_until(browser, check):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, TIMEOUT_S).until(lambda _: check())


def figure(browser, name):
    return browser.execute_script(
        "return [...document.querySelectorAll('#figures dt')].find((one) => one.textContent === arguments[0])"
        "?.nextSibling.textContent",
        name,
    )


def opened(browser, run, steps=5):
    """The page, with the first figures on it."""
    run.step(steps)
    browser.get(run.loader.dashboard_url)
    wait_until(browser, lambda: figure(browser, "samples") not in (None, "0"))


def emulate(browser, scheme="light", width=1280):
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )


def test_numbers_are_rounded_without_an_exponent(browser, run):
    opened(browser, run)
    shown = browser.execute_script("return [0.25, 0.0123, 123].map(ms).concat([99.7, 3.14, 999_960].map(number))")
    assert shown == ["250 ms", "12 ms", "120 s", "100", "3.1", "1000 k"]


def test_the_figures_follow_the_run_and_the_verdict_is_shown(browser, run):
    opened(browser, run)
    before = figure(browser, "samples")
    run.step(20)
    wait_until(browser, lambda: figure(browser, "samples") != before)
    assert text(browser, "#flow .stage h3") == "decode"
    assert text(browser, "#flow .node > .stage:last-child h3") == "training loop"
    assert "%" in text(browser, ".tank b")
    verdict = wait_until(browser, lambda: text(browser, "#advice"))
    assert "limits" in verdict or "Nothing has been read yet" in verdict
    assert text(browser, "#said"), "a screen reader is told of the verdict"
    wait_until(
        browser, lambda: browser.execute_script("return document.querySelector('#rate path').getAttribute('d')")
    )


def test_before_the_first_batch_nothing_is_said_to_limit_and_no_axis_has_a_number(browser):
    with ps.from_sequence(range(8)).map(decode, workers=1).batch(4).loader(dashboard=True) as loader:
        browser.get(loader.dashboard_url)
        wait_until(browser, lambda: figure(browser, "samples") == "0")
        assert "not read yet" in text(browser, "#state")
        assert browser.execute_script("return document.querySelectorAll('.limits').length") == 0
        assert text(browser, "#rate-top") == ""
        assert text(browser, "#flow .node > .stage:last-child [data-text=working]") == "–"


def test_a_loop_that_does_not_read_neither_works_nor_waits(browser):
    with (
        ps.from_sequence(range(8)).map(decode, workers=1, on_error="skip").batch(4).loader(dashboard=True) as loader
    ):
        list(loader)
        browser.get(loader.dashboard_url)
        wait_until(browser, lambda: "idle" in text(browser, "#state"))
        assert text(browser, "#flow .node > .stage:last-child [data-text=working]") == "–"


def test_the_stage_that_limits_is_in_view_however_long_the_pipeline_is(browser):
    hold = threading.Event()
    pipeline = ps.from_sequence(range(1000))
    for number in range(9):
        pipeline = pipeline.map(decode, workers=2 + number % 2, name=f"stage_{number}", on_error="skip")
    with pipeline.map(lambda x: hold.wait(0.01) or x, workers=1, name="slow").loader(dashboard=True) as loader:
        browser.get(loader.dashboard_url)
        for _ in loader.steps(300):
            pass
        wait_until(browser, lambda: text(browser, "#flow .limits h3") == "slow")
        inside = (
            "const [box, flow] = ['#flow .limits', '#flow']"
            ".map((css) => document.querySelector(css).getBoundingClientRect());"
            "return box.left >= flow.left && box.right <= flow.right"
        )
        assert browser.execute_script("return document.querySelector('#flow').scrollLeft") > 0
        assert browser.execute_script(inside)


def test_ops_that_ride_together_have_a_line_each(browser):
    hold = threading.Event()
    pipeline = ps.from_sequence(range(1000)).map(lambda x: hold.wait(0.003) or x, workers=2, name="decode")
    with pipeline.map(lambda x: hold.wait(0.001) or x, name="augment").loader(dashboard=True) as loader:
        browser.get(loader.dashboard_url)
        for _ in loader.steps(600):
            pass
        wait_until(browser, lambda: text(browser, ".by-op li:nth-child(2) span") == "augment")
        assert text(browser, ".by-op li:first-child span") == "decode"
        shares = [text(browser, f".by-op li:nth-child({one}) b") for one in (1, 2)]
        assert all(share.endswith(" %") for share in shares)
        assert "99 of 100" in browser.execute_script("return document.querySelector('.by-op li').title")


def test_errors_are_shown_as_text_with_their_samples(browser, run):
    opened(browser, run)
    wait_until(browser, lambda: text(browser, "#errors tbody tr"))
    assert text(browser, "#errors tbody td:nth-child(2)") == "3"
    assert text(browser, "#errors tbody td:last-child") == "ValueError: <b id=injected>three</b>"
    assert text(browser, "#injected") is None


def test_the_page_says_when_its_loader_has_ended(browser, run):
    opened(browser, run)
    run.close()
    wait_until(browser, lambda: "has ended" in text(browser, "#state"))
    assert figure(browser, "samples") == str(run.loader.stats()["samples"])


def test_it_can_be_paused_from_the_keyboard(browser, run):
    from selenium.webdriver.common.keys import Keys

    opened(browser, run)
    focused = []
    for _ in range(5):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focused.append(
            browser.execute_script(
                "const at = document.activeElement; return at.id || at.tagName + ' ' + at.textContent.slice(0, 4)"
            )
        )
    assert focused[:4] == ["A Skip", "pause", "flow", "SUMMARY ops"]
    browser.find_element("id", "pause").send_keys(Keys.SPACE)
    assert browser.execute_script("return document.getElementById('pause').ariaPressed") == "true"
    before = figure(browser, "samples")
    run.step(20)
    wait_until(browser, lambda: browser.execute_script("return kept !== null && kept.samples >= 100"))
    assert figure(browser, "samples") == before
    browser.find_element("id", "pause").send_keys(Keys.SPACE)
    wait_until(browser, lambda: figure(browser, "samples") != before)


@for_each("scheme", ["light", "dark"])
@for_each("width", [1280, 400])
def test_it_can_be_read_in_light_and_dark_wide_and_narrow(scheme, width, browser, run):
    emulate(browser, scheme, width)
    opened(browser, run)
    assert browser.execute_script(_LOW_CONTRAST) == []
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_on_a_narrow_page_errors_can_be_read_without_scrolling_and_are_a_table_to_a_screen_reader(browser, run):
    emulate(browser, width=400)
    opened(browser, run)
    wait_until(browser, lambda: text(browser, "#errors tbody tr"))
    box = "const box = document.querySelector('#errors'); return box.scrollWidth <= box.clientWidth"
    assert browser.execute_script(box)
    browser.execute_cdp_cmd("Accessibility.enable", {})
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = [node["role"]["value"] for node in nodes if not node["ignored"]]
    assert {"table", "row", "cell"} <= set(roles)


def test_a_pipeline_wider_than_the_page_shows_that_there_is_more(browser):
    pipeline = ps.from_sequence(range(64))
    for number in range(9):
        pipeline = pipeline.map(decode, workers=1 + number % 2, name=f"stage_{number}", on_error="skip")
    with pipeline.loader(dashboard=True) as loader:
        browser.get(loader.dashboard_url)
        wait_until(browser, lambda: text(browser, "#flow .stage h3"))
        style = "const style = getComputedStyle(document.querySelector('#flow')); return style.backgroundAttachment"
        assert browser.execute_script(style) == "local, local, scroll, scroll"


def test_it_asks_nobody_but_its_loader(browser, run):
    opened(browser, run)
    asked = browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert {urlsplit(name).netloc for name in asked if not name.startswith("data:")} <= {
        urlsplit(run.loader.dashboard_url).netloc
    }
