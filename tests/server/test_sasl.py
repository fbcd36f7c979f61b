"""SASL logins over a real socket. The state machine has its own tests in tests/security/test_session.py."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kpybroker.client.client import Client, CommandFailed
from kpybroker.client.dialer import Dialer
from kpybroker.client.peer import Peer
from kpybroker.config.login import Login, login_of
from kpybroker.errors import ErrorCode
from kpybroker.security.principal import Principal
from kpybroker.server.node import Node
from kpybroker.wire.records.batch import read_records, split
from kpybroker.wire.rpc import (
    alter_client_quotas,
    alter_user_scram_credentials,
    api_versions,
    create_topics,
    describe_configs,
    metadata,
    sasl_handshake,
)
from kpybroker.wire.rpc import sasl_authenticate as rpc
from kpybroker.wire.rpc.produce import Request as Produce
from tests.asking import fetched, produced
from tests.security.logins import ITERATIONS
from tests.server.raw import Raw, raw
from tests.serving import serving

pytestmark = pytest.mark.slow

DELAY_MS = 200
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="of admin" user_admin="of admin" user_ann="of ann" user_bob="of bob";'
)
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "connection.failed.authentication.delay.ms": str(DELAY_MS),
}
ADMIN = Login("PLAIN", "admin", "of admin")


def play(path: Path, scenario: Callable[[Node], Awaitable[None]], **settings: str) -> None:
    """Run a scenario against a node with a SASL listener."""

    async def whole() -> None:
        given = {name.replace("__", "-").replace("_", "."): value for name, value in settings.items()}
        async with serving(path / "data", {**SETTINGS, **given}) as node:
            await scenario(node)

    asyncio.run(asyncio.wait_for(whole(), 60))


async def dial(node: Node, login: Login | None) -> Peer:
    peer = await Dialer(node.broker.world.network, login).dial("127.0.0.1", node.advertised[0].port, client_id="c")
    await peer.negotiate()
    return peer


async def log_in(connection: Raw, user: str, password: str) -> rpc.Response:
    connection.ask(1, "SaslHandshake", sasl_handshake.Request(mechanism="PLAIN"), 1)
    assert (await connection.answer("SaslHandshake", 1))[1].error_code == 0
    connection.ask(2, "SaslAuthenticate", rpc.Request(auth_bytes=f"\0{user}\0{password}".encode()), 1)
    told: rpc.Response = (await connection.answer("SaslAuthenticate", 1))[1]
    return told


def test_who_logs_in_where_nobody_does_is_told_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def whole() -> None:
        async with serving(tmp_path / "data") as node, raw(node) as connection:
            connection.ask(1, "SaslHandshake", sasl_handshake.Request(mechanism="PLAIN"), 1)
            told = (await connection.answer("SaslHandshake", 1))[1]
            assert (told.error_code, told.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])

    asyncio.run(asyncio.wait_for(whole(), 60))
    assert (
        "to listener PLAINTEXT: it requested a SASL login, and this listener has none; set security.protocol"
        in caplog.text
    )


def principals(node: Node) -> set[str]:
    return {str(each.principal) for each in node.server.connections()}


def test_requests_after_a_login_have_the_users_principal(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with raw(node) as connection:
            connection.ask(0, "ApiVersions", api_versions.Request(), 0)
            await connection.answer("ApiVersions", 0)
            [accepted] = node.server.connections()
            assert [known.call.principal.name for known in accepted.known.values()] == ["ANONYMOUS"]
            assert (await log_in(connection, "ann", "of ann")).error_code == 0
            assert accepted.principal == Principal("User", "ann")
            assert not accepted.known, "the cached headers had another principal"
            connection.ask(0, "ApiVersions", api_versions.Request(), 0)
            await connection.answer("ApiVersions", 0)
            assert [known.call.principal.name for known in accepted.known.values()] == ["ann"]

    play(tmp_path, scenario)


def test_after_a_failed_login_nothing_is_read_until_its_answer(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with raw(node) as connection:
            connection.ask(1, "SaslHandshake", sasl_handshake.Request(mechanism="PLAIN"), 1)
            await connection.answer("SaslHandshake", 1)
            connection.ask(2, "SaslAuthenticate", rpc.Request(auth_bytes=b"\0ann\0wrong"), 1)
            [accepted] = node.server.connections()
            while node.server.metrics.logins_failed == 0:
                await asyncio.sleep(0)
            connection.ask(3, "Metadata", metadata.Request(), 1)
            assert accepted.transport is not None
            while accepted.transport.is_reading():
                await asyncio.sleep(0)
            connection.send(bytes(1 << 20))
            told = (await connection.answer("SaslAuthenticate", 1))[1]
            assert told.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert accepted.received_bytes < 1 << 20
            assert await connection.closed()
        assert node.server.metrics.logins_failed == 1

    play(tmp_path, scenario)


def test_without_delay_the_answer_comes_at_once(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        for _ in range(3):
            async with raw(node) as connection:
                assert (await log_in(connection, "ann", "wrong")).error_code
                assert await connection.closed()

    play(tmp_path, scenario, connection_failed_authentication_delay_ms="0")


def test_failed_logins_hold_a_timer_each_and_no_task(tmp_path: Path) -> None:
    """Connections that wait for their response count for the connection limits, and are removed completely when
    closed."""

    async def scenario(node: Node) -> None:
        tasks = len(asyncio.all_tasks())
        opened = [await asyncio.open_connection("127.0.0.1", node.advertised[0].port) for _ in range(30)]
        connections = [Raw(reader, writer) for reader, writer in opened]
        for connection in connections:
            connection.ask(1, "SaslHandshake", sasl_handshake.Request(mechanism="NONE"), 1)
        while node.server.metrics.logins_failed < 20:
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= tasks
        assert len(node.server.connections()) <= 20
        for connection in connections[:10]:
            connection.transport.abort()  # while the response is pending
        while node.server.connections():
            await asyncio.sleep(0.01)
        for connection in connections:
            connection.writer.close()

    play(
        tmp_path,
        scenario,
        listeners="SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        inter_broker_listener_name="PLAINTEXT",
        max_connections="20",
        connection_failed_authentication_delay_ms="1000",
    )


def test_a_stop_does_not_wait_for_a_long_delay(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with raw(node) as connection:
            connection.ask(1, "SaslHandshake", sasl_handshake.Request(mechanism="NONE"), 1)
            while node.server.metrics.logins_failed == 0:
                await asyncio.sleep(0)
            assert not connection.transport.is_closing()

    play(tmp_path, scenario, connection_failed_authentication_delay_ms="500000")


@pytest.mark.parametrize("size", [300, -1, 0x7FFFFFFF])
def test_the_size_of_a_frame_is_limited_until_the_login(tmp_path: Path, size: int) -> None:
    async def scenario(node: Node) -> None:
        async with raw(node) as connection:
            connection.send(size.to_bytes(4, "big", signed=True))
            assert await connection.closed()
        async with raw(node) as connection:
            assert (await log_in(connection, "ann", "of ann")).error_code == 0
            names = [metadata.MetadataRequestTopic(name="x" * 100) for _ in range(5)]
            connection.ask(3, "Metadata", metadata.Request(topics=names), 1)
            assert (await connection.answer("Metadata", 1))[1].brokers

    play(tmp_path, scenario, sasl_server_max_receive_size="256")


def test_no_connection_gets_the_answer_of_another_login(tmp_path: Path) -> None:
    """Two logins run at the same time on separate connections."""

    async def scenario(node: Node) -> None:
        async with raw(node) as one, raw(node) as other:
            assert (await log_in(one, "ann", "of ann")).error_code == 0
            assert (await log_in(other, "bob", "of bob")).error_code == 0
            assert principals(node) == {"User:ann", "User:bob"}

    play(tmp_path, scenario)


def test_the_quota_of_a_user_applies_to_the_login(tmp_path: Path) -> None:
    """The user ann is throttled, but bob, who has the same client id, is not."""

    async def scenario(node: Node) -> None:
        admin = await dial(node, ADMIN)
        quotas = alter_client_quotas
        entity = [quotas.EntityData(entity_type="user", entity_name="ann")]
        ops = [quotas.OpData(key="request_percentage", value=1e-7, remove=False)]
        told = await admin.ask("AlterClientQuotas", quotas.Request(entries=[quotas.EntryData(entity=entity, ops=ops)]))
        assert told.entries[0].error_code == 0
        ann, bob = [await dial(node, Login("PLAIN", name, f"of {name}")) for name in ("ann", "bob")]
        assert (await ann.ask("Metadata")).throttle_time_ms > 0
        assert (await bob.ask("Metadata")).throttle_time_ms == 0
        for peer in (admin, ann, bob):
            peer.close()

    play(tmp_path, scenario)


@pytest.mark.parametrize(("mechanism", "code"), [("SCRAM-SHA-256", 1), ("SCRAM-SHA-512", 2)])
def test_a_user_created_while_the_broker_runs_can_log_in(tmp_path: Path, mechanism: str, code: int) -> None:
    async def scenario(node: Node) -> None:
        admin = await dial(node, ADMIN)
        scram = alter_user_scram_credentials
        salted = hashlib.pbkdf2_hmac(mechanism[-7:].replace("-", ""), b"of eve", b"salt", ITERATIONS)
        wanted = scram.ScramCredentialUpsertion(
            name="eve,=", mechanism=code, iterations=ITERATIONS, salt=b"salt", salted_password=salted
        )
        eve = Login(mechanism, "eve,=", "of eve")
        with pytest.raises(ConnectionError, match="invalid credentials with SASL mechanism"):
            await dial(node, eve)
        await admin.ask("AlterUserScramCredentials", scram.Request(deletions=[], upsertions=[wanted]))
        (await dial(node, eve)).close()
        with pytest.raises(ConnectionError, match="invalid credentials with SASL mechanism"):
            await dial(node, eve._replace(password="other"))
        gone = scram.ScramCredentialDeletion(name="eve,=", mechanism=code)
        await admin.ask("AlterUserScramCredentials", scram.Request(deletions=[gone], upsertions=[]))
        with pytest.raises(ConnectionError):
            await dial(node, eve)
        admin.close()

    play(tmp_path, scenario)


def test_a_refused_client_gets_the_reason(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        with pytest.raises(ConnectionError, match="'ann' with PLAIN failed: Authentication failed: Invalid username"):
            await dial(node, Login("PLAIN", "ann", "wrong"))
        network, port = node.broker.world.network, node.advertised[0].port
        client = Client(Dialer(network, Login("PLAIN", "ann", "wrong")), [("127.0.0.1", port)], 10_000)
        with pytest.raises(CommandFailed, match="Invalid username or password"):
            await client.start()

    play(tmp_path, scenario)
    told = login_of({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS})
    assert told == ADMIN
    assert "of admin" not in repr(told)


def test_a_client_with_a_login_is_told_that_the_listener_does_not_use_sasl(tmp_path: Path) -> None:
    async def whole() -> None:
        async with serving(tmp_path / "data") as node:
            with pytest.raises(ConnectionError, match="the listener does not use SASL"):
                await dial(node, ADMIN)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_produce_without_acks_instead_of_a_token_gets_no_response(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with raw(node) as connection:
            connection.ask(1, "SaslHandshake", sasl_handshake.Request(mechanism="PLAIN"), 1)
            await connection.answer("SaslHandshake", 1)
            connection.ask(2, "Produce", Produce(acks=0, timeout_ms=1000, topic_data=[]), 7)
            assert await connection.closed()

    play(tmp_path, scenario)


def test_a_node_renews_its_login_between_requests(tmp_path: Path) -> None:
    """No request is lost, although requests are in flight. The server's clock determines when a session has ended."""

    async def scenario(node: Node) -> None:
        loop = asyncio.get_running_loop()
        peer = await dial(node, ADMIN)
        [accepted] = [each for each in node.server.connections() if not each.is_closing]
        began, asked = loop.time(), 0

        async def keep_asking() -> None:
            nonlocal asked
            while loop.time() < began + 4:
                assert (await peer.ask("Metadata")).brokers
                asked += 1

        await asyncio.gather(*(keep_asking() for _ in range(5)))
        assert asked > 50
        assert accepted in node.server.connections(), "it is the same connection"
        ended = loop.time() + 2.1
        while loop.time() < ended:
            await asyncio.sleep(0.1)
        assert (await peer.ask("Metadata")).brokers, "the session had ended, and is renewed before the request"
        peer.close()

    play(tmp_path, scenario, connections_max_reauth_ms="2000")


