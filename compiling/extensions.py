"""`python -m compiling.extensions DIRECTORY`: compile the modules of kpybroker/compiled_modules.txt with mypyc.

The modules call each other directly, because all of them are in one library, kpybroker__mypyc. Each module also has a
small extension of its own, which Python finds instead of the source.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.parent
MODULES = ROOT / "kpybroker/compiled_modules.txt"
LIBRARY = "kpybroker"
SMALLER = ["-fvisibility=hidden", "-fno-asynchronous-unwind-tables"]
"""Python finds the functions by pointers, so the library needs neither their names nor a table to unwind them. Without
these, a start takes 5 % less CPU, and the broker 1.3 MB less memory."""


class ParallelBuild(build_ext):
    """Compiles the C files of an extension in parallel; setuptools does so only with different extensions."""

    def build_extension(self, ext: Extension) -> None:
        compile_some = self.compiler.compile

        def compile_all(sources: list[str], **more: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return list(chain(*pool.map(lambda one: compile_some([one], **more), sources)))

        self.compiler.compile = compile_all
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_some


def sources() -> list[str]:
    """The files to compile, relative to the root of the repository."""
    return [f"{module.replace('.', '/')}.py" for module in MODULES.read_text().split()]


def build(target: Path) -> None:
    """Write the extension modules below `target`, in the folders of their packages."""
    from mypyc.build import mypycify

    with tempfile.TemporaryDirectory() as work:
        settings = Path(work, "mypy.ini")
        settings.write_text("[mypy]\nignore_missing_imports = True\n")  # the dependencies need not be installed
        options = [f"--config-file={settings}", f"--cache-dir={work}/cache"]
        extensions = mypycify(
            [*options, *sources()],
            opt_level="1",  # -O3 takes twice as long to compile, and the broker is not faster
            debug_level="0",
            multi_file=True,
            group_name=LIBRARY,
            target_dir=f"{work}/c",
        )
        if sys.platform != "win32":
            for extension in extensions:
                # not +=, because the extensions share one list
                extension.extra_compile_args = [*extension.extra_compile_args, *SMALLER]
        command = ParallelBuild(Distribution({"name": LIBRARY, "ext_modules": extensions}))
        command.build_lib, command.build_temp = str(target), f"{work}/objects"
        command.ensure_finalized()
        command.run()


if __name__ == "__main__":
    build(Path(sys.argv[1]))
