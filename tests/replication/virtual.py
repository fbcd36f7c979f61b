"""Runs whole nodes in virtual time (`kpybroker.sim`). The only faults are those that a test injects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from kpybroker.broker.broker import Broker
from kpybroker.errors import ErrorCode
from kpybroker.replication.partition.partition import Partition
from kpybroker.sim.clients.client import SimClient, Unanswered
from kpybroker.sim.cluster.cluster import SimMachine
from kpybroker.sim.cluster.setup import CLIENT_PORT, CONTROLLER_PORT, NodeSetup
from kpybroker.sim.world.history import History
from kpybroker.sim.world.loop import VirtualLoop
from kpybroker.sim.world.network import Fabric, Weather
from kpybroker.wire.records.batch import read_records, split
from kpybroker.wire.rpc import alter_partition_reassignments, create_topics, fetch, incremental_alter_configs
from tests.asking import produced

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
PATIENCE_S = 120.0
SMALL = {"offsets.topic.num.partitions": "1", "auto.create.topics.enable": "false"}


class VirtualCluster:
    """Nodes 1..n. `voters` are the nodes that are also controllers, by default all. Times are in virtual seconds."""

    def __init__(
        self, count: int, settings: dict[str, str], own: dict[int, dict[str, str]], voters: tuple[int, ...] = ()
    ) -> None:
        self.loop = VirtualLoop()  # type: ignore[abstract]  # sockets, signals and processes have no place in it
        self.history = History(self.loop.time, keeps_trace=True)
        self.problems: list[str] = []
        self.loop.on_problem = lambda owner, text, raised: self.problems.append(f"{owner.name}: {text}: {raised!r}")
        self.fabric = Fabric(self.loop, Random("weather"), self.history, Weather())
        nodes = _setups(count, settings, own, voters or tuple(range(1, count + 1)))
        self.machines = {node.node_id: SimMachine(node, 1, self.loop, self.fabric, self.history) for node in nodes}
        self.where = {node.node_id: (node.address, CLIENT_PORT) for node in nodes}
        self.client = SimClient("client", "10.0.1.1", 1, self.fabric, self.where)

    # ---- nodes

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids or tuple(self.machines):
            self.machines[node_id].start()
        await self.until(
            lambda: all(self.machines[node_id].node is not None for node_id in node_ids), "all have started"
        )

    def broker(self, node_id: int) -> Broker:
        node = self.machines[node_id].node
        assert node is not None, f"node {node_id} is not running"
        return node.broker

    @property
    def brokers(self) -> dict[int, Broker]:
        """The brokers of the running nodes."""
        return {node_id: each.node.broker for node_id, each in self.machines.items() if each.node is not None}

    async def until(self, holds: Callable[[], bool], what: str, limit_s: float = PATIENCE_S) -> float:
        """Wait until `holds()` is true, and return the time. Fails after `limit_s`, with the last lines of the
        trace."""
        deadline = self.loop.time() + limit_s
        while not holds():
            if self.loop.time() > deadline:
                tail = "\n".join(self.history.trace[-30:])
                raise AssertionError(f"waited {limit_s} s until {what}:\n{tail}")
            await asyncio.sleep(0.01)
        return self.loop.time()

    # ---- partitions

    def replica(self, node_id: int, topic: str = "t", index: int = 0) -> Partition:
        found = self.broker(node_id).replication.hosting.find(topic, index)
        assert found is not None
        return found

    def image(self, topic: str = "t", index: int = 0) -> Any:
        """A partition in the newest Image of the running nodes."""
        images = [broker.metadata.image for broker in self.brokers.values()]
        found = max(images, key=lambda image: image.offset).topic(topic)
        assert found is not None, f"there is no {topic}"
        return found.partitions[index]

    async def create(self, *assignments: tuple[int, ...], topic: str = "t", **configs: str) -> None:
        """Create a topic with these replicas. Returns when the brokers with a replica have it in their metadata."""
        wanted = create_topics.CreatableTopic(
            name=topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                create_topics.CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                for index, replicas in enumerate(assignments)
            ],
            configs=[
                create_topics.CreatableTopicConfig(name=name.replace("_", "."), value=value)
                for name, value in configs.items()
            ],
        )
        told = await self.ask("CreateTopics", create_topics.Request(topics=[wanted], timeout_ms=10_000))
        assert told.topics[0].error_code == 0, told.topics[0]

    async def reassign(self, *replicas: int, topic: str = "t", index: int = 0) -> Any:
        """Request other replicas for a partition, and return the row of the response."""
        wanted = alter_partition_reassignments.ReassignablePartition(partition_index=index, replicas=list(replicas))
        named = alter_partition_reassignments.ReassignableTopic(name=topic, partitions=[wanted])
        asked = alter_partition_reassignments.Request(timeout_ms=10_000, topics=[named])
        told = await self.ask("AlterPartitionReassignments", asked)
        assert told.error_code == 0, told
        return told.responses[0].partitions[0]

    async def configure(self, kind: int, name: str, **changes: str | None) -> None:
        """Set settings, or unset them with None."""
        rows = [
            incremental_alter_configs.AlterableConfig(
                name=key.replace("_", "."), config_operation=DELETE if value is None else SET, value=value
            )
            for key, value in changes.items()
        ]
        resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=rows)
        to = int(name) if kind == BROKER and name else None
        told = await self.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[resource]), to)
        assert told.responses[0].error_code == 0, told.responses[0]

    # ---- clients

    async def ask(self, name: str, request: Any, node_id: int | None = None) -> Any:
        """Send a request to a node, by default to any running node."""
        return await self.client.ask(next(iter(self.brokers)) if node_id is None else node_id, name, request)

    async def put(self, *values: bytes, topic: str = "t", index: int = 0, acks: int = -1) -> int:
        """Produce to the leader, with retries, and return the offset."""
        deadline = self.loop.time() + PATIENCE_S
        while True:
            leader = self.image(topic, index).leader
            code: object = "nobody leads"
            if leader in self.brokers:
                try:
                    peer = await self.client.peer(leader)
                    told = await peer.ask("Produce", produced(topic, *values, acks=acks, index=index), version=12)
                    row = told.responses[0].partition_responses[0]
                    if row.error_code == 0:
                        return int(row.base_offset)
                    code = ErrorCode(row.error_code)
                except (OSError, Unanswered) as failed:
                    code = failed
            assert self.loop.time() < deadline, f"cannot produce to {topic}-{index}: {code}"
            await asyncio.sleep(0.1)

    async def read(self, node_id: int, offset: int = 0, *, topic: str = "t", index: int = 0, **facts: Any) -> Any:
        """The row of a consumer's Fetch to one node."""
        wanted = fetch.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        topic_id = next(iter(self.brokers.values())).metadata.image.topics[topic].id
        asked = fetch.Request(
            topics=[fetch.FetchTopic(topic=topic, topic_id=topic_id, partitions=[wanted])],
            **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, **facts},
        )
        told = await self.ask("Fetch", asked, node_id)
        return told.responses[0].partitions[0]

    async def values(self, topic: str = "t", index: int = 0) -> list[bytes]:
        """All values of a partition that the leader returns."""
        found: list[bytes] = []
        offset = 0
        while True:
            row = await self.read(self.image(topic, index).leader, offset, topic=topic, index=index)
            assert row.error_code == 0, ErrorCode(row.error_code)
            if not row.records:
                return found
            for batch in split(bytearray(row.records)):
                found += [bytes(record.value or b"") for record in read_records(batch) if record.offset >= offset]
                offset = batch.next_offset


