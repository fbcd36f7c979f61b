"""How many cores this process may use: the affinity of its CPUs, and the CPU quota of its container (cgroups)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


def usable_cores(cgroups: Path = CGROUPS, mount: Path = MOUNT) -> int:
    """The number of whole cores, at least 1.

    `cgroups`: the file that names the groups of this process; `mount`: where their directories are.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(int(quota) for quota in _quotas(cgroups, mount))]))


def _quotas(cgroups: Path, mount: Path) -> Iterator[float]:
    """The CPU quotas, in cores, of the groups of this process and of the groups around them."""
    for line in _text(cgroups).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for root in [mount] if not controllers else [mount / "cpu"] if "cpu" in controllers.split(",") else []:
            # a container may see its own group as the root, and still the path of that group outside
            group = root / path.lstrip("/")
            for each in {root, group, *group.parents}:
                if each.is_relative_to(root):
                    yield from _quota(each)


def _quota(group: Path) -> Iterator[float]:
    quota, _, period = _text(group / "cpu.max").partition(" ")  # version 2: "max 100000" if there is no quota
    if not quota:
        quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    try:
        if int(quota) > 0 and int(period) > 0:
            yield int(quota) / int(period)
    except ValueError:
        return


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
