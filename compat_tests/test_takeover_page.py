"""The blocks of the page "moving to Apache Kafka, and back", run as they stand."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from compat_tests.pages import DOCS, FLAGS, make_programs, script_of
from oracle.jars import jars, java
from oracle.kafka import LOGGING
from oracle.target import steady_port

PATIENCE_S = 280


@pytest.mark.full  # test_takeover.py makes the same move
def test_the_page_works(tmp_path: Path) -> None:
    kafka = f'{java()} {FLAGS} -Dlog4j2.configurationFile={LOGGING} -cp "{jars()}/*"'
    servers = {"kafka-server-start.sh": f"{kafka} kafka.Kafka", "kafka-storage.sh": f"{kafka} kafka.tools.StorageTool"}
    programs = make_programs(tmp_path / "bin", servers)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(DOCS.parent),
        "PORT": str(steady_port(120)),
    }
    said = tmp_path / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-c", script_of("moving-to-apache-kafka.md")],
            cwd=tmp_path,
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            code = process.wait(PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, said.read_text()[-4000:]
    assert "No problems found" in said.read_text() or "Found problem" not in said.read_text()
