"""Cores, quotas and memory, from files of the system made up for each case, and from a real cgroup."""

import os
import subprocess
import sys
from contextlib import suppress

import pytest
from tests.cases import for_each

from penstock import machine


def system(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path)


V1 = "4:memory:/a\n1:cpu,cpuacct:/docker/abc\n0::/\n"


@for_each(
    "files, quota",
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        # The tightest of a group and those around it.
        (
            {
                "proc/self/cgroup": "0::/pods/one\n",
                "sys/fs/cgroup/pods/one/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/pods/cpu.max": "200000 100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        # In a container the path is that of the host, and the group is the mount itself.
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_the_cpu_quota_of_cgroups(tmp_path_factory, files, quota):
    assert machine.cpu_quota(system(tmp_path_factory.mktemp("root"), files)) == quota


def test_periods_in_which_a_quota_was_used_up(tmp_path):
    files = {
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/job/cpu.stat": "usage_usec 9\nnr_periods 40\nnr_throttled 30\nthrottled_usec 7\n",
        "sys/fs/cgroup/cpu.stat": "nr_periods 9\nnr_throttled 9\n",
    }
    assert machine.cpu_periods(machine.quota_groups(system(tmp_path, files))) == (40, 30)
    assert machine.cpu_periods(machine.quota_groups(str(tmp_path / "nowhere"))) == (0, 0)


@for_each("quota, usable", [("50000", 1), ("100000", 1), ("100000000", None)])
def test_a_quota_bounds_the_cpus_that_can_be_used(tmp_path_factory, quota, usable):
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000\n"}
    root = system(tmp_path_factory.mktemp("root"), files)
    assert machine.usable_cpus(root) == (usable or len(machine.cpus()))


STAT = """cpu  400 0 0 900 0 0 0 0 0 0
cpu0 100 20 30 500 7 1 2 3 0 0
cpu1 200 0 0 400 0 0 0 0 0 0
cpu12 100 0 0 400 0 0 0 0 0 0
intr 1 2 3
"""


def test_time_in_which_cpus_worked_for_anybody(tmp_path):
    root = system(tmp_path, {"proc/stat": STAT})
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert machine.busy_s([0], root) == pytest.approx(156 * tick_s)  # neither idle nor waiting for a disk
    assert machine.busy_s([0, 12], root) == pytest.approx(256 * tick_s)
    assert machine.busy_s([99], root) is None
    assert machine.busy_s([0], str(tmp_path / "nowhere")) is None


def test_the_memory_of_a_process_and_of_those_it_started(tmp_path):
    root = system(
        tmp_path,
        {
            "proc/10/stat": "10 (python) S 1 10",
            "proc/10/smaps_rollup": "0-1 ---p [rollup]\nRss: 900 kB\nPss:  500 kB\n",
            "proc/11/stat": "11 (a (name) S 99) S 10 10",
            "proc/11/smaps_rollup": "Pss: 20 kB\n",
            "proc/12/stat": "12 (b) S 11 10",
            "proc/12/statm": "9 3 1 0 0 0 0",
            "proc/13/stat": "13 (another) S 1 10",
            "proc/13/smaps_rollup": "Pss: 7 kB\n",
            "proc/self/stat": "10 (python) S 1 10",
        },
    )
    assert sorted(machine.children(10, root)) == [11, 12]
    assert machine.memory_bytes(10, root) == 520 * 1024 + 3 * os.sysconf("SC_PAGE_SIZE")
    assert machine.memory_bytes(77, root) is None


def test_the_memory_of_this_process():
    assert machine.memory_bytes() > 1_000_000


GROUP = "/sys/fs/cgroup/cpu/penstock-test"


@pytest.fixture
def real_group():
    """A cgroup with a quota of half a core, where this machine lets us make one."""
    try:
        os.mkdir(GROUP)
    except OSError:
        pytest.skip("no cgroup can be made here")
    try:
        with open(f"{GROUP}/cpu.cfs_quota_us", "w") as file:
            file.write("50000")
        yield GROUP
    finally:
        with suppress(OSError):
            os.rmdir(GROUP)


def test_a_quota_of_a_real_cgroup_is_seen_from_inside(real_group):
    code = (
        f"import os; open({real_group!r} + '/cgroup.procs', 'w').write(str(os.getpid()));"
        "from penstock import machine; print(machine.cpu_quota(), machine.usable_cpus())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["0.5", "1"]
