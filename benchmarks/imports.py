"""How long does `import penstock` take, beyond the numpy that it needs?

New interpreters, one after the other, in rounds: one that does nothing, one that imports numpy, one that imports
numpy and penstock, and one that also runs a first pipeline on a thread. In each round the first is taken from the
others, and what is reported is how much longer penstock takes than numpy alone, over numpy's time:
  import penstock             below 0.5      wall clock, and CPU time
  the same and a first batch  below 1.3      what is not imported at first is imported when it is used
With --modules the slowest modules are printed, as `python -X importtime` has them.

Compiled files are in a directory of their own, made in a round that is not counted: a cache that cannot be written
would have every import compile penstock again, and not numpy.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from _measure import Bench

ROUNDS_PER_PAIR = 3
MODULES_SHOWN = 20

NOTHING = "pass"
NUMPY = "import numpy"
PENSTOCK = "import numpy, penstock"
FIRST_BATCH = "import numpy, penstock; next(iter(penstock.from_sequence(range(64)).batch(16)))"


class Spent(NamedTuple):
    """What one interpreter took, from its start to its end."""

    wall_s: float
    cpu_s: float


def spent(code: str, environ: dict[str, str]) -> Spent:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environ)
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def beyond_numpy(rounds: list[dict[str, Spent]], code: str, which: int) -> list[float]:
    """In each round, what `code` takes beyond numpy, over what numpy takes beyond an empty interpreter."""
    return [
        (one[code][which] - one[NUMPY][which]) / max(one[NUMPY][which] - one[NOTHING][which], 1e-6)
        for one in rounds
    ]


def show_modules(environ: dict[str, str]) -> None:
    command = [sys.executable, "-X", "importtime", "-c", FIRST_BATCH]
    lines = subprocess.run(command, check=True, env=environ, capture_output=True, text=True).stderr.splitlines()
    rows = [line.removeprefix("import time:").split("|") for line in lines if line.startswith("import time:")]
    taken = sorted(((int(row[0]), row[2].strip()) for row in rows[1:]), reverse=True)
    for microseconds, name in taken[:MODULES_SHOWN]:
        print(f"  {microseconds / 1e3:8.2f} ms  {name}")


def main() -> None:
    modules = "--modules" in sys.argv
    bench = Bench("imports", __doc__, [arg for arg in sys.argv[1:] if arg != "--modules"])
    codes = [NOTHING, NUMPY, PENSTOCK, FIRST_BATCH]
    with tempfile.TemporaryDirectory() as compiled:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ["PYTHONPYCACHEPREFIX"] = compiled
        for code in codes:
            spent(code, environ)
        rounds = [{code: spent(code, environ) for code in codes} for _ in range(ROUNDS_PER_PAIR * bench.pairs)]
        for which, name in enumerate(("wall clock", "CPU")):
            bench.limit(f"import penstock, {name}", beyond_numpy(rounds, PENSTOCK, which), below=0.5, unit="x")
            bench.limit(f"and a first batch, {name}", beyond_numpy(rounds, FIRST_BATCH, which), below=1.3, unit="x")
        if modules:
            show_modules(environ)
    bench.finish()


if __name__ == "__main__":
    main()
