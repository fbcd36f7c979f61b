"""`python -m tests.compiled_run WHEELS`: run the fast tests on the compiled wheel in the folder WHEELS.

The wheel is unpacked beside a copy of the tests, so that they find only its package. Further arguments go to pytest,
for example `compat_tests` to run other tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compiling.unpacking import unpacked

ONLY_SOURCES = ("test_layers.py", "test_packaging.py", "test_pages.py", "test_compiled_build.py", "test_deploy.py")
"""Tests of the sources, which do not depend on the build."""


def cannot_be_first(tree: Path, environment: dict[str, str]) -> list[str]:
    """The compiled modules that a process cannot import before all others."""

    def fails(module: str) -> bool:
        command = [sys.executable, "-c", f"import {module}"]
        return subprocess.run(command, cwd=tree, env=environment, capture_output=True).returncode != 0

    modules = (tree / "kpybroker/compiled_modules.txt").read_text().split()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [module for module, failed in zip(modules, pool.map(fails, modules), strict=True) if failed]


def main(wheels: str, *arguments: str) -> int:
    """Run the tests and return pytest's exit code."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory, "tree")
        unpacked(Path(wheels), tree)
        ignored = [f"--ignore=tests/{name}" for name in ONLY_SOURCES]
        chosen = arguments or ("tests", "-n", "auto", "-m", "not slow")
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        said = subprocess.run(
            [sys.executable, "-m", "kpybroker", "version"], cwd=tree, capture_output=True, text=True, env=environment
        ).stdout.strip()
        if not said.endswith("(compiled)"):
            sys.exit(f"the wheel runs as {said}")
        if broken := cannot_be_first(tree, environment):
            sys.exit("a process that imports one of these modules first fails: " + ", ".join(broken))
        return subprocess.run([sys.executable, "-m", "pytest", *ignored, *chosen], cwd=tree, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
