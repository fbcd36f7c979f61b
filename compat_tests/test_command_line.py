"""Tests kpybroker's command line on a new broker. The commands work on Apache Kafka, too."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from oracle.broker import KPyBroker
from oracle.kafka import Kafka

Command = Callable[..., str]
WAIT_S = 60


@pytest.fixture
def command(target_name: str) -> Iterator[Command]:
    """Run a command that must succeed. Returns its output. Only this test uses the broker."""
    with Kafka() if target_name == "kafka" else KPyBroker() as broker:

        def run(*arguments: str, typed: str = "") -> str:
            ended = subprocess.run(
                [sys.executable, "-m", "kpybroker", *arguments],
                env={**os.environ, "KPYBROKER_BOOTSTRAP": broker.bootstrap},
                input=typed,
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
            assert ended.returncode == 0, ended.stderr
            return ended.stdout

        yield run


def test_a_first_hour(command: Command) -> None:
    command("produce", "orders", typed="a\nb\nc\n")
    assert command("consume", "orders", "--tail", "2") == "b\nc\n"
    assert command("consume", "orders", "--group", "g", "--from-beginning", "--max", "2") == "a\nb\n"
    (group,) = json.loads(command("groups", "list", "--json"))
    assert (group["group"], group["members"], group["lag"]) == ("g", 0, 1)
    told = json.loads(command("status", "--json"))
    assert told["unknown"] == {}
    assert [voter["behind"] for voter in told["controller"]["voters"]] == [0]
    assert told["partitions"]["under_replicated"] == []
    assert "up" in command("wait", "--in-sync")
    command("configs", "set", "retention.ms=60000", "--topic", "orders")
    (setting,) = json.loads(command("configs", "get", "--topic", "orders", "--json"))
    assert setting == {"name": "retention.ms", "value": "60000", "source": "topic"}
    command("quotas", "set", "consumer_byte_rate=1048576", "--default-client", "--user", "ann")
    (quota,) = json.loads(command("quotas", "list", "--json"))
    assert quota == {"entity": {"client-id": None, "user": "ann"}, "quota": "consumer_byte_rate", "value": 1048576.0}
    command("topics", "trim", "orders", "--before-offset", "1", "--execute")
    assert command("consume", "orders", "--from-beginning") == "b\nc\n"
    node = str(told["nodes"][0]["node_id"])
    assert json.loads(command("reassign", "start", "orders", "--brokers", node, "--json"))["moves"] == []
    assert json.loads(command("reassign", "list", "--json")) == []
    assert json.loads(command("transactions", "list", "--json")) == []