def _setups(
    count: int, settings: dict[str, str], own: dict[int, dict[str, str]], voters: tuple[int, ...]
) -> list[NodeSetup]:
    addresses = {node_id: f"10.0.0.{node_id}" for node_id in range(1, count + 1)}
    listed = ",".join(f"{node_id}@{addresses[node_id]}:{CONTROLLER_PORT}" for node_id in voters)
    made = []
    for node_id, address in addresses.items():
        where = {"node.id": str(node_id), "log.dirs": "/data", "listeners": f"PLAINTEXT://{address}:{CLIENT_PORT}"}
        if node_id in voters:
            where["listeners"] += f",CONTROLLER://{address}:{CONTROLLER_PORT}"
        else:
            where["process.roles"] = "broker"
        properties = {**SMALL, "controller.quorum.voters": listed, **where, **settings, **own.get(node_id, {})}
        made.append(NodeSetup(node_id, address, properties))
    return made


def play(
    scene: Callable[[VirtualCluster], Awaitable[None]],
    count: int = 3,
    own: dict[int, dict[str, str]] | None = None,
    voters: tuple[int, ...] = (),
    **settings: str,
) -> None:
    """Start the nodes and run the scene. No task of a node may fail."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    cluster = VirtualCluster(count, given, own or {}, voters)

    async def whole() -> None:
        with cluster.loop.acting(cluster.client.owner):
            await cluster.start()
            await cluster.until(
                lambda: (
                    len(cluster.brokers) == count
                    and all(
                        sum(not broker.fenced for broker in one.metadata.image.brokers.values()) == count
                        for one in cluster.brokers.values()
                    )
                ),
                "all are live",
            )
            await scene(cluster)

    try:
        cluster.loop.run_until_complete(whole())
        assert cluster.problems == []
    finally:
        for machine in cluster.machines.values():
            machine.wanted = False
            machine.kill("is switched off")
        cluster.client.owner.alive = False
        cluster.loop.bury(cluster.client.owner)
        cluster.loop.bury(cluster.loop.simulation)
        cluster.loop.close()
