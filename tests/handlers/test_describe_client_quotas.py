"""Tests which entities match a filter of DescribeClientQuotas. Kafka's responses are in tests/golden."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.handlers.describe_client_quotas import ANY, DEFAULT, EXACT, _passes
from kpybroker.metadata.quotas import Entity
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import alter_client_quotas
from kpybroker.wire.rpc import describe_client_quotas as rpc
from tests.conftest import WithBroker
from tests.handlers.test_alter_client_quotas import BOB, entry

API = api_table.by_name["DescribeClientQuotas"]

PARTS = st.dictionaries(st.sampled_from(["user", "client-id"]), st.sampled_from([None, "a", "b"]), min_size=1)
FILTERS = st.dictionaries(
    st.sampled_from(["user", "client-id"]),
    st.sampled_from([(EXACT, "a"), (EXACT, "b"), (DEFAULT, None), (ANY, None)]),
)


@given(PARTS, FILTERS, st.booleans())
def test_a_filter_matches_what_it_describes(
    parts: dict[str, str | None], filters: dict[str, tuple[int, str | None]], strict: bool
) -> None:
    wanted = {
        kind: rpc.ComponentData(entity_type=kind, match_type=how, match=name) for kind, (how, name) in filters.items()
    }
    described = all(
        kind in parts and (how == ANY or (how == EXACT and parts[kind] == name) or (how == DEFAULT and not parts[kind]))
        for kind, (how, name) in filters.items()
    )
    entity: Entity = tuple(sorted(parts.items()))
    assert _passes(entity, wanted, strict=strict) == (described and (not strict or set(parts) == set(filters)))


def test_every_version_returns_the_quotas(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _: Node) -> None:
        asked = alter_client_quotas.Request(entries=[entry(BOB, "request_percentage", 0.5)])
        await peer.ask("AlterClientQuotas", asked)
        for version in range(API.min, API.max + 1):
            told = await peer.ask("DescribeClientQuotas", rpc.Request(), version=version)
            [found] = told.entries
            assert [(part.entity_type, part.entity_name) for part in found.entity] == list(BOB)
            assert [(value.key, value.value) for value in found.values] == [("request_percentage", 0.5)]

    with_broker(scenario)


def test_an_invalid_filter_is_refused(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _: Node) -> None:
        wrong = rpc.ComponentData(entity_type="user", match_type=EXACT, match=None)
        told = await peer.ask("DescribeClientQuotas", rpc.Request(components=[wrong]))
        assert (told.error_code, told.entries) == (ErrorCode.INVALID_REQUEST, None)

    with_broker(scenario)
