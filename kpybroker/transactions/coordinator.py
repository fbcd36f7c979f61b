"""The transaction coordinator of a broker: one machine for each partition of `__transaction_state` that it leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import StateLog
from kpybroker.machine.coordinators import LedPartition, LedPartitions
from kpybroker.machine.runner import Runner
from kpybroker.metadata.hashing import partition_of
from kpybroker.topics import TRANSACTION_TOPIC, TopicPartition
from kpybroker.transactions.commands import (
    AddPartitions,
    AwaitEndings,
    Complete,
    Describe,
    End,
    InitProducerId,
    ListAll,
    ProducerIdWanted,
    Verify,
)
from kpybroker.transactions.machine import TransactionMachine, TransactionSettings
from kpybroker.transactions.markers import Markers
from kpybroker.transactions.records import check_record
from kpybroker.transactions.transaction import V2, Transaction
from kpybroker.world import World

log = logging.getLogger(__name__)

NO_LIMIT_MS = 0
RETRY_S = 0.05
_place = lru_cache(maxsize=10_000)(partition_of)


class TransactionCoordinator:
    """Finds the machine of a transactional id, and completes transactions in the states PrepareCommit and
    PrepareAbort.

    - partitions: returns the number of partitions that `__transaction_state` has, or will have.
    - level: returns the finalized `transaction.version`.
    - new_producer_id: returns a producer id that was never used.
    """

    def __init__(
        self,
        world: World,
        settings: TransactionSettings,
        partitions: Callable[[], int],
        level: Callable[[], int],
        new_producer_id: Callable[[], Awaitable[int]],
        markers: Markers,
    ) -> None:
        self._partitions = partitions
        self._level = level
        self._new_producer_id = new_producer_id
        self.markers = markers
        self._tasks: set[asyncio.Task[None]] = set()
        self.led = LedPartitions(
            TRANSACTION_TOPIC, world, lambda *_: TransactionMachine(settings, level), check_record, self._loaded
        )

    # ---- leadership

    def become_leader(self, partition: int, state_log: StateLog, epoch: int) -> None:
        """Load a partition, coordinate its transactional ids, and complete its decided transactions."""
        self.led.become_leader(partition, state_log, epoch)

    def resign(self, partition: int) -> None:
        """Called when another broker leads the partition, or it was deleted. The new leader sends the missing
        markers."""
        self.led.resign(partition)
        self.markers.forget(partition)

    def close(self) -> None:
        """Resign from all partitions and stop sending markers, because the broker is stopping."""
        self.led.close()
        self.markers.close()

    async def loaded(self) -> None:
        """Wait until every partition that this broker currently leads has been loaded or has failed to load."""
        await self.led.loaded()

    def partition_for(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` for a transactional id, chosen as in Kafka."""
        return _place(transactional_id, self._partitions())

    def runner(self, transactional_id: str) -> Runner:
        """The Runner of a transactional id. Raises INVALID_REQUEST if the id is empty, and the errors of
        `LedPartitions.runner`."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a transactional id must not be empty")
        return self.led.runner(self.partition_for(transactional_id))

    # ---- requests; `commands` lists their errors

    async def begin(self, command: InitProducerId, timeout_ms: int) -> tuple[int, int]:
        """Start a producer. Returns its producer id and epoch."""
        answer = await self.runner(command.transactional_id).ask(command, timeout_ms)
        if isinstance(answer, ProducerIdWanted):
            fresh = InitProducerId(
                command.transactional_id, command.timeout_ms, command.expected, await self._new_producer_id()
            )
            answer = await self.runner(command.transactional_id).ask(fresh, timeout_ms)
        assert isinstance(answer, tuple), "the Machine requests a new producer id at most once"
        return answer

    async def end(self, command: End, timeout_ms: int) -> tuple[int, int]:
        """Commit or abort. Returns the producer id and epoch of the next transaction. Also raises UNSUPPORTED_VERSION
        if the finalized transaction.version is lower than the version of the request requires."""
        if command.client_version >= V2 and self._level() < 1:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "transaction.version is 0")
        answer = await self.runner(command.transactional_id).ask(command, timeout_ms)
        if isinstance(answer, ProducerIdWanted):
            fresh = End(
                command.transactional_id,
                command.producer_id,
                command.producer_epoch,
                command.commit,
                command.client_version,
                await self._new_producer_id(),
            )
            answer = await self.runner(command.transactional_id).ask(fresh, timeout_ms)
        assert isinstance(answer, tuple), "the Machine requests a new producer id at most once"
        return answer

    async def add(self, command: AddPartitions, timeout_ms: int) -> None:
        """Add partitions. Returns when they have been added durably."""
        await self.runner(command.transactional_id).ask(command, timeout_ms)

    async def missing(self, command: Verify, timeout_ms: int) -> list[TopicPartition]:
        """The partitions that the transaction lacks."""
        found: list[TopicPartition] = await self.runner(command.transactional_id).ask(command, timeout_ms)
        return found

    async def describe(self, transactional_id: str, timeout_ms: int) -> Transaction:
        """The state of a transactional id."""
        found: Transaction = await self.runner(transactional_id).ask(Describe(transactional_id), timeout_ms)
        return found

    async def list(self, command: ListAll, timeout_ms: int) -> list[Transaction]:
        """The transactions of all partitions that this broker leads. Raises COORDINATOR_LOAD_IN_PROGRESS while a
        partition is being loaded."""
        found: list[Transaction] = []
        for led in self.led:
            if led.refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                raise KafkaError(led.refusal)
            if led.refusal is None:
                found += await led.runner.ask(command, timeout_ms)
        return found

    # ---- completion

    @property
    def is_ending(self) -> bool:
        """Whether a transaction has been decided on, and its end is not yet recorded."""
        return any(each.is_ending for led in self.led for each in led.machine.transactions.values())

    def _loaded(self, partition: int, led: LedPartition[TransactionMachine]) -> None:
        log.info("loaded %d transactional ids from %s-%d", len(led.machine.transactions), TRANSACTION_TOPIC, partition)
        task = asyncio.get_running_loop().create_task(self._see_to_the_end(partition, led))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see_to_the_end(self, partition: int, led: LedPartition[TransactionMachine]) -> None:
        """Send markers for all transactions whose PrepareCommit or PrepareAbort record is committed, while this broker
        leads the partition."""
        while led.runner.ready:
            try:
                endings: list[Transaction] = await led.runner.ask(AwaitEndings(), NO_LIMIT_MS)
            except KafkaError:  # the log refused the step that had the result, or this broker is no longer the leader
                await asyncio.sleep(RETRY_S)
                continue
            for ending in endings:
                self.markers.send(partition, led.epoch, ending, partial(self._complete, led))

    def _complete(self, led: LedPartition[TransactionMachine], ending: Transaction) -> None:
        """Record that all markers are written, and retry while the log refuses the record."""
        if not led.runner.ready:
            return
        try:
            led.runner.submit(Complete(ending), NO_LIMIT_MS, partial(self._completed, led, ending))
        except KafkaError as refusal:
            self._completed(led, ending, refusal)

    def _completed(self, led: LedPartition[TransactionMachine], ending: Transaction, answer: Any) -> None:
        if isinstance(answer, KafkaError) and led.runner.ready:
            asyncio.get_running_loop().call_later(RETRY_S, self._complete, led, ending)
