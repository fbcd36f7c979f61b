"""Reports to the controller which directory holds each replica, by AssignReplicasToDirs (KIP-858).

One request is sent at a time. The controller's decision arrives with the metadata. `Replicas` compares the metadata
with the directories at every change, and reports differences again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.rpc.assign_replicas_to_dirs import DirectoryData, PartitionData, Request, TopicData

log = logging.getLogger(__name__)

AT_ONCE_MAX = 2250
"""The most replicas in one request, as in Kafka."""
TIMEOUT_MS = 5_000
RETRY_MS = 50
IN_VAIN = (
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)
"""Errors after which a report is dropped. They mean that this broker no longer has the replica, and the metadata will
show this soon."""


class DirectoryReports:
    """Collects the directories of replicas and sends them. `broker_epoch` returns the epoch of this node's
    registration."""

    def __init__(self, channel: ControllerChannel, node_id: int, broker_epoch: Callable[[], int]) -> None:
        self._channel = channel
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._wanted: dict[TopicIdPartition, bytes] = {}
        self._task: asyncio.Task[None] | None = None

    def assign(self, topic_id: bytes, index: int, directory: bytes) -> None:
        """Report a replica's directory with the next request, in place of an earlier report."""
        self._wanted[topic_id, index] = directory
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send_all())

    def settled(self, topic_id: bytes, index: int) -> None:
        """Drop a report, because the metadata already has the directory, or this broker no longer has the replica."""
        self._wanted.pop((topic_id, index), None)

    def close(self) -> None:
        """Stop sending."""
        self._wanted.clear()
        if self._task is not None:
            self._task.cancel()

    async def _send_all(self) -> None:
        try:
            while self._wanted:
                await asyncio.sleep(0)  # reports of the same event are sent together
                asked = dict(list(self._wanted.items())[:AT_ONCE_MAX])
                if asked and not await self._send(asked):
                    await asyncio.sleep(RETRY_MS / 1000)
        finally:
            self._task = None

    async def _send(self, asked: dict[TopicIdPartition, bytes]) -> bool:
        """Send one request. Returns False if some reports have to be sent again after a delay."""
        directories: dict[bytes, DirectoryData] = {}
        topics: dict[tuple[bytes, bytes], TopicData] = {}
        for (topic_id, index), directory in asked.items():
            if directory not in directories:
                directories[directory] = DirectoryData(id=directory, topics=[])
            if (directory, topic_id) not in topics:
                topics[directory, topic_id] = TopicData(topic_id=topic_id, partitions=[])
                directories[directory].topics.append(topics[directory, topic_id])
            topics[directory, topic_id].partitions.append(PartitionData(partition_index=index))
        request = Request(
            broker_id=self._node_id, broker_epoch=self._broker_epoch(), directories=list(directories.values())
        )
        try:
            told = await self._channel.ask("AssignReplicasToDirs", request, TIMEOUT_MS)
        except KafkaError as refusal:
            log.warning("cannot report the directories of replicas to the controller: %s", refusal)
            return False
        if told.error_code:
            log.warning("the controller refused the directories of replicas with %s", ErrorCode(told.error_code).name)
            return False
        taken = 0
        for each in told.directories:
            for topic in each.topics:
                for row in topic.partitions:
                    key = (topic.topic_id, row.partition_index)
                    if row.error_code == ErrorCode.NONE or row.error_code in IN_VAIN:
                        taken += 1
                        if self._wanted.get(key) == each.id:
                            del self._wanted[key]
        return taken == len(asked)
