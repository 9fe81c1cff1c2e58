"""The pair of files on the page: server.py and train.py, in two processes."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.service.served import SOON_S

PAGE = Path(__file__).parents[2] / "docs" / "service.md"


def files_of(page):
    found = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page.read_text(), re.DOTALL)
    return dict(found)


def test_server_and_training_loop_of_the_page_run_in_two_processes(tmp_path):
    files = files_of(PAGE)
    assert set(files) == {"server.py", "train.py"}
    said = "tcp://127.0.0.1:5557"
    server = files["server.py"].replace(said, "tcp://127.0.0.1:0")
    assert server != files["server.py"]
    (tmp_path / "server.py").write_text(
        server.replace("        server.wait()", "        print(server.address, flush=True)\n        server.wait()")
    )
    serving = subprocess.Popen(
        [sys.executable, "server.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        address = serving.stdout.readline().strip()
        (tmp_path / "train.py").write_text(files["train.py"].replace(said, address))
        stopped = subprocess.Popen(
            [sys.executable, "-u", "train.py", "-p"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with stopped:
            assert stopped.stdout.readline() == "epoch 0: 1000 samples\n"
            stopped.send_signal(signal.SIGINT)
            _, errors = stopped.communicate(timeout=SOON_S)
            assert errors.rstrip().endswith("KeyboardInterrupt")
        for args in ([], ["-p"]):
            done = subprocess.run(
                [sys.executable, "train.py", *args], cwd=tmp_path, capture_output=True, text=True, timeout=SOON_S
            )
            assert not done.stderr
            assert done.stdout.splitlines()[:-1] == [f"epoch {epoch}: 1000 samples" for epoch in range(5)]
        serving.send_signal(signal.SIGINT)
        _, errors = serving.communicate(timeout=SOON_S)
        assert errors.rstrip().endswith("KeyboardInterrupt")
    finally:
        serving.kill()
        serving.communicate()
