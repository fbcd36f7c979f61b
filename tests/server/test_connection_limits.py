"""The number of connections is limited, but nodes of the cluster can connect even if clients use all connections."""

from __future__ import annotations

import asyncio

import pytest

from kpybroker.config import parse_config
from kpybroker.errors import ConfigError
from kpybroker.server.connections.connection_limits import NODES_MAX, ON_PROBATION_MAX, PROBATION_S
from kpybroker.server.node import Node
from kpybroker.wire.rpc import api_versions, metadata, write_txn_markers
from tests.asking import fetched
from tests.server.line import Line, line
from tests.server.test_throttling import dynamic, lasted, next_answer_s
from tests.server.virtual import ADDRESS, PORT, Dial, run_virtually

LIMIT = 5
BROKERS_PORT, CONTROLLER_PORT = 9094, 9093
SOON_S = 0.2
LISTENERS = {
    "listeners": f"CLIENTS://{ADDRESS}:{PORT},BROKERS://{ADDRESS}:{BROKERS_PORT},CONTROLLER://{ADDRESS}:{CONTROLLER_PORT}",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
}
SOFTWARE = api_versions.Request(client_software_name="line", client_software_version="1")


async def settled(lines: list[Line]) -> list[bool]:
    """Wait a moment, and return for each connection whether it is still open."""
    await asyncio.sleep(SOON_S)
    return [not each.is_closed for each in lines]


async def idle(node: Node, count: int, port: int = PORT) -> list[Line]:
    return [await line(node, port) for _ in range(count)]


def ask_as_a_follower(one: Line) -> None:
    one.ask("ApiVersions", SOFTWARE, 4)
    one.ask("Fetch", fetched("t", 0, replica_id=2), 12)


def test_a_client_above_the_limit_is_closed_at_its_first_request_or_after_a_moment() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        await idle(node, LIMIT)
        silent, curious, asking = await idle(node, 3)
        curious.ask("ApiVersions", SOFTWARE, 4)
        asking.ask("ApiVersions", SOFTWARE, 4)
        asking.ask("Metadata", metadata.Request(topics=[]), 12)
        assert await settled([silent, curious, asking]) == [True, True, False]
        assert curious.received
        await asyncio.sleep(PROBATION_S + 1)
        assert await settled([silent, curious]) == [False, False]

    run_virtually(scenario, {"max.connections": str(LIMIT)})


@pytest.mark.parametrize("limit", ["max.connections", "max.connections.per.ip"])
def test_a_broker_is_admitted_although_clients_use_all_connections(limit: str) -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        clients = await idle(node, LIMIT)
        fetching, marking = await idle(node, 2)
        ask_as_a_follower(fetching)
        marking.ask("WriteTxnMarkers", write_txn_markers.Request(markers=[]), 1)
        await asyncio.sleep(PROBATION_S + 2)
        assert all(await settled([*clients, fetching, marking]))
        assert fetching.received
        assert marking.received

    run_virtually(scenario, {limit: str(LIMIT)})


def test_connections_of_nodes_are_not_counted_up_to_a_limit() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        nodes = await idle(node, LIMIT + NODES_MAX)
        for each in nodes:
            ask_as_a_follower(each)
        assert sum(await settled(nodes)) <= LIMIT + ON_PROBATION_MAX
        for _ in range(4):
            more = await idle(node, ON_PROBATION_MAX)
            for each in more:
                ask_as_a_follower(each)
            nodes += more
            await settled(more)
        assert sum(await settled(nodes)) == LIMIT + NODES_MAX, "no more than that, whatever clients claim"

    run_virtually(scenario, {"max.connections": str(LIMIT)})


def test_probation_is_bounded_and_the_newest_connection_stays() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        clients = await idle(node, LIMIT)
        trying = await idle(node, ON_PROBATION_MAX + 3)
        assert await settled(trying) == [False] * 3 + [True] * ON_PROBATION_MAX
        assert all(await settled(clients))

    run_virtually(scenario, {"max.connections": str(LIMIT)})


