"""Tests of a metadata quorum of two kpybroker nodes and one Apache Kafka controller, with Kafka's own tool for the
quorum.

Votes, fetches, elections and the records themselves are Kafka's: whichever node leads, the others follow, and a topic
that was created under one leader exists under the next leader.
"""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oracle.broker import KPyBroker
from oracle.kafka import CLUSTER_ID, Kafka, tool
from oracle.target import steady_port

PATIENCE_S = 60.0
KAFKA_NODE = 3


class Quorum:
    """Nodes 1 and 2 are kpybroker nodes, each a broker and a controller; node 3 is an Apache Kafka controller."""

    def __init__(self, root: Path) -> None:
        self.ports = {node: steady_port() for node in (1, 2, KAFKA_NODE)}
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.ports.items())
        self.ours = {node: self._our_node(root / str(node), node, voters) for node in (1, 2)}
        self.kafka = KafkaController(root / str(KAFKA_NODE), self.ports[KAFKA_NODE], voters)
        self.threads = ThreadPoolExecutor(3)  # a child process ends with the thread that started it

    def _our_node(self, directory: Path, node: int, voters: str) -> KPyBroker:
        port = steady_port()
        return KPyBroker(
            directory,
            {
                "node.id": str(node),
                "kpybroker.cluster.id": CLUSTER_ID,
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{self.ports[node]}",
                "broker.session.timeout.ms": "3000",
            },
            port=port,
        )

    def start(self) -> None:
        """Start all three at once, because no node is ready before two of them run."""
        starts: list[Callable[[], object]] = [self.ours[1].start, self.ours[2].start, self.kafka.start]
        for started in [self.threads.submit(start) for start in starts]:
            started.result()

    def close(self) -> None:
        for node in (*self.ours.values(), self.kafka):
            if node.running:
                node.kill9()
        self.threads.shutdown()

    def status(self) -> dict[str, str]:
        """The output of `kafka-metadata-quorum describe --status`, by its labels, from a running node."""
        asked = next(node for node in self.ours.values() if node.running)
        said = tool("kafka-metadata-quorum", "describe", "--status", bootstrap=asked.bootstrap)
        self.said = said
        return dict(re.findall(r"^(\w+):\s+(.*)$", said.out, re.MULTILINE))

    def until(self, holds: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """Wait for the wanted status, and return it."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            status = self.status()
            if status and holds(status):
                return status
            time.sleep(0.2)
        raise AssertionError(f"timed out, last: {status}; {self.said}")

    def make(self, topic: str) -> None:
        asked = next(node for node in self.ours.values() if node.running)
        tool("kafka-topics", "--create", "--topic", topic, bootstrap=asked.bootstrap).ok()

    def topics(self) -> list[str]:
        """The topics according to each running kpybroker; they must agree."""
        told = {
            tool("kafka-topics", "--list", bootstrap=node.bootstrap).ok() for node in self.ours.values() if node.running
        }
        assert len(told) == 1, told
        return told.pop().split()


class KafkaController(Kafka):
    """A Kafka node that is only a controller, one of the voters that all nodes name."""

    format_options = ()

    def __init__(self, directory: Path, port: int, voters: str) -> None:
        super().__init__(directory, port=port)
        self.voters = voters

    def _write_properties(self) -> None:
        settings = {
            "process.roles": "controller",
            "node.id": str(KAFKA_NODE),
            "controller.quorum.voters": self.voters,
            "listeners": f"CONTROLLER://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data),
        }
        self.properties_file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Quorum]:
    three = Quorum(tmp_path)
    try:
        three.start()
        yield three
    finally:
        three.close()


def test_ours_and_kafka_vote_follow_and_lead_together(quorum: Quorum) -> None:
    status = quorum.until(lambda status: int(status["LeaderId"]) >= 0 and int(status["MaxFollowerLag"]) == 0)
    assert status["ClusterId"] == CLUSTER_ID
    assert {f'"id": {node}' for node in (1, 2, 3)} <= set(re.findall(r'"id": \d', status["CurrentVoters"]))
    quorum.make("first")
    leader = int(status["LeaderId"])
    left = next(node for node in quorum.ours.values() if node is not quorum.ours.get(leader))
    for node in quorum.ours.values():
        if node is not left:
            node.kill9()
    status = quorum.until(lambda status: int(status["LeaderId"]) in (KAFKA_NODE, _number(quorum, left)))
    assert quorum.topics() == ["first"]
    quorum.make("second")
    for node in quorum.ours.values():
        if not node.running:
            quorum.threads.submit(node.restart).result()
    quorum.until(lambda status: int(status["MaxFollowerLag"]) == 0)
    quorum.kafka.stop()
    quorum.until(lambda status: int(status["LeaderId"]) in quorum.ours)
    quorum.make("third")
    assert quorum.topics() == ["first", "second", "third"]


def _number(quorum: Quorum, wanted: KPyBroker) -> int:
    return next(number for number, node in quorum.ours.items() if node is wanted)
