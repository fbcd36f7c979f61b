"""Retired partitions: until when they accept records, and which producers have not noticed yet."""

from __future__ import annotations

import logging
from typing import NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.security.audit import shown

log = logging.getLogger(__name__)

PRODUCERS_MAX = 100
"""The most late producers of which a line is logged, until the retired partitions of a topic change."""
LINE_MAX = 1000
"""The most characters of a line, which contains names that a client has chosen."""


class _Closing(NamedTuple):
    topic_id: bytes
    in_use: int
    since_s: float
    grace_ms: int

    @property
    def ends_s(self) -> float:
        return self.since_s + self.grace_ms / 1000


class ClosedPartitions:
    """The grace period counts from when this broker has learned that the partitions are retired, so a restart of the
    broker begins it anew."""

    def __init__(self) -> None:
        self._closing: dict[str, _Closing] = {}
        self._late: set[tuple[str, str | None, str]] = set()
        """Topic, client id and host of the producers that were logged."""

    def follow(self, image: Image, now_s: float) -> None:
        """Note the partitions that are retired in an Image."""
        if not (image.retirements or self._closing):
            return
        before, self._closing = self._closing, {}
        for retirement in filter(None, map(image.retirement, image.retirements)):
            known = before.get(retirement.topic)
            if known is None or (known.topic_id, known.in_use) != (retirement.topic_id, retirement.in_use):
                known = _Closing(retirement.topic_id, retirement.in_use, now_s, retirement.grace_ms)
            self._closing[retirement.topic] = known._replace(grace_ms=retirement.grace_ms)
        if self._closing != before:
            self._late.clear()

    def has(self, topic: str, index: int, now_s: float) -> bool:
        """Whether the partition is retired, and its grace period is over."""
        closing = self._closing.get(topic)
        return closing is not None and index >= closing.in_use and now_s >= closing.ends_s

    def admit(self, topic: str, index: int, client_id: str | None, host: str, now_s: float) -> None:
        """Check a Produce, and log once which producer still writes to a retired partition. Raises
        UNKNOWN_TOPIC_OR_PARTITION if the grace period is over."""
        closing = self._closing.get(topic)
        if closing is None or index < closing.in_use:
            return
        left_s = closing.ends_s - now_s
        producer = topic, client_id, host
        if producer not in self._late and len(self._late) < PRODUCERS_MAX:
            self._late.add(producer)
            when = f"are accepted for {left_s:.0f} more seconds" if left_s > 0 else "are refused"
            line = (
                f"client {client_id!r} at {host} still writes to {topic}-{index}, which is retired; its records there "
                f"{when}. It has not refreshed its metadata yet; a producer of librdkafka has to be restarted"
            )
            log.warning("%s", shown(line, LINE_MAX))
        if left_s <= 0:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{index} is retired")
