"""Tests kpybroker.api.versions: clients can use only the versions that it leaves, and they fall back to these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from kpybroker.broker.served_versions import ServedVersions, as_setting
from kpybroker.client.peer import Peer
from kpybroker.errors import ConfigError
from kpybroker.server.node import Node
from kpybroker.testing import Broker, Cluster
from kpybroker.wire.api import API, Audience, by_name
from kpybroker.wire.recording import KIT_CLIENT_ID
from kpybroker.wire.rpc import metadata
from tests.conftest import WithBroker
from tests.server.raw import raw

PATIENCE_S = 30
OLDER = {"Fetch": (4, 11), "Produce": (0, 7), "Metadata": (1, 5), "ApiVersions": (0, 2), "ConsumerGroupHeartbeat": None}
PROPERTIES = {"kpybroker.api.versions": as_setting(OLDER)}


async def advertised(peer: Peer) -> dict[str, tuple[int, int]]:
    response = await peer.ask("ApiVersions", version=0)
    names = {api.key: api.name for api in API}
    return {names[row.api_key]: (row.min_version, row.max_version) for row in response.api_keys}


def test_only_the_wanted_versions_are_advertised(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        found = await advertised(peer)
        assert "ConsumerGroupHeartbeat" not in found
        assert {name: found[name] for name in OLDER if name in found} == {k: v for k, v in OLDER.items() if v}
        others = {name: found[name] for name in found if name not in OLDER}
        assert all(others[name] == by_name[name].advertised for name in others)

    with_broker(scenario, PROPERTIES)


@pytest.mark.parametrize(
    ("client_id", "is_limited"),
    [
        (None, True),
        ("", True),
        ("broker", True),
        ("broker-1x", True),
        ("broker-1", False),
        ("broker-1-fetcher-2", False),
        ("raft-client-1", False),
        (KIT_CLIENT_ID, False),
        (f"{KIT_CLIENT_ID}-2", True),
    ],
)
def test_nodes_and_the_test_kit_are_not_limited(client_id: str | None, is_limited: bool) -> None:
    served = ServedVersions.of(["Fetch:4-11", "ShareFetch:none"])
    fetch, share_fetch = by_name["Fetch"], by_name["ShareFetch"]
    assert served.accepted(fetch, client_id) == ((4, 11) if is_limited else (fetch.min, fetch.max))
    assert served.advertised(fetch, client_id) == ((4, 11) if is_limited else fetch.advertised)
    assert served.advertised(share_fetch, client_id) == (None if is_limited else share_fetch.advertised)
    assert served.advertised(by_name["Produce"], client_id) == by_name["Produce"].advertised


def test_other_versions_are_refused_as_in_kafka(with_broker: WithBroker, caplog: pytest.LogCaptureFixture) -> None:
    """The connection is closed, except for ApiVersions, which gets its versions with the error code."""

    async def scenario(peer: Peer, node: Node) -> None:
        async with raw(node) as client:
            client.ask(1, "Metadata", metadata.Request(topics=[]), 5)
            await client.answer("Metadata", 5)
            client.ask(2, "Metadata", metadata.Request(topics=[]), 6)
            assert await client.closed()
        async with raw(node) as client:
            client.ask(1, "ConsumerGroupHeartbeat", by_name["ConsumerGroupHeartbeat"].request(), 0)
            assert await client.closed()
        async with raw(node) as client:
            client.ask(1, "ApiVersions", by_name["ApiVersions"].request(), 3)
            _, response = await client.answer("ApiVersions", 0)
            assert response.error_code == 35
            assert [(row.min_version, row.max_version) for row in response.api_keys] == [(0, 2)]
            client.ask(2, "Produce", by_name["Produce"].request(acks=1), 3)
            await client.answer("Produce", 3)

    with_broker(scenario, PROPERTIES)
    assert "Metadata is served in versions 1 to 5, not in 6" in caplog.text
    assert "ConsumerGroupHeartbeat is not served (kpybroker.api.versions)" in caplog.text


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def older(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(request.param, api_versions=OLDER) as cluster:
        yield cluster


def test_a_client_falls_back(older: Cluster) -> None:
    """And the brokers replicate, although their clients cannot use the versions that they need for it."""
    topic = older.topic(create=True)
    with older.record() as recording:
        producer = Producer({"bootstrap.servers": older.bootstrap, "log_level": 0})
        producer.produce(topic, b"paid")
        assert producer.flush(PATIENCE_S) == 0
        settings = {"group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
        consumer = Consumer({"bootstrap.servers": older.bootstrap, **settings})
        consumer.subscribe([topic])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        consumer.close()
    versions = {request.api: request.version for request in recording if request.outcome != "UNSUPPORTED_VERSION"}
    assert {name: versions[name] for name in ("Fetch", "Produce", "Metadata")} == {
        "Fetch": 11, "Produce": 7, "Metadata": 5
    }  # fmt: skip
    assert versions["ApiVersions"] <= 2
    assert [record.value for record in older.records(topic)] == [b"paid"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"Fecth": (4, 11)}, "no client sends 'Fecth' requests; did you mean Fetch"),
        ({"Vote": (0, 0)}, "no client sends 'Vote' requests"),
        ({"Fetch": (3, 11)}, "Fetch 3 to 11: give versions from 4 to 18"),
        ({"Fetch": (4, 19)}, "Fetch 4 to 19: give versions from 4 to 18"),
        ({"Fetch": (9, 8)}, "Fetch 9 to 8: give versions from 4 to 18"),
        ({"Produce": (0, 2)}, "Produce 0 to 2: this broker serves it only from 3 on"),
        ({"ApiVersions": None}, "ApiVersions: clients need it to find out what is served"),
    ],
)
def test_limits_that_cannot_be_are_refused_at_once(given: Mapping[str, tuple[int, int] | None], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Broker(api_versions=given)
    text = ",".join(f"{name}:{'none' if v is None else f'{v[0]}-{v[1]}'}" for name, v in given.items())
    with pytest.raises(ConfigError, match=told):
        ServedVersions.of([text])


def test_the_lowest_version_of_an_api_may_be_one_that_is_only_advertised() -> None:
    served = ServedVersions.of(["Produce:0-7"])
    assert served.advertised(by_name["Produce"], None) == (0, 7)
    assert served.accepted(by_name["Produce"], None) == (3, 7)


@pytest.mark.parametrize("given", [3, (4,), (4, "11"), [4, 11], (True, 11)])
def test_other_types_are_refused(given: object) -> None:
    with pytest.raises(TypeError, match=r"api_versions\['Fetch'\] is .*: give \(lowest, highest\), or None"):
        Broker(api_versions={"Fetch": given})  # type: ignore[dict-item]


@pytest.mark.parametrize("text", ["Fetch", "Fetch:4", "Fetch:4-", "Fetch=4-11", "Fetch:NONE", "Fetch:4-99999"])
def test_a_setting_that_cannot_be_read_is_refused(text: str, tmp_path: Path, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        raise AssertionError("it has started")

    told = f"kpybroker.api.versions={text}: write API:LOWEST-HIGHEST or API:none, such as Fetch:4-11"
    with pytest.raises(ConfigError, match=told):
        with_broker(scenario, {"kpybroker.api.versions": text})
    assert not (tmp_path / "data").exists(), "refused before a directory is formatted"


def test_every_api_of_clients_can_be_limited_to_each_version() -> None:
    for api in API:
        if api.audience is Audience.CLIENT:
            for version in range(api.min, api.max + 1):
                served = ServedVersions.of(as_setting({api.name: (version, version)}).split(","))
                assert served.accepted(api, None) == (version, version)
                assert served.advertised(api, None) == (version, version)
