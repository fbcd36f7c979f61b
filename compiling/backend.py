"""The build backend: hatchling, which gets mypyc as a further requirement if the wheel is to be compiled.

An editable installation needs neither mypyc nor a compiler, and gets neither.
"""

from __future__ import annotations

from typing import Any

from hatchling import build
from hatchling.build import *  # noqa: F403 - the functions that a frontend calls

from compiling.toolchain import why_not

MYPYC = "mypy[mypyc]>=2.4,<3"


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """The requirements of `build_wheel`."""
    needed = build.get_requires_for_build_wheel(config_settings)
    return needed if why_not() else [*needed, MYPYC]
