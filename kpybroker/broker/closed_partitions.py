"""Retired partitions that accept no more records, because their grace period is over."""

from __future__ import annotations

from typing import NamedTuple

from kpybroker.metadata.image import Image


class _Closing(NamedTuple):
    topic_id: bytes
    in_use: int
    since_s: float
    grace_ms: int


class ClosedPartitions:
    """The grace period counts from when this broker has learned that the partitions are retired, so a restart of the
    broker begins it anew. False if no topic of the cluster has retired partitions."""

    def __init__(self) -> None:
        self._closing: dict[str, _Closing] = {}

    def __bool__(self) -> bool:
        return bool(self._closing)

    def follow(self, image: Image, now_s: float) -> None:
        """Note the partitions that are retired in an Image."""
        before, self._closing = self._closing, {}
        for retirement in filter(None, map(image.retirement, image.retirements)):
            known = before.get(retirement.topic)
            if known is None or (known.topic_id, known.in_use) != (retirement.topic_id, retirement.in_use):
                known = _Closing(retirement.topic_id, retirement.in_use, now_s, retirement.grace_ms)
            self._closing[retirement.topic] = known._replace(grace_ms=retirement.grace_ms)

    def has(self, topic: str, index: int, now_s: float) -> bool:
        """Whether the partition is retired, and its grace period is over."""
        closing = self._closing.get(topic)
        return closing is not None and index >= closing.in_use and now_s >= closing.since_s + closing.grace_ms / 1000
