"""The membership of a broker in its cluster: channels to the active controller, registration and epoch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kpybroker.broker.controller_registration import ControllerRegistration
from kpybroker.broker.served_versions import ServedVersions
from kpybroker.client.dialer import controller_dialer
from kpybroker.config import BrokerConfig, Endpoint
from kpybroker.config.listeners import PROTOCOLS
from kpybroker.controller.features import supported_features
from kpybroker.raft.quorum import Quorum
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.replication.node.lifecycle import Lifecycle
from kpybroker.storage.dirs.directory import random_id
from kpybroker.wire.rpc import broker_registration
from kpybroker.world import World


class Membership:
    """Registers a broker and keeps it registered. `epoch` is -1 until the broker is registered."""

    def __init__(self, world: World, config: BrokerConfig, quorum: Quorum) -> None:
        self._random = world.random
        self._config = config
        self.supported_features = supported_features(config)
        """The lowest and highest supported level, by feature."""
        self.served_versions = ServedVersions.of(config.api_versions)
        dialer = controller_dialer(world, config)
        self.channel = ControllerChannel(dialer, quorum, f"broker-{config.node_id}")
        """The channel for every request to the active controller except registrations and heartbeats."""
        self._heartbeats = ControllerChannel(dialer, quorum, f"broker-{config.node_id}-heartbeat")
        self.controller: ControllerRegistration | None = None
        """The registration of this node's controller; None if it has none."""
        if "controller" in config.process_roles:
            self.controller = ControllerRegistration(
                config, world.random, self.supported_features, self.channel.ask, lambda: quorum.image.controllers
            )
        self.lifecycle: Lifecycle | None = None
        """None until the broker registers."""
        self.epoch = -1
        self._epoch_begun: Callable[[], None] = lambda: None

    def answer_here(self, answer: Callable[[str, Any], Awaitable[Any]]) -> None:
        """Pass requests to `answer` while the active controller is on this node."""
        self.channel.answer_here(answer)
        self._heartbeats.answer_here(answer)

    async def join(
        self,
        cluster_id: str,
        advertised: Sequence[Endpoint],
        log_dirs: Sequence[bytes],
        previous_epoch: int,
        *,
        metadata_offset: Callable[[], int],
        on_epoch: Callable[[], None],
        on_failure: Callable[[str], None],
        log_dirs_now: Callable[[], tuple[list[bytes], list[bytes]]],
        wants_fence: Callable[[], bool],
    ) -> None:
        """Register, and return once this broker is unfenced, so that clients can use it. Raises ConfigError.

        `log_dirs` are the ids of the online directories. `on_epoch` is called after every registration. For the other
        parameters, see `Lifecycle`.
        """
        registration = broker_registration.Request(
            broker_id=self._config.node_id,
            cluster_id=cluster_id,
            incarnation_id=random_id(self._random),
            listeners=[
                broker_registration.Listener(
                    name=e.name, host=e.host, port=e.port, security_protocol=PROTOCOLS.index(e.protocol)
                )
                for e in advertised
            ],
            features=[
                broker_registration.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in self.supported_features.items()
            ],
            rack=self._config.broker_rack,
            log_dirs=list(log_dirs),
            previous_broker_epoch=previous_epoch,
        )
        self._epoch_begun = on_epoch
        self.lifecycle = Lifecycle(
            self._heartbeats,
            self._config,
            registration,
            metadata_offset=metadata_offset,
            on_epoch=self._begin_epoch,
            on_failure=on_failure,
            log_dirs_now=log_dirs_now,
            wants_fence=wants_fence,
        )
        await self.lifecycle.join()

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._epoch_begun()

    def tell(self) -> None:
        """Send a heartbeat now, because there is something to report to the controller."""
        if self.lifecycle is not None:
            self.lifecycle.tell()

    def metadata_applied(self) -> None:
        """React to applied metadata: a broker that is waiting to be unfenced sends a heartbeat, and a controller
        registers if others have."""
        if self.controller is not None:
            self.controller.look_again()
        if self.lifecycle is not None:
            self.lifecycle.wake()

    async def leave(self) -> None:
        """Controlled shutdown: transfer the leaderships to other brokers while this broker still serves."""
        if self.lifecycle is not None and self._config.controlled_shutdown_enable:
            await self.lifecycle.leave()

    def close(self) -> None:
        """Stop the heartbeats and close the connections."""
        if self.lifecycle is not None:
            self.lifecycle.stop()
        self._heartbeats.close()
        self.channel.close()
