"""Compares this broker's responses with those of Apache Kafka to the same requests in the same order.

The scenes with which tests/golden was recorded (oracle/record.py) are played once against a running broker, and every
response is compared with the recorded response, field by field. Fields that depend on chance, on the machine or on the
cluster are in `CHANCE`; intended differences are in `OURS`, with the reason.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from kpybroker.wire.api import API, Api, by_name
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.records.batch import split
from oracle.plays import AT_CONTROLLER, PLAYS, Play, file_of, plays_of
from tests.server.clustering import free_ports
from tests.serving import serving

GOLDEN = Path(__file__).parent.parent / "golden"
AS_RECORDED = {"node.id": "1", "offsets.topic.num.partitions": "4"}
SCENES_TIMEOUT_S = 30

CHANCE = {
    "broker_epoch",  # an offset of the metadata log
    "cluster_id",
    "finalized_features_epoch",  # an offset of the metadata log
    "leader",  # a member id in JoinGroup; no other message has a field of this name
    "log_dir",
    "member_id",
    "port",
    "producer_id",
    "producer_id_start",
    "session_id",
    "topic_id",
    "transaction_start_time_ms",
    "usable_bytes",
}
"""Fields that differ between any two recordings."""

PROSE = {"batch_index_error_message", "documentation", "error_message"}
"""Texts for people. Ours differ from Kafka's, because clients only use the codes."""

OURS = {
    ("AlterReplicaLogDirs", "path"): "where the broker keeps its files",
    ("DescribeLogDirs", "total_bytes"): "the size of the volume differs between machines (KIP-827)",
    ("Produce", "log_append_time_ms"): "for a duplicate, Kafka returns the batch's own time even if the topic keeps "
    "the producers' times, so that clients mistake it for the broker's; ours returns -1 as for the first batch",
    ("ApiVersions", "api_keys"): "only served APIs are returned; test_api_versions.py compares their rows",
    ("ApiVersions", "finalized_features"): "only supported features are returned; see test_api_versions.py",
    ("ApiVersions", "supported_features"): "only supported features are returned; see test_api_versions.py",
    ("CreateTopics", "min.insync.replicas"): "Kafka sets it for the cluster once it finalizes eligible leader replicas",
    ("DescribeConfigs", "min.insync.replicas"): "as in CreateTopics",
    ("DescribeQuorum", "high_watermark"): "an offset of the metadata log",
    ("DescribeQuorum", "last_caught_up_timestamp"): "a time",
    ("DescribeQuorum", "last_fetch_timestamp"): "a time",
    ("DescribeQuorum", "log_end_offset"): "an offset of the metadata log",
    ("DescribeQuorum", "replica_directory_id"): "chosen at random when the directory was formatted",
    ("FetchSnapshot", "error_code"): "Kafka 4.3 fails to build any error response to FetchSnapshot and returns "
    "UNKNOWN_SERVER_ERROR without topics; ours returns the actual error",
    ("FetchSnapshot", "topics"): "for the same reason as its error code",
    ("DescribeConfigs", "listeners"): "the port differs, and Kafka has a listener for its controller",
}

OURS_IN_SCENE = {
    ("CreateAcls", "any type"): "Kafka fails with UNKNOWN_SERVER_ERROR, because it cannot create the ACL",
    ("CreateAcls", "any pattern"): "as with any type",
    ("CreateAcls", "match"): "as with any type",
    ("CreateAcls", "any operation"): "as with any type",
    ("CreateAcls", "any permission"): "as with any type",
    ("AlterUserScramCredentials", "no password"): "Kafka returns UNKNOWN_SERVER_ERROR if there is no password",
    (
        "ListOffsets",
        "at -3, after a deletion",
    ): "Kafka returns the offset of a deleted record; ours that of a stored one",
    ("Metadata", "a zero id"): "Kafka fails with UNKNOWN_SERVER_ERROR; here, an id without a topic is UNKNOWN_TOPIC_ID",
    (
        "StreamsGroupHeartbeat",
        "has not revoked them",
    ): "ours repeats the tasks to a member that names other tasks, because the response may have been lost",
    ("Produce", "from the far future"): "ours does not open batches, so it cannot name the invalid record",
}
"""Like `OURS`, for individual recorded scenes."""

UNORDERED = {
    "AlterClientQuotas",
    "AlterUserScramCredentials",
    "ConsumerGroupDescribe",
    "DeleteAcls",
    "DeleteRecords",
    "DeleteTopics",
    "DescribeAcls",
    "DescribeClientQuotas",
    "DescribeConfigs",
    "DescribeTransactions",
    "DescribeUserScramCredentials",
    "ListConfigResources",
    "ListGroups",
    "ListTransactions",
    "Metadata",
    "OffsetCommit",
    "ShareFetch",
    "ShareGroupDescribe",
    "StreamsGroupDescribe",
    "StreamsGroupHeartbeat",
    "WriteTxnMarkers",
}
"""APIs whose rows Kafka returns in the order of a hash table, or with errors first. Ours have the order of the
request."""


class Exchange(NamedTuple):
    """One request and its response, as plain values."""

    version: int
    note: str
    request: Any
    response: Any


def plain(value: Any) -> Any:
    """A message as dicts, lists and values."""
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if hasattr(type(value), "__slots__") and not isinstance(value, int | str | bytes | float):
        return {name: plain(getattr(value, name)) for name in type(value).__slots__}
    return value


def comparable(api: Api, value: Any, name: str = "") -> Any:
    """The part of a value that must be the same on both brokers: without random values, texts and intended differences,
    and with sorted lists."""
    if name in CHANCE or name in PROSE or (api.name, name) in OURS:
        return None
    if name == "records" and value:
        return [told_of(batch) for batch in split(memoryview(bytearray(value)))]
    if isinstance(value, list):
        entries = [comparable(api, each) for each in value]
        return sorted(entries, key=repr) if api.name in UNORDERED else entries
    if isinstance(value, dict):
        if (api.name, value.get("name")) in OURS:
            return value["name"]
        return {key: comparable(api, inner, key) for key, inner in value.items()}
    return value


