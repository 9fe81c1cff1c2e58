"""An op as the call that adds it."""

from tests.cases import for_each

import penstock as ps
from penstock.plan.code import call_of


def rest(sample, *more):
    return sample


@for_each(
    "pipeline, code",
    [
        (ps.from_sequence([1]).map(rest, workers="auto"), ".map(rest, workers=3)"),
        (
            ps.from_sequence([1]).map(rest, workers="auto", name="other", key=("a", 0), rng=True, ordered=False),
            '.map(rest, workers=3, key=("a", 0), rng=True, ordered=False, name="other")',
        ),
        (
            ps.from_sequence([1]).flat_map(rest, workers="auto", interleave=2, on_error=ps.Retry(2, then="raise")),
            '.flat_map(rest, workers=3, on_error=ps.Retry(times=2, backoff_s=0.1, then="raise"), interleave=2)',
        ),
        (ps.from_sequence([1]).map(ps.decode_image, workers="auto"), ".map(ps.decode_image, workers=3)"),
        (ps.from_sequence([1]).map(ps.per_worker(rest), workers="auto"), ".map(ps.per_worker(rest), workers=3)"),
        (ps.from_sequence([1]).map(lambda sample: sample, workers="auto"), ".map(..., workers=3)"),
        (ps.from_sequence([1]).map([1].count, workers="auto"), ".map(..., workers=3)"),
    ],
)
def test_the_code_of_an_op_makes_it_again_with_another_number_of_workers(pipeline, code):
    op = pipeline.ops[-1]
    written = call_of(op, workers=3)

    assert written.replace("'", '"') == code
    if "..." not in written:
        made = eval(f"source{written}", {"ps": ps, "rest": rest, "source": ps.from_sequence([1])})
        assert call_of(made.ops[-1]) == written
