"""Delegation tokens are valid on every node, and a login with a token has the permissions of the token's owner."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kpybroker.client.dialer import Dialer
from kpybroker.client.login import log_in
from kpybroker.client.peer import Peer
from kpybroker.config.login import Login
from kpybroker.errors import ErrorCode
from kpybroker.security.principal import Principal, encode_principal
from kpybroker.server.node import Node
from kpybroker.wire.rpc import (
    create_delegation_token,
    describe_delegation_token,
    expire_delegation_token,
    metadata,
    renew_delegation_token,
)
from tests.handlers.test_envelope import enveloped, opened
from tests.server.clustering import Cluster
from tests.server.test_sasl import SETTINGS, play
from tests.server.test_sasl_cluster import CLIENT, SaslCluster
from tests.server.test_sasl_cluster import SETTINGS as OF_CLUSTER
from tests.server.virtual import ADDRESS, PORT, run_virtually

pytestmark = pytest.mark.slow

KEY = {"delegation_token_secret_key": "a secret of the nodes"}
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
ANN = Login("PLAIN", "ann", "of ann")


def login_by(token: create_delegation_token.Response, mechanism: str = "SCRAM-SHA-512") -> Login:
    return Login(mechanism, token.token_id, base64.b64encode(token.hmac).decode(), by_token=True)


async def meet(node: Node, login: Login) -> Peer:
    dialer = Dialer(node.broker.world.network, login)
    return await dialer.meet("127.0.0.1", node.advertised[0].port, client_id="c")


async def created(peer: Peer, lifetime_ms: int = -1) -> create_delegation_token.Response:
    told: create_delegation_token.Response = await peer.ask(
        "CreateDelegationToken", create_delegation_token.Request(max_lifetime_ms=lifetime_ms)
    )
    assert told.error_code == 0, told
    return told


async def codes_of(peer: Peer, secret: bytes = b"x") -> list[int]:
    """The error codes of the four kinds of token requests."""
    asked = (
        ("CreateDelegationToken", create_delegation_token.Request()),
        ("RenewDelegationToken", renew_delegation_token.Request(hmac=secret)),
        ("ExpireDelegationToken", expire_delegation_token.Request(hmac=secret, expiry_time_period_ms=-1)),
        ("DescribeDelegationToken", describe_delegation_token.Request()),
    )
    return [(await peer.ask(name, request)).error_code for name, request in asked]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_with_a_token_has_its_owners_principal(tmp_path: Path, mechanism: str) -> None:
    async def scenario(node: Node) -> None:
        ann = await meet(node, ANN)
        token = await created(ann)
        logins = await asyncio.gather(*(meet(node, login_by(token, mechanism)) for _ in range(10)))
        found = [each.principal for each in node.server.connections() if each.principal.token_authenticated]
        assert found == [Principal("User", "ann")] * 10
        for peer in logins:
            assert await codes_of(peer, token.hmac) == [NOT_ALLOWED] * 4
        assert await codes_of(ann, token.hmac) == [0] * 4
        with pytest.raises(ConnectionError, match="invalid credentials"):
            await meet(node, login_by(token, mechanism))
        assert (await logins[0].ask("Metadata", metadata.Request())).brokers, "an existing login stays valid"
        for peer in (ann, *logins):
            peer.close()

    play(tmp_path, scenario, **KEY)


def test_a_connection_that_is_lost_during_a_derivation(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        ann = await meet(node, ANN)
        token = await created(ann)
        before = len(asyncio.all_tasks())
        tasks = [asyncio.ensure_future(meet(node, login_by(token))) for _ in range(5)]
        while not any(each.blocker is not None for each in node.server.connections()):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while len(node.server.connections()) > 1 or len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.001)
        (await meet(node, login_by(token))).close()
        ann.close()
        assert not node.broker.background.failed.done()

    play(tmp_path, scenario, **KEY)


def test_a_token_survives_a_restart(tmp_path: Path) -> None:
    """The token is stored in the metadata log and in a snapshot, without its HMAC."""
    made: list[create_delegation_token.Response] = []

    async def first(node: Node) -> None:
        ann = await meet(node, ANN)
        made.append(await created(ann))
        while not any(made[0].token_id.encode() in path.read_bytes() for path in tmp_path.rglob("*.checkpoint")):
            await asyncio.sleep(0.001)
        ann.close()

    async def second(node: Node) -> None:
        ann = await meet(node, login_by(made[0]))
        told = await ann.ask("Metadata", metadata.Request())
        assert told.brokers
        ann.close()

    for scenario in (first, second, second):
        play(tmp_path, scenario, metadata_log_max_record_bytes_between_snapshots="1", **KEY)
    secrets = made[0].hmac, base64.b64encode(made[0].hmac)
    assert not any(secret in path.read_bytes() for path in tmp_path.rglob("*.*") for secret in secrets)


def test_without_a_key_a_stored_token_is_not_valid(tmp_path: Path) -> None:
    made: list[create_delegation_token.Response] = []

    async def first(node: Node) -> None:
        ann = await meet(node, ANN)
        made.append(await created(ann))
        ann.close()

    async def second(node: Node) -> None:
        assert made[0].token_id in node.broker.metadata.image.delegation_tokens
        ann = await meet(node, ANN)
        assert await codes_of(ann, made[0].hmac) == [ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED] * 4
        ann.close()
        with pytest.raises(ConnectionError, match="invalid credentials"):
            await meet(node, login_by(made[0]))

    play(tmp_path, first, **KEY)
    play(tmp_path, second)


def test_a_token_is_valid_on_every_node(tmp_path: Path) -> None:
    """The token can be created on any node, which forwards the request. No node forwards token requests of a client
    that has logged in with a token."""
    cluster = SaslCluster(
        tmp_path,
        settings={
            **OF_CLUSTER,
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "delegation.token.secret.key": "a secret of the nodes",
        },
    )

    async def meet_at(node_id: int, login: Login = CLIENT) -> Peer:
        return await meet(cluster.nodes[node_id], login)

    async def whole() -> None:
        cluster.format()
        try:
            await cluster.start(1, 2, 3)
            for creator in cluster.nodes:
                ann = await meet_at(creator)
                token = await created(ann)
                await known_by_all(cluster, token.token_id)
                for node_id in cluster.nodes:
                    by_token = await meet_at(node_id, login_by(token))
                    assert await codes_of(by_token, token.hmac) == [NOT_ALLOWED] * 4
                    by_token.close()
                other = await meet_at(creator % 3 + 1)
                assert await codes_of(other, token.hmac) == [0] * 4
                ann.close()
                other.close()
            await refused_by_the_controller(cluster)
        finally:
            await cluster.close()

    asyncio.run(asyncio.wait_for(whole(), 120))


async def known_by_all(cluster: Cluster, token_id: str) -> None:
    images = [node.broker.metadata for node in cluster.nodes.values()]
    await cluster.until(lambda: all(token_id in each.image.delegation_tokens for each in images), "all know the token")


async def refused_by_the_controller(cluster: Cluster) -> None:
    """The controller refuses a token request if the Envelope states that the principal has logged in with a token."""
    active = await cluster.leader()
    dialer = Dialer(cluster.nodes[active].broker.world.network, Login("PLAIN", "node", "of the nodes"))
    controller = await dialer.meet("127.0.0.1", cluster.ports[active], client_id="c")
    for is_by_token, code in ((True, NOT_ALLOWED), (False, 0)):
        principal = encode_principal(Principal("User", "ann", token_authenticated=is_by_token))
        request = create_delegation_token.Request()
        told = await controller.ask("Envelope", enveloped("CreateDelegationToken", 3, request, principal=principal))
        inside = opened("CreateDelegationToken", 3, told)
        assert (inside.error_code, inside.principal_name) == (code, "ann")
    controller.close()


def test_an_expired_token_ends_its_logins() -> None:
    """When the token expires, its connections are closed and no client can log in with it. The controller removes the
    token at the next check."""
    address = f"SASL_PLAINTEXT://{ADDRESS}:{PORT}"
    of_tokens = {"delegation.token.secret.key": "a secret of the nodes", "delegation.token.expiry.time.ms": "7200000"}
    settings = {**SETTINGS, "listeners": address, **of_tokens}

    async def scenario(node: Node, dial: Callable[[str], Awaitable[Peer]]) -> None:
        async def meet_by(login: Login) -> Peer:
            peer = await dial("c")
            await log_in(peer, login)
            return peer

        ann = await meet_by(ANN)
        brief, other = await created(ann, 60_000), await created(ann)
        by_token = await meet_by(login_by(brief))
        await asyncio.sleep(59)
        (await meet_by(login_by(brief))).close()
        await asyncio.sleep(2)
        with pytest.raises(ConnectionError):
            await by_token.ask("Metadata", metadata.Request())
        with pytest.raises(ConnectionError, match="invalid credentials"):
            await meet_by(login_by(brief))
        (await meet_by(login_by(other))).close()
        image = node.broker.metadata
        assert set(image.image.delegation_tokens) == {brief.token_id, other.token_id}
        await asyncio.sleep(3600)
        assert set(image.image.delegation_tokens) == {other.token_id}
        await asyncio.sleep(2 * 3600)
        assert image.image.delegation_tokens == {}, "it has not been renewed for two hours"

    run_virtually(scenario, settings)
