"""Tests that the voters of a quorum of Apache Kafka and kpybroker nodes change while the cluster serves (KIP-853):
controllers of one kind are added and removed while one of the other kind is active, and a voter is replaced by a node
of the other kind."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.changing import until
from compat_tests.dumps import METADATA, dump
from compat_tests.rolling import QUIET
from compat_tests.rolling_rounds import logged_errors
from compat_tests.voters import directory_id, grow, remove
from oracle.asking import Conversation
from oracle.cluster import Cluster
from oracle.kafka import QUICK_JVM
from oracle.takeover import KAFKA, KPYBROKER

SETTINGS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
JOINING = {"controller.quorum.auto.join.enable": "true"}
FIRST, SECOND, THIRD, FOURTH = 1, 2, 3, 4
DECODER = "--cluster-metadata-decoder"
PARTITIONS = 4
OTHER = {KAFKA: KPYBROKER, KPYBROKER: KAFKA}

of_either_kind = pytest.mark.parametrize("leader", [KAFKA, KPYBROKER])


@contextlib.contextmanager
def mixed(kinds: dict[int, str], properties: dict[str, str]) -> Iterator[Cluster]:
    """A cluster with these kinds of combined nodes. The first node leads the quorum, as its only voter."""
    cluster = Cluster(KAFKA, brokers=len(kinds), grows=True, properties=properties, jvm=QUICK_JVM)
    for node_id, kind in kinds.items():
        cluster.become(kind, node_id)
    with cluster:
        until(lambda: cluster.active_controller() == FIRST, "the first node leads")
        yield cluster


class Voters:
    """The voters that a cluster should have, by their directory ids."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ids = {FIRST: directory_id(cluster, FIRST)}
        self._topics = 0

    def add(self, *node_ids: int) -> None:
        for node_id in node_ids:
            grow(self.cluster, node_id)
            self.ids[node_id] = directory_id(self.cluster, node_id)
            self.check()

    def joined(self, *node_ids: int) -> None:
        """Wait for nodes that become voters by themselves."""
        self.ids |= {node_id: directory_id(self.cluster, node_id) for node_id in node_ids}
        self.check()

    def remove(self, *node_ids: int) -> None:
        for node_id in node_ids:
            remove(self.cluster, node_id, self.ids.pop(node_id)).ok()
            self.check()

    def check(self) -> None:
        """Each running broker describes these voters, and the cluster creates a topic and takes records."""
        running = [node for node in self.cluster.brokers if node.running]
        until(lambda: all(described(node.address) == self.ids for node in running), f"the voters are {self.ids}")
        bootstrap = ",".join(f"127.0.0.1:{node.seat.port}" for node in running)
        self._topics += 1
        name = f"t{self._topics}"
        admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        admin.create_topics([NewTopic(name, PARTITIONS, 3)], operation_timeout=30)[name].result(30)
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **QUIET})
        refused: list[str] = []
        for partition in range(PARTITIONS):
            producer.produce(
                name, b"x", partition=partition, on_delivery=lambda error, _: error and refused.append(error)
            )
        assert producer.flush(60) == 0
        assert not refused

    def check_logs(self) -> None:
        """Kill all nodes. The last voters in each metadata log are these, as Kafka's tool prints them.

        Apache Kafka would wait for minutes for a controller if it were the last to stop.
        """
        self.cluster.await_in_sync(f"t{self._topics}")
        self.cluster.kill9()
        for node in self.cluster.nodes.values():
            assert logged(node.data / METADATA) == self.ids, f"node {node.node_id}"
        errors = logged_errors(self.cluster)
        assert not errors, "\n".join(errors)


def described(address: tuple[str, int]) -> dict[int, str]:
    """Voter -> its directory id in base64, as a broker describes the quorum."""
    with contextlib.suppress(OSError), contextlib.closing(Conversation(address)) as told:
        return {voter: base64.urlsafe_b64encode(each).decode().rstrip("=") for voter, each in told.voters().items()}
    return {}


def logged(directory: Path) -> dict[int, str]:
    """Voter -> its directory id in base64, from the last record of the voters in a metadata log."""
    records = re.findall(r"KRaftVoters (\{.*\})$", dump(sorted(directory.glob("*.log")), DECODER), re.MULTILINE)
    return {row["voterId"]: row["voterDirectoryId"] for row in json.loads(records[-1])["voters"]}


@pytest.mark.full
@pytest.mark.timeout(600)
@of_either_kind
def test_controllers_of_the_other_kind_come_and_go(leader: str) -> None:
    """A fourth controller is added and removed. The third gives its place to one of the leader's kind, on the same
    directory, which loses it. One of its former kind takes the place, on an empty directory. Then the other voters are
    removed, so that this one must lead, and are added again."""
    other = OTHER[leader]
    with mixed({FIRST: leader, SECOND: leader, THIRD: other, FOURTH: other}, SETTINGS) as cluster:
        voters = Voters(cluster)
        voters.add(SECOND, THIRD, FOURTH)
        voters.remove(FOURTH, THIRD)
        cluster.nodes[THIRD].stop()
        cluster.become(leader, THIRD)
        cluster.nodes[THIRD].start()
        voters.add(THIRD)
        cluster.nodes[THIRD].kill9()
        voters.remove(THIRD)
        shutil.rmtree(cluster.nodes[THIRD].data)
        cluster.become(other, THIRD)
        cluster.nodes[THIRD].start()
        voters.add(THIRD)
        assert cluster.active_controller() == FIRST
        voters.remove(SECOND, FIRST)
        assert cluster.active_controller() == THIRD
        voters.add(FIRST, SECOND)
        voters.check_logs()


@pytest.mark.full
@pytest.mark.timeout(600)
@of_either_kind
def test_a_controller_that_has_lost_its_disk_is_replaced_by_the_other_kind(leader: str) -> None:
    """With controller.quorum.auto.join.enable, controllers become voters by themselves. The one on an empty directory
    first removes the voter that had its id."""
    other = OTHER[leader]
    with mixed({FIRST: leader, SECOND: other, THIRD: leader}, SETTINGS | JOINING) as cluster:
        voters = Voters(cluster)
        voters.joined(SECOND, THIRD)
        for node_id, kind in (THIRD, other), (SECOND, leader):
            cluster.nodes[node_id].kill9()
            shutil.rmtree(cluster.nodes[node_id].data)
            cluster.become(kind, node_id)
            cluster.nodes[node_id].start()
            voters.joined(node_id)
        voters.check_logs()
