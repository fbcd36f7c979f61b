"""Calls the coordinators of share partitions, on any broker, for partition leaders and for the group coordinator.

A coordinator on this broker is called directly, others by requests of several rows. After a retriable error, the
call is retried a few times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from kpybroker.client.broker_connections import BrokerConnections
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.shares.batches import StateBatch
from kpybroker.shares.commands import Delete, Initialize, Read, ReadSummary, Write
from kpybroker.shares.coordinator import ShareCoordinator
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.state import NO_COUNT, UNINITIALIZED
from kpybroker.shares.state_requests import DELETE, INITIALIZE, READ, READ_SUMMARY, WRITE, StateApi, StateRequests
from kpybroker.topics import SHARE_STATE_TOPIC
from kpybroker.wire.rpc import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)

T = TypeVar("T")

TRIES = 5
FIRST_PAUSE_S = 0.05
PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Errors after which the coordinator is looked up again."""
AT_ONCE = 500
"""The maximum number of share partitions for which one call has requests in progress at a time."""


class LoadedState(NamedTuple):
    """The state with which a leader begins. start: UNINITIALIZED if the leader has to find the start itself."""

    state_epoch: int
    start: int
    batches: tuple[StateBatch, ...]


class Summary(NamedTuple):
    """The position of a share group in a partition. start: UNINITIALIZED if it is not known."""

    start: int = UNINITIALIZED
    leader_epoch: int = 0
    complete_count: int = NO_COUNT


