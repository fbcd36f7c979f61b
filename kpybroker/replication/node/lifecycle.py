"""Registers a broker with the controller, sends heartbeats, and requests a controlled shutdown (KIP-631)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError, ErrorCode, KafkaError
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.wire.rpc import broker_heartbeat, broker_registration

log = logging.getLogger(__name__)

RETRY_MS = 50
"""The pause between the heartbeats of a broker that waits to be unfenced, or for permission to shut down."""
SHUTDOWN_PATIENCE_MS = 5000
"""The time for which a broker that shuts down waits until other brokers lead its partitions."""
LEAVING_TIMEOUT_MS = 1000
"""The time for which a broker that shuts down tries to reach a controller."""
TAKEN_AFTER_SESSIONS = 3
"""The time for which a running broker tries to register again while another broker has its id, in session timeouts."""

FATAL = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the cluster id differs from the one in this directory's meta.properties; "
    "check controller.quorum.voters, or begin with an empty directory (log.dirs)",
    ErrorCode.UNSUPPORTED_VERSION: "the cluster runs at feature levels that this version does not support; "
    "upgrade this node, or downgrade the features (kafka-features)",
    ErrorCode.INVALID_REGISTRATION: "another broker is registered with the same data directory, or this node "
    "registered without one; give every node a directory of its own (log.dirs)",
    ErrorCode.INVALID_REQUEST: "the controller cannot use this node's registration; check listeners and node.id",
}
"""Errors that a retry cannot fix, and their remedies."""


class Stage(Enum):
    """The stages of a broker's lifecycle."""

    STARTING = "registers, and catches up with the metadata"
    RUNNING = "is unfenced, or will be unfenced again"
    LEAVING = "waits until other brokers lead its partitions"
    GONE = "may stop"


