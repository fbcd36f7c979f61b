"""Unpacks a compiled wheel beside a copy of the repository, so that tests and benchmarks find only its package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT_OUT = shutil.ignore_patterns("kpybroker", ".*", "dist", "build", "__pycache__", "kpybroker-data")


def unpacked(wheels: Path, tree: Path) -> None:
    """Make `tree` a copy of the repository with the package of the newest wheel in `wheels`. Raises SystemExit if there
    is no wheel for this Python, or if its sources would run."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    found = sorted(wheels.glob(f"kpybroker-*-{tag}-*{platform}.whl"), key=lambda wheel: wheel.stat().st_mtime)
    if not found:
        sys.exit(f"{wheels} has no compiled wheel for {tag} on {platform}; run `make wheels`")
    shutil.copytree(ROOT, tree, ignore=KEPT_OUT)
    zipfile.ZipFile(found[-1]).extractall(tree)
    if (ROOT / ".cache").exists():
        (tree / ".cache").symlink_to(ROOT / ".cache")  # Apache Kafka's artifacts
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    asked = [sys.executable, "-m", "kpybroker", "version"]
    said = subprocess.run(asked, cwd=tree, capture_output=True, text=True, env=environment, check=False)
    if not said.stdout.strip().endswith("(compiled)"):
        sys.exit(f"the wheel runs as {said.stdout.strip() or said.stderr.strip()}")