class Persister:
    """Finds the coordinator of each share partition in the metadata.

    - create_topic: creates `__share_group_state` unless it exists. Raises KafkaError.
    - timeout_ms: returns the time to wait for a coordinator's response.
    """

    def __init__(
        self,
        node_id: int,
        image: Callable[[], Image],
        coordinator: ShareCoordinator,
        connections: BrokerConnections,
        create_topic: Callable[[], Awaitable[None]],
        timeout_ms: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._coordinator = coordinator
        self._requests = StateRequests(connections)
        self._create_topic = create_topic
        self._timeout_ms = timeout_ms

    # ---- for the group coordinator; all of these raise KafkaError

    async def initialize(
        self, group_id: str, topic_id: bytes, state_epoch: int, starts: Sequence[tuple[int, int]]
    ) -> None:
        """Begin the state of share partitions of a topic; starts: (partition, start offset)."""
        commands = [Initialize(ShareKey(group_id, topic_id, index), state_epoch, start) for index, start in starts]
        await _all(commands, self._initialize)

    async def delete(self, group_id: str, topic_id: bytes, partitions: Sequence[int]) -> None:
        """Delete the state of share partitions of a topic. Does nothing for a topic that was deleted."""
        try:
            await _all([Delete(ShareKey(group_id, topic_id, index)) for index in partitions], self._delete)
        except KafkaError as refusal:
            if refusal.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or self._image().topic_by_id(topic_id):
                raise

    async def summaries(self, keys: Sequence[ShareKey]) -> list[Summary | KafkaError]:
        """The summary of each share partition, or the error if it is not known."""

        async def ask(key: ShareKey) -> Summary | KafkaError:
            try:
                return await self._summary(key)
            except KafkaError as refusal:
                return refusal

        found: list[Summary | KafkaError] = []
        for begin in range(0, len(keys), AT_ONCE):
            found += await asyncio.gather(*(ask(key) for key in keys[begin : begin + AT_ONCE]))
        return found

    # ---- for the leaders of share partitions

    async def read(self, key: ShareKey, leader_epoch: int) -> LoadedState:
        """The state for a new leader. Raises the KafkaErrors of `commands.Read`, or another one if no coordinator
        responds."""

        async def here() -> LoadedState:
            state = await self._coordinator.read(Read(key, leader_epoch), self._timeout_ms())
            return LoadedState(state.state_epoch, state.start, state.batches)

        rpc = read_share_group_state
        row = rpc.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
        return await self._ask(
            key,
            here,
            READ,
            row,
            lambda told: LoadedState(
                told.state_epoch,
                told.start_offset,
                tuple(
                    StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
                    for each in told.state_batches
                ),
            ),
        )

    async def write(self, command: Write) -> None:
        """Return when the change is durable. Raises the KafkaErrors of `commands.Write`, or another one if no
        coordinator responds."""
        key, rpc = command.key, write_share_group_state
        row = rpc.PartitionData(
            partition=key.partition,
            state_epoch=command.state_epoch,
            leader_epoch=command.leader_epoch,
            start_offset=command.start,
            delivery_complete_count=command.complete_count,
            state_batches=[
                rpc.StateBatch(
                    first_offset=each.first,
                    last_offset=each.last,
                    delivery_state=each.state,
                    delivery_count=each.deliveries,
                )
                for each in command.batches
            ],
        )
        await self._ask(
            key,
            lambda: self._coordinator.write(command, self._timeout_ms()),
            WRITE,
            row,
            _nothing,
        )

    # ---- one share partition

    async def _initialize(self, command: Initialize) -> None:
        key, rpc = command.key, initialize_share_group_state
        row = rpc.PartitionData(partition=key.partition, state_epoch=command.state_epoch, start_offset=command.start)
        await self._ask(
            key,
            lambda: self._coordinator.initialize(command, self._timeout_ms()),
            INITIALIZE,
            row,
            _nothing,
        )

    async def _delete(self, command: Delete) -> None:
        key, rpc = command.key, delete_share_group_state
        row = rpc.PartitionData(partition=key.partition)
        await self._ask(
            key,
            lambda: self._coordinator.delete(command, self._timeout_ms()),
            DELETE,
            row,
            _nothing,
        )

    async def _summary(self, key: ShareKey) -> Summary:
        async def here() -> Summary:
            state = await self._coordinator.read_summary(ReadSummary(key), self._timeout_ms())
            return Summary() if state is None else Summary(state.start, state.leader_epoch, state.complete_count)

        rpc = read_share_group_state_summary
        row = rpc.PartitionData(partition=key.partition, leader_epoch=-1)
        return await self._ask(
            key,
            here,
            READ_SUMMARY,
            row,
            lambda told: Summary(told.start_offset, told.leader_epoch, told.delivery_complete_count),
        )

    async def _ask(
        self, key: ShareKey, here: Callable[[], Awaitable[T]], api: StateApi, row: Any, read: Callable[[Any], T]
    ) -> T:
        """The coordinator's response: the result of `here` if it is on this broker; otherwise the API's row for the
        share partition, converted by `read`. row: the row of the request."""
        pause_s = FIRST_PAUSE_S
        for left in reversed(range(TRIES)):
            try:
                node_id = await self._coordinator_of(key)
                if node_id == self._node_id:
                    return await here()
                return read(await self._requests.ask(node_id, api, key, row, self._timeout_ms()))
            except KafkaError as refusal:
                if refusal.code not in PASSING or not left:
                    raise
            await asyncio.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("the last try returns or raises")

    async def _coordinator_of(self, key: ShareKey) -> int:
        if self._image().topic(SHARE_STATE_TOPIC) is None:
            await self._create_topic()
            await self._coordinator.loaded()
        topic = self._image().topic(SHARE_STATE_TOPIC)
        leader = -1 if topic is None else topic.partitions[self._coordinator.partition_for(key.text)].leader
        if leader < 0:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the partition of {SHARE_STATE_TOPIC} for this share partition has no leader",
            )
        return leader

    def close(self) -> None:
        """Stop all calls, because the broker is stopping."""
        self._requests.close()


def _nothing(_row: Any) -> None:
    """Ignore the row. A row without an error only confirms the request."""


async def _all(commands: Sequence[Any], do: Callable[[Any], Awaitable[None]]) -> None:
    """Execute all commands, a limited number at a time. Raises the first error."""
    for begin in range(0, len(commands), AT_ONCE):
        await asyncio.gather(*(do(command) for command in commands[begin : begin + AT_ONCE]))
