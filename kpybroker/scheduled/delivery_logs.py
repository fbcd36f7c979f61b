"""The delivery logs of one broker: the partitions that it leads, and the way of records to and from them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kpybroker.client.broker_connections import LOST, BrokerConnections
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.replication.partition.partition import Partition
from kpybroker.scheduled.state import SEQUENCE_MASK
from kpybroker.scheduled.stored_entries import EntryCache
from kpybroker.tasks import begin
from kpybroker.topics import delivery_log_of, scheduled_topic_of
from kpybroker.wire.records.batch import Batch
from kpybroker.wire.rpc import produce
from kpybroker.world import World

if TYPE_CHECKING:
    from kpybroker.scheduled.leader import DeliveryLeader

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
FINAL = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""The errors after which a producer cannot send its batch again."""
RETRY_S = 0.05
FULL_S = 1.0
ACKS_ALL = -1
MISSING_MAX = 10_000
SEQUENCES_AHEAD = 1 << 30
"""A sequence that is further ahead is one from the past, because sequences wrap."""


class MissingEntries:
    """Batches that are in a topic, but whose entries are not in the delivery log, or not known to be there.

    A delivery log accepts the entries of a producer only in the order of their sequences, and a producer takes the
    acknowledgement of a batch as one of all earlier ones. So nothing of a producer is accepted until it has sent such a
    batch again. At most MISSING_MAX producers are kept.
    """

    def __init__(self) -> None:
        self._sequences: OrderedDict[tuple[bytes, int, int, int], int] = OrderedDict()
        self._places: set[tuple[bytes, int]] = set()
        """The partitions for which an entry may be missing."""

    def has(self, topic_id: bytes, index: int, batch: Batch) -> bool:
        """Whether the entry of this batch is missing."""
        return self._sequences.get((topic_id, index, batch.producer_id, batch.producer_epoch)) == batch.base_sequence

    def check(self, topic_id: bytes, index: int, batch: Batch) -> None:
        """Raise OUT_OF_ORDER_SEQUENCE_NUMBER if the entry of an earlier batch of the producer is missing."""
        missing = self._sequences.get((topic_id, index, batch.producer_id, batch.producer_epoch))
        if missing is not None and 0 < (batch.base_sequence - missing) & SEQUENCE_MASK < SEQUENCES_AHEAD:
            text = f"the scheduled records of sequence {missing} must be sent again before those of"
            raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{text} {batch.base_sequence}")

    def add(self, topic_id: bytes, index: int, batch: Batch) -> None:
        """Note that a batch was appended, and that its entry is missing."""
        if batch.producer_id < 0:
            return
        self._places.add((topic_id, index))
        self._sequences[topic_id, index, batch.producer_id, batch.producer_epoch] = batch.base_sequence
        if len(self._sequences) > MISSING_MAX:
            self._sequences.popitem(last=False)

    def remove(self, topic_id: bytes, index: int, batch: Batch) -> None:
        """Note that the entry of a batch is in the delivery log, or will never be."""
        if self.has(topic_id, index, batch):
            del self._sequences[topic_id, index, batch.producer_id, batch.producer_epoch]

    def forget(self, topic_id: bytes, index: int) -> None:
        """Forget a partition whose leader has changed: producers send the new leader all batches again that were not
        acknowledged, in order."""
        if (topic_id, index) in self._places:
            self._places.remove((topic_id, index))
            for key in [key for key in self._sequences if key[:2] == (topic_id, index)]:
                del self._sequences[key]


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
        self._full: dict[tuple[str, int], tuple[float, str]] = {}
        """Partitions of delivery logs that other brokers lead and that had no room, with the time until which that is
        assumed, and the reason."""
        self.delivered = 0
        """The number of records that were delivered by this broker."""
        self._cache = EntryCache()
        self._led: dict[tuple[str, int], tuple[DeliveryLeader, asyncio.Task[None]]] = {}

    @property
    def pending(self) -> int:
        """The number of records that the leaders on this broker will deliver."""
        return sum(len(leader.state) for leader, _ in self._led.values())

    @property
    def late_ms(self) -> int:
        """How late the earliest record is that was not delivered yet."""
        now_ms = self._world.wall_ms()
        return max((leader.late_ms(now_ms) for leader, _ in self._led.values()), default=0)

    def _count(self, count: int) -> None:
        self.delivered += count

    def __iter__(self) -> Iterator[tuple[str, int, DeliveryLeader]]:
        """The topic, the partition and the leader of each partition that this broker leads."""
        for (name, index), (leader, _) in sorted(self._led.items()):
            yield scheduled_topic_of(name) or "", index, leader

    def leadership_changed(self, partition: Partition, leads: bool) -> None:
        """Begin or stop to deliver, if the partition is one of a delivery log."""
        self.missing.forget(partition.topic_id, partition.index)
        topic = scheduled_topic_of(partition.topic)
        if topic is None:
            return
        place = partition.topic, partition.index
        known = self._led.pop(place, None)
        if known is not None:
            known[1].cancel()
            self._cache.forget_all(partition)
        if leads:
            from kpybroker.scheduled.leader import DeliveryLeader  # a broker without such topics starts without it

            leader = DeliveryLeader(self._world, partition, topic, self.deliver, self._cache, self._count)
            name = f"the delivery of scheduled records of {topic}-{partition.index}"
            self._led[place] = leader, begin(leader.run(), name, self._fail)

    def require_room(self, name: str, index: int, count: int = 1) -> None:
        """Raise POLICY_VIOLATION if a partition of a delivery log, or all that this broker leads, have no room for
        `count` more records."""
        known = self._led.get((name, index))
        if known is None or not known[0].state.is_loaded:
            return
        topic = scheduled_topic_of(name) or ""
        (of_partition, of_broker), has = self._limits(topic), known[0].state.held
        if has + count > of_partition:
            text = f"{topic}-{index} has {has} scheduled records: at most {of_partition} may be pending"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{text} (kpybroker.delivery.max.pending)")
        has = sum(leader.state.held for leader, _ in self._led.values())
        if has + count > of_broker:
            text = f"broker has {has} scheduled records: at most {of_broker} may be pending"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"the {text} (kpybroker.delivery.broker.max.pending)")

    def check(self, topic: str, index: int, count: int) -> None:
        """Check that `count` records can be scheduled, before the batch is appended to the topic. Raises KafkaError.

        Whether another broker has room is known only if it has just refused records.
        """
        name = delivery_log_of(topic)
        known = self._image().topics.get(name)
        if known is None or index >= len(known.partitions):
            text = f"{name}-{index} does not exist: set kpybroker.delivery.scheduled=true on the topic again"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
        self.require_room(name, index, count)
        until_s, why = self._full.get((name, index), (0.0, ""))
        if asyncio.get_running_loop().time() < until_s:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, why)

    async def schedule(
        self, topic: str, index: int, batch: Batch, transactional_id: str | None, timeout_ms: int
    ) -> None:
        """Append the entry of a batch to the delivery log of a topic, and return when it is committed. If a response
        is lost, the batch is sent again only if it has a producer id, so that the log recognises it.

        Raises KafkaError: an error of the producer's epoch or transaction, otherwise NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        so that the producer sends the batch again, which is in the topic already.
        """
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_ms / 1000
        while True:
            try:
                await self._produce(self._to_logs, delivery_log_of(topic), index, batch.view, transactional_id)
                return
            except (*LOST, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code not in RETRIED:
                    raise self._for_producer(topic, index, error) from error
                may_repeat = isinstance(error, KafkaError) or batch.producer_id >= 0
                if loop.time() + RETRY_S >= ends_s or not may_repeat:
                    text = f"the records could not be written to {delivery_log_of(topic)}-{index}: {error}"
                    raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, text) from error
            await asyncio.sleep(RETRY_S)

    def _for_producer(self, topic: str, index: int, refusal: KafkaError) -> KafkaError:
        if refusal.code in FINAL:
            return refusal
        if refusal.code == ErrorCode.POLICY_VIOLATION:
            if len(self._full) >= MISSING_MAX:
                self._full.clear()
            until_s = asyncio.get_running_loop().time() + FULL_S
            self._full[delivery_log_of(topic), index] = until_s, refusal.message or ""
        text = f"the records are not scheduled yet: {refusal}"
        return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, text)

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
