"""Runs the blocks of pages in `docs/` unchanged, with the programs that they name."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from oracle.jars import jars, java
from oracle.kafka import LOGGING
from oracle.tools import MAINS

DOCS = Path(__file__).parent.parent / "docs"
PATIENCE_S, LONG_S = 280, 1200
"""The longest times for a page, only against hanging: a slow machine needs much more than an idle one."""
FLAGS = "-Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def make_programs(folder: Path, more: Mapping[str, str] | None = None) -> Path:
    """Fill a folder for the PATH with `kpybroker`, with `kafka-*.sh` like Kafka's own scripts, and with the programs in
    `more`, which maps names to commands."""
    folder.mkdir()
    lines = {f"{name}.sh": f'{java()} {FLAGS} -cp "{jars()}/*" {main}' for name, main in MAINS.items()}
    for name, line in {**lines, "kpybroker": f"{sys.executable} -m kpybroker", **(more or {})}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def kafka_servers() -> dict[str, str]:
    """Commands for `make_programs` that start nodes of Apache Kafka and format their directories."""
    kafka = f'{java()} {FLAGS} -Dlog4j2.configurationFile={LOGGING} -cp "{jars()}/*"'
    return {"kafka-server-start.sh": f"{kafka} kafka.Kafka", "kafka-storage.sh": f"{kafka} kafka.tools.StorageTool"}


def script_of(page: str) -> str:
    """A script with all blocks, one after the other; the first command that fails ends it."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return "set -euo pipefail\n" + "\n".join(blocks)


def run(
    page: str,
    folder: Path,
    environment: Mapping[str, str],
    more: Mapping[str, str] | None = None,
    patience_s: float = PATIENCE_S,
) -> str:
    """Run the blocks of a page in a folder. Returns their output. Raises AssertionError if a block fails; no process
    continues to run."""
    programs = make_programs(folder / "bin", more)
    said = folder / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-c", script_of(page)],
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "PYTHONPATH": str(DOCS.parent),
                **environment,
            },
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            code = process.wait(patience_s)
        finally:
            for ready in folder.rglob("*.ready"):
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(json.loads(ready.read_text())["pid"], signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, said.read_text()[-4000:]
    return said.read_text()
