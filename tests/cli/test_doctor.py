"""``penstock doctor``: what it finds here, and what it advises for machines made up."""

import json
import os
from dataclasses import replace

import pytest
from tests.cases import for_each

from penstock.cli.doctor import EXTRAS, advice, examine

GOOD = replace(
    examine(),
    cpus=8,
    machine_cpus=8,
    quota=None,
    pressure=0.0,
    free_bytes=64 * 10**9,
    memory_limit=None,
    shm_bytes=64 * 10**6,
    memory_files=True,
    open_files=65536,
    missing=(),
)


def test_the_command_prints_what_it_finds(cli):
    done = cli("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("cores", "memory", "processes", "optional parts"):
        assert word in done.stdout
    assert "\x1b" not in done.stdout


def test_it_is_plain_data_too(cli_here):
    found = json.loads(cli_here("doctor", "--json").stdout)
    assert found["cpus"] == len(os.sched_getaffinity(0))
    assert set(found["extras"]) | set(found["missing"]) == set(EXTRAS)
    assert isinstance(found["advice"], list)


def test_there_is_nothing_to_fix_on_a_good_machine():
    assert advice(GOOD) == []


@for_each(
    "change, word",
    [
        ({"quota": 2.0}, "The cgroup allows 2 of 8 cores"),
        ({"cpus": 2}, "2 of 8 CPUs"),
        ({"pressure": 0.5}, "In 50% of the last minute"),
        ({"free_bytes": 500_000_000}, "500 MB of memory"),
        ({"memory_limit": 300_000_000}, "300 MB of memory"),
        ({"memory_files": False}, "--shm-size=8g"),
        ({"open_files": 256}, "ulimit -n"),
        ({"missing": ("images",)}, "penstock[images]"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(change, word):
    (told,) = advice(replace(GOOD, **change))
    assert word in told


@pytest.mark.parametrize("quota", [8.0, 16.0])
def test_a_quota_of_all_cores_is_no_limit(quota):
    assert advice(replace(GOOD, quota=quota)) == []


def test_it_looks_at_files_below_a_root(tmp_path):
    for name, text in {
        "proc/pressure/cpu": "some avg10=1.00 avg60=30.00 avg300=2.00 total=9\n",
        "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   2000 kB\n",
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/memory.max": "1000000\n",
        "sys/fs/cgroup/memory.max": "max\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = examine(str(tmp_path))
    assert (found.pressure, found.free_bytes, found.memory_limit, found.quota) == (0.3, 2048000, 1000000, None)
