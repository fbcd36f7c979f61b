"""Writes dead letters: records of share groups that were rejected, or delivered too often (KIP-1191).

A dead letter is a record in the dead letter topic of the group. Its headers identify the original record. If the
group's settings request copies, it also has the key, value and headers of that record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from kpybroker.client.broker_connections import LOST, BrokerConnections
from kpybroker.config import BrokerConfig
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.runs import Letter
from kpybroker.shares.settings import GroupRules
from kpybroker.storage.dirs.formatting import encode_id
from kpybroker.wire.records.batch import Headers, Record, encode_batch
from kpybroker.wire.rpc import produce

ENABLE = "errors.deadletterqueue.group.enable"
TOPIC, PARTITION, OFFSET = "__dlq.errors.topic", "__dlq.errors.partition", "__dlq.errors.offset"
GROUP, DELIVERY_COUNT, MESSAGE = "__dlq.errors.group", "__dlq.errors.delivery.count", "__dlq.errors.message"
REJECTED = "Offset rejected by client."
TOO_OFTEN = "Offset delivery count exceeded the threshold."
"""The reasons, in Kafka's words."""
AT_ONCE = 500
"""The maximum number of dead letters in one request."""
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
ALL = -1


class Sources(NamedTuple):
    """Records by offset, and the offset after the last one that was looked for."""

    records: dict[int, Record]
    next_offset: int


class DeadLetters:
    """Writes dead letters by Produce to the leader of a partition of the dead letter topic.

    - rules: the settings of a group.
    - read: the records of a share partition from the first to the last offset, as far as they can be read.
    - create_topic: creates a dead letter topic with the broker's defaults. Raises KafkaError.
    """

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        image: Callable[[], Image],
        rules: Callable[[str], GroupRules],
        read: Callable[[ShareKey, int, int], Awaitable[Sources]],
        create_topic: Callable[[str], Awaitable[None]],
        connections: BrokerConnections,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._image = image
        self._rules = rules
        self._read = read
        self._create_topic = create_topic
        self._connections = connections
        self._now_ms = now_ms

    async def write(self, key: ShareKey, letter: Letter) -> int:
        """Write dead letters for the first of these records, at most AT_ONCE. Returns when they are durable, or if the
        group no longer has a dead letter topic. Returns the offset after the records that are done.

        Raises KafkaError if the topic cannot be used, or its partition does not accept the records. Some of them may
        then have been written.
        """
        rules = self._rules(key.group_id)
        topic = rules.errors_deadletterqueue_topic_name
        if not topic:
            return letter.last + 1
        await self._check_topic(key.group_id, topic)
        last = min(letter.last, letter.first + AT_ONCE - 1)
        found = Sources({}, last + 1)
        if rules.errors_deadletterqueue_copy_record_enable:
            found = await self._read(key, letter.first, last)
        await self._send(topic, key.partition, list(self._records(key, letter, found)))
        return found.next_offset

    async def _check_topic(self, group_id: str, topic: str) -> None:
        """Raises INVALID_CONFIG if the topic must not be used; creates it if it is missing and may be created."""
        config, image = self._config(), self._image()
        prefix = config.errors_deadletterqueue_topic_name_prefix
        if topic.startswith("__"):
            raise _unusable(group_id, topic, "the name must not start with __")
        if topic in image.topics:
            if image.config(ResourceType.TOPIC, topic).get(ENABLE, "").strip().lower() != "true":
                raise _unusable(group_id, topic, f"set {ENABLE}=true on the topic")
        elif not config.errors_deadletterqueue_auto_create_topics_enable:
            raise _unusable(
                group_id,
                topic,
                f"the topic does not exist; create it with {ENABLE}=true, or set "
                "errors.deadletterqueue.auto.create.topics.enable=true",
            )
        if not topic.startswith(prefix):
            raise _unusable(
                group_id, topic, f"the name must start with {prefix!r}, see errors.deadletterqueue.topic.name.prefix"
            )
        if topic not in image.topics:
            await self._create_topic(topic)

    def _records(self, key: ShareKey, letter: Letter, found: Sources) -> Iterator[Record]:
        source = self._image().topic_by_id(key.topic_id)
        name = encode_id(key.topic_id) if source is None else source.name
        is_rejected = letter.is_rejected or letter.deliveries < self._rules(key.group_id).limits.max_deliveries
        now_ms = self._now_ms()
        for offset in range(letter.first, found.next_offset):
            copy = found.records.get(offset)
            headers: Headers = (
                (TOPIC, name.encode()),
                (PARTITION, str(key.partition).encode()),
                (OFFSET, str(offset).encode()),
                (GROUP, key.group_id.encode()),
                (DELIVERY_COUNT, str(letter.deliveries).encode()),
                (MESSAGE, (REJECTED if is_rejected else TOO_OFTEN).encode()),
            )
            if copy is None:
                yield Record(0, now_ms, None, None, headers)
            else:
                yield Record(0, now_ms, copy.key, copy.value, copy.headers + headers)

    async def _send(self, topic: str, source_partition: int, records: Sequence[Record]) -> None:
        """Write the records to the partition that Kafka chooses, in smaller batches if the topic refuses larger ones. A
        single record that is too large is written without its copy."""
        try:
            await self._produce(topic, source_partition, records)
            return
        except KafkaError as refusal:
            if refusal.code not in TOO_LARGE:
                raise
            only = records[0]
            headers = only.headers[-len(_OWN) :]
            if len(records) == 1 and (only.key, only.value, only.headers) == (None, None, headers):
                raise
        if len(records) == 1:
            await self._produce(topic, source_partition, [Record(0, only.timestamp, None, None, headers)])
            return
        half = len(records) // 2
        await self._send(topic, source_partition, records[:half])
        await self._send(topic, source_partition, records[half:])

    async def _produce(self, topic: str, source_partition: int, records: Sequence[Record]) -> None:
        image, timeout_ms = self._image(), self._config().request_timeout_ms
        target = image.topics.get(topic)
        if target is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {topic} does not exist yet")
        index = source_partition % len(target.partitions)
        leader = target.partitions[index].leader
        row = produce.PartitionProduceData(index=index, records=memoryview(encode_batch(records)))
        request = produce.Request(
            acks=ALL,
            timeout_ms=timeout_ms,
            topic_data=[produce.TopicProduceData(name=topic, topic_id=target.id, partition_data=[row])],
        )
        try:
            told = await self._connections.ask(leader, "Produce", request, timeout_ms)
        except LOST as lost:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {leader} did not respond: {lost}") from lost
        answer = told.responses[0].partition_responses[0]
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message or f"of {topic}-{index}")


_OWN = (TOPIC, PARTITION, OFFSET, GROUP, DELIVERY_COUNT, MESSAGE)


def _unusable(group_id: str, topic: str, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_CONFIG, f"{topic} cannot be the dead letter topic of the share group {group_id}: {why}"
    )
