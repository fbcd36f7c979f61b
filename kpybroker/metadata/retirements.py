"""Topics that have become smaller: their last partitions are retired.

Kafka has no record that removes a partition, so a retired partition stays in the metadata, and Apache Kafka sees the
topic with all its partitions. Clients of kpybroker see the topic with the partitions that are in use, and the retired
ones as a topic of their own, which can only be read: its partition 0 is the last partition of the topic, and so on, so
that the numbers stay the same when more partitions are retired. What groups commit for it is stored for the partitions
of the topic.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import NamedTuple

from kpybroker.config.partition_keys import EMPTY, GRACE, IN_USE
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.own_settings import own_record
from kpybroker.metadata.part import Metadata, Part
from kpybroker.topics import TopicPartition
from kpybroker.wire.stored.metadata import ConfigRecord

SUFFIX = ".retired"
_PREFIX = "kpybroker.retired."
_STORED = re.compile(r"([A-Za-z0-9_-]{22}) (\d{1,9}) (\d{1,9}) (\d{1,18}) ((?:\d{1,9}(?:,\d{1,9})*)?)", re.ASCII)


class Retirement(NamedTuple):
    """The retired partitions of a topic.

    - total: the number of the topic's partitions, with the retired ones.
    - in_use: the number of partitions that are in use. Those from this index on are retired.
    - grace_ms: for how long a retired partition still accepts records.
    - empty: the retired partitions that have no records left.
    """

    topic: str
    topic_id: bytes
    total: int
    in_use: int
    grace_ms: int
    empty: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        """The name under which the retired partitions are shown."""
        return retired_name(self.topic)

    @property
    def is_shown(self) -> bool:
        """Whether any retired partition has records."""
        return len(self.empty) < self.total - self.in_use

    def fits(self, topic_id: bytes, count: int) -> bool:
        """Whether this is true for the topic as it is now: other software may have recreated it, or have added
        partitions."""
        return self.topic_id == topic_id and self.total == count

    def mirrored(self, index: int) -> int:
        """The index in the topic of a partition of the retired topic, and the other way round."""
        return self.total - 1 - index

    def stored_as(self, index: int) -> TopicPartition:
        """The partition of the topic that is this partition of the retired topic; one that does not exist if there is
        no such partition."""
        exists = 0 <= index < self.total - self.in_use
        return self.topic, self.mirrored(index) if exists else self.total

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of the topic as clients see them."""
        settings = {IN_USE: str(self.in_use), GRACE: str(self.grace_ms)}
        return {**settings, EMPTY: _listed(self.empty)} if self.empty else settings

    def with_in_use(self, in_use: int) -> Retirement | None:
        """With another number of partitions in use; None if no partition is retired any more."""
        if in_use >= self.total:
            return None
        return self._replace(in_use=in_use, empty=frozenset(index for index in self.empty if index >= in_use))

    def record(self) -> ConfigRecord:
        """The record that adds or changes this."""
        topic_id = urlsafe_b64encode(self.topic_id).rstrip(b"=").decode()
        text = f"{topic_id} {self.total} {self.in_use} {self.grace_ms} {_listed(self.empty)}"
        return own_record(_PREFIX + self.topic, text)

    def removal(self) -> ConfigRecord:
        """The record that removes this, so that all partitions of the topic are in use."""
        return own_record(_PREFIX + self.topic, None)

    def refusal(self) -> KafkaError:
        """The refusal of everything but reading the retired partitions. Clients do not retry after this error."""
        return KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{self.name} has the retired partitions of {self.topic}, which can only be read; use {self.topic} "
            "instead.",
        )


def retired_name(topic: str) -> str:
    """The name under which the retired partitions of a topic are shown."""
    return topic + SUFFIX


def topic_of_retired(name: str) -> str | None:
    """The topic whose retired partitions are shown under this name; None if the name is not of that kind."""
    return name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else None


def _listed(indexes: frozenset[int]) -> str:
    return ",".join(str(index) for index in sorted(indexes))


RETIREMENTS: Part[Mapping[str, Retirement]] = Part("retirements", {}, {}, lambda _: ())
"""Retirements by topic: an index that is updated by the records of settings."""


def follow_setting(metadata: Metadata, setting: str, text: str | None) -> None:
    """Add, change or remove a retirement after its setting has changed. A text that cannot be read removes it."""
    if not setting.startswith(_PREFIX):
        return
    topic = setting.removeprefix(_PREFIX)
    found = None if text is None else _read(topic, text)
    if found is not None:
        metadata.changing(RETIREMENTS)[topic] = found
    elif topic in RETIREMENTS.of(metadata):
        del metadata.changing(RETIREMENTS)[topic]


def _read(topic: str, text: str) -> Retirement | None:
    match = _STORED.fullmatch(text)
    if match is None:
        return None
    topic_id, count, in_use, grace_ms, empty = match.groups()
    indexes = frozenset(int(index) for index in empty.split(",") if index)
    found = Retirement(topic, urlsafe_b64decode(topic_id + "=="), int(count), int(in_use), int(grace_ms), indexes)
    is_sound = 0 < found.in_use < found.total and all(found.in_use <= index < found.total for index in indexes)
    return found if is_sound else None
