"""Tests AlterClientQuotas over a socket. Kafka's responses are in tests/golden (test_against_golden.py)."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.metadata.quotas import Entity
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import alter_client_quotas as rpc
from tests.conftest import WithBroker

API = api_table.by_name["AlterClientQuotas"]
BOB: Entity = (("user", "bob"),)


def entry(entity: Entity, key: str, value: float | None) -> rpc.EntryData:
    parts = [rpc.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    return rpc.EntryData(entity=parts, ops=[rpc.OpData(key=key, value=value or 0.0, remove=value is None)])


def test_every_version_sets_and_removes(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in range(API.min, API.max + 1):
            for value, after in ((1000.0, {BOB: {"producer_byte_rate": 1000.0}}), (None, {})):
                asked = rpc.Request(entries=[entry(BOB, "producer_byte_rate", value)])
                told = await peer.ask("AlterClientQuotas", asked, version=version)
                [result] = told.entries
                assert (result.error_code, [(part.entity_type, part.entity_name) for part in result.entity]) == (
                    0,
                    list(BOB),
                )
                assert node.broker.metadata.image.quotas == after

    with_broker(scenario)


def test_each_entity_is_refused_separately(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        wanted = [entry(BOB, "unknown", 1.0), entry((("client-id", None),), "request_percentage", 1.0)]
        told = await peer.ask("AlterClientQuotas", rpc.Request(entries=wanted))
        assert [result.error_code for result in told.entries] == [ErrorCode.INVALID_REQUEST, 0]
        assert node.broker.metadata.image.quotas == {(("client-id", None),): {"request_percentage": 1.0}}

    with_broker(scenario)
