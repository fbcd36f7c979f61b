"""How much of the machine's CPU time other processes, and the host of a virtual machine, took during a slice.

A slice that was disturbed too much is repeated, at most a few times. If no repetition is quiet, the quietest one
counts, and its row is marked as noisy.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

OTHERS_MAX = 0.10
"""The largest share of the time of all cores that other processes may take in a quiet slice."""
STOLEN_MAX = 0.02
"""The largest share that the host may take."""
KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of the flags in /proc/PID/stat."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
Figures = TypeVar("Figures")


class Noise(NamedTuple):
    """Shares of the time of all cores, between 0 and 1: what other processes took, and what the host took."""

    others: float
    stolen: float

    @property
    def is_quiet(self) -> bool:
        return self.others <= OTHERS_MAX and self.stolen <= STOLEN_MAX

    @property
    def excess(self) -> float:
        """How many times the nearer bound is exceeded; at most 1 if the slice was quiet."""
        return max(self.others / OTHERS_MAX, self.stolen / STOLEN_MAX)


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds of CPU since the start of the machine, of all cores together.

    `own_s` is the time of this process and its descendants; `kernel_s` that of kernel threads, which write back the
    pages of all processes and are not counted as others.
    """

    passed_s: float
    busy_s: float
    stolen_s: float
    own_s: float
    kernel_s: float

    def noise_since(self, earlier: "CpuTime") -> Noise:
        passed_s = self.passed_s - earlier.passed_s
        if passed_s <= 0:
            return Noise(0.0, 0.0)
        ours_s = self.own_s - earlier.own_s + self.kernel_s - earlier.kernel_s
        others_s = self.busy_s - earlier.busy_s - ours_s
        stolen_s = self.stolen_s - earlier.stolen_s
        return Noise(max(0.0, others_s) / passed_s, max(0.0, stolen_s) / passed_s)


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    is_kernel: bool
    used_s: float
    """Including the children that it has waited for, so that the sum over a tree never falls."""


def cpu_time(proc: Path = Path("/proc")) -> CpuTime:
    """Read the counters of the kernel. Their resolution is 10 ms."""
    processes = [found for found in map(_process, proc.glob("[0-9]*")) if found is not None]
    user, nice, system, idle, iowait, irq, softirq, stolen = (
        int(field) / _TICKS_PER_S for field in (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    busy_s = user + nice + system + irq + softirq
    tree = {os.getpid()}
    while grown := {each.pid for each in processes if each.parent in tree} - tree:
        tree |= grown
    return CpuTime(
        passed_s=busy_s + idle + iowait + stolen,
        busy_s=busy_s,
        stolen_s=stolen,
        own_s=sum(each.used_s for each in processes if each.pid in tree),
        kernel_s=sum(each.used_s for each in processes if each.is_kernel),
    )


def _process(directory: Path) -> _Process | None:
    """None if the process has ended."""
    try:
        fields = (directory / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    used_s = sum(map(int, fields[11:15])) / _TICKS_PER_S
    return _Process(int(directory.name), int(fields[1]), bool(int(fields[6]) & KERNEL_THREAD), used_s)


@dataclass(frozen=True, slots=True)
class Slice(Generic[Figures]):
    """What one slice measured, and how much it was disturbed."""

    figures: Figures
    noise: Noise


def measured(work: Callable[[], Figures]) -> Slice[Figures]:
    """Run a slice, and measure the noise meanwhile."""
    before = cpu_time()
    figures = work()
    return Slice(figures, cpu_time().noise_since(before))


def quietest(take: Callable[[], Slice[Figures]], repeats: int) -> Slice[Figures]:
    """Take a slice, and repeat it up to `repeats` times while it is noisy. Returns the quietest."""
    best = take()
    for _ in range(repeats):
        if best.noise.is_quiet:
            break
        best = min(best, take(), key=lambda each: each.noise.excess)
    return best
