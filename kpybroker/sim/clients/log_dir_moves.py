"""A client that moves replicas between the log directories of brokers, and the check of the replicas' locations."""

from __future__ import annotations

import asyncio

from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.metadata.whereabouts import directory_in
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.topic_admin import alter_config
from kpybroker.sim.cluster.cluster import SimMachine
from kpybroker.sim.world.history import History
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import alter_replica_log_dirs

PATIENCE_S = 120.0
THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
NOT_HERE = (int(ErrorCode.REPLICA_NOT_AVAILABLE), int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
"""The broker has no such replica. It would create a later one in that directory."""


class LogDirMover:
    """Sends AlterReplicaLogDirs to brokers, regardless of whether they have the replica."""

    def __init__(
        self, client: SimClient, places: list[TopicPartition], paths: tuple[str, ...], *, pace_s: float
    ) -> None:
        self._client = client
        self._places = places
        self._paths = paths
        self._pace_s = pace_s

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            node_id, (topic, index) = client.any_broker(), client.random.choice(self._places)
            path = client.random.choice(self._paths)
            try:
                await self._alter(node_id, topic, index, path)
                client.note(f"moved {topic}-{index} of node {node_id} to {path}")
                client.succeeded()
                await client.nap(self._pace_s)
            except (Unanswered, Refused) as failed:
                client.note(f"cannot move {topic}-{index} of node {node_id} to {path}: {failed}")
                await client.nap(1.0)

    async def _alter(self, node_id: int, topic: str, index: int, path: str) -> None:
        """Send AlterReplicaLogDirs for one replica. Raises Unanswered, Refused."""
        row = alter_replica_log_dirs.AlterReplicaLogDirTopic(name=topic, partitions=[index])
        request = alter_replica_log_dirs.Request(
            dirs=[alter_replica_log_dirs.AlterReplicaLogDir(path=path, topics=[row])]
        )
        response = await self._client.ask(node_id, "AlterReplicaLogDirs", request)
        code = response.results[0].partitions[0].error_code
        if code not in (0, *NOT_HERE):
            raise Refused(code)


async def limit_moves(client: SimClient, bytes_s: int) -> None:
    """Set the throttle of moves on all brokers. Raises Unanswered, Refused."""
    await alter_config(client, ResourceType.BROKER, "", THROTTLE, str(bytes_s))


async def check_directories(machines: list[SimMachine], history: History) -> None:
    """Check that every move has ended once the cluster has settled, and that the metadata has the directory of each
    replica.

    If a power loss removed the name of the directory from which a replica is moved, its copy in the new directory stays
    until an operator removes it.
    """
    may_be_alone = bool(history.counts.get("changes lost"))
    for machine in machines:
        until_s = machine.loop.time() + PATIENCE_S
        while (wrong := _misplaced(machine, may_be_alone=may_be_alone)) is not None:
            if machine.loop.time() > until_s:
                history.breach(f"{machine.name}: {wrong} {PATIENCE_S:.0f} s after all faults were repaired")
                break
            await asyncio.sleep(0.2)


def _misplaced(machine: SimMachine, *, may_be_alone: bool) -> str | None:
    """An error text if the logs of a machine are not where the metadata says, else None."""
    if machine.node is None:
        return "it does not run"
    broker = machine.node.broker
    for directory in broker.storage.log_dirs.online:
        alone = broker.replication.hosting.offline if may_be_alone else {}
        moving = sorted(key for key in directory.futures if key not in alone)
        if moving:
            return f"{moving} are still moving to {directory.path}"
    for (topic, index), one in broker.storage.log_dirs.logs.items():
        found = broker.metadata.image.topics.get(topic)
        place = broker.storage.log_dirs.of(one)
        if found is None or place is None or broker.node_id not in found.partitions[index].replicas:
            continue
        known = directory_in(found.partitions[index], broker.node_id)
        if known != place.id:
            return f"{topic}-{index} is in {place.path}, but the metadata has another directory"
    return None
