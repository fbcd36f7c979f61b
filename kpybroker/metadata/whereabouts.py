"""Finds leaders, live brokers and their listeners in an Image."""

from __future__ import annotations

from typing import NamedTuple

from kpybroker.metadata.image import Image, PartitionImage
from kpybroker.wire.directory_ids import UNASSIGNED

PLAINTEXT = "PLAINTEXT"
ANY_EPOCH = -1
DEPARTED_S = 10.0
"""The time for which a broker counts as departed. Clients request metadata within two seconds of a lost connection."""


class Leader(NamedTuple):
    """The leader of a partition, and the address that clients of a listener use for it. The host is empty if the
    address is unknown."""

    node_id: int
    epoch: int
    host: str = ""
    port: int = -1
    rack: str | None = None


def others_live(image: Image, node_id: int) -> bool:
    """Whether there are other brokers that are not fenced."""
    return any(not broker.fenced for other, broker in image.brokers.items() if other != node_id)


class Departed:
    """Brokers that were fenced recently: for a while, Metadata responses still contain their addresses.

    librdkafka moves a partition to its new leader through the thread of the old leader. If one response names the new
    leader and no longer contains the old one, librdkafka ends that thread first, loses the partition, and requests
    metadata again a second later.
    """

    def __init__(self) -> None:
        self._until_s: dict[int, tuple[float, int]] = {}
        """Node id -> the time until which the broker counts as departed, and the epoch of its registration."""

    def follow(self, old: Image, new: Image, now_s: float) -> None:
        """Note the brokers that were fenced between two Images."""
        if old.brokers is new.brokers:
            return
        for node_id, broker in new.brokers.items():
            before = old.brokers.get(node_id)
            if broker.fenced and before is not None and not before.fenced and before.epoch == broker.epoch:
                self._until_s[node_id] = now_s + DEPARTED_S, broker.epoch

    def at(self, now_s: float, image: Image) -> tuple[int, ...]:
        """The brokers that were fenced recently and have not registered again since."""
        if not self._until_s:
            return ()
        self._until_s = {
            node_id: (until_s, epoch)
            for node_id, (until_s, epoch) in self._until_s.items()
            if now_s < until_s and epoch_of(image, node_id) == epoch
        }
        return tuple(self._until_s)


def endpoints(
    image: Image, listener: str | None = None, departed: tuple[int, ...] = ()
) -> list[tuple[int, str, int, str | None]]:
    """Node id, host, port and rack of every live broker, and of those in `departed`, for clients of a listener."""
    found = []
    for broker in image.brokers.values():
        if broker.fenced and broker.id not in departed:
            continue
        for name, host, port, _ in broker.endpoints:
            if listener is None or name == listener:
                found.append((broker.id, host, port, broker.rack))
                break
    return found


def has_partition(image: Image, name: str, index: int) -> bool:
    """Whether the partition exists in the cluster. Views have no partitions of their own."""
    topic = image.topics.get(name)
    return topic is not None and 0 <= index < len(topic.partitions)


def directory_in(partition: PartitionImage, node_id: int) -> bytes:
    """The log directory of a broker's replica according to the metadata; UNASSIGNED if it has none."""
    return dict(zip(partition.replicas, partition.directories, strict=False)).get(node_id, UNASSIGNED)


def directory_of(image: Image, name: str, index: int, node_id: int) -> bytes:
    """The log directory of a broker's replica, as in `directory_in`, for a partition that is given by name."""
    topic = image.topics.get(name)
    return UNASSIGNED if topic is None else directory_in(topic.partitions[index], node_id)


def is_replicated(image: Image, name: str, index: int) -> bool:
    """Whether the partition exists and has more than one replica."""
    return has_partition(image, name, index) and len(image.topics[name].partitions[index].replicas) > 1


def leader_of(image: Image, name: str, index: int, listener: str) -> Leader | None:
    """The leader of a partition; None if it has no leader or does not exist."""
    topic = image.topic(name)
    if topic is None or not 0 <= index < len(topic.partitions) or topic.partitions[index].leader < 0:
        return None
    partition = topic.partitions[index]
    for node_id, host, port, rack in endpoints(image, listener):
        if node_id == partition.leader:
            return Leader(node_id, partition.leader_epoch, host, port, rack)
    return Leader(partition.leader, partition.leader_epoch)


def epoch_of(image: Image, node_id: int) -> int:
    """The epoch of a broker's registration; -1 if there is none."""
    known = image.brokers.get(node_id)
    return -1 if known is None else known.epoch


def hosted_by(image: Image, node_id: int) -> dict[tuple[str, int], bytes]:
    """The topic id of each partition that has a replica on this broker."""
    return {
        (topic.name, index): topic.id
        for topic in image.topics.values()
        for index, partition in enumerate(topic.partitions)
        if node_id in partition.replicas
    }


def may_be_in_sync(image: Image, node_id: int, broker_epoch: int) -> bool:
    """Whether a replica on a broker that fetched with this epoch can be in the ISR (KIP-841, KIP-903)."""
    known = image.brokers.get(node_id)
    if known is None or known.fenced or known.in_controlled_shutdown:
        return False
    return broker_epoch in (ANY_EPOCH, known.epoch)


def address_for_brokers(image: Image, node_id: int, listener: str | None) -> tuple[str, int] | None:
    """The address at which other brokers connect to this one: that of the listener inter.broker.listener.name, else
    PLAINTEXT, else any listener."""
    known = image.brokers.get(node_id)
    if known is None or not known.endpoints:
        return None
    wanted = listener or PLAINTEXT
    _, host, port, _ = next((each for each in known.endpoints if each[0] == wanted), known.endpoints[0])
    return host, port
