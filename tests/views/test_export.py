"""Counters in the text format of Prometheus, as its own rules want them."""

import re

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.errors import PlanError
from penstock.stats.export import prometheus
from penstock.stats.histogram import Histogram

_LINE = re.compile(r'^([a-zA-Z_:][\w:]*)(?:\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)$')
_LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\["\\n])*)"')


def parsed(text):
    """Every line of an export as (name, labels, value), after a check of its rules."""
    found, kinds, seen, explained = [], {}, set(), set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, "the lines of one metric stand together"
            kinds[name] = kind
            assert name in explained, "a line of HELP stands before that of TYPE"
        elif line.startswith("# HELP"):
            _, _, name, words = line.split(" ", 3)
            assert words
            explained.add(name)
        else:
            name, labels, value = _LINE.match(line).groups()
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            kind = kinds.get(name) or kinds[base]
            assert list(kinds)[-1] in (name, base)
            assert (kind == "counter") == name.endswith("_total")
            labels = dict(_LABEL.findall(labels or ""))
            assert (name, *labels.items()) not in seen
            seen.add((name, *labels.items()))
            found.append((name, labels, float(value)))
    return found


def double(x):
    return 2 * x


def test_every_counter_of_a_run_is_exported_once():
    with ps.from_sequence(range(40)).map(double, workers=2).batch(4).loader(epochs=1) as loader:
        loader.prometheus()  # histograms count from here on
        list(loader)
        stats, found = loader.stats(), parsed(loader.prometheus(rank="3"))
    assert all(labels["rank"] == "3" for _, labels, _ in found)
    values = {name: value for name, _, value in found}
    assert values["penstock_samples_total"] == stats["samples"] == 40
    assert values["penstock_stage_samples_total"] == stats["stage.double+batch.samples"]
    histograms = ("penstock_stage_ticket_seconds", "penstock_loop_wait_seconds")
    assert len([name for name, _, _ in found if not name.startswith(histograms)]) == len(stats)


def test_a_histogram_counts_every_ticket():
    with ps.from_sequence(range(40)).map(double).loader(inline=True, epochs=1) as loader:
        loader.prometheus()
        list(loader)
        found = parsed(loader.prometheus())
    rows = {(name, labels.get("le")): value for name, labels, value in found if labels.get("stage") == "double"}
    name = "penstock_stage_ticket_seconds"
    buckets = [value for (row, le), value in rows.items() if row == f"{name}_bucket"]
    assert buckets == sorted(buckets)
    assert rows[f"{name}_bucket", "+Inf"] == rows[f"{name}_count", None] > 0
    assert 0 < rows[f"{name}_sum", None] <= loader.stats()["stage.double.working_s"]
    waits = {row: value for row, labels, value in found if row.startswith("penstock_loop_wait_seconds_c")}
    assert waits["penstock_loop_wait_seconds_count"] > 0


def test_counters_of_ops_are_told_apart_by_a_label():
    parts = {"a": (ps.from_sequence(range(8)), 0.5), "b": (ps.from_sequence(range(8)), 0.5)}
    with ps.mix(parts).loader(inline=True) as loader:
        list(loader)
        found = parsed(loader.prometheus())
    assert {labels["op"] for name, labels, _ in found if name == "penstock_op_samples_total"} == {"mix.a", "mix.b"}


def test_labels_of_stages_may_hold_dots_quotes_and_other_labels():
    stats = {"stage.a.fill": 1, "stage.a.b.fill": 2, 'stage.say "hi"\\.fill': 3, "stage.a.op.x.y.p50_s": 4}
    found = parsed(prometheus(stats, ["a", "a.b", 'say "hi"\\'], {}, Histogram(), {}))[:4]
    assert found == [
        ("penstock_stage_fill", {"stage": "a"}, 1),
        ("penstock_stage_fill", {"stage": "a.b"}, 2),
        ("penstock_stage_fill", {"stage": r"say \"hi\"\\"}, 3),
        ("penstock_stage_op_p50_seconds", {"stage": "a", "op": "x.y"}, 4),
    ]


def test_what_only_grows_is_a_counter_and_what_may_fall_is_a_gauge():
    stats = dict.fromkeys(["quota_periods", "reservoir.waits", "cache.hits", "reservoir.age_s", "cache.bytes"], 1)
    assert [name for name, _, _ in parsed(prometheus(stats, [], {}, Histogram(), {})) if "loop" not in name] == [
        "penstock_quota_periods_total",
        "penstock_op_waits_total",
        "penstock_op_hits_total",
        "penstock_op_age_seconds",
        "penstock_op_bytes",
    ]


@for_each("label", ["stage", "le", "op", "a-b", "__name__"])
def test_a_label_that_prometheus_could_not_read_is_refused(label):
    with ps.from_sequence(range(4)).loader() as loader, pytest.raises(PlanError, match="cannot be a label"):
        loader.prometheus(**{label: "x"})


def test_what_is_beyond_the_last_bound_is_in_the_total_alone():
    histogram = Histogram()
    histogram.add(1e9)
    assert [count for _, count in histogram.cumulative() if count] == []
    assert (histogram.count, histogram.total_s) == (1, 1e9)
