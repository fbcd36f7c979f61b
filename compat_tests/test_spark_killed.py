"""Tests that a structured stream reads each record once although its driver is killed with -9."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from oracle.target import Target

COUNT = 60_000
KILL_AT = 20_000
ROOT = Path(__file__).resolve().parent.parent


def run(command: list[str], log: Path, kill_at: int) -> list[str]:
    """Run the job in a separate process group, and kill the whole group, including the JVM, at a position. Returns the
    output."""
    lines: list[str] = []
    with (
        log.open("ab") as err,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=err, text=True, start_new_session=True
        ) as job,
    ):
        assert job.stdout is not None
        try:
            for line in job.stdout:
                lines.append(line.strip())
                if lines[-1].isdigit() and int(lines[-1]) >= kill_at:
                    break
        finally:
            # at the end of its output the job ends by itself, so there may be no process left
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    return lines


@pytest.mark.full  # test_example_exactly_once_totals.py kills a driver in every `make test`
@pytest.mark.timeout(600)  # two JVMs, one after the other
def test_killed_and_resumed_stream_has_every_record_once(target: Target, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    topic = f"spark-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 3)])[topic].result()
    producer = Producer({"bootstrap.servers": target.bootstrap, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(topic, str(number))
    assert producer.flush(60) == 0

    log = tmp_path / "job.log"
    command = [sys.executable, "-m", "compat_tests.spark_job", target.bootstrap, topic, str(tmp_path)]
    lines = run(command, log, KILL_AT)
    assert lines, log.read_text()[-4000:]
    assert int(lines[-1]) < COUNT, "it was over before it could be killed"
    lines = run(command, log, kill_at=COUNT + 1)
    assert lines[-1:] == [f"holds {COUNT} {COUNT} {sum(range(COUNT))}"], log.read_text()[-4000:]
