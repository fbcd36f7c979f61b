"""Three nodes log in to each other: the controllers with PLAIN, and the brokers with PLAIN or SCRAM."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kpybroker.cli.formatting import FormatOptions, format_directories
from kpybroker.client.dialer import Dialer
from kpybroker.client.peer import Peer
from kpybroker.config import BrokerConfig, parse_config
from kpybroker.config.login import Login
from kpybroker.errors import ConfigError
from kpybroker.storage.dirs.formatting import encode_id
from kpybroker.wire.rpc import create_topics
from kpybroker.world import Network
from tests.asking import produced
from tests.server.clustering import Cluster
from tests.server.test_replication import leader_of, replicas

pytestmark = pytest.mark.slow

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
NODE = 'username="node" password="of the nodes"'
USERS = 'user_node="of the nodes" user_ann="of ann"'
CLIENT = Login("PLAIN", "ann", "of ann")
SETTINGS = {
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "CLIENTS",
    "controller.listener.names": "CONTROLLER",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": f'{PLAIN_MODULE} {NODE} user_node="of the nodes";',
    "listener.name.clients.plain.sasl.jaas.config": f"{PLAIN_MODULE} {NODE} {USERS};",
    "listener.name.clients.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} {NODE};",
}


class SaslCluster(Cluster):
    """All listeners use SASL. The nodes are formatted with the credential of the user `node`."""

    def dialer(self, network: Network, login: Login | None) -> Dialer:
        """The dialer for clients."""
        return Dialer(network, login)

    def config(self, node_id: int) -> BrokerConfig:
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.ports.items())
        where = {
            "node.id": str(node_id),
            "process.roles": "broker,controller",
            "listeners": f"CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:{self.ports[node_id]}",
            "log.dirs": str(self.root / str(node_id)),
            "controller.quorum.voters": voters,
        }
        return parse_config({**where, **self.settings})

    def format(self) -> None:
        credential = 'SCRAM-SHA-512=[name=node,password="of the nodes",iterations=5000]'
        for node_id in self.ports:
            options = FormatOptions(encode_id(bytes(range(16))), scram=(credential,))
            assert list(format_directories(self.config(node_id).static, "test", options))


async def dial(cluster: SaslCluster, node_id: int, login: Login | None = CLIENT) -> Peer:
    node = cluster.nodes[node_id]
    dialer = cluster.dialer(node.broker.world.network, login)
    return await dialer.meet("127.0.0.1", node.advertised[0].port, client_id="test")


async def exchange(cluster: SaslCluster) -> None:
    """Use a replicated topic, records with acks=all, a transactional id, and a request that is forwarded."""
    for node_id in cluster.nodes:
        peer = await dial(cluster, node_id)
        name = f"t{node_id}"
        topic = create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=3)
        told = await peer.ask("CreateTopics", create_topics.Request(topics=[topic], timeout_ms=10_000))
        assert told.topics[0].error_code == 0, told.topics[0]
        await cluster.until(lambda name=name: len(replicas(cluster, name)) == 3, f"{name} is hosted by all")
        await cluster.until(lambda name=name: leader_of(cluster, name) in cluster.nodes, f"{name} is led")
        leading = await dial(cluster, leader_of(cluster, name))
        told = await leading.ask("Produce", produced(name, b"x", acks=-1), version=9)
        assert told.responses[0].partition_responses[0].error_code == 0
        leading.close()
        peer.close()
    found = {str(each.principal) for node in cluster.nodes.values() for each in node.server.connections()}
    assert "User:node" in found
    assert found <= {"User:node", "User:ann"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_nodes_log_in_to_each_other(tmp_path: Path, mechanism: str) -> None:
    async def whole() -> None:
        cluster = SaslCluster(tmp_path, settings={**SETTINGS, "sasl.mechanism.inter.broker.protocol": mechanism})
        cluster.format()
        try:
            await cluster.start(1, 2, 3)
            await exchange(cluster)
            stopped = await cluster.leader()
            await cluster.stop(stopped)
            await cluster.start(stopped)
            await cluster.until(lambda: all(len(replicas(cluster, f"t{each}")) == 3 for each in (1, 2, 3)), "all host")
        finally:
            await cluster.close()

    asyncio.run(asyncio.wait_for(whole(), 120))


def test_a_node_with_a_wrong_password_is_refused(tmp_path: Path) -> None:
    async def whole() -> None:
        cluster = SaslCluster(tmp_path, settings={**SETTINGS, "sasl.mechanism.inter.broker.protocol": "PLAIN"})
        cluster.format()
        try:
            await cluster.start(1, 2, 3)
            network, port = cluster.nodes[1].broker.world.network, cluster.ports[1]
            for login in (Login("PLAIN", "node", "wrong"), Login("PLAIN", "ann", "of ann")):
                with pytest.raises(ConnectionError, match="Invalid username or password"):
                    await Dialer(network, login).meet("127.0.0.1", port, client_id="test")
            stranger = await Dialer(network).meet("127.0.0.1", port, client_id="test")
            with pytest.raises(ConnectionError):
                await stranger.ask("DescribeQuorum")
        finally:
            await cluster.close()

    asyncio.run(asyncio.wait_for(whole(), 120))


def test_controllers_do_not_log_in_with_scram(tmp_path: Path) -> None:
    cluster = SaslCluster(tmp_path, settings={**SETTINGS, "sasl.mechanism.inter.broker.protocol": "PLAIN"})
    cluster.settings["sasl.mechanism.controller.protocol"] = "SCRAM-SHA-512"
    with pytest.raises(ConfigError, match="which controllers can read only after they have logged in; use PLAIN"):
        cluster.config(1)
