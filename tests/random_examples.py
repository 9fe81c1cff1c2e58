"""How tests of random data are run, so that whatever fails can be run again.

`make test` draws the same examples in every run. `make fuzz` and `make soak` draw others each time, and more of
them, all from one seed, which is printed at the start and with each failure: with PENSTOCK_SEED they are the same.
"""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: None: the examples of `make test`
SEED = int(os.environ["PENSTOCK_SEED"]) if os.environ.get("PENSTOCK_SEED") else None
#: how many times as many examples as in `make test`
TIMES = int(os.environ.get("PENSTOCK_TIMES") or 1)
#: where failures of random runs are kept
KEPT = Path(__file__).parents[1] / ".soak"


def examples(count: int, shrink: bool = True) -> Callable[[Any], Any]:
    """Settings of Hypothesis for `count` examples.

    Without shrinking where it would only repeat a long run: chains are short, and a race may not come again.
    """
    # Here, since worker processes import test modules, and with them this one.
    from hypothesis import HealthCheck, Phase, seed, settings
    from hypothesis.internal.conjecture import providers

    # Hypothesis would also draw constants from the modules of src imported by then: examples would depend on the
    # order of the tests and on every line of src, and each process would parse all of src to find them.
    providers._get_local_constants = lambda: providers._local_constants
    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])]
    chosen = settings(
        max_examples=count * TIMES,
        deadline=None,
        derandomize=SEED is None,
        database=None,
        phases=phases,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    return chosen if SEED is None else lambda test: seed(SEED)(chosen(test))


def some_of(values: Sequence[Any], count: int) -> Any:
    """A strategy for the values that one example goes through: so many in `make test`, all in random runs."""
    from hypothesis import strategies as st

    return st.just(list(values)) if SEED is not None else st.permutations(values).map(lambda order: order[:count])


def seeds(count: int) -> list[int]:
    """Seeds of random cases: 0, 1, 2 … in `make test`, others in every random run."""
    if SEED is None:
        return list(range(count))
    return random.Random(SEED).sample(range(10**6), count * TIMES)