def told_of(batch: Any) -> dict[str, Any]:
    """A batch without its producer id, and therefore without its CRC."""
    return {
        "base_offset": batch.base_offset,
        "leader_epoch": batch.leader_epoch,
        "attributes": batch.attributes,
        "base_sequence": batch.base_sequence,
        "producer_epoch": batch.producer_epoch,
        "body": bytes(batch.view[57:]),
    }


def differences(kafkas: Any, ours: Any, path: str = "") -> Iterator[str]:
    if isinstance(kafkas, dict) and isinstance(ours, dict):
        for name, value in kafkas.items():
            yield from differences(value, ours[name], f"{path}.{name}")
    elif isinstance(kafkas, list) and isinstance(ours, list) and len(kafkas) == len(ours):
        for index, (one, other) in enumerate(zip(kafkas, ours, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif kafkas != ours:
        yield f"{path}: Kafka returns {kafkas!r}, ours is {ours!r}"


def asking(at: Peer, said: dict[str, list[Exchange]], *, at_controller: bool = False) -> Callable[..., Any]:
    """A function that sends the requests of scenes, which run in their own thread. It stores exchanges with a note in
    `said`, by file."""
    loop = asyncio.get_running_loop()

    def ask(name: str, version: int, request: Any, note: str = "") -> Any:
        api = by_name[name]
        as_sent = parse(api.request, version, build(request, version))
        response = asyncio.run_coroutine_threadsafe(at.ask(name, request, version=version), loop).result(
            SCENES_TIMEOUT_S
        )
        if note:
            exchange = Exchange(version, note, plain(as_sent), plain(response))
            said[file_of(api, at_controller=at_controller)].append(exchange)
        return response

    return ask


async def dialled(node: Node, port: int) -> Peer:
    return await Peer.dial(node.broker.world.network, "127.0.0.1", port, client_id="golden")


async def perform(play: Play, directory: Path) -> dict[str, list[Exchange]]:
    """Play the scenes on a separate node. Returns the exchanges by file."""
    said: dict[str, list[Exchange]] = defaultdict(list)
    port = free_ports(1)[0]
    listeners = f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}"
    with_controller = {"listeners": listeners} if play.asks_controller else {}
    async with serving(directory / play.name, {**AS_RECORDED, **play.properties, **with_controller}) as node:
        peer = await dialled(node, int(node.bootstrap.rpartition(":")[2]))
        inner = await dialled(node, port) if play.asks_controller else peer
        await asyncio.to_thread(play.perform, asking(peer, said), asking(inner, said, at_controller=True))
        inner.close()
        peer.close()
    return said


async def perform_all(directory: Path) -> dict[str, dict[str, list[Exchange]]]:
    """The exchanges by play and file."""
    return {play.name: await perform(play, directory) for play in PLAYS}


def recorded(api: Api) -> list[Exchange]:
    return [
        Exchange(
            told["version"],
            told["note"],
            plain(parse(api.request, told["version"], memoryview(bytes.fromhex(told["request"])))),
            plain(parse(api.response, told["version"], memoryview(bytes.fromhex(told["response"])))),
        )
        for told in json.loads((GOLDEN / f"{api.module}.json").read_text())
    ]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[Exchange]]]:
    """The exchanges with this broker."""

    return asyncio.run(asyncio.wait_for(perform_all(tmp_path_factory.mktemp("golden")), 2 * SCENES_TIMEOUT_S))


@pytest.fixture(scope="module")
def live(played: dict[str, dict[str, list[Exchange]]]) -> dict[str, list[Exchange]]:
    """All exchanges of an API, in the order of its file. tests/test_table.py checks ApiVersions of the controller."""
    files: dict[str, list[Exchange]] = defaultdict(list)
    for said in played.values():
        for file, exchanges in said.items():
            files[file] += exchanges
    return {api.name: files[api.module] for api in API}


@pytest.mark.slow
@pytest.mark.parametrize("api", API, ids=lambda api: api.name)
def test_answers_are_kafkas(api: Api, live: dict[str, list[Exchange]]) -> None:
    kafkas = recorded(api)
    ours = live[api.name]
    assert [(e.version, e.note) for e in ours] == [(e.version, e.note) for e in kafkas]
    found = []
    for theirs, own in zip(kafkas, ours, strict=True):
        at = f"v{theirs.version}, {theirs.note}: "
        asked = differences(comparable(api, theirs.request), comparable(api, own.request), "request")
        told = differences(comparable(api, theirs.response), comparable(api, own.response), "response")
        if (api.name, theirs.note) in OURS_IN_SCENE:
            assert list(told), "there is no longer a difference"
            told = iter(())
        found += [at + difference for difference in (*asked, *told)]
    assert not found, "\n".join(found)


def test_what_differs_is_still_asked(live: dict[str, list[Exchange]]) -> None:
    said = {(name, exchange.note) for name, exchanges in live.items() for exchange in exchanges}
    assert set(OURS_IN_SCENE) <= said
    assert {name for name, _ in OURS} | UNORDERED <= set(live)


def test_recording_one_api_plays_all_that_ask_it(played: dict[str, dict[str, list[Exchange]]]) -> None:
    for api in API:
        chosen = {play.name for play in plays_of([api])}
        files = {api.module, file_of(api, at_controller=True)}
        assert chosen >= {name for name, said in played.items() if files & set(said)}, api.name
    assert AT_CONTROLLER in played["cluster"]
