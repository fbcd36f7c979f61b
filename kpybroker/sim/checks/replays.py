"""Compares a node's state in memory with the state that another node reads from a copy of its disk."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

from kpybroker.broker.broker import Broker
from kpybroker.config import BrokerConfig, parse_config
from kpybroker.sim.checks.checks import batches_of
from kpybroker.sim.cluster.cluster import Process
from kpybroker.storage.producers.producers import BATCHES_KEPT
from kpybroker.topics import TopicPartition

if TYPE_CHECKING:
    from kpybroker.metadata.image import Image
    from kpybroker.sim.cluster.cluster import SimMachine
    from kpybroker.sim.world.history import History
    from kpybroker.storage.producers.producers import ProducerStates

SCRATCH_RUN = 1_000_000
OPEN_LIMIT_S = 30.0


class ProducerFacts(NamedTuple):
    """The state of one producer in one partition."""

    epoch: int
    batches: list[Any]
    open_since: int
    """The first offset of the producer's open transaction; -1 if there is none."""


class Held(NamedTuple):
    """The parts of a broker's state that are compared."""

    image: Image
    batches: dict[TopicPartition, dict[int, bytes]]
    producers: dict[TopicPartition, dict[int, ProducerFacts]]
    groups: dict[int, tuple[dict[str, Any], dict[str, Any]]]
    """The hard state of each kind of group and the committed offsets, by partition."""
    compacted: frozenset[TopicPartition]


def held_by(broker: Broker) -> Held:
    """A copy of the broker's state at one moment."""
    batches, producers = {}, {}
    for partition in broker.replication.hosting:
        if partition.offline is None:
            place = partition.topic, partition.index
            batches[place] = dict(batches_of(partition, partition.log.written_end))
            producers[place] = _producers(partition.log.producers)
    groups = {}
    for index, led in broker.coordinators.groups.led.items():
        if led.refusal is None:
            offsets = {group: dict(led.machine.offsets.of(group)) for group in led.machine.offsets.groups()}
            stored = {kind.name: deepcopy(dict(kind.stored)) for kind in led.machine.kinds}
            groups[index] = stored, offsets
    compacted = frozenset((one.topic, one.index) for one in broker.replication.hosting if one.log.settings.compacted)
    return Held(broker.quorum.image, batches, producers, groups, compacted)


def _producers(states: ProducerStates) -> dict[int, ProducerFacts]:
    """The state of producers without the timestamps of batches, because a snapshot has only one timestamp per producer,
    which may be that of a marker."""
    return {
        one.producer_id: ProducerFacts(
            one.producer_epoch, [batch._replace(timestamp=0) for batch in one.batches], one.current_txn_first_offset
        )
        for one in states
    }


async def replay_equals_live(machine: SimMachine, history: History) -> None:
    """Open a copy of the disk, as after a crash of the process, and compare. The node must be the only voter."""
    node = machine.node
    assert node is not None, "a node that serves"
    node.broker.replication.flush_queue.flush()
    live = held_by(node.broker)
    process = Process(machine, SCRATCH_RUN, machine.storage.copy())
    with machine.loop.acting(process.owner):
        opening = machine.loop.create_task(_open(process, parse_config(machine.setup.properties)))
    await asyncio.wait([opening], timeout=OPEN_LIMIT_S)
    if not opening.done():
        history.breach(f"a copy of the disk of {machine.name} could not be opened within {OPEN_LIMIT_S:.0f} s")
    elif (raised := opening.exception()) is not None:
        history.breach(f"a copy of the disk of {machine.name} could not be opened: {raised!r}")
    else:
        _compare(machine.name, live, held_by(opening.result()), history)
    process.owner.die()
    machine.loop.bury(process.owner)


async def _open(process: Process, config: BrokerConfig) -> Broker:
    broker = await Broker.open(process.world, config)
    await broker.coordinators.groups.loaded()
    return broker


def _compare(name: str, live: Held, replayed: Held, history: History) -> None:
    if live.image != replayed.image:
        history.breach(f"the Image of {name} is not what its log and snapshots give")
    for place, batches in live.batches.items():
        again = replayed.batches.get(place, {})
        if again != batches:
            differing = min(base for base in batches.keys() | again.keys() if batches.get(base) != again.get(base))
            history.breach(f"{place[0]}-{place[1]} of {name} differs from its files at offset {differing}")
        kept = 1 if place in live.compacted else BATCHES_KEPT
        _compare_producers(name, place, live.producers[place], replayed.producers.get(place, {}), kept, history)
    for index, group_state in live.groups.items():
        if replayed.groups.get(index) != group_state:
            history.breach(f"groups in __consumer_offsets-{index} of {name} are not what a replay gives")


def _compare_producers(
    name: str,
    place: TopicPartition,
    live: dict[int, ProducerFacts],
    replayed: dict[int, ProducerFacts],
    kept: int,
    history: History,
) -> None:
    """Compare the last batches of producers (five, or one in a compacted log). A replay may have fewer of them, but it
    must have the last one, and its batches must be equal."""
    for producer_id, known in live.items():
        again = replayed.get(producer_id, ProducerFacts(-1, [], -1))
        last, replayed_last = known.batches[-kept:], again.batches[-kept:]
        if (again.epoch, again.open_since) != (known.epoch, known.open_since):
            history.breach(
                f"{place[0]}-{place[1]} of {name} has {known} of producer {producer_id}, but a replay gives {again}"
            )
        elif last and (not replayed_last or last[-len(replayed_last) :] != replayed_last[-len(last) :]):
            history.breach(
                f"{place[0]}-{place[1]} of {name} has lost the last batch of producer {producer_id} in a replay"
            )