class Lifecycle:
    """`join` registers the broker, and returns when it is unfenced. Heartbeats are sent from then on, until `leave` has
    moved the broker's leaderships to other brokers.

    - registration: builds the request.
    - metadata_offset: returns the offset of the last record that this node has applied.
    - on_epoch: called with the epoch of every registration.
    - on_failure: called with the reason why this node cannot stay in the cluster.
    - log_dirs_now: returns the ids of directories that have failed since the registration (KIP-858), and of those that
      are cordoned (KIP-1066).
    - wants_fence: returns whether this broker requests to be fenced although it is running, so that other brokers lead.
    """

    def __init__(
        self,
        channel: ControllerChannel,
        config: BrokerConfig,
        registration: broker_registration.Request,
        metadata_offset: Callable[[], int],
        on_epoch: Callable[[int], None],
        on_failure: Callable[[str], None],
        log_dirs_now: Callable[[], tuple[list[bytes], list[bytes]]] = lambda: ([], []),
        wants_fence: Callable[[], bool] = lambda: False,
    ) -> None:
        self._channel = channel
        self._node_id = config.node_id
        self._session_ms = config.broker_session_timeout_ms
        self._interval_ms = max(min(config.broker_heartbeat_interval_ms, self._session_ms // 3), 1)
        self._start_timeout_ms = config.initial_broker_registration_timeout_ms
        self._registration = registration
        self._metadata_offset = metadata_offset
        self._on_epoch = on_epoch
        self._on_failure = on_failure
        self._log_dirs_now = log_dirs_now
        self._wants_fence = wants_fence
        self._wake = asyncio.Event()
        self._heartbeats: asyncio.Task[None] | None = None
        self._reached: asyncio.Future[None] | None = None
        self.stage = Stage.STARTING
        self.epoch = -1
        self.fenced = True
        self._answered_s = 0.0
        """The time at which a controller last responded to a heartbeat, in seconds of the event loop's clock."""

    async def join(self) -> None:
        """Register, then wait until the broker is unfenced. Raises ConfigError if no controller responds, or if it
        refuses this node."""
        await self._register(self._start_timeout_ms)
        self._reached = asyncio.get_running_loop().create_future()
        self._start_heartbeats()
        await self._reached

    async def leave(self, patience_ms: int = SHUTDOWN_PATIENCE_MS) -> bool:
        """Request a controlled shutdown, and wait until other brokers lead this broker's partitions. Returns False if
        that takes too long."""
        if self._heartbeats is None or self._heartbeats.done():
            return False
        self.stage = Stage.LEAVING
        self._reached = asyncio.get_running_loop().create_future()
        self._heartbeats.cancel()  # a heartbeat may wait for its response for a whole session timeout
        self._start_heartbeats()
        try:
            async with asyncio.timeout(patience_ms / 1000):
                await self._reached
        except TimeoutError:
            log.warning("no controller permitted the shutdown within %d ms; the broker stops anyway", patience_ms)
            return False
        return True

    def stop(self) -> None:
        """Stop the heartbeats."""
        self.stage = Stage.GONE
        if self._heartbeats is not None:
            self._heartbeats.cancel()

    def wake(self) -> None:
        """If the broker waits to be unfenced, send a heartbeat at once, because it has applied new metadata."""
        if self.stage is Stage.STARTING:
            self._wake.set()

    def tell(self) -> None:
        """Send a heartbeat now, because its contents have changed."""
        self._wake.set()

    @property
    def quiet_ms(self) -> int:
        """Milliseconds since a controller last responded to a heartbeat."""
        return int((asyncio.get_running_loop().time() - self._answered_s) * 1000)

    # ---- registration

    async def _register(self, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        is_said, refused = False, ErrorCode.NONE
        while True:
            left_ms = int((end - loop.time()) * 1000)
            try:
                reply = await self._channel.ask(
                    "BrokerRegistration", self._registration, max(left_ms, 1), try_ms=self._session_ms
                )
                code = ErrorCode(reply.error_code)
            except KafkaError as refusal:
                # there may be no majority yet, while other nodes are starting
                if (end - loop.time()) * 1000 > RETRY_MS:
                    await asyncio.sleep(RETRY_MS / 1000)
                    continue
                if refused is not ErrorCode.NONE:  # this refusal explains more than the timeout after it
                    raise ConfigError(self._refused(refused, timeout_ms)) from refusal
                raise ConfigError(
                    f"no controller accepted the registration of node {self._node_id} within {timeout_ms} ms "
                    f"({refusal}); check controller.quorum.voters, and check that those nodes are running"
                ) from refusal
            if code is ErrorCode.NONE:
                self.epoch = reply.broker_epoch
                self._on_epoch(self.epoch)
                return
            if code in FATAL:
                raise ConfigError(f"node {self._node_id} was refused with {code.name}: {FATAL[code]}")
            if left_ms <= RETRY_MS:
                raise ConfigError(self._refused(code, timeout_ms))
            refused = code
            # by now, the session of an earlier process has ended
            if not is_said and timeout_ms - left_ms > self._session_ms:
                is_said = True
                log.warning(
                    "node %d was refused with %s, and will retry for %d ms; is another node running with this node.id?",
                    self._node_id,
                    code.name,
                    left_ms,
                )
            await asyncio.sleep(RETRY_MS / 1000)

    def _refused(self, code: ErrorCode, timeout_ms: int) -> str:
        return (
            f"node {self._node_id} was refused with {code.name} for {timeout_ms} ms; "
            "is another node running with this node.id?"
        )

    # ---- heartbeats

    def _start_heartbeats(self) -> None:
        self._heartbeats = asyncio.get_running_loop().create_task(self._send_heartbeats())
        self._heartbeats.add_done_callback(self._ended)

    async def _send_heartbeats(self) -> None:
        while not self._is_over():
            self._wake.clear()
            await self._heartbeat()
            if self._is_over():
                return
            pause_ms = self._interval_ms if self.stage is Stage.RUNNING else min(RETRY_MS, self._interval_ms)
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _is_over(self) -> bool:
        return self.stage is Stage.GONE

    async def _heartbeat(self) -> None:
        offline, cordoned = self._log_dirs_now()
        request = broker_heartbeat.Request(
            broker_id=self._node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._metadata_offset(),
            want_fence=self._wants_fence(),
            offline_log_dirs=offline,
            cordoned_log_dirs=cordoned,
            want_shut_down=self.stage is Stage.LEAVING,
        )
        is_leaving = self.stage is Stage.LEAVING
        timeout_ms = min(self._session_ms, LEAVING_TIMEOUT_MS) if is_leaving else self._session_ms
        try:
            # a controller on this node may wait for ever for a majority of voters
            async with asyncio.timeout(timeout_ms / 1000 if is_leaving else None):
                reply = await self._channel.ask(
                    "BrokerHeartbeat", request, timeout_ms, try_ms=max(self._session_ms // 3, 1)
                )
        except (KafkaError, TimeoutError) as refusal:
            log.warning(
                "no controller responded to a heartbeat for %d ms: %s",
                timeout_ms,
                str(refusal) or "no response in time",
            )
            if is_leaving:
                self._reach(Stage.GONE)  # no broker can take over the leaderships: the whole cluster may be stopping
            return
        if reply.error_code == ErrorCode.STALE_BROKER_EPOCH:
            await self._register_again()
        elif reply.error_code:
            log.warning("the controller refused a heartbeat with %s", ErrorCode(reply.error_code).name)
        else:
            self._take(reply)

    async def _register_again(self) -> None:
        """Register again, because the controller no longer has this registration: it was removed, or another node has
        the id."""
        if self.stage is Stage.LEAVING:
            self._reach(Stage.GONE)
            return
        log.warning("the controller does not know epoch %d of this broker; the broker registers again", self.epoch)
        await self._register(self._session_ms * TAKEN_AFTER_SESSIONS)

    def _take(self, reply: broker_heartbeat.Response) -> None:
        if reply.is_fenced and not self.fenced and self.stage is Stage.RUNNING:
            log.warning("the controller has fenced this broker")
        self.fenced = reply.is_fenced
        self._answered_s = asyncio.get_running_loop().time()
        if self.stage is Stage.LEAVING:
            if reply.should_shut_down:
                self._reach(Stage.GONE)
        elif self.stage is Stage.STARTING and not self.fenced:
            self._reach(Stage.RUNNING)

    def _reach(self, stage: Stage) -> None:
        self.stage = stage
        if self._reached is not None and not self._reached.done():
            self._reached.set_result(None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Handle the end of the heartbeats: `stop` or `leave` was called, or this node cannot stay in the cluster."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if self._reached is not None and not self._reached.done():
            self._reached.set_exception(error)
        else:
            self._on_failure(str(error))
