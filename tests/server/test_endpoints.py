"""The HTTP port serves probes and correct metrics, and invalid requests do no harm."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kpybroker.client.peer import Peer
from kpybroker.errors import ConfigError
from kpybroker.server.metrics import http
from kpybroker.server.metrics.endpoints import STALL_CHECK_S, StallWatch, what_lags, why_not_ready
from kpybroker.server.metrics.gauges import ALL_NAMES, AT_ONCE, TOTAL_TIME
from kpybroker.server.metrics.http import HttpServer, Page
from kpybroker.server.node import Node
from kpybroker.server.requests.timing import EVERY, OPEN_MAX
from kpybroker.sim.world.loop import Owner, VirtualLoop
from kpybroker.stalls import Stalls
from kpybroker.wire.rpc import incremental_alter_configs
from kpybroker.world.real import RealNetwork
from tests.asking import fetched, make, put
from tests.conftest import WithBroker
from tests.replication import virtual
from tests.replication.virtual import VirtualCluster
from tests.server.clustering import Cluster, dialled, run_cluster
from tests.serving import serving

pytestmark = pytest.mark.slow

HEARTBEAT_S = 0.2
HTTP = {"kpybroker.http.port": "0"}
REQUESTS = "kafka_network_requestmetrics_requests_total"
LOGS = "kafka_server_replicamanager_"


async def exchange(address: str, data: bytes) -> bytes:
    """Send bytes, and return all received bytes up to the end of the connection."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def get(node: Node, path: str) -> tuple[int, str]:
    assert node.http is not None
    answer = await exchange(node.http, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def metrics(node: Node) -> Mapping[tuple[str, str], float]:
    """The values of all metrics, by name and request."""
    status, text = await get(node, "/metrics")
    assert status == 200
    return {
        (sample.name, sample.labels.get("request", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }


async def value(node: Node, name: str) -> float:
    return (await metrics(node))[name, ""]


# ---- metrics


def test_every_documented_metric_exists(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        _, text = await get(node, "/metrics")
        families = {family.name: family.documentation for family in text_string_to_metric_families(text)}
        for name in ALL_NAMES:
            assert families.get(name.removesuffix("_total")), name
        assert (await get(node, "/metrics?name=x"))[0] == 200

    with_broker(scenario, HTTP)


def test_counters_are_correct(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=AT_ONCE + 1)
        before = await metrics(node)
        for _ in range(10):
            assert (await put(peer, "t", b"x" * 1000)).error_code == 0
        await peer.ask("Fetch", fetched("t", 0), version=12)
        after = await metrics(node)
        assert after[REQUESTS, "Produce"] == 10
        assert after[REQUESTS, "Fetch"] == 1
        assert after[f"{LOGS}partitioncount", ""] == after[f"{LOGS}leadercount", ""] == AT_ONCE + 1
        assert after["kafka_controller_kafkacontroller_globalpartitioncount", ""] == AT_ONCE + 1
        assert after["kafka_controller_kafkacontroller_activecontrollercount", ""] == 1
        sizes = sum(partition.log.size_bytes for partition in node.broker.replication.hosting)
        assert after["kafka_log_size_bytes", ""] == sizes > 10_000
        incoming = "kafka_server_socket_server_metrics_incoming_byte_total", ""
        outgoing = "kafka_server_socket_server_metrics_outgoing_byte_total", ""
        assert 10_000 < after[incoming] - before[incoming] < 20_000
        assert 10_000 < after[outgoing] - before[outgoing] < 20_000

    with_broker(scenario, HTTP)


def test_every_seventeenth_request_is_timed(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        for _ in range(EVERY * 20):
            await put(peer, "t", b"x")
        told = await metrics(node)
        assert 19 <= told[f"{TOTAL_TIME}_count", "Produce"] <= 20
        assert told[f"{TOTAL_TIME}_sum", "Produce"] > 0

    with_broker(scenario, HTTP)


def test_unsent_replies_are_not_tracked_for_ever(with_broker: WithBroker, tmp_path: Path) -> None:
    """Replies to disconnected clients are dropped before there are too many. If no metrics are served, no request is
    measured."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        parked = fetched("t", 0, wait_ms=60_000)
        for _ in range(OPEN_MAX // 8):
            gone = await Peer.dial(node.broker.world.network, *_address(node))
            asked = [asyncio.ensure_future(gone.ask("Fetch", parked, version=12)) for _ in range(EVERY)]
            await asyncio.sleep(0)
            gone.close()
            await asyncio.gather(*asked, return_exceptions=True)
        assert (await get(node, "/metrics"))[0] == 200

    with_broker(scenario, HTTP)

    async def without() -> None:
        async with serving(tmp_path / "quiet") as node:
            assert node.http is None
            assert node.server.port.dispatch == node.server.dispatcher.run

    asyncio.run(without())


def _address(node: Node) -> tuple[str, int]:
    host, _, port = node.bootstrap.rpartition(":")
    return host, int(port)


def test_a_stall_is_reported_once() -> None:
    """If there is a scrape in the middle of a stall, it reports the first part, and the next scrape only the rest."""
    loop, process = VirtualLoop(), Owner("process")  # type: ignore[abstract]  # sockets, signals and processes

    async def scenario() -> None:
        with loop.acting(process):
            watch = StallWatch(Stalls(loop.time))
        began_s = loop.time()
        await asyncio.sleep(STALL_CHECK_S * 3.5)
        assert watch.take() == 0
        loop.block(process, 3.0)
        await asyncio.sleep(2.0)
        first_s = watch.take()
        await asyncio.sleep(4.0)
        second_s = watch.take()
        assert first_s == pytest.approx(2.0 - STALL_CHECK_S / 2)
        assert second_s == pytest.approx(1.0)
        assert watch.take() == 0
        assert loop.time() == pytest.approx(began_s + STALL_CHECK_S * 3.5 + 6.0)
        watch.stop()

    loop.run_until_complete(scenario())


# ---- probes


def test_ready_when_registered_and_unfenced_only(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        assert await get(node, "/healthz") == (200, "ok\n")
        assert await get(node, "/readyz") == (200, "ready\n")
        life = node.broker.membership.lifecycle
        assert life is not None
        life.fenced = True
        assert await get(node, "/readyz") == (503, "the controller has fenced this broker\n")

    with_broker(scenario, HTTP)


def test_not_ready_when_no_controller_answers_heartbeats_for_a_session() -> None:
    session_s = 2.0

    async def scene(cluster: VirtualCluster) -> None:
        broker = cluster.broker(2)
        assert why_not_ready(broker) is None
        cluster.machines[1].pause(on=True)
        since_s = cluster.loop.time()
        noticed_s = await cluster.until(lambda: why_not_ready(broker) is not None, "node 2 is not ready")
        assert 0 < noticed_s - since_s - session_s + HEARTBEAT_S < 2 * HEARTBEAT_S
        assert re.fullmatch(
            r"no controller has responded to this broker's heartbeats for \d+ ms", why_not_ready(broker) or ""
        )
        cluster.machines[1].pause(on=False)
        await cluster.until(lambda: why_not_ready(broker) is None, "node 2 is ready again")

    virtual.play(
        scene,
        2,
        voters=(1,),
        broker_session_timeout_ms=str(round(session_s * 1000)),
        broker_heartbeat_interval_ms=str(round(HEARTBEAT_S * 1000)),
        controller_quorum_fetch_timeout_ms="60000",
    )


def test_a_node_without_its_quorum_is_live_but_not_ready(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        await cluster.leader()
        node = cluster.nodes[1]
        assert await get(node, "/readyz") == (200, "ready\n")
        for other in (2, 3):
            await cluster.stop(other)
        await cluster.until(lambda: why_not_ready(node.broker) is not None, "node 1 has noticed")
        assert (await get(node, "/readyz"))[0] == 503
        assert (await get(node, "/healthz"))[0] == 200

    run_cluster(tmp_path, play, kpybroker_http_port="0")


def test_a_node_is_ready_when_its_replicas_have_been_in_sync(tmp_path: Path) -> None:
    """Otherwise a rolling restart would continue with the next node while this node lacks records of the others."""

    async def follow_at(rate: str, peer: Peer) -> None:
        change = incremental_alter_configs.AlterableConfig(
            name="follower.replication.throttled.rate", config_operation=0, value=rate
        )
        every = incremental_alter_configs.AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
        told = await peer.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[every]))
        assert [row.error_code for row in told.responses] == [0]

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        peer = await dialled(cluster.nodes[1])
        await make(peer, "t", replicas=3, configs={"follower.replication.throttled.replicas": "*"})
        partition = cluster.nodes[1].broker.replication.hosting.find("t", 0)
        assert partition is not None
        back = next(node_id for node_id in (2, 3) if node_id != partition.leader_id)
        assert await get(cluster.nodes[back], "/readyz") == (200, "ready\n")
        await follow_at("0", peer)
        await cluster.stop(back)
        await cluster.until(lambda: back not in partition.isr, "it has left the ISR")
        await cluster.start(back)
        node = cluster.nodes[back]
        await cluster.until(lambda: why_not_ready(node.broker) is None, "it serves")
        status, why = await get(node, "/readyz")
        assert (status, "not in sync" in why, "t-0" in why) == (503, True, True)
        await follow_at("1000000000", peer)
        peer.close()
        await cluster.until(lambda: what_lags(node.broker) is None, "it has caught up")
        assert await get(node, "/readyz") == (200, "ready\n")

    run_cluster(tmp_path, play, kpybroker_http_port="0")


def test_metrics_show_a_lost_replica(tmp_path: Path) -> None:
    """When a follower stops, the partition is under-replicated and the ISR shrinks. When it returns, the ISR
    expands."""

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        leader = await cluster.leader()
        peer = await dialled(cluster.nodes[leader])
        await make(peer, "t", replicas=3, configs={"min.insync.replicas": "3"})
        peer.close()

        async def total(name: str) -> float:
            return sum([await value(node, f"{LOGS}{name}") for node in cluster.nodes.values()])

        assert [await total(name) for name in ("leadercount", "partitioncount")] == [1, 3]
        assert await total("underreplicatedpartitions") == 0
        assert await total("atminisrpartitioncount") == 1
        (leads,) = [node_id for node_id, node in cluster.nodes.items() if await value(node, f"{LOGS}leadercount")]
        lost = next(node_id for node_id in cluster.nodes if node_id not in (leads, leader))
        await cluster.stop(lost)
        partition = cluster.nodes[leads].broker.replication.hosting.find("t", 0)
        assert partition is not None
        await cluster.until(lambda: len(partition.isr) == 2, "the ISR has shrunk")
        assert await total("underreplicatedpartitions") == await total("underminisrpartitioncount") == 1
        assert await total("isrshrinks_total") == 1
        await cluster.start(lost)
        await cluster.until(lambda: len(partition.isr) == 3, "it is back in sync")
        assert await total("underreplicatedpartitions") == await total("underminisrpartitioncount") == 0
        assert await total("isrexpands_total") == 1

    run_cluster(tmp_path, play, kpybroker_http_port="0")


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "a", HTTP) as node:
            assert node.http is not None
            with pytest.raises(ConfigError, match=r"kpybroker\.http\.port.*choose another"):
                async with serving(tmp_path / "b", {"kpybroker.http.port": node.http.rpartition(":")[2]}):
                    pass
            assert (await get(node, "/healthz"))[0] == 200

    asyncio.run(scenario())


# ---- bad input

BAD = {
    "nothing there": (b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    "another method": (b"DELETE /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "a method with a body": (b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 405),
    "a body": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 400),
    "chunks": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "no HTTP": (b"\x00\x00\x00\x10 kafka?\r\n\r\n", 400),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    "two lengths": (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    "an endless header": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000, 431),
    "an endless line": (b"GET /" + b"x" * 20_000, 431),
}


def serve_pages(play: Callable[[HttpServer, str], Awaitable[None]], answer: Page = Page(200, b"ok\n")) -> None:
    """Run `play` against a server with a single page, /healthz."""

    async def whole() -> None:
        async def page(headers: Mapping[str, str]) -> Page:
            return answer

        server = HttpServer(RealNetwork(), {"/healthz": page})
        port = await server.start("127.0.0.1", 0)
        try:
            await play(server, f"127.0.0.1:{port}")
        finally:
            server.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


@pytest.mark.parametrize("bad", BAD)
def test_bad_requests_are_answered_and_closed(bad: str) -> None:
    data, status = BAD[bad]

    async def play(server: HttpServer, address: str) -> None:
        answer = await exchange(address, data)
        assert answer.split()[:2] == [b"HTTP/1.1", str(status).encode()]
        assert (b"Allow: GET, HEAD" in answer) == (status == 405)
        assert await exchange(address, b"GET /healthz HTTP/1.0\r\n\r\n") != b""

    serve_pages(play)


def test_head_is_a_get_without_its_body() -> None:
    async def play(server: HttpServer, address: str) -> None:
        got, head = [
            await exchange(address, method + b" /healthz HTTP/1.1\r\nHost: x\r\n\r\n") for method in (b"GET", b"HEAD")
        ]
        assert got == head + b"ok\n"
        byte_by_byte = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for at in range(len(byte_by_byte)):
            writer.write(byte_by_byte[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.read() == got
        writer.close()

    serve_pages(play)


def test_connections_have_a_limit_and_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections are closed after a while. Above the limit, the oldest idle connection is closed at once."""
    monkeypatch.setattr(http, "REQUEST_PATIENCE_S", 0.05)
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)

    async def play(server: HttpServer, address: str) -> None:
        host, _, port = address.rpartition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
        for reader, writer in opened:
            with contextlib.suppress(ConnectionError):  # an aborted connection may end or break
                assert await reader.read() == b""
            writer.close()
        assert not server.open
        assert b"200" in await exchange(address, b"GET /healthz HTTP/1.0\r\n\r\n")

    serve_pages(play)


@pytest.mark.parametrize("occupied", [http.PER_HOST_MAX - 1, http.PER_HOST_MAX, http.CONNECTIONS_MAX * 3])
def test_a_probe_is_answered_whatever_occupies_the_port(occupied: int) -> None:
    async def play(server: HttpServer, address: str) -> None:
        host, _, port = address.rpartition(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(occupied)]
        for _ in range(5):
            assert b"200" in await exchange(address, b"GET /healthz HTTP/1.0\r\n\r\n")
            assert len(server.open) <= http.PER_HOST_MAX
        for _, writer in idle:
            writer.close()

    serve_pages(play)


def test_requests_in_progress_keep_their_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """If requests in progress use all connections, a further connection is closed, and the requests have responses."""
    monkeypatch.setattr(http, "PER_HOST_MAX", 2)

    async def whole() -> None:
        go_on, asked = asyncio.Event(), asyncio.Semaphore(0)

        async def page(headers: Mapping[str, str]) -> Page:
            asked.release()
            await go_on.wait()
            return Page(200, b"ok\n")

        server = HttpServer(RealNetwork(), {"/healthz": page})
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        request = b"GET /healthz HTTP/1.0\r\n\r\n"
        under_way = [asyncio.ensure_future(exchange(address, request)) for _ in range(2)]
        for _ in under_way:
            await asked.acquire()
        assert await exchange(address, request) == b""
        go_on.set()
        assert all(b"200" in answer for answer in await asyncio.gather(*under_way))
        server.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_new_connection_at_both_limits_replaces_two_others() -> None:
    """A connection that was closed because of the first limit is not closed again because of the second."""
    server = HttpServer(RealNetwork(), {})
    hosts = ["127.0.0.2"] * http.PER_HOST_MAX + ["127.0.0.3"] * (http.CONNECTIONS_MAX - http.PER_HOST_MAX)
    for host in [*hosts, "127.0.0.2", "127.0.0.2", "127.0.0.4"]:
        connection = http.HttpConnection(server)
        connection.host = host
        assert server.admit(connection)
        assert connection in server.open
        assert len(server.open) <= http.CONNECTIONS_MAX
