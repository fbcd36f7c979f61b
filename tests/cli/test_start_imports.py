"""Tests that a broker starts without the modules of features that it does not use, which would cost time and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LATER = (
    *(f"kpybroker.{name}" for name in ("archive", "groups", "shares", "sim", "spark", "testing", "transactions")),
    *(f"kpybroker.{name}" for name in ("scheduled.leader", "serving.authorization_rules", "serving.shares")),
    *(f"kpybroker.{name}" for name in ("client.login", "config.documentation", "security.sasl", "security.tls")),
    *("cryptography", "ctypes.util", "difflib", "email", "http", "importlib.abc", "importlib.resources", "joserfc"),
    *("platform", "re2", "rich", "shutil", "tempfile", "typer", "uuid", "xxhash"),
)
"""Modules that are imported at their first use, and the packages whose modules are."""
PROGRAM = """
import asyncio, sys
import kpybroker.cli.arguments, kpybroker.cli.serving
from kpybroker.client.dialer import Dialer
from kpybroker.config import parse_config
from kpybroker.server.node import Node
from kpybroker.wire.records.batch import Record, encode_batch
from kpybroker.wire.rpc import create_topics, produce
from kpybroker.world.real import real_world

async def main() -> None:
    node = await Node.start(
        real_world(), parse_config({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": sys.argv[1]})
    )
    host, port = node.bootstrap.split(":")
    peer = await Dialer(real_world().network).meet(host, int(port), client_id="test")
    topics = [create_topics.CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    created = await peer.ask("CreateTopics", create_topics.Request(topics=topics, timeout_ms=30_000))
    assert [topic.error_code for topic in created.topics] == [0]
    records = encode_batch([Record(0, 0, None, b"v")])
    rows = [produce.PartitionProduceData(index=0, records=records)]
    data = [produce.TopicProduceData(name="t", partition_data=rows)]
    told = await peer.ask("Produce", produce.Request(acks=-1, timeout_ms=30_000, topic_data=data), version=9)
    assert [row.error_code for topic in told.responses for row in topic.partition_responses] == [0]
    print(*sys.modules)
    peer.close()
    await node.stop()

asyncio.run(main())
"""


def test_a_start_and_a_produce_import_no_modules_of_other_features(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    imported = said.stdout.split()
    assert "kpybroker.handlers.produce" in imported
    assert [name for name in imported if any(f"{name}.".startswith(f"{late}.") for late in LATER)] == []
