"""The delivery logs of one broker: the partitions that it leads, and the way of records to and from them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from kpybroker.client.broker_connections import LOST, BrokerConnections
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.replication.partition.partition import Partition
from kpybroker.scheduled.leader import DeliveryLeader
from kpybroker.tasks import begin
from kpybroker.topics import delivery_log_of, scheduled_topic_of
from kpybroker.wire.records.batch import Batch
from kpybroker.wire.rpc import produce
from kpybroker.world import World

CLIENT_ID = "__delivery"
"""The client id with which brokers append to delivery logs, and deliver."""
RETRIED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
"""The errors after which the leader is looked up again."""
RETRY_S = 0.05
ACKS_ALL = -1
MISSING_MAX = 10_000


class MissingEntries:
    """Producers whose entries could not be written to a delivery log, although their batches are in the topic.

    A delivery log accepts the entries of a producer only in the order of their sequences, so the missing entry has to
    be written before later ones. The producer sends the batch again. At most MISSING_MAX producers are kept.
    """

    def __init__(self) -> None:
        self._sequences: OrderedDict[tuple[bytes, int, int, int], int] = OrderedDict()

    def check(self, topic_id: bytes, index: int, batch: Batch) -> None:
        """Raise OUT_OF_ORDER_SEQUENCE_NUMBER if an earlier entry of the producer is missing."""
        missing = self._sequences.get((topic_id, index, batch.producer_id, batch.producer_epoch))
        if missing is not None and missing != batch.base_sequence:
            text = f"the scheduled records of sequence {missing} must be sent again before those of"
            raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{text} {batch.base_sequence}")

    def add(self, topic_id: bytes, index: int, batch: Batch) -> None:
        """Remember that the entry of a batch is missing."""
        if batch.producer_id < 0:
            return
        self._sequences[topic_id, index, batch.producer_id, batch.producer_epoch] = batch.base_sequence
        if len(self._sequences) > MISSING_MAX:
            self._sequences.popitem(last=False)

    def remove(self, topic_id: bytes, index: int, batch: Batch) -> None:
        """Forget a producer whose entry has been written."""
        self._sequences.pop((topic_id, index, batch.producer_id, batch.producer_epoch), None)


class DeliveryLogs:
    """Leads partitions of delivery logs.

    - image: the metadata that this broker has applied.
    - connections: for entries and for deliveries, because an entry of a transaction holds up its connection.
    - limits: the most pending records of a partition, and of all partitions that this broker leads.
    - fail: called with the reason if a leader has a bug.
    """

    def __init__(
        self,
        world: World,
        image: Callable[[], Image],
        connections: tuple[BrokerConnections, BrokerConnections],
        limits: Callable[[str], tuple[int, int]],
        timeout_ms: Callable[[], int],
        fail: Callable[[str], None],
    ) -> None:
        self._world = world
        self._image = image
        self._to_logs, self._to_topics = connections
        self._limits = limits
        self._timeout_ms = timeout_ms
        self._fail = fail
        self.missing = MissingEntries()
        self.delivered = self.late_ms = 0
        """The number of records that were delivered by this broker, and how late the newest of them was."""
        self._led: dict[tuple[str, int], tuple[DeliveryLeader, asyncio.Task[None]]] = {}

    @property
    def pending(self) -> int:
        """The number of records that the leaders on this broker will deliver."""
        return sum(len(leader.state) for leader, _ in self._led.values())

    def count_delivered(self, count: int, late_ms: int) -> None:
        """Count records that were delivered. The last of them was due `late_ms` before its delivery was decided."""
        self.delivered += count
        self.late_ms = late_ms

    def __iter__(self) -> Iterator[tuple[str, int, DeliveryLeader]]:
        """The topic, the partition and the leader of each partition that this broker leads."""
        for (name, index), (leader, _) in sorted(self._led.items()):
            yield scheduled_topic_of(name) or "", index, leader

    def leadership_changed(self, partition: Partition, leads: bool) -> None:
        """Begin or stop to deliver. Does nothing for a partition of another topic."""
        topic = scheduled_topic_of(partition.topic)
        if topic is None:
            return
        place = partition.topic, partition.index
        known = self._led.pop(place, None)
        if known is not None:
            known[1].cancel()
        if leads:
            leader = DeliveryLeader(self._world, partition, topic, self.deliver, self.count_delivered)
            name = f"the delivery of scheduled records of {topic}-{partition.index}"
            self._led[place] = leader, begin(leader.run(), name, self._fail)

    def require_room(self, name: str, index: int) -> None:
        """Raise POLICY_VIOLATION if a partition of a delivery log, or all that this broker leads, have the maximum
        number of pending records."""
        known = self._led.get((name, index))
        if known is None:
            return
        topic = scheduled_topic_of(name) or ""
        of_partition, of_broker = self._limits(topic)
        if len(known[0].state) >= of_partition:
            text = f"{topic}-{index} has {len(known[0].state)} scheduled records: at most {of_partition} may be pending"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{text} (kpybroker.delivery.max.pending)")
        if self.pending >= of_broker:
            text = f"broker has {self.pending} scheduled records: at most {of_broker} may be pending"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"the {text} (kpybroker.delivery.broker.max.pending)")

    async def schedule(
        self, topic: str, index: int, batch: Batch, transactional_id: str | None, timeout_ms: int
    ) -> None:
        """Append the entry of a batch to the delivery log of a topic, and return when it is committed. If a response
        is lost, the batch is sent again only if it has a producer id, so that the log recognises it.

        Raises KafkaError: the error for the producer, NOT_ENOUGH_REPLICAS_AFTER_APPEND if the log cannot be reached.
        """
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_ms / 1000
        while True:
            try:
                await self._produce(self._to_logs, delivery_log_of(topic), index, batch.view, transactional_id)
                return
            except (*LOST, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code not in RETRIED:
                    raise
                may_repeat = isinstance(error, KafkaError) or batch.producer_id >= 0
                if loop.time() + RETRY_S >= ends_s or not may_repeat:
                    text = f"the records could not be written to {delivery_log_of(topic)}-{index}: {error}"
                    raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, text) from error
            await asyncio.sleep(RETRY_S)

    async def deliver(self, topic: str, index: int, batch: bytearray) -> None:
        """Append a delivery to the partition of a topic, and return when it is committed. Raises KafkaError, LOST."""
        await self._produce(self._to_topics, topic, index, memoryview(batch), None)

    async def _produce(
        self, connections: BrokerConnections, topic: str, index: int, batch: memoryview, transactional_id: str | None
    ) -> None:
        known = self._image().topics.get(topic)
        if known is None or index >= len(known.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{index} does not exist")
        timeout_ms = self._timeout_ms()
        row = produce.PartitionProduceData(index=index, records=batch)
        request = produce.Request(
            transactional_id=transactional_id,
            acks=ACKS_ALL,
            timeout_ms=timeout_ms,
            topic_data=[produce.TopicProduceData(name=topic, topic_id=known.id, partition_data=[row])],
        )
        told: Any = await connections.ask(known.partitions[index].leader, "Produce", request, timeout_ms)
        answer = told.responses[0].partition_responses[0]
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            raise KafkaError(code, answer.error_message or f"{topic}-{index}: {code.name}")

    def close(self) -> None:
        """Stop to deliver, because the broker stops."""
        for _, task in self._led.values():
            task.cancel()
        self._led.clear()
        self._to_logs.close()
        self._to_topics.close()
