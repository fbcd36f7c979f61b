"""Registers this controller with the active controller (KIP-919), once per start, in a cluster with nodes of Apache
Kafka.

The record has the controller's listeners, for clients that ask controllers for their addresses, and its feature levels:
the active controller, of kpybroker or of Apache Kafka, finalizes no level that a registered controller does not
support. Nodes of kpybroker alone need no such records: Apache Kafka's controllers always register, and with the first
of them, all others do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from random import Random
from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.config.listeners import PROTOCOLS
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.storage.dirs.directory import random_id
from kpybroker.wire.rpc import controller_registration as rpc

log = logging.getLogger(__name__)

TIMEOUT_MS = 30_000
RETRY_S = 1


class ControllerRegistration:
    """`ask` is `ControllerChannel.ask`; `registered` returns the node ids of the registered controllers."""

    def __init__(
        self,
        config: BrokerConfig,
        random: Random,
        supported_features: Mapping[str, tuple[int, int]],
        ask: Callable[[str, Any, int], Awaitable[Any]],
        registered: Callable[[], Collection[int]],
    ) -> None:
        self._node_id = config.node_id
        self._ask = ask
        self._registered = registered
        self._changed = asyncio.Event()
        self._request = rpc.Request(
            controller_id=config.node_id,
            incarnation_id=random_id(random),
            listeners=[
                rpc.Listener(
                    name=at.name,
                    host=at.host,
                    port=at.port,
                    security_protocol=PROTOCOLS.index(at.protocol),
                )
                for at in config.advertised_controller_listeners
            ],
            features=[
                rpc.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in supported_features.items()
            ],
        )

    def look_again(self) -> None:
        """Check again whether any controller is registered, because the metadata has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Register as soon as any controller is registered, even if that is an earlier process of this one."""
        while not self._registered():
            self._changed.clear()
            await self._changed.wait()
        while not await self._register():
            await asyncio.sleep(RETRY_S)

    async def _register(self) -> bool:
        try:
            told = await self._ask("ControllerRegistration", self._request, TIMEOUT_MS)
        except KafkaError as refusal:
            log.info("controller %d is not registered yet: %s", self._node_id, refusal)
            return False
        if told.error_code:
            log.warning(
                "the active controller refused to register controller %d: %s",
                self._node_id,
                told.error_message or ErrorCode(told.error_code).name,
            )
        return True
