"""Tells the controller which retired partitions have no records left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from kpybroker.broker.metadata_view import MetadataView
from kpybroker.config.partition_keys import EMPTY
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import AlterOp
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.retirements import Retirement
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.wire.rpc import incremental_alter_configs as rpc

log = logging.getLogger(__name__)

CONTROLLER_TIMEOUT_MS = 30_000


class EmptyPartitions:
    """The retired partitions that this broker leads.

    Each leader adds its partition to the setting `kpybroker.partitions.empty` of the topic when the partition accepts
    no more records and has none, and takes it out again if it has got one, such as a scheduled record. When all retired
    partitions are empty, they are no longer shown. `ask` is `ControllerChannel.ask`.
    """

    def __init__(
        self, metadata: MetadataView, hosting: Hosting, ask: Callable[[str, Any, int], Awaitable[Any]]
    ) -> None:
        self._metadata = metadata
        self._hosting = hosting
        self._ask = ask

    async def run(self, interval_s: float) -> None:
        """Report after each check of retention. Runs until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await self.report()

    async def report(self) -> None:
        """Report the partitions whose state has changed. What cannot be reported is reported the next time."""
        image = self._metadata.image
        for retirement in list(filter(None, map(image.retirement, image.retirements))):
            found = self._found(retirement)
            for operation, indexes in (
                (AlterOp.APPEND, [index for index in found if found[index] and index not in retirement.empty]),
                (AlterOp.SUBTRACT, [index for index in found if not found[index] and index in retirement.empty]),
            ):
                if indexes:
                    await self._tell(retirement.topic, operation, indexes)

    def _found(self, retirement: Retirement) -> dict[int, bool]:
        """Whether each retired partition that this broker leads is empty, by index."""
        found = {}
        for index in range(retirement.in_use, retirement.total):
            partition = self._hosting.find(retirement.topic, index)
            if partition is not None and partition.leads and partition.offline is None:
                is_closed = index in retirement.empty or self._metadata.is_closed(retirement.topic, index)
                found[index] = is_closed and partition.log.start == partition.log.end
        return found

    async def _tell(self, topic: str, operation: AlterOp, indexes: Collection[int]) -> None:
        value = ",".join(str(index) for index in indexes)
        change = rpc.AlterableConfig(name=EMPTY, config_operation=operation, value=value)
        resource = rpc.AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name=topic, configs=[change])
        try:
            told = await self._ask("IncrementalAlterConfigs", rpc.Request(resources=[resource]), CONTROLLER_TIMEOUT_MS)
        except (KafkaError, OSError) as failed:
            log.info("cannot report the empty partitions of %r: %s", topic, failed)
            return
        for row in told.responses:
            if row.error_code:
                text = row.error_message or ErrorCode(row.error_code).name
                log.info("the empty partitions of %r were not accepted: %s", topic, text)
