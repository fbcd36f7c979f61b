"""Computes facts about the subscribed topics of consumer groups (KIP-848) and share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

from kpybroker.metadata.image import TopicImage


def partitions_of(find: Callable[[str], TopicImage | None], names: Iterable[str]) -> dict[bytes, int]:
    """The number of partitions of each topic that `find` finds, by topic id."""
    found = map(find, names)
    return {topic.id: len(topic.partitions) for topic in found if topic is not None}


def metadata_hash(partitions: Mapping[bytes, int]) -> int:
    """A hash of the topics and their partition counts; 0 if there are no topics."""
    if not partitions:
        return 0
    told = blake2b(digest_size=8)
    for topic_id, count in sorted(partitions.items()):
        told.update(topic_id + count.to_bytes(4, "big"))
    return int.from_bytes(told.digest(), "big", signed=True)
