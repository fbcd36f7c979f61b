"""Who is where, as an Image says: leaders, live brokers, their listeners."""

from __future__ import annotations

from typing import NamedTuple

from kpybroker.metadata.image import Image

PLAINTEXT = "PLAINTEXT"
ANY_EPOCH = -1


class Leader(NamedTuple):
    """Who leads a partition, and where clients of a listener reach it; no host where that is not known."""

    node_id: int
    epoch: int
    host: str = ""
    port: int = -1
    rack: str | None = None


def endpoints(image: Image, listener: str | None = None) -> list[tuple[int, str, int, str | None]]:
    """Node id, host, port and rack of every live broker, for clients of a listener."""
    found = []
    for broker in image.brokers.values():
        if broker.fenced:
            continue
        for name, host, port, _ in broker.endpoints:
            if listener is None or name == listener:
                found.append((broker.id, host, port, broker.rack))
                break
    return found


def has_partition(image: Image, name: str, index: int) -> bool:
    """There is such a partition, wherever it is."""
    topic = image.topic(name)
    return topic is not None and 0 <= index < len(topic.partitions)


def leader_of(image: Image, name: str, index: int, listener: str) -> Leader | None:
    """Who leads a partition; None where nobody does, or there is no such partition."""
    topic = image.topic(name)
    if topic is None or not 0 <= index < len(topic.partitions) or topic.partitions[index].leader < 0:
        return None
    partition = topic.partitions[index]
    for node_id, host, port, rack in endpoints(image, listener):
        if node_id == partition.leader:
            return Leader(node_id, partition.leader_epoch, host, port, rack)
    return Leader(partition.leader, partition.leader_epoch)


def epoch_of(image: Image, node_id: int) -> int:
    """The epoch of a broker's registration; -1 where there is none."""
    known = image.brokers.get(node_id)
    return -1 if known is None else known.epoch


def may_be_in_sync(image: Image, node_id: int, broker_epoch: int) -> bool:
    """Whether a replica on a broker that fetched with this epoch can be in the in-sync set (KIP-841, KIP-903)."""
    known = image.brokers.get(node_id)
    if known is None or known.fenced or known.in_controlled_shutdown:
        return False
    return broker_epoch in (ANY_EPOCH, known.epoch)


def address_for_brokers(image: Image, node_id: int, listener: str | None) -> tuple[str, int] | None:
    """Where other brokers reach this one: inter.broker.listener.name, else PLAINTEXT, else what it has."""
    known = image.brokers.get(node_id)
    if known is None or not known.endpoints:
        return None
    wanted = listener or PLAINTEXT
    _, host, port, _ = next((each for each in known.endpoints if each[0] == wanted), known.endpoints[0])
    return host, port
