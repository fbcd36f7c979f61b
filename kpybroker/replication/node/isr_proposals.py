"""Sends the ISRs that leaders propose to the controller, with AlterPartition (KIP-497, KIP-903).

One request is sent at a time, for up to AT_ONCE_MAX partitions. The controller's decision arrives with the metadata. A
proposal remains pending until then, because the controller may have accepted it even if the response was lost or
contains an error. Only INELIGIBLE_REPLICA proves that the controller did not accept it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.replication.partition.followers import UNKNOWN
from kpybroker.replication.partition.partition import Partition
from kpybroker.wire.rpc.alter_partition import BrokerState, PartitionData, PartitionDataReply, Request, TopicData

log = logging.getLogger(__name__)

AT_ONCE_MAX = 2500
"""The most partitions in one request. The controller closes the connection if a request has more elements (partitions
and replicas) than the Api table allows."""
TIMEOUT_MS = 5_000
RETRY_MS = 50
RECOVERED = 0
"""The leader_recovery_state: a leader that sends proposals has recovered its log, even after an unclean election
(KIP-704)."""
AGAIN = (
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
)
"""Errors after which a proposal is sent again."""


class IsrProposals:
    """Collects proposals and sends them. `broker_epoch` returns the epoch of this node's registration."""

    def __init__(self, channel: ControllerChannel, node_id: int, broker_epoch: Callable[[], int]) -> None:
        self._channel = channel
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._waiting: dict[Partition, None] = {}
        self._task: asyncio.Task[None] | None = None

    def propose(self, partition: Partition) -> None:
        """Send the partition's proposal with the next request."""
        self._waiting[partition] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send_all())

    def close(self) -> None:
        """Stop sending."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # proposals of the same event are sent together
                some = list(islice(self._waiting, AT_ONCE_MAX))
                for partition in some:
                    del self._waiting[partition]
                asked = {
                    (partition.topic_id, partition.index): (partition, partition.partition_epoch)
                    for partition in some
                    if partition.followers is not None and partition.followers.proposed is not None
                }
                if asked and not await self._send(asked):
                    await asyncio.sleep(RETRY_MS / 1000)
        finally:
            self._task = None

    async def _send(self, asked: dict[tuple[bytes, int], tuple[Partition, int]]) -> bool:
        """Send one request. Returns False if some proposals have to be sent again after a delay."""
        topics: dict[bytes, TopicData] = {}
        for (topic_id, _), (partition, _) in asked.items():
            topic = topics.setdefault(topic_id, TopicData(topic_id=topic_id, partitions=[]))
            topic.partitions.append(self._row(partition))
        request = Request(broker_id=self._node_id, broker_epoch=self._broker_epoch(), topics=list(topics.values()))
        try:
            told = await self._channel.ask("AlterPartition", request, TIMEOUT_MS)
        except KafkaError as refusal:
            log.warning("cannot propose ISRs to the controller: %s", refusal)
            return self._again(asked)
        if told.error_code:
            log.warning("the controller refused all proposed ISRs with %s", ErrorCode(told.error_code).name)
            return self._again(asked)
        again = {}
        for topic in told.topics:
            for row in topic.partitions:
                found = asked.get((topic.topic_id, row.partition_index))
                if found is not None and self._took(*found, row):
                    again[topic.topic_id, row.partition_index] = found
        return self._again(again) if again else True

    def _again(self, asked: dict[tuple[bytes, int], tuple[Partition, int]]) -> bool:
        for partition, epoch in asked.values():
            if partition.partition_epoch == epoch:
                self._waiting[partition] = None
        return False

    def _row(self, partition: Partition) -> PartitionData:
        followers = partition.followers
        assert followers is not None
        assert followers.proposed is not None, "there is a proposal to send"
        epochs = {node_id: follower.broker_epoch for node_id, follower in followers.by_id.items()}
        epochs[self._node_id] = self._broker_epoch()
        return PartitionData(
            partition_index=partition.index,
            leader_epoch=partition.leader_epoch,
            new_isr=list(followers.proposed),
            new_isr_with_epochs=[
                BrokerState(broker_id=node_id, broker_epoch=epochs.get(node_id, UNKNOWN))
                for node_id in followers.proposed
            ],
            leader_recovery_state=RECOVERED,
            partition_epoch=partition.partition_epoch,
        )

    def _took(self, partition: Partition, epoch: int, row: PartitionDataReply) -> bool:
        """Handle a partition's result. Returns whether to send the proposal again."""
        if partition.partition_epoch != epoch or partition.followers is None:
            return False
        code = row.error_code
        if code == ErrorCode.NONE:
            if row.partition_epoch == epoch:  # the set is unchanged
                partition.followers.withdraw()
            return False
        log.info("%r: the controller refused the ISR with error code %d", partition, code)
        if code == ErrorCode.INELIGIBLE_REPLICA:
            partition.followers.withdraw()
            return False
        return code in AGAIN
