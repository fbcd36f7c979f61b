"""The share partition on the leader of its partition: it stores the records in flight, the sessions and the locks.

A share partition is loaded at its first fetch. It is removed from memory when the leader epoch ends, when the last
session of its group on this broker ends, or when the share coordinator refuses its writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.shares.commands import Write
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.partition import Acknowledgement, SharePartition
from kpybroker.shares.partition import Write as Queued
from kpybroker.shares.persister import Persister
from kpybroker.shares.runs import Letter
from kpybroker.shares.sessions import SessionKey, ShareSession, ShareSessions
from kpybroker.shares.settings import GroupRules
from kpybroker.shares.state import UNINITIALIZED
from kpybroker.tasks import begin
from kpybroker.world.expiry_clock import Alarm, ExpiryClock

log = logging.getLogger(__name__)

TO_CLIENTS = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""By error of the share coordinator, the error for clients; UNKNOWN_SERVER_ERROR for all others."""
FORGETTING = frozenset(
    {
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    }
)
"""Errors of the share coordinator after which this leader's state is invalid and is removed."""


class Waiter(Protocol):
    """A fetch that waits for records."""

    def settle(self) -> None: ...


WriteLetters = Callable[[ShareKey, Letter], Awaitable[int]]
"""Writes some dead letters, and returns the offset after the records that are done. Raises KafkaError."""
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 30.0
"""The first and the longest pause after dead letters could not be written, as in Kafka. Each pause is twice as long as
the previous one."""
FindStart = Callable[[str], Awaitable[int]]
"""Finds the offset where a group begins, from share.auto.offset.reset. Raises KafkaError."""


