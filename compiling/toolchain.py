"""Whether a compiled build is wanted, and whether a C compiler is there for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

VARIABLE = "KPYBROKER_COMPILE"
"""1: compile, and fail if that is not possible. 0: do not compile. Otherwise: compile if that is possible."""

NOT_WANTED = f"{VARIABLE}=0"
MSVC = ("Microsoft.VisualStudio.Component.VC.Tools.x86.x64", "Microsoft.VisualStudio.Component.VC.Tools.ARM64")
"""The components of Visual Studio that have its C compiler."""


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
    if not (_has_msvc() if sys.platform == "win32" else _has_compiler()):
        return "no C compiler was found; install gcc or clang (Windows: the build tools of Visual Studio)"
    return ""


def _has_compiler() -> bool:
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(str(command).split()[0]) is not None


def _has_msvc() -> bool:
    """Whether setuptools will find the compiler of Visual Studio 2017 or later. vswhere, which is in the same place for
    all of them, knows where it is; with DISTUTILS_USE_SDK it must be on PATH."""
    if "DISTUTILS_USE_SDK" in os.environ:
        return shutil.which("cl") is not None
    programs = os.environ.get("PROGRAMFILES(X86)") or os.environ.get("PROGRAMFILES")
    if not programs:
        return False
    vswhere = Path(programs, "Microsoft Visual Studio", "Installer", "vswhere.exe")
    asked = [str(vswhere), "-prerelease", "-products", "*", "-requiresAny", "-requires", *MSVC]
    try:
        found = subprocess.run([*asked, "-property", "installationPath"], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return bool(found.stdout.strip())
