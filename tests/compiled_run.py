"""`python -m tests.compiled_run WHEELS`: run the fast tests on the compiled wheel in the folder WHEELS.

The wheel is unpacked beside a copy of the tests, so that they find only its package. Before that, the wheel and the
sources of this clone play some seeds of the simulator, and must give the same digests. Further arguments go to
pytest, for example `compat_tests` to run other tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compiling.unpacking import ROOT, unpacked

ONLY_SOURCES = ("test_layers.py", "test_packaging.py", "test_pages.py", "test_compiled_build.py", "test_deploy.py")
"""Tests of the sources, which do not depend on the build."""
SEEDS = (0, 1, 2, 3)
"""Seeds of the simulator that both builds play, and must play alike: a few seconds each."""


def cannot_be_first(tree: Path, environment: dict[str, str]) -> list[str]:
    """The compiled modules that a process cannot import before all others."""

    def fails(module: str) -> bool:
        command = [sys.executable, "-c", f"import {module}"]
        return subprocess.run(command, cwd=tree, env=environment, capture_output=True).returncode != 0

    modules = (tree / "kpybroker/compiled_modules.txt").read_text().split()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [module for module, failed in zip(modules, pool.map(fails, modules), strict=True) if failed]


def different_seeds(first: Path, second: Path) -> list[str]:
    """The seeds of which the packages in two directories play different runs, with both digests."""

    def digest(run: tuple[Path, int]) -> str:
        directory, seed = run
        command = [sys.executable, "-m", "kpybroker.sim", "--seed", str(seed), "--digest"]
        environment = {**os.environ, "PYTHONPATH": str(directory)}
        ran = subprocess.run(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return ran.stdout.strip()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pairs = zip(*(pool.map(digest, [(each, seed) for seed in SEEDS]) for each in (first, second)), strict=True)
        return [f"{seed}: {one}, {other}" for seed, (one, other) in zip(SEEDS, pairs, strict=True) if one != other]


def main(wheels: str, *arguments: str) -> int:
    """Compare the builds in the simulator, run the tests, and return pytest's exit code."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory, "tree")
        unpacked(Path(wheels), tree)
        ignored = [f"--ignore=tests/{name}" for name in ONLY_SOURCES]
        chosen = arguments or ("tests", "-n", "auto", "-m", "not slow")
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        if broken := cannot_be_first(tree, environment):
            sys.exit("a process that imports one of these modules first fails: " + ", ".join(broken))
        if different := different_seeds(ROOT, tree):
            sys.exit("the simulator plays these seeds differently interpreted and compiled: " + "; ".join(different))
        return subprocess.run([sys.executable, "-m", "pytest", *ignored, *chosen], cwd=tree, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
