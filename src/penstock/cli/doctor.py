"""``penstock doctor``: what this machine offers to a loader, and what to fix.

What is found is data (`examine`); what is wrong with it is decided by `advice`, which is pure.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from penstock import machine, system
from penstock.cli.screen import Screen

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


SUMMARY = "look at cores, quotas, memory and optional parts, and say what to fix"

#: extras of penstock, the module that each needs, and what it is for
EXTRAS = {
    "images": ("simplejpeg", "fast JPEG decoding"),
    "torch": ("torch", "tensors"),
    "jax": ("jax", "arrays on JAX devices"),
    "cloud": ("obstore", "s3, gs, az and http files"),
    "fsspec": ("fsspec", "files of any other kind of store"),
    "parquet": ("pyarrow", "Parquet and Arrow files"),
    "lmdb": ("lmdb", "LMDB databases"),
    "hdf5": ("h5py", "HDF5 files"),
    "tfrecord": ("google_crc32c", "fast checksums of TFRecord files"),
    "zstd": ("backports.zstd", "zstd files"),
}
#: threads that libraries start in each worker process, unless told otherwise
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: files that a few worker processes need
_FEW_FILES = 1024
_LITTLE_MEMORY = 1e9


@dataclass(frozen=True, slots=True)
class Examined:
    """What this machine offers."""

    python: str
    system: str
    #: CPUs that the process may run on, that the machine has, and the quota of the cgroup in cores
    cpus: int
    machine_cpus: int
    quota: float | None
    #: tasks waited for a CPU this share of the last minute
    pressure: float | None
    gil: bool
    #: bytes that are free, and that the cgroup allows
    free_bytes: int | None
    memory_limit: int | None
    #: bytes that are free in /dev/shm
    shm_bytes: int | None
    #: shared memory is files in memory, which need no /dev/shm
    memory_files: bool
    #: how worker processes start, or why there can be none
    start: str
    open_files: int | None
    #: variables that set the threads of numerical libraries
    threads: dict[str, str]
    #: optional parts that are there, and those that are not
    extras: tuple[str, ...]
    missing: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("--json", action="store_true", help="print it as JSON, for programs")


def run(args: argparse.Namespace) -> int:
    """Look, and print."""
    found = examine()
    advised = advice(found)
    if args.json:
        import json

        print(json.dumps({**asdict(found), "advice": advised}, indent=2))
        return 0
    screen = Screen.of()
    for name, value in _lines(found):
        screen.line(f"{screen.paint(f'{name:<16}', 'bold')} {value}")
    screen.line()
    for line in advised or ["Nothing to fix."]:
        screen.say(f"* {line}" if advised else line, "yellow" if advised else "green")
    return 0


def examine(root: str = "/") -> Examined:
    """Look at this machine; `root` is where its files are."""
    here = [extra for extra, (module, _) in EXTRAS.items() if _installed(module)]
    return Examined(
        python=sys.version.split()[0],
        system=sys.platform,
        cpus=len(machine.cpus()),
        machine_cpus=os.cpu_count() or 1,
        quota=machine.cpu_quota(root),
        pressure=machine.cpu_pressure(root),
        gil=getattr(sys, "_is_gil_enabled", lambda: True)(),
        free_bytes=machine.free_bytes(root),
        memory_limit=machine.memory_limit(root),
        shm_bytes=_shm_bytes(),
        memory_files=_memory_files(),
        start=_start(),
        open_files=_open_files(),
        threads={name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ},
        extras=tuple(here),
        missing=tuple(extra for extra in EXTRAS if extra not in here),
    )


def _installed(module: str) -> bool:
    # Imported here so that `penstock --help` does not wait for it.
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def _shm_bytes() -> int | None:
    try:
        found = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return found.f_bavail * found.f_frsize


def _memory_files() -> bool:
    descriptor = system.memory_file("penstock-doctor")
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _start() -> str:
    if why := system.why_no_processes():
        return why
    return "forked from a template process" if sys.platform == "linux" else "spawned"


def _open_files() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def advice(found: Examined) -> list[str]:
    """What to fix, a sentence each. Pure."""
    told = []
    if found.quota is not None and found.quota < found.cpus:
        told.append(
            f"The cgroup allows {found.quota:.3g} of {found.cpus} cores. More workers that compute "
            "slow each other down, and libraries that count cores start too many threads: ask for a larger CPU "
            "limit, or set OMP_NUM_THREADS."
        )
    elif found.cpus < found.machine_cpus:
        told.append(
            f"This process may run on {found.cpus} of {found.machine_cpus} CPUs (taskset, a cpuset, or the job's "
            "request): if the training should have more, ask for them there."
        )
    if found.pressure is not None and found.pressure > 0.2:
        told.append(
            f"In {found.pressure:.0%} of the last minute programs waited for a CPU. What you measure now is "
            "too slow: stop other programs, or measure again later."
        )
    limits = [one for one in (found.free_bytes, found.memory_limit) if one is not None]
    if limits and min(limits) < _LITTLE_MEMORY:
        told.append(
            f"There are {min(limits) / 1e6:.0f} MB of memory: bound the loader with loader(memory=), or batches on "
            "their way may end the process."
        )
    if not found.memory_files and found.shm_bytes is not None and found.shm_bytes < _LITTLE_MEMORY:
        told.append(
            f"/dev/shm has {found.shm_bytes / 1e6:.0f} MB free, and this system has no files in memory, so "
            "batches of worker processes must fit there: start the container with --shm-size=8g."
        )
    if found.open_files is not None and found.open_files < _FEW_FILES:
        told.append(f"Only {found.open_files} files may be open: raise it with `ulimit -n 65536`.")
    if "images" in found.missing:
        told.append('JPEG images are decoded by OpenCV or Pillow: pip install "penstock[images]" is faster.')
    return told


def _lines(found: Examined) -> list[tuple[str, str]]:
    quota = "" if found.quota is None else f", of which a cgroup allows {found.quota:.3g}"
    pressure = (
        "" if found.pressure is None else f"; programs waited for one in {found.pressure:.0%} of the last minute"
    )
    lock = "an interpreter lock" if found.gil else "no interpreter lock"
    limit = "" if found.memory_limit is None else f", a cgroup allows {_size(found.memory_limit)} in all"
    kept = "files in memory" if found.memory_files else "in /dev/shm"
    threads = ", ".join(f"{name}={value}" for name, value in found.threads.items()) or "not set"
    return [
        ("python", f"{found.python} on {found.system}, {lock}"),
        ("cores", f"{found.cpus} of {found.machine_cpus}{quota}{pressure}"),
        ("memory", f"{_size(found.free_bytes)} free{limit}"),
        ("shared memory", f"{kept}; /dev/shm has {_size(found.shm_bytes)}"),
        ("processes", found.start),
        ("open files", "unknown" if found.open_files is None else str(found.open_files)),
        ("library threads", threads),
        ("optional parts", ", ".join(found.extras) or "none"),
        ("not installed", _described(found.missing)),
    ]


def _described(extras: Sequence[str]) -> str:
    return ", ".join(f"{name} ({EXTRAS[name][1]})" for name in extras) or "nothing"


def _size(nbytes: int | None) -> str:
    return "an unknown amount" if nbytes is None else f"{nbytes / 1e9:.3g} GB"
