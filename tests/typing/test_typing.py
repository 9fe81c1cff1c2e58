"""`Pipeline[T]` follows the user's functions through a chain, and refuses those that do not fit."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHAINS = Path(__file__).with_name("chains.py")
LINES = CHAINS.read_text().splitlines()
TYPES = {at: found[1] for at, line in enumerate(LINES, 1) if (found := re.search(r"  # is: (.*)$", line))}
REFUSED = [at for at, line in enumerate(LINES, 1) if line.endswith("# error")]


@pytest.fixture
def said():
    """What one run of mypy --strict says, by line."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(CHAINS)]
    run = subprocess.run(command, cwd=CHAINS.parents[2], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode in (0, 1), run.stderr or run.stdout
    found = {}
    for line in run.stdout.splitlines():
        if match := re.match(r"(.*?):(\d+): (error|note): (.*)", line):
            assert match[1].endswith(CHAINS.name), line
            found.setdefault(int(match[2]), []).append((match[3], match[4]))
    return found


def shortened(text):
    """Without the modules in front of the names."""
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


@pytest.mark.timeout(300)
def test_a_chain_has_the_type_of_what_its_functions_return_and_what_does_not_fit_is_refused(said):
    for line, expected in TYPES.items():
        notes = [shortened(text) for kind, text in said.get(line, []) if text.startswith("Revealed type")]
        assert notes == [f'Revealed type is "{expected}"'], (line, said.get(line))
    refused = [at for at, texts in said.items() if any(kind == "error" for kind, _ in texts)]
    assert sorted(refused) == REFUSED
