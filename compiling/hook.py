"""Adds the compiled modules to a wheel, or notes in it why there are none.

The wheel contains the sources in any case. `kpybroker/build.txt` has one line, which `kpybroker version` prints.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

from compiling.wish import NOT_WANTED, must_compile, why_not

TIMEOUT_S = 1800


class CompilingHook(BuildHookInterface[Any]):
    """Runs while hatchling builds a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the installation is editable. Raises RuntimeError if KPYBROKER_COMPILE=1 and it fails."""
        if version == "editable":
            return
        self._directory = Path(tempfile.mkdtemp())
        extensions = self._directory / "extensions"
        why = why_not() or self._compile(extensions)
        if why and must_compile():
            raise RuntimeError(f"kpybroker could not be compiled: {why}")
        note = self._directory / "build.txt"
        if why == NOT_WANTED:
            note.write_text("interpreted\n")
        elif why:
            print(f"kpybroker is not compiled: {why}", file=sys.stderr)
            note.write_text(f"interpreted: {why}\n")
        else:
            note.write_text(f"compiled for {sys.implementation.cache_tag} on {sysconfig.get_platform()}\n")
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            for file in extensions.rglob("*"):
                if file.is_file():
                    build_data["force_include"][str(file)] = file.relative_to(extensions).as_posix()
        build_data["force_include"][str(note)] = "kpybroker/build.txt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the files that are in the wheel now."""
        if version != "editable":
            shutil.rmtree(self._directory)

    def _compile(self, extensions: Path) -> str:
        """Write the extension modules. Returns why that failed; empty if it did not."""
        command = [sys.executable, "-m", "compiling.extensions", str(extensions)]
        try:
            ran = subprocess.run(
                command, cwd=self.root, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"the compiler took more than {TIMEOUT_S} s"
        if ran.returncode == 0:
            return ""
        lines = [line.strip() for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or [f"the compiler ended with {ran.returncode}"])[0]
