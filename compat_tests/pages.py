"""Pages of `docs/` whose blocks are run as they stand: the programs they name, and what is between the fences."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from oracle.jars import jars, java
from oracle.tools import MAINS

DOCS = Path(__file__).parent.parent / "docs"
FLAGS = "-Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def make_programs(folder: Path, more: Mapping[str, str] | None = None) -> Path:
    """Fill a folder for the PATH: `kpybroker`, `kafka-*.sh` as Kafka's own scripts are, and `more` by their command."""
    folder.mkdir()
    lines = {f"{name}.sh": f'{java()} {FLAGS} -cp "{jars()}/*" {main}' for name, main in MAINS.items()}
    for name, line in {**lines, "kpybroker": f"{sys.executable} -m kpybroker", **(more or {})}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def script_of(page: str) -> str:
    """All its blocks, one after the other; the first command that fails ends them."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return "set -euo pipefail\n" + "\n".join(blocks)
