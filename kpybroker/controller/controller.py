"""The controller of this node: a Machine and its Runner while this node is the active controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from kpybroker.config import BrokerConfig
from kpybroker.controller.commands import Command
from kpybroker.controller.machine import ControllerMachine
from kpybroker.controller.presence import Presence
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import StateLog, Stored
from kpybroker.machine.runner import Runner
from kpybroker.metadata.brokers import BrokerImage
from kpybroker.storage.dirs.directory import folds_case
from kpybroker.world import World
from kpybroker.world.expiry_clock import ExpiryClock


class Leadership(StateLog, Protocol):
    """The part of the quorum that the controller uses."""

    @property
    def epoch(self) -> int: ...

    @property
    def is_active(self) -> bool:
        """Whether this node is the leader, and `replay` returns all records."""

    def on_leadership(self, callback: Callable[[], None]) -> None: ...


class _Term:
    """The quorum's log during one term of this controller. Once the term has ended, callbacks are not called."""

    def __init__(self, quorum: Leadership) -> None:
        self._quorum = quorum
        self.committed_callbacks: list[Callable[[], None]] = []

    @property
    def end(self) -> int:
        return self._quorum.end

    @property
    def committed(self) -> int:
        return self._quorum.committed

    def append(self, records: Sequence[Stored]) -> int:
        return self._quorum.append(records)

    def on_committed(self, callback: Callable[[], None]) -> None:
        self.committed_callbacks.append(callback)

    def replay(self) -> AsyncIterator[Sequence[Stored]]:
        return self._quorum.replay()


class Controller:
    """Accepts commands while this node is the active controller; otherwise refuses them with NOT_CONTROLLER."""

    def __init__(
        self,
        world: World,
        config: BrokerConfig,
        quorum: Leadership,
        on_bug: Callable[[BaseException], None],
        applied: Callable[[int], int] | None = None,
    ) -> None:
        self._applied = applied
        self._world = world
        self._config = config
        self._directories = {config.metadata_log_dir, *config.log_dirs}
        self._quorum = quorum
        self._on_bug = on_bug
        self._term: _Term | None = None
        self._runner: Runner | None = None
        self._epoch = -1
        self._loading: asyncio.Task[None] | None = None
        self.presence = Presence(world.network, self, config.node_id)
        self._stopped = False

    @property
    def is_active(self) -> bool:
        """Whether commands are accepted."""
        return self._runner is not None and self._runner.ready

    @property
    def machine(self) -> ControllerMachine:
        """The Machine of the current term; exists while `is_active`."""
        assert self._runner is not None, "this node is not the active controller"
        assert isinstance(self._runner.machine, ControllerMachine)
        return self._runner.machine

    @property
    def brokers(self) -> Mapping[int, BrokerImage]:
        """The registered brokers by node id, while `is_active`."""
        return self.machine.state.brokers

    async def load(self) -> None:
        """Follow the quorum from now on. If this node is already active, it accepts commands as soon as this method
        returns."""
        self._quorum.on_committed(self._committed)
        self._quorum.on_leadership(self._follow)
        self._follow()
        if self._loading is not None:
            await asyncio.shield(self._loading)

    async def ask(self, command: Command, timeout_ms: int) -> Any:
        """Decide on a command and wait until its records are committed. Returns its answer. Raises KafkaError."""
        if self._runner is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this node is not the active controller")
        return await self._runner.ask(command, timeout_ms)

    def tell(self, command: Command) -> None:
        """Decide on a command without waiting. This has no effect if this node is not active."""
        if self._runner is not None:
            self._runner.tell(command)

    def stop(self, error: KafkaError) -> None:
        """Refuse all commands from now on."""
        self._stopped = True
        self.presence.stop()
        self._end_term(error)

    def _follow(self) -> None:
        """Begin or end a term if the leadership of the quorum has changed."""
        if self._stopped:
            return
        active, epoch = self._quorum.is_active, self._quorum.epoch
        if self._runner is not None and (not active or epoch != self._epoch):
            self._end_term(KafkaError(ErrorCode.NOT_CONTROLLER, "another node has become the active controller"))
        if active and self._runner is None:
            self._begin_term(epoch)

    def _begin_term(self, epoch: int) -> None:
        self._epoch = epoch
        self._term = _Term(self._quorum)
        world = self._world
        self._runner = Runner(
            ControllerMachine(
                self._config,
                world.random,
                lambda: self._quorum.end,
                self._applied,
                folds_case=any(folds_case(world, path) for path in self._directories),
            ),
            self._term,
            world,
            loading_code=ErrorCode.NOT_CONTROLLER,
            late_code=ErrorCode.REQUEST_TIMED_OUT,
            on_bug=self._on_bug,
            clock=ExpiryClock(world.steady_ms),  # never advanced: brokers' heartbeats do not come sooner
        )
        self._loading = asyncio.get_running_loop().create_task(self._load(self._runner))

    async def _load(self, runner: Runner) -> None:
        await runner.load()
        if runner is self._runner and runner.ready:
            self.presence.begin_term()

    def _end_term(self, error: KafkaError) -> None:
        runner, self._runner, self._term = self._runner, None, None
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        if runner is not None:
            runner.stop(error)

    def _committed(self) -> None:
        if self._term is not None:
            for callback in self._term.committed_callbacks:
                callback()
