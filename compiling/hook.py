"""Adds the compiled modules to a wheel, or notes in it why there are none.

The wheel contains the sources in any case. The first line of `kpybroker/build.txt` says which build it is. In a
compiled wheel, a line for each extension follows, with its size in bytes and its path.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

from compiling.toolchain import NOT_WANTED, must_compile, why_not

TIMEOUT_S = 1800
FROM_COMPILER = re.compile(r": (fatal |internal compiler )?error( [A-Z]+\d+)?:")
"""How gcc, clang, mypy, and with a number Visual Studio, mark an error."""
CAUSE_CHARACTERS = 300
"""The longest cause in the build's note. A command line of the compiler may have thousands of characters."""


class CompilingHook(BuildHookInterface[Any]):
    """Runs while hatchling builds a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the installation is editable. Raises RuntimeError if KPYBROKER_COMPILE=1 and it fails."""
        if version == "editable":
            return
        self._directory = Path(tempfile.mkdtemp())
        try:
            self._add_build(build_data)
        except BaseException:
            shutil.rmtree(self._directory)  # hatchling does not call `finalize` then
            raise

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the files that are in the wheel now."""
        if version != "editable":
            shutil.rmtree(self._directory)

    def _add_build(self, build_data: dict[str, Any]) -> None:
        extensions = self._directory / "extensions"
        why = why_not() or self._compile(extensions)
        if why and must_compile():
            raise RuntimeError(f"kpybroker could not be compiled: {why}")
        note = self._directory / "build.txt"
        if why == NOT_WANTED:
            note.write_text("interpreted\n", encoding="utf-8")
        elif why:
            print(f"kpybroker is not compiled: {why}", file=sys.stderr)
            note.write_text(f"interpreted: {why}\n", encoding="utf-8")
        else:
            note.write_text(compiled_note(extensions), encoding="utf-8")
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            for file in files_below(extensions):
                build_data["force_include"][str(file)] = file.relative_to(extensions).as_posix()
        build_data["force_include"][str(note)] = "kpybroker/build.txt"

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
        return cause(ran.stdout + ran.stderr) or f"the compiler ended with {ran.returncode}"


def files_below(directory: Path) -> list[Path]:
    """The files in a directory and in those below it, in order."""
    return sorted(file for file in directory.rglob("*") if file.is_file())


def compiled_note(extensions: Path) -> str:
    """The contents of build.txt for the extensions in a directory, which `kpybroker/compiled_build.py` reads."""
    lines = [f"compiled for {sys.implementation.cache_tag} on {sysconfig.get_platform()}"]
    lines += [f"{file.stat().st_size} {file.relative_to(extensions).as_posix()}" for file in files_below(extensions)]
    return "".join(f"{line}\n" for line in lines)


def cause(output: str) -> str:
    """The line of a failed compilation that tells most: the first error of mypyc or the C compiler, or else the last
    line, which names the exception behind a traceback. A long line loses its middle. Empty if there is no
    output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    found = next(filter(FROM_COMPILER.search, lines), lines[-1] if lines else "")
    if len(found) <= CAUSE_CHARACTERS:
        return found
    begin = CAUSE_CHARACTERS // 3
    return f"{found[:begin]} ... {found[begin + 5 - CAUSE_CHARACTERS :]}"
