"""Finds the share partitions of requests, and the first offset of a share group in a log that it has not read yet."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import SHARE_FEATURE
from kpybroker.security.authorizer import Operation
from kpybroker.serving.authorization import allows_topic
from kpybroker.shares.keys import ShareKey

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.call import Call
    from kpybroker.metadata.whereabouts import Leader
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.shares.leader import LedSharePartition
    from kpybroker.topics import TopicIdPartition

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000)
BY_DURATION = "by_duration:"


def check_served(broker: Broker) -> None:
    """Raise UNSUPPORTED_VERSION if share groups are disabled in the cluster."""
    if not broker.metadata.image.features.get(SHARE_FEATURE, 0):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"The feature {SHARE_FEATURE} is 0 in this cluster.")


def check_read(broker: Broker, call: Call, place: TopicIdPartition) -> str:
    """The name of a topic that the caller may read. Raises UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED."""
    topic = broker.metadata.topic_name(place[0])
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    if broker.metadata.authorizer is not None and not allows_topic(broker, call, Operation.READ, topic):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return topic


def found(broker: Broker, group_id: str, topic: str, place: TopicIdPartition) -> tuple[Partition, LedSharePartition]:
    """The partition and the group's share partition. Raises KafkaError, for example if this broker is not the
    leader."""
    partition = broker.replication.hosting.leads(topic, place[1])
    key = ShareKey(group_id, *place)
    led = broker.coordinators.share_leader.lead(
        key, partition.leader_epoch, partial(_find_start, broker, group_id, partition)
    )
    if led.refusal is not None:
        raise led.refusal
    return partition, led


async def _find_start(broker: Broker, group_id: str, partition: Partition, reset: str) -> int:
    """The first offset of a group, according to share.auto.offset.reset. Raises KafkaError."""
    storage = partition.log
    if reset == "earliest":
        return storage.start
    is_committed = broker.coordinators.share_leader.rules(group_id).is_committed
    end = storage.last_stable if is_committed else storage.high_watermark
    if reset == "latest":
        return end
    timestamp_ms = broker.world.wall_ms() - duration_ms(reset[len(BY_DURATION) :])
    at = await broker.storage.log_dirs.sliced_work.run(partial(storage.looking_up, timestamp_ms))
    return end if at is None else min(at[0], end)


def duration_ms(text: str) -> int:
    """The milliseconds of an ISO 8601 duration in days and smaller units, for example P1DT12H or PT0.5S."""
    match = _DURATION.fullmatch(text)
    assert match is not None, "the setting was checked"
    return int(sum(float(number or 0) * unit_ms for number, unit_ms in zip(match.groups(), _UNITS_MS, strict=True)))


class Leaders:
    """The leaders in one response, for partitions that this broker does not lead (KIP-951)."""

    def __init__(self, broker: Broker, call: Call) -> None:
        self._broker = broker
        self._call = call
        self._found: dict[int, Leader] = {}

    def hint(self, row: Any, make: Any, place: TopicIdPartition) -> None:
        """Set the current leader in a row with the error NOT_LEADER_OR_FOLLOWER. `make` is the class of the field."""
        topic = self._broker.metadata.topic_name(place[0])
        if row.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER or topic is None:
            return
        leader = self._broker.metadata.leader_of(topic, place[1], self._call.listener)
        if leader is not None:
            row.current_leader = make(leader_id=leader.node_id, leader_epoch=leader.epoch)
            self._found[leader.node_id] = leader

    def endpoints(self, make: Any) -> list[Any]:
        """The addresses of these leaders. `make` is the class of the field."""
        return [
            make(node_id=leader.node_id, host=leader.host, port=leader.port, rack=leader.rack)
            for leader in self._found.values()
            if leader.host
        ]
