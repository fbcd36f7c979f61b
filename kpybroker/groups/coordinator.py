"""The group coordinator of a broker: one machine for each partition of `__consumer_offsets` that the broker leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from uuid import UUID

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import DropTopics, EndTransaction, ListGroups
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.machine import GroupMachine
from kpybroker.groups.record_check import check_record
from kpybroker.groups.share.errands import ErrandRunner, StateKeeper
from kpybroker.machine.contract import StateLog
from kpybroker.machine.coordinators import LedPartition, LedPartitions
from kpybroker.machine.runner import Runner
from kpybroker.metadata.hashing import partition_of
from kpybroker.metadata.image import Image
from kpybroker.topics import OFFSETS_TOPIC
from kpybroker.wire.records.markers import Marker
from kpybroker.world import World

log = logging.getLogger(__name__)

BACKGROUND_TIMEOUT_MS = 60_000
_place = lru_cache(maxsize=10_000)(partition_of)


class GroupCoordinator:
    """Finds the machine of a group.

    - partitions: returns the number of partitions that `__consumer_offsets` has, or will have.
    - image: returns the metadata with the topics to which groups subscribe.
    - keeper: returns what calls the share coordinators. If None, the errands of share groups (requests to share
      coordinators) are not run.
    """

    def __init__(
        self,
        world: World,
        settings: GroupSettings,
        partitions: Callable[[], int],
        image: Callable[[], Image] = Image,
        keeper: Callable[[], StateKeeper] | None = None,
    ) -> None:
        self._world = world
        self._errands = None if keeper is None else ErrandRunner(keeper)
        self._image = image
        self._settings = settings
        self._partitions = partitions
        self._tasks: set[asyncio.Task[None]] = set()
        self._deleted_meanwhile: dict[int, dict[str, bytes]] = {}
        """Topics that were deleted while a partition was loading, by the partition that was loading."""
        self.led = LedPartitions(OFFSETS_TOPIC, world, self._machine, check_record, self._loaded)

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` for a group, chosen as in Kafka."""
        return _place(group_id, self._partitions())

    def runner(self, group_id: str, *, may_be_empty: bool = False) -> Runner:
        """The Runner of a group's partition. `may_be_empty`: also accept an empty group id, which, as in Kafka, may
        only have offsets.

        Raises INVALID_GROUP_ID; NOT_COORDINATOR if another broker leads the partition; COORDINATOR_LOAD_IN_PROGRESS
        while it is loaded; COORDINATOR_NOT_AVAILABLE if that failed.
        """
        if not group_id and not may_be_empty:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group needs an id")
        return self.led.runner(self.partition_for(group_id))

    def configure(self, settings: GroupSettings) -> None:
        """Apply settings that changed while the broker runs. Only settings of consumer groups can change."""
        self._settings = settings
        for led in self.led:
            led.machine.configure(settings)

    # -- leadership -----------------------------------------------------------------------------------------------

    def become_leader(self, partition: int, state_log: StateLog, epoch: int) -> None:
        """Load a partition and coordinate its groups. Does nothing unless the epoch is higher than the known one."""
        self.led.become_leader(partition, state_log, epoch)

    def _machine(self, _partition: int, _epoch: int) -> GroupMachine:
        return GroupMachine(self._settings, self.new_member_id, self._image)

    def _loaded(self, partition: int, led: LedPartition[GroupMachine]) -> None:
        log.info("loaded %d groups from %s-%d", led.machine.stored_count, OFFSETS_TOPIC, partition)
        if self._errands is not None:
            self._errands.serve(led.runner)
        deleted = self._deleted_meanwhile.pop(partition, None)
        if deleted:
            self._start_drop(led, deleted)

    def resign(self, partition: int) -> None:
        """Called when another broker leads the partition, or it was deleted. Refuses waiting requests with
        NOT_COORDINATOR."""
        self.led.resign(partition)
        self._deleted_meanwhile.pop(partition, None)

    def close(self) -> None:
        """Resign from all partitions, because the broker stops."""
        self.led.close()
        if self._errands is not None:
            self._errands.close()
        self._deleted_meanwhile.clear()

    async def loaded(self) -> None:
        """Wait until every partition that this broker leads now has been loaded or has failed to load."""
        await self.led.loaded()

    def end_transaction(self, partition: int, marker: Marker, timeout_ms: int) -> asyncio.Future[None]:
        """Write a marker. The returned future is done when the marker has committed or was refused.

        Raises COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
        """
        runner = self.led.runner(partition)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(answer: KafkaError | None) -> None:
            if ended.done():
                return
            if isinstance(answer, KafkaError):
                ended.set_exception(answer)
            else:
                ended.set_result(None)

        runner.submit(EndTransaction(marker), timeout_ms, done)
        return ended

    # -- all partitions -------------------------------------------------------------------------------------------

    async def list(self, command: ListGroups, timeout_ms: int) -> list[Any]:
        """The groups of all partitions that this broker leads. Raises COORDINATOR_LOAD_IN_PROGRESS while a partition is
        being loaded."""
        found: list[Any] = []
        for led in self.led:
            if led.refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                raise KafkaError(led.refusal)
            if led.refusal is None:
                found += await led.runner.ask(command, timeout_ms)
        return found

    def on_topics_deleted(self, topics: Mapping[str, bytes]) -> None:
        """Delete the offsets of deleted topics in the background. `topics`: the ids of the topics by name."""
        for partition, led in self.led.items():
            if led.refusal is None:
                self._start_drop(led, topics)
            else:
                self._deleted_meanwhile.setdefault(partition, {}).update(topics)

    def _start_drop(self, led: LedPartition[GroupMachine], topics: Mapping[str, bytes]) -> None:
        task = asyncio.get_running_loop().create_task(self._drop(led, topics))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drop(self, led: LedPartition[GroupMachine], topics: Mapping[str, bytes]) -> None:
        try:
            while await led.runner.ask(DropTopics(topics), BACKGROUND_TIMEOUT_MS):
                pass
        except KafkaError as refusal:
            log.info("offsets of %d deleted topics are left to the next coordinator: %s", len(topics), refusal)

    def new_member_id(self) -> str:
        """A random UUID."""
        return str(UUID(int=self._world.random.getrandbits(128), version=4))
