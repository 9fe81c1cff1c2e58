"""What was counted between two moments of a run, and what follows from it at once. Pure."""

from __future__ import annotations

from math import inf

from penstock.stats.history import Snapshot


class Period:
    """What was counted between two snapshots."""

    def __init__(self, before: Snapshot, after: Snapshot) -> None:
        self._before = before.stats
        self._after = after.stats
        self.samples = self.of("samples")
        self.batches = self.of("batches")
        self.running_s = self.of("running_s")
        self.wait_s = min(self.of("wait_s"), self.running_s)

    def of(self, key: str) -> float:
        """How much a counter has grown."""
        return max(self._after.get(key, 0.0) - self._before.get(key, 0.0), 0.0)

    def stage(self, label: str, key: str) -> float:
        return self.of(f"stage.{label}.{key}")

    def now(self, label: str, key: str) -> float:
        """What a gauge of a stage shows at the end."""
        return self._after.get(f"stage.{label}.{key}", 0.0)

    def workers(self, label: str) -> int:
        return int(self._after.get(f"stage.{label}.workers", 1))

    @property
    def wait_share(self) -> float:
        """The share of its time that the training loop waited."""
        return self.wait_s / self.running_s if self.running_s > 0 else 0.0

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.running_s if self.running_s > 0 else 0.0

    @property
    def loop_capacity(self) -> float:
        """Samples per second that the training loop would take if it never waited."""
        busy_s = self.running_s - self.wait_s
        return self.samples / busy_s if busy_s > 0 else inf

    @property
    def cores_used(self) -> float:
        """How many cores this process and its workers kept busy in epochs, on average."""
        return self.of("cpu_s") / self.running_s if self.running_s > 0 else 0.0

    @property
    def others(self) -> float:
        """How many cores other programs kept busy, on average; 0 where that is not known."""
        seconds = self.of("machine_s")
        return max(self.of("machine_busy_s") / seconds - self.cores_used, 0.0) if seconds > 0 else 0.0

    @property
    def throttled(self) -> float:
        """The share of the periods of a CPU quota in which this process, or another of its cgroup, had to wait."""
        periods = self.of("quota_periods")
        return self.of("quota_throttled") / periods if periods else 0.0

    @property
    def pause_share(self) -> float:
        """The share of the time that was not spent in epochs."""
        open_s = self.of("open_s")
        return max(1 - self.running_s / open_s, 0.0) if open_s > 0 else 0.0

    @property
    def lock_wait_s(self) -> float:
        """How long a thread waits for the interpreter lock, on average."""
        tries = self.of("lock_tries")
        return self.of("lock_wait_s") / tries if tries else 0.0

    def fresh(self, reservoir: str) -> float:
        """Draws of a reservoir that had not been served before."""
        after, before = (
            stats.get(f"{reservoir}.draws", 0.0) * stats.get(f"{reservoir}.fresh_share", 0.0)
            for stats in (self._after, self._before)
        )
        return max(after - before, 0.0)

    def reuse(self, reservoir: str) -> float:
        """How often the reservoir has served each sample, on average; 1.0 if none was served again."""
        draws, fresh = self.of(f"{reservoir}.draws"), self.fresh(reservoir)
        return max(draws / max(fresh, 1.0), 1.0)
