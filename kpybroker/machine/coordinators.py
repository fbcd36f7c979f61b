"""What coordinators share: their log, with the errors that their clients know, and machines that start and stop with
the leadership of a partition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.machine.contract import Machine, StateLog, Stored
from kpybroker.machine.runner import Runner
from kpybroker.world import World

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Machine)

AGAIN_S, AGAIN_MAX_S = 1.0, 60.0
"""How long a partition waits after its machine failed, since the same bug may occur again at once."""

TOLD_LIMIT = 10
"""How many unreadable records a replay logs with their offsets."""

IN_CLIENTS_WORDS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The translation by Kafka's coordinators; other codes are not translated."""


class CoordinatorLog:
    """A StateLog on top of another one. Damage becomes a refusal: the partition itself reports that it is offline.

    - name: of the partition.
    - check: raises Damage if a record cannot be replayed.
    """

    __slots__ = ("_check", "_log", "_name", "is_checked")

    def __init__(self, log: StateLog, name: str, check: Callable[[Stored], None]) -> None:
        self._log = log
        self._name = name
        self._check = check
        self.is_checked = False
        """Check each record before its replay, and skip it if it cannot be replayed."""

    @property
    def end(self) -> int:
        return self._log.end

    @property
    def committed(self) -> int:
        return self._log.committed

    def append(self, records: Sequence[Stored]) -> int:
        """Append all or nothing. Raises KafkaError with a code that clients of coordinators know."""
        try:
            return self._log.append(records)
        except KafkaError as refusal:
            code = IN_CLIENTS_WORDS.get(refusal.code, refusal.code)
            raise KafkaError(code, refusal.message) from refusal
        except Damage as damage:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(damage)) from damage

    def on_committed(self, callback: Callable[[], None]) -> None:
        self._log.on_committed(callback)

    async def replay(self) -> AsyncIterator[Sequence[Stored]]:
        """Every record from the start to the end. Raises Damage."""
        passed_over = 0
        async for records in self._log.replay():
            if not self.is_checked:
                yield records
                continue
            sound = []
            for record in records:
                try:
                    self._check(record)
                except Damage as unreadable:
                    passed_over += 1
                    self._tell(record, unreadable, passed_over)
                else:
                    sound.append(record)
            yield sound
        if passed_over > TOLD_LIMIT:
            log.error("%s: %d records that cannot be read are passed over in all", self._name, passed_over)

    def _tell(self, record: Stored, unreadable: Damage, number: int) -> None:
        if number <= TOLD_LIMIT:
            text = "%s: the record at offset %d cannot be read and is passed over, what was said before it holds: %s"
            log.error(text, self._name, record.offset, unreadable)


class LedPartition(Generic[M]):
    """A partition that this broker leads: its machine, and whether that has been loaded."""

    __slots__ = ("again_s", "epoch", "loading", "log", "machine", "refusal", "runner", "timer")

    def __init__(self, epoch: int, log: CoordinatorLog) -> None:
        self.epoch = epoch
        self.log = log
        self.machine: M
        self.runner: Runner
        self.again_s = AGAIN_S
        self.timer: asyncio.TimerHandle | None = None
        """When the partition is loaded again after a bug."""
        self.loading: asyncio.Task[None] | None = None
        self.refusal: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        """The answer to requests until the machine is loaded."""


