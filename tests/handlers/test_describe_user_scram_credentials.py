"""Tests DescribeUserScramCredentials over a socket. Kafka's responses are in tests/golden (test_against_golden.py)."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import alter_user_scram_credentials
from kpybroker.wire.rpc import describe_user_scram_credentials as rpc
from tests.conftest import WithBroker
from tests.handlers.test_alter_user_scram_credentials import SHA_256, SHA_512, upsertion

API = by_name["DescribeUserScramCredentials"]


def request(*users: str) -> rpc.Request:
    return rpc.Request(users=[rpc.UserName(name=user) for user in users])


def shown(told: rpc.Response) -> dict[str, list[tuple[int, int]]]:
    return {row.user: [(each.mechanism, each.iterations) for each in row.credential_infos] for row in told.results}


def test_both_listeners_return_mechanisms_and_iterations(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        port = await node.server.start("127.0.0.1", 0, "CONTROLLER", "controller")
        inner = await Peer.dial(node.broker.world.network, "127.0.0.1", port)
        for change in (upsertion("ann", SHA_512, 5000), upsertion("ann"), upsertion("bob")):
            await peer.ask("AlterUserScramCredentials", alter_user_scram_credentials.Request(upsertions=[change]))
        ann = [(SHA_256, 4096), (SHA_512, 5000)]
        for asked in (peer, inner):
            for everybody in (rpc.Request(users=None), request()):
                assert shown(await asked.ask(API.name, everybody)) == {"ann": ann, "bob": [(SHA_256, 4096)]}
            assert shown(await asked.ask(API.name, request("ann"))) == {"ann": ann}
        inner.close()

    with_broker(scenario)


def test_only_unknown_and_repeated_users_are_refused(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        await peer.ask("AlterUserScramCredentials", alter_user_scram_credentials.Request(upsertions=[upsertion("ann")]))
        told = await peer.ask(API.name, request("bob", "bob", "nobody", "ann"))
        assert told.error_code == 0
        assert [(row.user, row.error_code) for row in told.results] == [
            ("bob", ErrorCode.DUPLICATE_RESOURCE),
            ("nobody", ErrorCode.RESOURCE_NOT_FOUND),
            ("ann", 0),
        ]

    with_broker(scenario)
