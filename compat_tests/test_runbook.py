"""The runbook's blocks, run as they stand: on three brokers of this machine, with Kafka's own tools."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

from compat_tests.pages import DOCS, make_programs, script_of
from oracle.target import steady_port

PATIENCE_S = 280


def test_the_runbook_works(tmp_path: Path, target_name: str) -> None:
    if target_name != "kpybroker":
        return  # it starts brokers of its own
    programs = make_programs(tmp_path / "bin")
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(DOCS.parent),
        "PORT": str(steady_port(4)),
        "HTTP": str(steady_port(4)),
    }
    said = tmp_path / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-c", script_of("runbook.md")],
            cwd=tmp_path,
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
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