class LedSharePartition:
    """One share partition in one leader epoch. `share` is None until it has been loaded."""

    def __init__(
        self,
        key: ShareKey,
        leader_epoch: int,
        persister: Persister,
        rules: Callable[[], GroupRules],
        clock: ExpiryClock,
        forget: Callable[[LedSharePartition], None],
        write_letters: WriteLetters,
    ) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self.share: SharePartition | None = None
        self.refusal: KafkaError | None = None
        """The reason why this share partition has ended; None while it is in use."""
        self.waiters: dict[Waiter, None] = {}
        self._state_epoch = -1
        self._persister = persister
        self._rules = rules
        self._clock = clock
        self._forget = forget
        self._write_letters = write_letters
        self._writing_letters: asyncio.Task[None] | None = None
        self._asking: dict[int, asyncio.Future[KafkaError | None]] = {}
        """By ticket: the results of the acknowledgements that are not written yet."""
        self._task: asyncio.Task[None] | None = None
        self._timer: Alarm | None = None
        self._timer_ms = 0
        self._upper = 0
        self._is_offering = False
        """Whether the waiting fetches check in the next step of the event loop."""
        self._is_retired = False
        """Whether to end the share partition once everything is written."""

    # ---- loading

    def load(self, find_start: FindStart) -> None:
        """Begin to load the state."""
        self._begin(self._load(find_start))

    async def _load(self, find_start: FindStart) -> None:
        try:
            loaded = await self._persister.read(self.key, self.leader_epoch)
            start = loaded.start
            self._state_epoch = loaded.state_epoch
            if start == UNINITIALIZED:
                reset = self._rules().share_auto_offset_reset
                start = await find_start(reset)
                if reset != "earliest":  # another leader would find another start
                    await self._persister.write(
                        Write(self.key, loaded.state_epoch, self.leader_epoch, start, 0, loaded.batches)
                    )
        except KafkaError as refusal:
            self.end(refusal)
            return
        self.share = SharePartition(start, loaded.batches)
        self._settle_letters(self.share)
        self.wake()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = begin(work, f"the share partition {self.key.text}", self._broken)

    def _broken(self, reason: str) -> None:
        log.error("%s; it will be loaded again", reason)
        self.end(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, reason))

    def end(self, refusal: KafkaError) -> None:
        """End the share partition, and refuse everything that waits for it."""
        if self.refusal is not None:
            return
        self.refusal = _for_clients(refusal)
        self._forget(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._writing_letters is not None:
            self._writing_letters.cancel()
        for asked in self._asking.values():
            _settle(asked, self.refusal)
        self._asking.clear()
        self.wake()

    def close(self) -> None:
        """End, because the broker is stopping."""
        self.end(KafkaError(ErrorCode.NOT_COORDINATOR, "the broker stops"))
        if self._task is not None:
            self._task.cancel()

    def wake(self) -> None:
        """Let all waiting fetches check again, after the current step of the event loop."""
        for waiter in self.waiters:
            asyncio.get_running_loop().call_soon(waiter.settle)

    def note_upper(self, upper: int) -> None:
        """Store the offset up to which a fetch could read the log. When it grows, the partition wakes its fetches."""
        self._upper = upper

    def _offer(self) -> None:
        """Let waiting fetches check again for available records, after the current step of the event loop."""
        if self.waiters and not self._is_offering:
            self._is_offering = True
            asyncio.get_running_loop().call_soon(self._offer_to_waiters)

    def _offer_to_waiters(self) -> None:
        """Let one fetch check after the other, those that have waited longest first, while there are records: there
        may be many more fetches than records for them."""
        self._is_offering = False
        for waiter in list(self.waiters):
            offset = None if self.share is None else self.share.next_offset(self._rules().limits)
            if offset is None or offset >= self._upper:
                return
            waiter.settle()

    def retire(self, is_retired: bool) -> None:
        """Set whether to end the share partition once everything is written, because no member of the group has a
        session on this broker."""
        self._is_retired = is_retired
        self._retire_at_rest()

    def _retire_at_rest(self) -> None:
        if self._is_retired and (self.share is None or self.share.is_at_rest):
            self.end(KafkaError(ErrorCode.NOT_COORDINATOR, "no member of the group has a session"))

    # ---- acquired records

    def acknowledge(self, member_id: str, told: Sequence[Acknowledgement]) -> asyncio.Future[KafkaError | None] | None:
        """Acknowledge records. Returns a future of the write, which becomes None or the reason why the write failed;
        None instead of a future if there is nothing to write.

        Raises the same errors as `SharePartition.acknowledge`.
        """
        if self.refusal is not None:
            raise KafkaError(self.refusal.code, self.refusal.message)
        if self.share is None:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "nothing is acquired: the share partition is loading")
        self.expire()
        ticket = self.share.acknowledge(member_id, told, self._rules().limits, self._clock.now_ms())
        self.arm()
        if ticket is None:
            return None
        written: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        self._asking[ticket] = written
        self._write_on()
        return written

    def release(self, member_id: str) -> None:
        """Release the records of a member whose session has ended."""
        if self.share is not None and self.refusal is None and self.share.release(member_id, self._rules().limits):
            self._write_on()
            self._offer()

    def expire(self) -> None:
        """Release the records whose locks have ended."""
        if self.share is not None and self.share.expire(self._rules().limits, self._clock.now_ms()):
            self._write_on()
            self._offer()

    def arm(self) -> None:
        """Set the timer for the next end of a lock."""
        deadline_ms = None if self.share is None or self.refusal is not None else self.share.deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._clock.call_at(deadline_ms, self._lock_ended)

    def _lock_ended(self) -> None:
        self._timer = None
        self.expire()
        self.arm()

    # ---- writing

    def _write_on(self) -> None:
        """Write the queued changes, unless a write is in progress. In that case, the next write includes them."""
        assert self.share is not None, "nothing is written before the state is loaded"
        queued = self.share.take_write()
        if queued is not None:
            self._begin(self._write(self.share, queued))

    async def _write(self, share: SharePartition, queued: Queued) -> None:
        refusal: KafkaError | None = None
        command = Write(
            self.key, self._state_epoch, self.leader_epoch, queued.start, queued.complete_count, queued.batches
        )
        try:
            await self._persister.write(command)
        except KafkaError as refused:
            refusal = refused
        if self.refusal is not None:
            return
        if refusal is not None and refusal.code in FORGETTING:
            self.end(refusal)
            return
        share.written(queued, self._rules().limits, self._clock.now_ms(), done=refusal is None)
        for ticket in queued.tickets:
            _settle(self._asking.pop(ticket), None if refusal is None else _for_clients(refusal))
        self._write_on()
        self._settle_letters(share)
        self._offer()
        self._retire_at_rest()

    # ---- dead letters

    def _settle_letters(self, share: SharePartition) -> None:
        """Begin to write dead letters, if there are any, unless some are being written: these are then included."""
        if self._writing_letters is None and share.letters():
            work = self._write_all_letters(share)
            self._writing_letters = begin(work, f"the dead letters of {self.key.text}", self._broken)

    async def _write_all_letters(self, share: SharePartition) -> None:
        """Write dead letters and archive their records, until there are no more. Records whose dead letters cannot be
        written stay in flight: they are neither delivered nor lost."""
        pause_s = FIRST_PAUSE_S
        while letters := share.letters():
            try:
                done = await self._write_letters(self.key, letters[0])
            except KafkaError as refusal:
                log.warning(
                    "dead letters of %s are not written, and tried again in %g s: %s", self.key.text, pause_s, refusal
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
                continue
            pause_s = FIRST_PAUSE_S
            share.letters_written([letters[0]._replace(last=done - 1)])
            self._write_on()
        self._writing_letters = None


def _for_clients(refusal: KafkaError) -> KafkaError:
    return KafkaError(TO_CLIENTS.get(refusal.code, ErrorCode.UNKNOWN_SERVER_ERROR), refusal.message)


def _settle(asked: asyncio.Future[KafkaError | None], answer: KafkaError | None) -> None:
    if not asked.done():
        asked.set_result(answer)


class ShareLeader:
    """The share partitions and sessions of a broker.

    - rules: returns the settings of a group.
    - clock: the clock of acquisition locks.
    """

    def __init__(
        self,
        persister: Persister,
        rules: Callable[[str], GroupRules],
        clock: ExpiryClock,
        write_letters: WriteLetters,
    ) -> None:
        self.sessions = ShareSessions()
        self.rules = rules
        self.clock = clock
        self._persister = persister
        self._write_letters = write_letters
        self._led: dict[ShareKey, LedSharePartition] = {}

    def find(self, key: ShareKey) -> LedSharePartition | None:
        """The share partition, if a member has fetched it."""
        return self._led.get(key)

    def lead(self, key: ShareKey, leader_epoch: int, find_start: FindStart) -> LedSharePartition:
        """The share partition in this leader epoch. If it is new, begins to load it."""
        led = self._led.get(key)
        if led is not None and led.leader_epoch != leader_epoch:
            led.end(KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "the leader epoch has changed"))
            led = None
        if led is None:
            led = self._led[key] = LedSharePartition(
                key,
                leader_epoch,
                self._persister,
                lambda: self.rules(key.group_id),
                self.clock,
                self._forget,
                self._write_letters,
            )
            led.load(find_start)
        led.retire(False)
        return led

    def _forget(self, led: LedSharePartition) -> None:
        if self._led.get(led.key) is led:
            del self._led[led.key]

    def forget(self, topic_id: bytes, partition: int | None = None) -> None:
        """End the share partitions of a topic's partition that this broker no longer leads; None: of all its
        partitions."""
        for key in [key for key in self._led if key.topic_id == topic_id]:
            if partition in (None, key.partition):
                self._led[key].end(KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "another broker leads the partition"))

    # ---- sessions

    def close_session(self, key: SessionKey) -> None:
        """Close a member's session at its request, and release its records."""
        self._release(self.sessions.close(key))

    def closed(self, connection: int) -> None:
        """End the session of a closed connection, and release the member's records."""
        self._release(self.sessions.closed(connection))

    def _release(self, session: ShareSession | None) -> None:
        if session is None:
            return
        group_id, member_id = session.key
        for key in [key for key in self._led if key.group_id == group_id]:
            self._led[key].release(member_id)
        if not self.sessions.has_group(group_id):
            for key in [key for key in self._led if key.group_id == group_id]:
                self._led[key].retire(True)

    def close(self) -> None:
        """End, because the broker is stopping."""
        self.sessions.clear()
        for led in list(self._led.values()):
            led.close()
