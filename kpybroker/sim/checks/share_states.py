"""Checks the states of a share group in the memory of leaders and share coordinators, and in replays of their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.machine.contract import Stored
from kpybroker.metadata.image import Image
from kpybroker.shares import records
from kpybroker.shares.batches import TERMINAL, DeliveryState
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.machine import ShareMachine, ShareSettings
from kpybroker.sim.checks.checks import batches_of
from kpybroker.sim.clients.share_sight import ShareSight
from kpybroker.sim.laws.share_law import ShareLaw
from kpybroker.sim.world.history import History
from kpybroker.topics import SHARE_STATE_TOPIC
from kpybroker.wire.records.batch import Batch, read_records

if TYPE_CHECKING:
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.shares.partition import SharePartition
    from kpybroker.shares.state import ShareState
    from kpybroker.sim.cluster.cluster import SimMachine

BATCH_MAX = 100
"""A number greater than the number of records in a batch of the workload."""


class ShareStates:
    """Reads the states on the nodes repeatedly, and stores them for comparison. most_deliveries, most_in_flight: the
    group's limits."""

    def __init__(
        self, history: History, sight: ShareSight, law: ShareLaw, most_deliveries: int, most_in_flight: int
    ) -> None:
        self._history = history
        self._sight = sight
        self._law = law
        self._most_deliveries = most_deliveries
        self._most_in_flight = most_in_flight
        self._reigns: dict[object, tuple[int, dict[int, tuple[DeliveryState, int]]]] = {}
        """By reign: its start, and the state and count of each offset in flight."""
        self._stored: dict[tuple[object, ShareKey], ShareState] = {}
        """The last state, by active coordinator and key."""

    def look(self, topic_id: bytes, indexes: range) -> None:
        """Check all nodes."""
        for node_id in self._sight.machines:
            for index in indexes:
                reign = self._sight.reign(node_id, topic_id, index)
                if reign is not None and reign.share is not None:
                    self.look_at(reign, index, reign.share)
        for machine in self._sight.machines.values():
            if machine.node is not None:
                for led in machine.node.broker.coordinators.shares.led:
                    for key, state in led.machine.states.items() if led.refusal is None else ():
                        check_order(self._history, key, self._stored.get((led, key)), state)
                        self._stored[led, key] = state

    def look_at(self, reign: object, index: int, share: SharePartition) -> None:
        """Check that within a reign the start never goes back, final states do not change, and counts never fall."""
        history, facts = self._history, self._law.facts(index)
        start, known = self._reigns.get(reign, (share.start, {}))
        found = {offset: (state, count) for offset, state, count, _ in share.states()}
        if share.start < start:
            history.breach(f"the start of share partition {index} went back from {start} to {share.start}")
        if share.in_flight > self._most_in_flight + BATCH_MAX:
            history.breach(f"{share.in_flight} records of share partition {index} are in flight")
        for offset, (state, count) in found.items():
            facts.counted(offset, count)
            was, counted = known.get(offset, (state, count))
            if count > self._most_deliveries or (state not in TERMINAL and count < counted):
                history.breach(f"offset {offset} of share partition {index} was delivered {counted} times, now {count}")
            if was in TERMINAL and state not in TERMINAL:
                history.breach(f"offset {offset} of share partition {index} was {was.name}, and is {state.name}")
        self._reigns[reign] = share.start, found


def check_order(history: History, key: ShareKey, before: ShareState | None, after: ShareState | None) -> None:
    """Check that no epoch goes back from one state to the next. The start must not go back either within a state epoch,
    once a leader has used the state; before that, an admin may alter the offsets again."""
    if before is None or after is None:
        return
    if after.state_epoch < before.state_epoch:
        history.breach(f"the state epoch of {key.text} went back from {before.state_epoch} to {after.state_epoch}")
    elif after.state_epoch == before.state_epoch and (before.batches or before.leader_epoch):
        if after.leader_epoch < before.leader_epoch:
            history.breach(f"the leader epoch of {key.text} went back from {before.leader_epoch}")
        if after.start < before.start:
            history.breach(f"the start of {key.text} went back from {before.start} to {after.start}")


def check_share_replay(machine: SimMachine, history: History) -> None:
    """Each partition of `__share_group_state` that the node leads replays to the state in its coordinator's memory."""
    node = machine.node
    if node is None:
        return
    coordinator = node.broker.coordinators.shares
    for index, led in coordinator.led.items():
        partition = node.broker.replication.hosting.find(SHARE_STATE_TOPIC, index)
        if led.refusal is not None or partition is None or partition.offline is not None:
            continue
        if replay(partition, led.machine.settings, history) != led.machine.states:
            history.breach(f"{SHARE_STATE_TOPIC}-{index} of {machine.name} does not replay to the state in memory")


def replay(partition: Partition, settings: ShareSettings, history: History) -> dict[ShareKey, ShareState]:
    """The states after a replay of a log's records."""
    fresh = ShareMachine(settings, Image)
    for _, data in batches_of(partition, partition.log.end):
        batch = Batch(memoryview(data))
        for record in () if batch.is_control else read_records(batch):
            stored = Stored(record.key, record.value, offset=record.offset)
            key = records.read_key(stored)
            before = fresh.states.get(key)
            fresh.apply(stored)
            check_order(history, key, before, fresh.states.get(key))
    return fresh.states
