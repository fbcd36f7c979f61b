"""Helpers that retire partitions, and write to and read single partitions."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.config.partition_keys import GRACE, IN_USE
from kpybroker.config.resource_type import ResourceType
from kpybroker.wire.rpc import create_partitions, metadata
from kpybroker.wire.rpc import incremental_alter_configs as rpc
from tests.handlers.fetching import asking, rows, values, want

SET, DELETE = 0, 1


async def altered(peer: Peer, topic: str, *changes: tuple[str, int, str | None]) -> tuple[int, str | None]:
    """Change settings of a topic: (name, operation, value). Returns the error code and text."""
    configs = [
        rpc.AlterableConfig(name=name, config_operation=operation, value=value) for name, operation, value in changes
    ]
    asked = rpc.AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name=topic, configs=configs)
    told = (await peer.ask("IncrementalAlterConfigs", rpc.Request(resources=[asked]))).responses[0]
    return told.error_code, told.error_message


async def retire(peer: Peer, topic: str, in_use: int, grace_ms: int = 600_000) -> None:
    """Have `in_use` partitions in use."""
    found = await altered(peer, topic, (IN_USE, SET, str(in_use)), (GRACE, SET, str(grace_ms)))
    assert found == (0, None)


async def grown(peer: Peer, topic: str, count: int) -> tuple[int, str | None]:
    """Send a CreatePartitions. Returns the error code and text."""
    wanted = create_partitions.CreatePartitionsTopic(name=topic, count=count, assignments=None)
    told = await peer.ask("CreatePartitions", create_partitions.Request(topics=[wanted], timeout_ms=5000))
    return told.results[0].error_code, told.results[0].error_message


async def shown(peer: Peer, *names: str) -> dict[str, Any]:
    """All topics that a client sees, or those with these names, by name."""
    asked = [metadata.MetadataRequestTopic(name=name) for name in names] or None
    told = await peer.ask("Metadata", metadata.Request(topics=asked, allow_auto_topic_creation=False))
    return {topic.name: topic for topic in told.topics}


async def counts(peer: Peer) -> dict[str, int]:
    """The number of partitions of each topic that a client sees."""
    return {name: len(topic.partitions) for name, topic in (await shown(peer)).items()}


async def read(peer: Peer, topic: str, index: int, *, version: int = 12, topic_id: bytes = bytes(16)) -> Any:
    """The values in a partition from offset 0 on, or the error code."""
    told = await peer.ask("Fetch", asking(topic, topic_id, want(index, 0)), version=version)
    row = rows(told)[index]
    return row.error_code or [value for _, value in values(row)]
