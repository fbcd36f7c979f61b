"""`python -m bench.compiled WHEELS`: run `python -m bench` on the compiled wheel in the folder WHEELS.

Further arguments go to `python -m bench`; if the first of them is a word, such as `scheduled`, to `python -m
bench.scheduled`. The results are written to bench/results of this clone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.report import RESULTS
from compiling.unpacking import ROOT, unpacked


def main(wheels: str, *arguments: str) -> int:
    """Run the benchmark and return its exit status."""
    with tempfile.TemporaryDirectory(prefix="bench-compiled-") as directory:
        tree = Path(directory, "tree")
        unpacked(Path(wheels), tree)
        RESULTS.mkdir(exist_ok=True)
        results = tree / "bench" / RESULTS.name
        if results.exists():
            results.rename(results.with_suffix(".copied"))
        results.symlink_to(RESULTS)
        (tree / ".git").symlink_to(ROOT / ".git")  # the results have the commit
        name = f".{arguments[0]}" if arguments and not arguments[0].startswith("-") else ""
        command = [sys.executable, "-m", f"bench{name}", *arguments[bool(name) :]]
        environment = {**os.environ, "PYTHONPATH": str(tree), "GIT_OPTIONAL_LOCKS": "0"}
        return subprocess.run(command, cwd=tree, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
