"""The runbook's blocks, run as they stand: on three brokers of this machine, with Kafka's own tools."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oracle.jars import jars, java
from oracle.target import steady_port
from oracle.tools import MAINS

RUNBOOK = Path(__file__).parent.parent / "docs" / "runbook.md"
PATIENCE_S = 280


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for the PATH: `kpybroker`, and `kafka-*.sh` as Kafka's own scripts are."""
    folder = tmp_path / "bin"
    folder.mkdir()
    flags = "-Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    lines = {f"{name}.sh": f'{java()} {flags} -cp "{jars()}/*" {main}' for name, main in MAINS.items()}
    for name, line in {**lines, "kpybroker": f"{sys.executable} -m kpybroker"}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def test_the_runbook_works(programs: Path, tmp_path: Path, target_name: str) -> None:
    if target_name != "kpybroker":
        return  # it starts brokers of its own
    blocks = re.findall(r"^```sh\n(.*?)^```", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(RUNBOOK.parent.parent),
        "PORT": str(steady_port(4)),
        "HTTP": str(steady_port(4)),
    }
    script = "set -euo pipefail\n" + "\n".join(blocks)
    said = tmp_path / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=tmp_path, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code = process.wait(PATIENCE_S)
        finally:
            for ready in (tmp_path / "practice").glob("*.ready"):
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(json.loads(ready.read_text())["pid"], signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, said.read_text()[-4000:]
    assert "Successfully started partition reassignments for orders-0" in said.read_text()
    assert "Broker 4 is no longer registered." in said.read_text()
