"""The common parts of coordinators: a log with their error codes, and a machine for each partition that they lead."""

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
"""The first and the longest pause before a partition is replayed after a bug, because the replay may cause the same bug
again."""

LOGGED_LIMIT = 10
"""The most unreadable records of one replay that are logged with their offsets."""

COORDINATOR_CODES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error codes of coordinators that replace error codes of the log, as in Apache Kafka. Other codes stay."""


class CoordinatorLog:
    """A StateLog with coordinator error codes. Turns Damage into a KafkaError, because the partition itself goes
    offline.

    - name: the name of the partition, for logging.
    - check: raises Damage if a record cannot be replayed.
    """

    __slots__ = ("_check", "_log", "_name", "is_checked")

    def __init__(self, log: StateLog, name: str, check: Callable[[Stored], None]) -> None:
        self._log = log
        self._name = name
        self._check = check
        self.is_checked = False
        """Whether each record is checked before it is replayed, and skipped if it is unreadable."""

    @property
    def end(self) -> int:
        return self._log.end

    @property
    def committed(self) -> int:
        return self._log.committed

    def append(self, records: Sequence[Stored]) -> int:
        """Append all records or none. Raises KafkaError with an error code of coordinators."""
        try:
            return self._log.append(records)
        except KafkaError as refusal:
            code = COORDINATOR_CODES.get(refusal.code, refusal.code)
            raise KafkaError(code, refusal.message) from refusal
        except Damage as damage:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(damage)) from damage

    def on_committed(self, callback: Callable[[], None]) -> None:
        self._log.on_committed(callback)

    async def replay(self) -> AsyncIterator[Sequence[Stored]]:
        """Every record from the start to the end. Raises Damage."""
        skipped = 0
        async for records in self._log.replay():
            if not self.is_checked:
                yield records
                continue
            sound = []
            for record in records:
                try:
                    self._check(record)
                except Damage as unreadable:
                    skipped += 1
                    self._tell(record, unreadable, skipped)
                else:
                    sound.append(record)
            yield sound
        if skipped > LOGGED_LIMIT:
            log.error("%s: skipped %d unreadable records in all", self._name, skipped)

    def _tell(self, record: Stored, unreadable: Damage, number: int) -> None:
        if number <= LOGGED_LIMIT:
            text = "%s: skipped the unreadable record at offset %d, so the previous value of its key remains: %s"
            log.error(text, self._name, record.offset, unreadable)


class LedPartition(Generic[M]):
    """A partition that this broker leads, with its machine and the state of its replay."""

    __slots__ = ("again_s", "epoch", "loading", "log", "machine", "refusal", "runner", "timer")

    def __init__(self, epoch: int, log: CoordinatorLog) -> None:
        self.epoch = epoch
        self.log = log
        self.machine: M
        self.runner: Runner
        self.again_s = AGAIN_S
        self.timer: asyncio.TimerHandle | None = None
        """The timer of the next replay after a bug."""
        self.loading: asyncio.Task[None] | None = None
        self.refusal: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        """The error code for requests until the machine is loaded; None after that."""


class LedPartitions(Generic[M]):
    """The partitions of one topic that this broker leads, with a machine for each.

    - make: creates a machine for a partition and leader epoch.
    - check: raises Damage if a machine could not replay a record.
    - on_loaded: called once a machine has been replayed.

    Unreadable records are skipped and logged, so that only these records are lost and not the whole partition. Records
    are checked only after a replay has failed because of one.

    A bug in a machine affects only its partition, which is replayed after a pause that doubles each time.
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
        """Makes replays run one at a time. Many at once would each take time in every turn of the event loop."""

    def __iter__(self) -> Iterator[LedPartition[M]]:
        return iter(list(self._led.values()))

    def items(self) -> list[tuple[int, LedPartition[M]]]:
        """Pairs of partition index and LedPartition, for all partitions that this broker leads."""
        return list(self._led.items())

    def runner(self, partition: int) -> Runner:
        """The Runner of a partition. Raises KafkaError: NOT_COORDINATOR if this broker does not lead it,
        COORDINATOR_LOAD_IN_PROGRESS during its replay, COORDINATOR_NOT_AVAILABLE if the replay failed."""
        led = self._led.get(partition)
        if led is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if led.refusal is not None:
            raise KafkaError(led.refusal)
        return led.runner

    def become_leader(self, partition: int, state_log: StateLog, epoch: int) -> None:
        """Replay a partition and start to serve it. Does nothing unless the epoch is newer than the known one."""
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
        led.loading.add_done_callback(_consume_exception)

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
        except KafkaError as refusal:  # a transient error, such as too few file descriptors
            log.error("cannot load %s-%d, next attempt in %.0f s: %s", self._topic, partition, led.again_s, refusal)
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
        """Refuse all waiting requests with NOT_COORDINATOR, because this broker no longer leads the partition."""
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
        """Resign from all partitions, because the broker stops."""
        for partition in list(self._led):
            self.resign(partition)

    async def committed(self) -> None:
        """Wait until all records are committed that the machines have decided on so far."""
        for led in self:
            await led.runner.committed()

    async def loaded(self) -> None:
        """Wait until the replay of every partition that this broker leads now has succeeded or failed."""
        loading: list[asyncio.Task[Any]] = [led.loading for led in self._led.values() if led.loading is not None]
        if loading:
            await asyncio.wait(loading)


def _consume_exception(loading: asyncio.Task[None]) -> None:
    """Retrieve the exception of a failed replay, so that asyncio does not also log it."""
    if not loading.cancelled():
        loading.exception()
