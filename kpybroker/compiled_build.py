"""Decides whether the compiled modules run or their sources.

A compiled wheel has a C extension beside the source of each module in compiled_modules.txt, and one library of all of
them. Python itself ignores extensions of another Python or operating system. If they cannot all be loaded, none may be,
because the compiled modules use each other's memory: then the sources run, and one line on stderr says why. So the
build notes the size of each extension in build.txt, and a start compares them. KPYBROKER_INTERPRETED=1 runs the
sources, too.
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
_REMEDY = "Install it again to have the faster build"


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
    built, *extensions = note.read_text(encoding="utf-8").splitlines() if note.exists() else [INTERPRETED]
    if not built.startswith(COMPILED):
        return built
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "0"):
        sys.meta_path.insert(0, Sources())
        return f"{INTERPRETED}: {VARIABLE}={asked}"
    why = _fault(PACKAGE.parent, extensions)
    if not why:
        return COMPILED
    sys.meta_path.insert(0, Sources())
    why = f"{why}; it was {built}. {_REMEDY}"
    print(f"kpybroker runs {INTERPRETED}: {why}", file=sys.stderr)
    return f"{INTERPRETED}: {why}"


def unsaid_reason(build: str) -> str:
    """Why the build that `choose` returned is interpreted; empty if there is no reason, or if `choose` printed it."""
    return "" if build.endswith(_REMEDY) else build.partition(": ")[2]


def _fault(directory: Path, extensions: list[str]) -> str:
    """Why the compiled modules cannot be used; empty if they can. `extensions`: the size and the path below the
    directory of each."""
    suffix = EXTENSION_SUFFIXES[0]
    if not any(line.endswith(suffix) for line in extensions):
        return f"it has no extensions for {sys.implementation.cache_tag}"
    faults = [why for line in extensions if (why := _difference(str(directory), line))]
    if faults:
        return f"{len(faults)} of {len(extensions)} extensions are not those of the build, for example {faults[0]}"
    try:
        importlib.import_module(LIBRARY)
    except ImportError as error:
        return str(error)
    return ""


def _difference(directory: str, line: str) -> str:
    expected, _, path = line.partition(" ")
    try:
        size = os.stat(f"{directory}/{path}").st_size
    except OSError as error:
        return f"{path}: {error.strerror}"
    return "" if str(size) == expected else f"{path} has {size} bytes instead of {expected}"
