"""Tests that ApiVersions advertises exactly the served APIs, with the same rows as Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.rpc import api_versions
from tests.conftest import WithBroker
from tests.server.raw import raw

ROW = api_table.by_name["ApiVersions"]
EVERY = range(ROW.min, ROW.max + 1)
GOLDEN = Path(__file__).parent.parent / "golden" / "api_versions.json"
NAMED = api_versions.Request(client_software_name="tests", client_software_version="1.0")
TELEMETRY = (71, 72)


def kafkas(version: int) -> Any:
    said = next(each for each in json.loads(GOLDEN.read_text()) if each["version"] == version)
    return parse(api_versions.Response, version, memoryview(bytes.fromhex(said["response"])))


def ranges(response: Any) -> dict[int, tuple[int, int]]:
    return {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}


def test_rows_equal_the_table_and_kafkas_response(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in EVERY:
            response = await peer.ask("ApiVersions", NAMED, version=version)
            shown = ranges(response)
            assert shown == {row.key: row.advertised for row in api_table.API if "broker" in row.listens.value}
            theirs = ranges(kafkas(4))
            assert shown == {key: theirs[key] for key in shown}
            assert not shown.keys() & {*TELEMETRY}, "only served APIs are advertised"
            assert (response.error_code, response.throttle_time_ms) == (0, 0)

    with_broker(scenario)


def test_features_below_v4_leave_out_a_minimum_of_zero(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in (3, 4):
            response = await peer.ask("ApiVersions", NAMED, version=version)
            supported = {f.name: (f.min_version, f.max_version) for f in response.supported_features}
            wanted = {
                name: (low, high)
                for name, (low, high) in node.broker.membership.supported_features.items()
                if low > 0 or version >= 4
            }
            assert supported == wanted
            theirs = {f.name: f.max_version for f in kafkas(4).supported_features}
            assert all(theirs[name] >= high for name, (_, high) in supported.items())

    with_broker(scenario)


def test_finalized_features_are_among_the_supported(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        response = await peer.ask("ApiVersions", NAMED, version=4)
        supported = {f.name: (f.min_version, f.max_version) for f in response.supported_features}
        levels = {f.name: f.max_version_level for f in response.finalized_features}
        assert levels["metadata.version"] == 30
        assert all(supported[name][0] <= level <= supported[name][1] for name, level in levels.items())
        kafkas_levels = {f.name: f.max_version_level for f in kafkas(4).finalized_features}
        assert all(kafkas_levels[name] == level for name, level in levels.items())
        assert response.finalized_features_epoch >= 0
        # A directory that another broker formatted may have features that this broker lacks.
        node.broker.membership.supported_features = {"kraft.version": (0, 1)}
        response = await peer.ask("ApiVersions", NAMED, version=4)
        assert "metadata.version" not in {f.name for f in response.finalized_features}

    with_broker(scenario)


def test_the_software_name_of_a_client_may_be_missing(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for name, number in (("", "1"), ("a", ""), ("a b", "1"), ("-a", "1"), ("a", "1-"), ("ä", "1"), ("a\n", "1")):
            request = api_versions.Request(client_software_name=name, client_software_version=number)
            for version in (3, 4):
                response = await peer.ask("ApiVersions", request, version=version)
                assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])
        for name, number in (("a", "1"), ("apache-kafka-java", "4.3.1"), ("librdkafka", "v2.11.0-rc1")):
            request = api_versions.Request(client_software_name=name, client_software_version=number)
            assert (await peer.ask("ApiVersions", request, version=4)).error_code == 0

    with_broker(scenario)


def test_an_unknown_version_is_answered_in_v0_with_the_supported_range(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with raw(node) as socket:
            # Header v2 of an unknown version, and a body that cannot be parsed (KIP-511).
            socket.send_frame(bytes.fromhex("0012 0063 00000007 ffff 00") + b"whatever")
            frame = await socket.frame()
            assert frame[:4] == bytes.fromhex("00000007")
            response = parse(api_versions.Response, 0, memoryview(frame), 4)
            assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert ranges(response) == {ROW.key: (ROW.min, ROW.max)}
            socket.ask(8, "ApiVersions", NAMED, 3)
            assert (await socket.answer("ApiVersions", 3))[0] == 8, (
                "the client sends another request on the same connection"
            )

    with_broker(scenario)
