"""Decides whether the compiled modules run or their sources.

A compiled wheel has a C extension beside the source of each module in compiled_modules.txt, and one library of all of
them. Python itself ignores extensions of another Python or operating system. If they cannot all be loaded, none may be,
because the compiled modules use each other's memory: then the sources run, and one line on stderr says why.
KPYBROKER_INTERPRETED=1 runs the sources, too.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parent
LIBRARY = "kpybroker__mypyc"
VARIABLE = "KPYBROKER_INTERPRETED"
COMPILED, INTERPRETED = "compiled", "interpreted"


class Sources:
    """Finds the sources of the package's modules, even if there are extensions beside them.

    It does not extend importlib.abc.MetaPathFinder, because that imports modules which a start does not need.
    """

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("kpybroker."):
            return None
        folder = PACKAGE.joinpath(*name.split(".")[1:-1])
        return _finder(str(folder)).find_spec(name)


@cache
def _finder(folder: str) -> FileFinder:
    return FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))


def choose() -> str:
    """Make later imports of the package load the sources, unless the compiled build is complete. Returns what runs:
    "compiled", or "interpreted" and the reason."""
    note = PACKAGE / "build.txt"
    built = note.read_text(encoding="utf-8").strip() if note.exists() else INTERPRETED
    if not built.startswith(COMPILED):
        return built
    if os.environ.get(VARIABLE, "0") != "0":
        sys.meta_path.insert(0, Sources())
        return f"{INTERPRETED}: {VARIABLE}={os.environ[VARIABLE]}"
    why = _fault(PACKAGE)
    if not why:
        return COMPILED
    sys.meta_path.insert(0, Sources())
    why = f"{why}; it was {built}. Install it again to have the faster build"
    print(f"kpybroker runs {INTERPRETED}: {why}", file=sys.stderr)
    return f"{INTERPRETED}: {why}"


def _fault(package: Path) -> str:
    """Why the compiled modules cannot be used; empty if they can."""
    suffix = EXTENSION_SUFFIXES[0]
    modules = (package / "compiled_modules.txt").read_text(encoding="ascii").split()
    files = [package.parent / (LIBRARY + suffix), *(package.parent / f"{m.replace('.', '/')}{suffix}" for m in modules)]
    missing = [file.name for file in files if not file.exists()]
    if len(missing) == len(files):
        return f"it has no extensions for {sys.implementation.cache_tag}"
    if missing:
        return f"{len(missing)} of {len(files)} extensions are missing, for example {missing[0]}"
    try:
        importlib.import_module(LIBRARY)
    except ImportError as error:
        return str(error)
    return ""
