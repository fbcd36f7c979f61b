"""Checks whether a cluster can lose the disk of a machine without losing data, and whether its replicas are
restored."""

from __future__ import annotations

from kpybroker.broker.broker import Broker
from kpybroker.metadata.image import Image
from kpybroker.sim.cluster.cluster import SimMachine


def _running(machines: list[SimMachine]) -> list[Broker]:
    return [machine.node.broker for machine in machines if machine.node is not None]


def _newest(brokers: list[Broker]) -> Image:
    return max((broker.metadata.image for broker in brokers), key=lambda image: image.offset)


def _committed(brokers: list[Broker]) -> int:
    return max(broker.quorum.state.high_watermark for broker in brokers)


def others_have_all(machine: SimMachine, machines: list[SimMachine]) -> bool:
    """Whether all nodes run with a current registration, and the others have the metadata and an in-sync replica of
    every partition of this machine.

    The registration must be current, because after a power loss a node is in the ISR without all data until it
    registers.
    """
    brokers = _running(machines)
    if len(brokers) < len(machines):
        return False
    newest, committed, node_id = _newest(brokers), _committed(brokers), machine.setup.node_id
    for broker in brokers:
        registered = newest.brokers.get(broker.node_id)
        if registered is None or registered.fenced or registered.epoch != broker.membership.epoch:
            return False
        if broker.node_id != node_id and broker.quorum.log.synced_end < committed:
            return False
    partitions = [one for topic in newest.topics.values() for one in topic.partitions]
    return all(any(member != node_id for member in one.isr) for one in partitions if node_id in one.replicas)


def is_whole(machine: SimMachine, machines: list[SimMachine]) -> bool:
    """Whether the machine has all committed metadata, and is in the ISR of all its partitions."""
    if machine.node is None:
        return False
    brokers, broker = _running(machines), machine.node.broker
    if broker.quorum.log.synced_end < _committed(brokers):
        return False
    partitions = [one for topic in _newest(brokers).topics.values() for one in topic.partitions]
    return all(broker.node_id in one.isr for one in partitions if broker.node_id in one.replicas)