def test_passwords_appear_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are not in DescribeConfigs, logs, or the `repr` of objects."""
    caplog.set_level("DEBUG")
    shown: list[str] = []

    async def scenario(node: Node) -> None:
        admin = await dial(node, ADMIN)
        wanted = describe_configs.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
        request = describe_configs.Request(resources=[wanted], include_synonyms=True, include_documentation=True)
        told = await admin.ask("DescribeConfigs", request)
        rows = {row.name: row for row in told.results[0].configs}
        jaas = rows["sasl.jaas.config"]
        assert (jaas.value, jaas.is_sensitive) == (None, True)
        shown.extend([repr(told), repr(ADMIN), repr(node.broker.config.sasl_listeners)])
        shown.extend(repr(each) for each in node.server.connections())
        for password in ("wrong one", "of ann"):
            async with raw(node) as connection:
                shown.append(repr(await log_in(connection, "ann", password)))
        admin.close()

    play(tmp_path, scenario)
    assert "login with PLAIN failed" in caplog.text
    for secret in ("of admin", "of ann", "of bob", "wrong one"):
        assert secret not in caplog.text + "".join(shown)


def test_requests_before_a_failed_renewal_are_stored_and_answered_first(tmp_path: Path) -> None:
    """All of them arrive in one TCP segment, followed by more bytes."""

    async def scenario(node: Node) -> None:
        admin = await dial(node, ADMIN)
        topic = create_topics.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        told = await admin.ask("CreateTopics", create_topics.Request(topics=[topic], timeout_ms=5000))
        assert told.topics[0].error_code == 0
        async with raw(node) as connection:
            assert (await log_in(connection, "ann", "of ann")).session_lifetime_ms == 60_000
            connection.ask(3, "Produce", produced("t", b"kept"), 9)
            connection.ask(4, "SaslHandshake", sasl_handshake.Request(mechanism="PLAIN"), 1)
            connection.ask(5, "SaslAuthenticate", rpc.Request(auth_bytes=b"\0ann\0wrong"), 1)
            connection.send(b"\xff" * 100_000)
            number, answered = await connection.answer("Produce", 9)
            assert (number, answered.responses[0].partition_responses[0].error_code) == (3, 0)
            number, answered = await connection.answer("SaslHandshake", 1)
            assert (number, answered.error_code) == (4, 0)
            number, answered = await connection.answer("SaslAuthenticate", 1)
            assert (number, answered.error_code) == (5, ErrorCode.SASL_AUTHENTICATION_FAILED)
            assert await connection.closed()
        told = await admin.ask("Fetch", fetched("t", 0), version=11)
        [batch] = split(told.responses[0].partitions[0].records)
        assert [record.value for record in read_records(batch)] == [b"kept"]
        admin.close()

    play(tmp_path, scenario, connections_max_reauth_ms="60000")


def test_a_login_is_renewed_before_a_request_that_has_no_answer(tmp_path: Path) -> None:
    """If the session has ended, the broker closes the connection, so records with acks=0 would be lost without an
    error."""

    async def scenario(node: Node) -> None:
        seen: list[str] = []

        async def renew(name: str) -> None:
            seen.append(name)

        peer = await dial(node, ADMIN)
        peer.renew_with(renew)
        await peer.ask("Metadata")
        await peer.send("Produce", produced("t", b"unanswered", acks=0), version=9)
        assert seen == ["Metadata", "Produce"]
        peer.close()

    play(tmp_path, scenario)
