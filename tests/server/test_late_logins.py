"""A connection is closed if its client does not log in within LOGIN_S, whatever it sends."""

from __future__ import annotations

import asyncio

import pytest

from kpybroker.client.peer import Peer
from kpybroker.server.connections.logging_in import LOGIN_S
from kpybroker.server.node import Node
from kpybroker.wire.rpc import sasl_authenticate, sasl_handshake
from tests.server.test_sasl import JAAS
from tests.server.virtual import ADDRESS, PORT, Dial, run_virtually

SETTINGS = {
    "listeners": f"SASL_PLAINTEXT://{ADDRESS}:{PORT}",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "connections.max.idle.ms": "3600000",
}


async def begin(peer: Peer) -> None:
    assert (await peer.ask("SaslHandshake", sasl_handshake.Request(mechanism="PLAIN"))).error_code == 0


def test_a_login_that_is_not_ended_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        late, never, done = await dial("late"), await dial("never"), await dial("done")
        for peer in (late, done):
            await begin(peer)
        told = await done.ask("SaslAuthenticate", sasl_authenticate.Request(auth_bytes=b"\0ann\0of ann"))
        assert told.error_code == 0
        await asyncio.sleep(LOGIN_S - 1)
        assert len(node.server.connections()) == 3
        await asyncio.sleep(3)
        assert [str(each.principal) for each in node.server.connections()] == ["User:ann"]
        assert not late.is_open
        assert not never.is_open
        await asyncio.sleep(1000)
        assert done.is_open

    run_virtually(scenario, SETTINGS)
    assert "its client has not logged in within 60 s" in caplog.text
