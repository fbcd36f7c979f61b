"""Finds the broker that coordinates a group or a transactional id."""

from __future__ import annotations

from kpybroker.client.client import Client, check
from kpybroker.wire.rpc import find_coordinator

OF_GROUPS, OF_TRANSACTIONS = 0, 1
"""Coordinator types of FindCoordinator."""


async def coordinator(client: Client, name: str, kind: int = OF_GROUPS) -> int:
    """The coordinator of a group or transactional id. Adds its address to the client. Raises KafkaError."""

    async def attempt() -> int:
        request = find_coordinator.Request(key=name, key_type=kind, coordinator_keys=[name])
        response = await client.ask("FindCoordinator", request)
        found = response.coordinators[0] if response.coordinators else response
        check(found.error_code, found.error_message or f"the coordinator of {name}")
        client.brokers[found.node_id] = (found.host, found.port)
        return int(found.node_id)

    return await client.patiently(attempt)
