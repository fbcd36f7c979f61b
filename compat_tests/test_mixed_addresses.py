"""Tests that a node of either kind tells the other kind the addresses that Apache Kafka derives from the same settings:
of its listener for clients, of its controller listener, and as a voter (KIP-853)."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from typing import NamedTuple

import pytest

from compat_tests.changing import until
from compat_tests.voters import grow
from kpybroker.wire.rpc import describe_cluster, describe_quorum
from oracle.asking import Conversation
from oracle.cluster import Cluster
from oracle.kafka import QUICK_JVM
from oracle.takeover import KAFKA, KPYBROKER

LEADER, NODE = 1, 2
BROKERS, CONTROLLERS = 1, 2
METADATA_TOPIC = "__cluster_metadata"


class Addresses(NamedTuple):
    """The hosts of one node, as the leader of the quorum knows them; empty if unknown."""

    broker: str = ""
    controller: str = ""
    voter: str = ""


def known(cluster: Cluster) -> Addresses:
    leader = cluster.nodes[LEADER]
    with contextlib.suppress(OSError):
        topic = describe_quorum.TopicData(topic_name=METADATA_TOPIC, partitions=[describe_quorum.PartitionData()])
        with contextlib.closing(Conversation(leader.address)) as asked:
            quorum = asked.ask("DescribeQuorum", 2, describe_quorum.Request(topics=[topic]), describe_quorum.Response)
            brokers = described(asked, BROKERS)
        with contextlib.closing(Conversation(("127.0.0.1", leader.seat.controller_port))) as asked:
            controllers = described(asked, CONTROLLERS)
        voters = {row.node_id: row.listeners[0].host for row in quorum.nodes if row.listeners}
        return Addresses(*(hosts.get(NODE, "") for hosts in (brokers, controllers, voters)))
    return Addresses()


def described(asked: Conversation, kind: int) -> dict[int, str]:
    told = asked.ask("DescribeCluster", 1, describe_cluster.Request(endpoint_type=kind), describe_cluster.Response)
    return {row.broker_id: row.host for row in told.brokers}


def canonical() -> str:
    """The name of this machine, as Java's InetAddress.getLocalHost().getCanonicalHostName() finds it."""
    return socket.gethostbyaddr(socket.gethostbyname(socket.gethostname()))[0]


ADVERTISED = "PLAINTEXT://127.0.0.1:{},CONTROLLER://127.0.0.1:{}"


@pytest.mark.parametrize("leader", [KAFKA, KPYBROKER])
def test_a_replaced_node_is_known_by_the_addresses_of_its_settings(leader: str) -> None:
    """It listens on all interfaces. Its file has advertised addresses or, in every other replacement, none."""
    cluster = Cluster(leader, brokers=2, grows=True, jvm=QUICK_JVM)
    seat = cluster.nodes[NODE].seat
    named, unnamed = Addresses(*["127.0.0.1"] * 3), Addresses(*[canonical()] * 3)
    assert named != unnamed, "the name of this machine is not its address"

    def become(kind: str, *, advertises: bool) -> None:
        cluster.become(kind, NODE)
        properties = cluster.nodes[NODE].properties
        properties["listeners"] = f"PLAINTEXT://:{seat.port},CONTROLLER://:{seat.controller_port}"
        del properties["advertised.listeners"]
        if advertises:
            properties["advertised.listeners"] = ADVERTISED.format(seat.port, seat.controller_port)

    become(KAFKA, advertises=True)
    with cluster:
        grow(cluster, NODE)
        until(lambda: known(cluster) == named, f"it is known as {named}")
        for kind, advertises, expected in (
            (KPYBROKER, False, unnamed),
            (KPYBROKER, True, named),
            (KAFKA, False, unnamed),
            (KPYBROKER, True, named),
        ):
            cluster.nodes[NODE].stop()
            become(kind, advertises=advertises)
            cluster.nodes[NODE].start()
            until(partial(is_known, cluster, expected), f"the {kind} node is known as {expected}, not {known(cluster)}")


def is_known(cluster: Cluster, expected: Addresses) -> bool:
    return known(cluster) == expected
