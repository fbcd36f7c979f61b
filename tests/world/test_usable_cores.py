"""Tests of the number of usable cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kpybroker.world.usable_cores import usable_cores

ALL = len(os.sched_getaffinity(0))
CODE = (
    "import os\n"
    "from kpybroker.world.usable_cores import usable_cores\n"
    "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    "print(usable_cores())\n"
)


@pytest.mark.parametrize(
    ("cgroups", "files", "cores"),
    [
        ("", {}, ALL),
        ("0::/\n", {"cpu.max": "max 100000"}, ALL),
        ("0::/\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/\n", {"cpu.max": "199999 100000"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/\n", {"cpu.max": "100000000 100000"}, ALL),
        ("0::/a/b\n", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"}, 1),
        ("0::/outside\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/a\n", {"b/cpu.max": "100000 100000"}, ALL),
        ("3:cpu,cpuacct:/a\n0::/\n", {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "100000"}, 1),
        ("3:cpuset:/a\n", {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "100000"}, ALL),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, ALL),
        ("0::/\n", {"cpu.max": "nonsense"}, ALL),
    ],
)
def test_the_quota_of_a_container_counts(cgroups: str, files: dict[str, str], cores: int, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(cgroups)
    for name, text in files.items():
        (tmp_path / "mount" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mount" / name).write_text(f"{text}\n")
    assert usable_cores(tmp_path / "cgroup", tmp_path / "mount") == cores


def test_the_affinity_counts() -> None:
    assert subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True, text=True).stdout == "1\n"