class LedPartitions(Generic[M]):
    """The partitions of one topic that this broker leads, with a machine for each.

    - make: creates a machine for a partition and a leader epoch.
    - check: raises Damage if a machine could not replay a record.
    - on_loaded: called when a machine has been loaded.

    Unreadable records are skipped and logged: only their own content is lost. All records are checked only after a
    replay has met an unreadable one. A machine with a bug takes only its own partition out of service, which is loaded
    again after a pause that doubles each time.
    """

    def __init__(
        self,
        topic: str,
        world: World,
        make: Callable[[int, int], M],
        check: Callable[[Stored], None],
        on_loaded: Callable[[int, LedPartition[M]], None],
    ) -> None:
        self._topic = topic
        self._world = world
        self._make = make
        self._check = check
        self._on_loaded = on_loaded
        self._led: dict[int, LedPartition[M]] = {}
        self._turn = asyncio.Lock()
        """Replays run one at a time: fifty at once would each take a part of every turn of the loop."""

    def __iter__(self) -> Iterator[LedPartition[M]]:
        return iter(list(self._led.values()))

    def items(self) -> list[tuple[int, LedPartition[M]]]:
        """(partition, its machine) of all partitions."""
        return list(self._led.items())

    def runner(self, partition: int) -> Runner:
        """The Runner of a partition. Raises NOT_COORDINATOR if another broker leads it; COORDINATOR_LOAD_IN_PROGRESS
        while it is loaded; COORDINATOR_NOT_AVAILABLE if that failed."""
        led = self._led.get(partition)
        if led is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if led.refusal is not None:
            raise KafkaError(led.refusal)
        return led.runner

    def become_leader(self, partition: int, state_log: StateLog, epoch: int) -> None:
        """Load a partition and take commands for it. An epoch that is not above the known one changes nothing."""
        known = self._led.get(partition)
        if known is not None:
            if epoch <= known.epoch:
                return
            self.resign(partition)
        led = self._led[partition] = LedPartition(
            epoch, CoordinatorLog(state_log, f"{self._topic}-{partition}", self._check)
        )
        self._begin(partition, led)

    def _begin(self, partition: int, led: LedPartition[M]) -> None:
        led.refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._renew(partition, led)
        led.loading = asyncio.get_running_loop().create_task(self._load(partition, led))
        led.loading.add_done_callback(_is_told)

    def _renew(self, partition: int, led: LedPartition[M]) -> None:
        led.machine = self._make(partition, led.epoch)
        led.runner = Runner(led.machine, led.log, self._world, on_bug=partial(self._bug, partition, led))

    async def _replay(self, partition: int, led: LedPartition[M]) -> None:
        try:
            await led.runner.load()
        except Damage:
            if led.log.is_checked:
                raise
            led.log.is_checked = True
            self._renew(partition, led)
            await led.runner.load()

    async def _load(self, partition: int, led: LedPartition[M]) -> None:
        try:
            async with self._turn:
                await self._replay(partition, led)
        except Damage as unreadable:
            log.error("%s-%d cannot be loaded: %s", self._topic, partition, unreadable)
            led.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return
        except KafkaError as refusal:  # the log is there, and could not be read now: short descriptors, for one
            log.error("%s-%d is loaded again in %.0f s: %s", self._topic, partition, led.again_s, refusal)
            self._begin_again(partition, led)
            return
        led.refusal = None
        self._on_loaded(partition, led)

    def _bug(self, partition: int, led: LedPartition[M], bug: BaseException) -> None:
        if isinstance(bug, Damage) or led.refusal is ErrorCode.NOT_COORDINATOR:
            return
        log.error(
            "bug in the coordinator of %s-%d, which is replayed again in %.0f s",
            self._topic,
            partition,
            led.again_s,
            exc_info=bug,
        )
        self._begin_again(partition, led)

    def _begin_again(self, partition: int, led: LedPartition[M]) -> None:
        led.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        led.timer = asyncio.get_running_loop().call_later(led.again_s, self._begin, partition, led)
        led.again_s = min(2 * led.again_s, AGAIN_MAX_S)

    def resign(self, partition: int) -> None:
        """Another broker leads, or the partition is gone: answer all waiting requests with NOT_COORDINATOR."""
        led = self._led.pop(partition, None)
        if led is None:
            return
        if led.loading is not None:
            led.loading.cancel()
        if led.timer is not None:
            led.timer.cancel()
        led.refusal = ErrorCode.NOT_COORDINATOR
        led.runner.stop(KafkaError(ErrorCode.NOT_COORDINATOR))

    def close(self) -> None:
        """The broker stops: resign from everything."""
        for partition in list(self._led):
            self.resign(partition)

    async def loaded(self) -> None:
        """Wait until every partition that is led now has been loaded, or has failed to load."""
        loading: list[asyncio.Task[Any]] = [led.loading for led in self._led.values() if led.loading is not None]
        if loading:
            await asyncio.wait(loading)


def _is_told(loading: asyncio.Task[None]) -> None:
    """The Runner has logged a bug in a replay, so the loop need not."""
    if not loading.cancelled():
        loading.exception()
