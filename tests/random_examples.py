"""How tests of random pipelines are run."""

import os

from hypothesis import HealthCheck, Phase, settings


def examples(count):
    """So many random examples. Without shrinking: chains are short, and a race would not come again anyway."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=bool(os.environ.get("CI")),
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
