"""Sends the group coordinator's requests to share coordinators: to initialize or delete the state of share partitions.

Such a request is called an errand. It is sent once the record that announces it is committed. If the group coordinator
resigns before the errand is done, the errand is cancelled, and the next coordinator runs it again. Running an errand
twice has no effect if no member has consumed in the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import AwaitErrands, ErrandDone
from kpybroker.machine.runner import Runner

NO_LIMIT_MS = 0
RETRY_S = 0.05
RUNNING_MAX = 100
"""The maximum number of errands that run at a time, for each partition of `__consumer_offsets`."""


class InitializeState(NamedTuple):
    """Begin the state of share partitions of one topic. starts: the start offset of each, or -1 if it is not known."""

    group_id: str
    topic_id: bytes
    state_epoch: int
    partitions: tuple[int, ...]
    starts: tuple[int, ...]


class DeleteState(NamedTuple):
    """Delete the state of share partitions of one topic."""

    group_id: str
    topic_id: bytes
    partitions: tuple[int, ...]


Errand = InitializeState | DeleteState


class StateKeeper(Protocol):
    """Calls the share coordinators on any broker (`shares/persister.py`). Both methods raise KafkaError."""

    async def initialize(
        self, group_id: str, topic_id: bytes, state_epoch: int, starts: Sequence[tuple[int, int]]
    ) -> None:
        """Begin the state of share partitions; starts: (partition, start offset)."""

    async def delete(self, group_id: str, topic_id: bytes, partitions: Sequence[int]) -> None:
        """Delete the state of share partitions."""


class ErrandRunner:
    """Runs the errands of the partitions of `__consumer_offsets` that this broker leads."""

    def __init__(self, keeper: Callable[[], StateKeeper]) -> None:
        self._keeper = keeper
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, runner: Runner) -> None:
        """Run the errands of a machine while its Runner is ready."""
        self._begin(self._run_all(runner))

    def close(self) -> None:
        """Cancel all errands, because the broker is stopping."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run_all(self, runner: Runner) -> None:
        room = asyncio.Semaphore(RUNNING_MAX)
        running: set[asyncio.Task[None]] = set()
        while runner.ready:
            try:
                errands: list[Errand] = await runner.ask(AwaitErrands(), NO_LIMIT_MS)
            except KafkaError:  # the log refused the step with the answer, or this broker no longer leads
                await asyncio.sleep(RETRY_S)
                continue
            for errand in errands:
                await room.acquire()
                if not runner.ready:
                    break
                task = self._begin(self._run(runner, errand, room))
                running.add(task)
                task.add_done_callback(running.discard)
        for task in list(running):  # a late try could undo what the next coordinator's members have done since
            task.cancel()

    async def _run(self, runner: Runner, errand: Errand, room: asyncio.Semaphore) -> None:
        code = ErrorCode.NONE
        try:
            if isinstance(errand, InitializeState):
                starts = list(zip(errand.partitions, errand.starts, strict=True))
                await self._keeper().initialize(errand.group_id, errand.topic_id, errand.state_epoch, starts)
            else:
                await self._keeper().delete(errand.group_id, errand.topic_id, errand.partitions)
        except KafkaError as refusal:
            code = refusal.code
        finally:
            room.release()
        while runner.ready:
            try:
                await runner.ask(ErrandDone(errand, code), NO_LIMIT_MS)
            except KafkaError:
                await asyncio.sleep(RETRY_S)
            else:
                return
