"""Computes facts about the subscribed topics of consumer groups (KIP-848), share groups (KIP-932) and streams groups
(KIP-1071)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from struct import pack

from kpybroker.metadata.image import BrokerImage, Image, PartitionImage, TopicImage

TOPIC_HASH_VERSION = b"\0"
TOPICS_MAX = 10_000
"""The number of topics whose hashes are kept."""


def topics_of(find: Callable[[str], TopicImage | None], names: Iterable[str]) -> list[TopicImage]:
    """The topics that `find` finds."""
    return [topic for topic in map(find, names) if topic is not None]


def partitions_of(find: Callable[[str], TopicImage | None], names: Iterable[str]) -> dict[bytes, int]:
    """The number of partitions of each topic that `find` finds, by topic id."""
    return {topic.id: len(topic.partitions) for topic in topics_of(find, names)}


def topic_hash(topic: TopicImage, racks: Mapping[int, bytes]) -> int:
    """Kafka's hash of a topic: unsigned, of its id, its name, and the racks of the replicas of each partition. `racks`:
    the rack of each broker that has one, in UTF-16 (big-endian, in which bytes have the order of Java's strings)."""
    from xxhash import xxh3_64_intdigest

    name = topic.name.encode("utf-16-le")
    high, low = int.from_bytes(topic.id[:8], "big"), int.from_bytes(topic.id[8:], "big")
    told = [
        TOPIC_HASH_VERSION,
        pack("<QQ", high, low),
        name,
        pack("<ii", len(name) // 2, len(topic.partitions)),
    ]
    for index, partition in enumerate(topic.partitions):
        told.append(pack("<i", index))
        if racks:
            for rack in sorted([racks[replica] for replica in partition.replicas if replica in racks]):
                length = pack("<i", len(rack) // 2)
                told += (length, rack.decode("utf-16-be").encode("utf-16-le"), length)
    return xxh3_64_intdigest(b"".join(told))


def group_hash(hashes: Mapping[str, int]) -> int:
    """Kafka's hash of the topics of a group, as it is stored: signed, of the hashes of the topics in the order of their
    names; 0 if there are no topics."""
    from xxhash import xxh3_64_digest

    if not hashes:
        return 0
    told = b"".join([pack("<Q", hashes[name]) for name in sorted(hashes)])
    return int.from_bytes(xxh3_64_digest(told), "big", signed=True)


class MetadataHashes:
    """Computes the `metadata_hash` of groups as Apache Kafka 4.3 does (hash4j's XXH3-64), so that the epoch of a group
    stays when its coordinator moves to a broker of the other kind.

    It keeps the hash of each topic, because many groups may read the same topics.
    """

    def __init__(self) -> None:
        self._brokers: Mapping[int, BrokerImage] | None = None
        self._racks: dict[int, bytes] = {}
        self._known: dict[bytes, tuple[str, tuple[PartitionImage, ...], int]] = {}
        """By topic id: the name, the partitions, and the hash."""

    @property
    def kept(self) -> int:
        """The number of topics whose hashes are kept, at most TOPICS_MAX."""
        return len(self._known)

    def of(self, image: Image, topics: Iterable[TopicImage]) -> int:
        """The hash of these topics of the image."""
        if image.brokers is not self._brokers:
            self._use(image.brokers)
        return group_hash({topic.name: self._of_topic(topic) for topic in topics})

    def _use(self, brokers: Mapping[int, BrokerImage]) -> None:
        self._brokers = brokers
        racks = {each.id: each.rack.encode("utf-16-be") for each in brokers.values() if each.rack is not None}
        if racks != self._racks:
            self._racks = racks
            self._known.clear()

    def _of_topic(self, topic: TopicImage) -> int:
        known = self._known.get(topic.id)
        if known is not None and known[0] == topic.name and self._are_alike(known[1], topic.partitions):
            return known[2]
        if known is None and len(self._known) >= TOPICS_MAX:
            self._known.clear()
        found = topic_hash(topic, self._racks)
        self._known[topic.id] = topic.name, topic.partitions, found
        return found

    def _are_alike(self, before: tuple[PartitionImage, ...], now: tuple[PartitionImage, ...]) -> bool:
        """Whether the hash is the same. Without racks, it does not depend on the replicas."""
        return before is now or (not self._racks and len(before) == len(now))
