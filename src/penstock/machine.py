"""What this machine gives to this process: cores, a CPU quota, the CPU time that everybody has used, memory.

Everything is read from the files of the system, below a root that a test can replace. Where a file is missing,
as on other systems, the answer is None.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from math import ceil
from os.path import join

_ROOT = "/"
_DELAYS = "/proc/thread-self/schedstat"
#: a limit on memory that is none: version 1 of cgroups has no word for that
_NO_LIMIT = 1 << 60
#: words of a line of /proc/stat, after its name, that are time in which a CPU did something
_BUSY = (0, 1, 2, 5, 6, 7)


def _text(*path: str) -> str:
    """What the file says; nothing where there is no such file, or it may not be read."""
    try:
        with open(join(*path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


# ---------------------------------------------------------------------- cores


def cpus() -> list[int]:
    """The CPUs that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def usable_cpus(root: str = _ROOT) -> int:
    """How many CPUs this process can keep busy: those it may run on, up to the quota of its cgroups."""
    quota = cpu_quota(root)
    count = len(cpus())
    return count if quota is None else max(1, min(count, ceil(quota)))


def cpu_quota(root: str = _ROOT) -> float | None:
    """The CPU time that the cgroups of this process allow, in cores; None without a limit."""
    found = [quota for group in _cgroups(root, "cpu") if (quota := _quota(group)) is not None]
    return min(found, default=None)


def _cgroups(root: str, kind: str) -> Iterator[str]:
    """The folders of this process' cgroups that may limit one thing, and of all cgroups around them."""
    mounts = join(root, "sys", "fs", "cgroup")
    for line in _text(root, "proc", "self", "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            bases = [mounts, join(mounts, "unified")]
        elif kind in controllers.split(","):
            bases = [join(mounts, controllers), join(mounts, kind)]
        else:
            continue
        # In a container the path may be that of the host, which is not visible: then the mount itself is the group.
        inside = path.strip("/").split("/")
        for base in bases:
            yield from (join(base, *inside[:depth]) for depth in range(len(inside), -1, -1))


def _quota(group: str) -> float | None:
    allowed, _, period = _text(group, "cpu.max").strip().partition(" ")
    if not allowed:
        allowed = _text(group, "cpu.cfs_quota_us").strip()
        period = _text(group, "cpu.cfs_period_us").strip()
    if not allowed or allowed == "max" or int(allowed) <= 0 or not period:
        return None
    return int(allowed) / int(period)


def busy_s(of: list[int], root: str = _ROOT) -> float | None:
    """Seconds in which these CPUs have worked for anybody, since the machine started."""
    names = {f"cpu{number}" for number in of}
    ticks, found = 0, False
    for line in _text(root, "proc", "stat").splitlines():
        name, *words = line.split()
        if name in names and len(words) > max(_BUSY):
            ticks, found = ticks + sum(int(words[place]) for place in _BUSY), True
        elif found and not name.startswith("cpu"):
            break
    return ticks / _configured("SC_CLK_TCK", 100) if found else None


def quota_groups(root: str = _ROOT) -> list[str]:
    """The folders of those cgroups of this process that limit its CPU time. To find them takes a millisecond."""
    return [group for group in _cgroups(root, "cpu") if _quota(group) is not None]


def cpu_periods(groups: Iterable[str]) -> tuple[int, int]:
    """Periods of the CPU quotas of these cgroups that have passed, and those with a wait."""
    periods = throttled = 0
    for group in groups:
        for line in _text(group, "cpu.stat").splitlines():
            name, _, number = line.partition(" ")
            periods += int(number) if name == "nr_periods" else 0
            throttled += int(number) if name == "nr_throttled" else 0
    return periods, throttled


def run_delay_s(root: str = _ROOT) -> float:
    """Seconds in which this thread could have run and no CPU was free for it; 0 where the system does not tell."""
    # Without a file object and a decoder: a loader asks a hundred times a second.
    try:
        descriptor = os.open(_DELAYS if root == _ROOT else join(root, "proc/thread-self/schedstat"), os.O_RDONLY)
    except OSError:
        return 0.0
    try:
        words = os.read(descriptor, 100).split()
    finally:
        os.close(descriptor)
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0


def cpu_pressure(root: str = _ROOT) -> float | None:
    """The share of the last minute in which some program waited for a CPU, up to 1."""
    for word in _text(root, "proc", "pressure", "cpu").split():
        name, _, value = word.partition("=")
        if name == "avg60":
            return float(value) / 100
    return None


# ---------------------------------------------------------------------- memory


def free_bytes(root: str = _ROOT) -> int | None:
    """Bytes of memory that programs could still take."""
    for line in _text(root, "proc", "meminfo").splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return None


def memory_limit(root: str = _ROOT) -> int | None:
    """The bytes that the cgroups of this process allow; None without a limit."""
    found = []
    for group in _cgroups(root, "memory"):
        text = (_text(group, "memory.max") or _text(group, "memory.limit_in_bytes")).strip()
        if text.isdigit() and int(text) < _NO_LIMIT:
            found.append(int(text))
    return min(found, default=None)


def children(pid: int, root: str = _ROOT) -> list[int]:
    """The processes that `pid` has started, those that they have started, and so on."""
    own = partial(_listed_children, root) if _lists_children(root, pid) else _children_by_parent(root).__getitem__
    found, left = [], [pid]
    while left:
        some = own(left.pop())
        found += some
        left += some
    return found


def _lists_children(root: str, pid: int) -> bool:
    """Whether the kernel lists the children of a thread (CONFIG_PROC_CHILDREN), as most do."""
    return os.path.exists(join(root, "proc", str(pid), "task", str(pid), "children"))


def _listed_children(root: str, pid: int) -> list[int]:
    """The children of all threads of a process."""
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for task in os.listdir(join(root, "proc", str(pid), "task")):
            found += map(int, _text(root, "proc", str(pid), "task", task, "children").split())
    return found


def _children_by_parent(root: str) -> defaultdict[int, list[int]]:
    """The children of every process of the machine, which takes longer."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    entries: list[str] = []
    with suppress(OSError):  # there is no /proc
        entries = os.listdir(join(root, "proc"))
    for entry in filter(str.isdigit, entries):
        # The name of the program, in parentheses, may contain anything; the parent is the second word after it.
        after = _text(root, "proc", entry, "stat").rpartition(")")[2].split()
        if len(after) > 1:
            found[int(after[1])].append(int(entry))
    return found


def memory_bytes(pid: int | None = None, root: str = _ROOT) -> int | None:
    """The memory of a process (this one) and all that it has started. Pages that they share count once."""
    pid = os.getpid() if pid is None else pid
    own = _proportional(join(root, "proc", str(pid)))
    if own is None:
        return None
    return own + sum(_proportional(join(root, "proc", str(one))) or 0 for one in children(pid, root))


def _proportional(process: str) -> int | None:
    for line in _text(process, "smaps_rollup").splitlines():
        name, _, amount = line.partition(":")
        if name == "Pss":
            return int(amount.split()[0]) * 1024
    pages = _text(process, "statm").split()
    return int(pages[1]) * _configured("SC_PAGE_SIZE", 4096) if len(pages) > 1 else None


def _configured(name: str, usual: int) -> int:
    """A number that the system was built with; `usual` where it does not say."""
    return os.sysconf(name) if hasattr(os, "sysconf") else usual
