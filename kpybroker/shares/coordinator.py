"""The share coordinator of a broker: one machine for each partition of `__share_group_state` that the broker leads.

The topic is not compacted. Instead, the coordinator deletes the beginning of each log that no replay needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache

from kpybroker.errors import Damage, KafkaError
from kpybroker.machine.contract import StateLog
from kpybroker.machine.coordinators import LedPartition, LedPartitions
from kpybroker.machine.runner import Runner
from kpybroker.metadata.hashing import partition_of
from kpybroker.metadata.image import Image
from kpybroker.shares.commands import (
    BeginRound,
    Delete,
    FindNeeded,
    Initialize,
    Read,
    ReadSummary,
    Write,
)
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.machine import ShareMachine, ShareSettings
from kpybroker.shares.records import check_record
from kpybroker.shares.state import ShareState
from kpybroker.topics import SHARE_STATE_TOPIC
from kpybroker.world import World

log = logging.getLogger(__name__)

PRUNE_TIMEOUT_MS = 60_000
_place = lru_cache(maxsize=10_000)(partition_of)


class ShareCoordinator:
    """Passes each command to the machine of its share partition.

    - partitions: returns the number of partitions that `__share_group_state` has, or will have.
    - image: returns the metadata, to find out which topics exist.
    - prune: deletes the records of a partition of `__share_group_state` below an offset. Raises KafkaError, Damage.
    - prune_interval_ms: the time between two prunings of a log.
    """

    def __init__(
        self,
        world: World,
        settings: ShareSettings,
        partitions: Callable[[], int],
        image: Callable[[], Image],
        prune: Callable[[int, int], Awaitable[None]],
        prune_interval_ms: int,
    ) -> None:
        self._partitions = partitions
        self._prune = prune
        self._prune_interval_s = prune_interval_ms / 1000
        self._pruning: dict[int, asyncio.Task[None]] = {}
        self.led = LedPartitions(
            SHARE_STATE_TOPIC, world, lambda *_: ShareMachine(settings, image), check_record, self._loaded
        )

    # ---- leadership

    def become_leader(self, partition: int, state_log: StateLog, epoch: int) -> None:
        """Load a partition of `__share_group_state`, and coordinate its share partitions."""
        self.led.become_leader(partition, state_log, epoch)

    def resign(self, partition: int) -> None:
        """Stop coordinating a partition, because another broker leads it or because it was deleted."""
        self.led.resign(partition)
        pruning = self._pruning.pop(partition, None)
        if pruning is not None:
            pruning.cancel()

    def close(self) -> None:
        """Resign from all partitions, because the broker is stopping."""
        self.led.close()
        for pruning in self._pruning.values():
            pruning.cancel()
        self._pruning.clear()

    async def loaded(self) -> None:
        """Wait until every partition that this broker currently leads has been loaded, or has failed to load."""
        await self.led.loaded()

    def partition_for(self, key: str) -> int:
        """The partition of `__share_group_state` for the text of a ShareKey, chosen as in Kafka."""
        return _place(key, self._partitions())

    def _runner(self, key: ShareKey) -> Runner:
        return self.led.runner(self.partition_for(key.text))

    # ---- commands, with the errors listed in `commands`

    async def initialize(self, command: Initialize, timeout_ms: int) -> None:
        """Return when the new state is durable."""
        await self._runner(command.key).ask(command, timeout_ms)

    async def read(self, command: Read, timeout_ms: int) -> ShareState:
        """The state, for the leader of the partition."""
        found: ShareState = await self._runner(command.key).ask(command, timeout_ms)
        return found

    async def write(self, command: Write, timeout_ms: int) -> None:
        """Return when the change is durable."""
        await self._runner(command.key).ask(command, timeout_ms)

    async def delete(self, command: Delete, timeout_ms: int) -> None:
        """Return when the deletion is durable."""
        await self._runner(command.key).ask(command, timeout_ms)

    async def read_summary(self, command: ReadSummary, timeout_ms: int) -> ShareState | None:
        """The committed state; None if there is none."""
        found: ShareState | None = await self._runner(command.key).ask(command, timeout_ms)
        return found

    def on_topics_deleted(self, topic_ids: Collection[bytes]) -> None:
        """Delete, in the background, the state of deleted topics."""
        for led in self.led:
            if led.refusal is None and any(key.topic_id in topic_ids for key in led.machine.states):
                led.runner.tell(BeginRound())

    # ---- pruning

    def _loaded(self, partition: int, led: LedPartition[ShareMachine]) -> None:
        log.info("loaded %d share partitions from %s-%d", len(led.machine.states), SHARE_STATE_TOPIC, partition)
        earlier = self._pruning.pop(partition, None)
        if earlier is not None:  # the machine was replayed again after a bug
            earlier.cancel()
        self._pruning[partition] = asyncio.get_running_loop().create_task(self._prune_on(partition, led))

    async def _prune_on(self, partition: int, led: LedPartition[ShareMachine]) -> None:
        """Prune the log periodically. The machine's answer arrives only after the snapshots on which it depends have
        committed."""
        while led.runner.ready:
            await asyncio.sleep(self._prune_interval_s)
            try:
                needed = await led.runner.ask(FindNeeded(), PRUNE_TIMEOUT_MS)
                await self._prune(partition, needed)
            except (KafkaError, Damage) as refusal:
                log.info("%s-%d is not pruned: %s", SHARE_STATE_TOPIC, partition, refusal)