def test_a_connection_on_probation_stays_when_another_one_closes() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        clients = await idle(node, LIMIT)
        (late,) = await idle(node, 1)
        clients[0].close()
        late.ask("Metadata", metadata.Request(topics=[]), 12)
        await asyncio.sleep(PROBATION_S + 2)
        assert all(await settled([late]))
        assert late.received

    run_virtually(scenario, {"max.connections": str(LIMIT)})


def test_listeners_of_brokers_and_controllers_are_limited_separately() -> None:
    """As in Apache Kafka, clients can use up only their own listener. For a connection of a broker, the client
    connection that was idle for the longest time is closed."""

    async def scenario(node: Node, dial: Dial) -> None:
        own = len([each for each in node.server.connections() if each.listener.name == "CLIENTS"])
        clients = await idle(node, LIMIT - own)
        await asyncio.sleep(1)
        refused = await idle(node, 1)
        await asyncio.sleep(3)
        for each in clients[1:]:
            each.ask("ApiVersions", SOFTWARE, 4)
        await asyncio.sleep(2)
        assert await settled(refused) == [False]
        between = await idle(node, 1, BROKERS_PORT)
        assert await settled(clients) == [False] + [True] * (len(clients) - 1)
        assert all(await settled([*between, *await idle(node, 1, CONTROLLER_PORT)]))

    run_virtually(scenario, {**LISTENERS, "max.connections": str(LIMIT)})


def test_a_listener_may_have_its_own_limit_also_while_the_broker_runs() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        lines = await idle(node, LIMIT, BROKERS_PORT)
        for each in lines[:2]:
            each.ask("Metadata", metadata.Request(topics=[]), 12)
        for each in lines[2:]:
            each.ask("Metadata", metadata.Request(topics=[]), 12)
        assert await settled(lines) == [True] * 2 + [False] * (LIMIT - 2)
        await dynamic(await dial("admin"), "listener.name.brokers.max.connections", str(LIMIT), node_id="1")
        lines = await idle(node, LIMIT, BROKERS_PORT)
        for each in lines:
            each.ask("Metadata", metadata.Request(topics=[]), 12)
        assert await settled(lines) == [True] * (LIMIT - 2) + [False] * 2
        assert all(await settled(await idle(node, LIMIT)))

    run_virtually(scenario, {**LISTENERS, "listener.name.brokers.max.connections": "2"})


def test_lowering_a_limit_closes_the_connections_that_were_idle_for_the_longest() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        quiet, loud = await idle(node, 5), await idle(node, 5)
        admin = await dial("admin")
        await asyncio.sleep(3)
        for each in loud:
            each.ask("ApiVersions", SOFTWARE, 4)
        await asyncio.sleep(1)
        await dynamic(admin, "max.connections", "6")
        await asyncio.sleep(2)
        assert await settled(quiet) == [False] * 5
        assert await settled(loud) == [True] * 5
        assert await next_answer_s(admin) < SOON_S

    run_virtually(scenario, {})


def test_the_rate_of_connections_to_a_listener_is_limited() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        first = await idle(node, 60, BROKERS_PORT)
        for each in first:
            each.ask("ApiVersions", SOFTWARE, 4)
        await settled(first)
        assert 50 <= sum(1 for each in first if each.received) <= 52, "the burst of ten seconds, and a few more"
        _, took_s = await lasted(dial("other"))
        assert took_s < SOON_S, "another listener has no limit"
        await asyncio.sleep(15)
        assert all(each.received for each in first), "the others had to wait"

    run_virtually(scenario, {**LISTENERS, "listener.name.brokers.max.connection.creation.rate": "5"})


def test_limits_of_a_listener_are_read_at_the_start() -> None:
    name = "listener.name.plaintext.max.connections"
    assert parse_config({name: "7"}).connections_of("PLAINTEXT") == 7
    assert parse_config({name: "7", "max.connections": "3"}).connections_of("OTHER") == 3
    for wrong in ("-1", "many"):
        with pytest.raises(ConfigError, match=f"Invalid value {wrong} for configuration {name}"):
            parse_config({name: wrong})
    running = parse_config({name: "7"}).with_dynamic({}, {name: "9"})
    assert running.connections_of("PLAINTEXT") == 9
    assert running.with_dynamic({}, {name: "many"}).connections_of("PLAINTEXT") == 9, "the last good one"
