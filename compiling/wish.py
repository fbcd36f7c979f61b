"""Whether this installation wants a compiled build, and whether a C compiler is there."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig

VARIABLE = "KPYBROKER_COMPILE"
"""1: compile, and fail if that is not possible. 0: do not compile. Otherwise: compile if that is possible."""

NOT_WANTED = f"{VARIABLE}=0"


def must_compile() -> bool:
    """Whether a failure of the compiler is an error."""
    return os.environ.get(VARIABLE) == "1"


def why_not() -> str:
    """Why this build is not compiled; empty if it is to be tried."""
    if must_compile():
        return ""
    if os.environ.get(VARIABLE) == "0":
        return NOT_WANTED
    if sys.implementation.name != "cpython":
        return f"mypyc needs CPython, and this is {sys.implementation.name}"
    if not _has_compiler():
        return "no C compiler was found; install gcc or clang (Windows: the build tools of Visual Studio)"
    return ""


def _has_compiler() -> bool:
    if sys.platform == "win32":
        return True  # setuptools finds it in the registry
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(str(command).split()[0]) is not None
