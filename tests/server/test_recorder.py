"""Tests the recorder: a tape has what clients sent and received, nothing else, and stays within its limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from kpybroker.cli.control import execute
from kpybroker.cli.recording_commands import TAKEN_BYTES
from kpybroker.client.peer import Peer
from kpybroker.client.recorded import RecordedRequest
from kpybroker.server.node import Node
from kpybroker.server.requests.recorder import LAST, RECORDING, TAPES_MAX, Limits
from kpybroker.wire.api import by_name
from kpybroker.wire.frame import encode_request
from kpybroker.wire.recording import CLOSED, KIT_CLIENT_ID, NOT_SENT
from kpybroker.wire.rpc import fetch, metadata
from tests.asking import batch_of, get, make, produced, put
from tests.conftest import WithBroker
from tests.server.raw import raw

ROOMY = Limits(requests=1000, size_bytes=1_000_000, frame_bytes=100_000, keeps_last=True)


def begin(node: Node, limits: Limits = RECORDING) -> int:
    return node.server.recorder.begin(limits=limits)


async def do(node: Node, **command: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await execute(node.server, json.dumps(command).encode()))
    return answer


async def taken(node: Node, tape: int) -> list[RecordedRequest]:
    found: list[RecordedRequest] = []
    after = 0
    while True:
        answer = await do(node, do="take", tape=tape, after=after)
        found += [RecordedRequest.of_line({**line, "node": 1}, {}) for line in answer["requests"]]
        if not answer["more"]:
            return found
        after = answer["requests"][-1]["number"]


def shown(requests: Sequence[RecordedRequest]) -> list[tuple[str, int, str]]:
    return [(each.api, each.version, each.outcome) for each in requests]


def test_requests_and_responses_are_recorded(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        tape = begin(node)
        await make(peer, "t")
        await put(peer, "t", b"x")
        await put(peer, "missing", b"x")
        await get(peer, "t", 0)
        found = await taken(node, tape)
        assert shown(found) == [
            ("CreateTopics", 7, "ok"),
            ("Produce", 9, "ok"),
            ("Produce", 9, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("Fetch", 12, "ok"),
        ]
        assert all(each.is_whole for each in found)
        assert all(each.client_id == "kpybroker" for each in found)
        assert all(each.principal == "User:ANONYMOUS" for each in found)
        assert [each.number for each in found] == sorted(each.number for each in found)
        assert found[1].fields["topic_data"][0]["partition_data"][0]["records"] == batch_of(b"x"), "as the client sent"
        assert found[1].duration_us is not None
        assert found[3].response_fields is not None
        assert await taken(node, tape) == [], "they are returned only once"

    with_broker(scenario)


def test_requests_without_a_response(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        tape = begin(node)
        await peer.send("Produce", produced("t", b"x", acks=0), version=9)
        async with raw(node) as other:
            other.ask(1, "Metadata", metadata.Request(topics=[]), 9)
            await other.frame()
            other.send_frame(b"\0\x03\0\x09\0\0\0\1\xff\xff\0\xff")
            assert await other.closed()
        found = await taken(node, tape)
        assert shown(found[:2]) == [("Produce", 9, NOT_SENT), ("Metadata", 9, "ok")]
        assert (found[2].api, found[2].outcome) == ("Metadata", found[2].end)
        assert "refused: Metadata v9:" in found[2].outcome

        waits = fetch.Request(max_wait_ms=60_000, min_bytes=1, session_epoch=-1, topics=_topics())
        async with raw(node) as other:
            other.ask(1, "Fetch", waits, 12)
            while not (found := await taken(node, tape)):
                await asyncio.sleep(0.001)
            assert shown(found) == [("Fetch", 12, "no response")]
            assert found == await taken(node, tape), "it is not complete"
        while (found := await taken(node, tape))[0].end is None:
            await asyncio.sleep(0.001)
        assert [(each.api, each.end, each.duration_us) for each in found] == [("Fetch", CLOSED, None)]

    with_broker(scenario)


def _topics() -> list[fetch.FetchTopic]:
    return [fetch.FetchTopic(topic="t", partitions=[fetch.FetchPartition(partition=0, fetch_offset=1)])]


def test_brokers_and_the_test_kit_are_not_recorded(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        tape = begin(node)
        async with raw(node) as other:  # a follower: its first request does not show that it is one
            other.ask(1, "ApiVersions", by_name["ApiVersions"].request(), 0)
            await other.frame()
            assert len(node.server.recorder.tape(tape)) == 1
            other.ask(2, "Fetch", fetch.Request(replica_id=2, max_wait_ms=0, topics=_topics()), 12)
            await other.frame()
            other.ask(3, "Metadata", metadata.Request(topics=[]), 9)
            await other.frame()
            kit = encode_request(4, by_name["Metadata"], 9, metadata.Request(topics=[]), KIT_CLIENT_ID)
        async with raw(node) as other:
            other.send(b"".join(kit))
            await other.frame()
        assert await taken(node, tape) == []
        assert node.server.recorder.tape(tape).size_bytes == 0

    with_broker(scenario)


def test_the_last_requests_are_kept(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        node.server.recorder.remember(ROOMY._replace(requests=3))
        await make(peer, "t")
        for value in (b"a", b"b", b"c"):
            await put(peer, "t", value)
        found = await taken(node, 0)
        assert shown(found) == [("Produce", 9, "ok")] * 3
        assert await taken(node, 0) == found, "they stay"
        assert node.server.recorder.tape(0).lost == 0

    with_broker(scenario)


def test_the_last_requests_are_limited_in_bytes(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        node.server.recorder.remember(ROOMY)
        await put(peer, "t", b"x" * 1000)
        tape = node.server.recorder.tape(0)
        one = tape.size_bytes
        for limit in (3 * one, 3 * one - 1):
            node.server.recorder.remember(ROOMY._replace(size_bytes=limit))
            for _ in range(5):
                await put(peer, "t", b"x" * 1000)
            tape = node.server.recorder.tape(0)
            assert len(tape) == limit // one
            assert tape.size_bytes == len(tape) * one

    with_broker(scenario)


def test_a_full_recording_counts_what_it_lacks(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        measured = begin(node)
        await put(peer, "t", b"x" * 1000)
        one = node.server.recorder.tape(measured).size_bytes
        for limits in (RECORDING._replace(requests=2), RECORDING._replace(size_bytes=2 * one)):
            tape = begin(node, limits)
            for _ in range(5):
                await put(peer, "t", b"x" * 1000)
            assert (await do(node, do="take", tape=tape, after=0))["lost"] == 3
            await put(peer, "t", b"x" * 1000)  # there is room again
            assert len(await taken(node, tape)) == 1
            assert node.server.recorder.tape(tape).size_bytes == 0

    with_broker(scenario)


def test_a_response_that_does_not_fit_is_not_kept(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await put(peer, "t", b"x" * 5000)
        tapes = begin(node, RECORDING._replace(size_bytes=3000)), begin(node, RECORDING._replace(frame_bytes=3000))
        await get(peer, "t", 0)
        for tape in tapes:
            (request,) = await taken(node, tape)
            assert request.is_whole
            assert request.response is None
            assert request.outcome == f"{request.response_bytes} bytes, not kept"
            assert request.response_bytes > 5000

    with_broker(scenario)


def test_large_produce_requests_are_kept_without_records(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        small = begin(node, ROOMY._replace(frame_bytes=1000))
        whole = begin(node)
        await put(peer, "t", b"x" * 2000)
        await peer.ask("Metadata", metadata.Request(topics=[metadata.MetadataRequestTopic(name="m" * 2000)]))
        (short, asked), (full, _) = await taken(node, small), await taken(node, whole)
        assert (short.is_whole, short.request_bytes, full.is_whole) == (False, full.request_bytes, True)
        records = short.fields["topic_data"][0]["partition_data"][0].pop("records")
        expected = full.fields["topic_data"][0]["partition_data"][0].pop("records")
        assert expected.startswith(records)
        assert len(records) == 61
        assert short.fields == full.fields
        assert (short.topics, short.outcome) == (["t"], "ok")
        assert (asked.api, asked.client_id, asked.fields) == ("Metadata", "kpybroker", {}), "only its header"

    with_broker(scenario)


def test_a_command_returns_a_part_of_many_requests(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        tape = begin(node)
        for _ in range(8):
            await put(peer, "t", b"x" * 100_000)
        part = await do(node, do="take", tape=tape, after=0)
        assert (len(part["requests"]), part["more"]) == (1 + TAKEN_BYTES // 100_000, True)
        last = part["requests"][-1]["number"]
        assert [each.number for each in await taken(node, tape)] == list(
            range(last + 1, last + 9 - len(part["requests"]))
        )

    with_broker(scenario)


def test_a_server_without_tapes_has_no_interceptor(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        port = node.server.port
        before = port.dispatch, port.encode
        tapes = [(await do(node, do="record"))["tape"] for _ in range(TAPES_MAX)]
        assert port.dispatch != before[0]
        assert (await do(node, do="record"))["refused"] == f"there are {TAPES_MAX} recordings already; end some"
        await make(peer, "t")
        for tape in tapes:
            assert shown(await taken(node, tape)) == [("CreateTopics", 7, "ok")]
            assert await do(node, do="end", tape=tape) == {}
        assert (port.dispatch, port.encode) == before
        await make(peer, "u")

    with_broker(scenario)


def test_a_recording_can_begin_with_the_last_requests(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        node.server.recorder.remember(LAST)
        await make(peer, "t")
        tape = (await do(node, do="record", with_last=True))["tape"]
        await put(peer, "t", b"x")
        assert [each.api for each in await taken(node, tape)] == ["CreateTopics", "Produce"]
        assert [each.api for each in await taken(node, 0)] == ["CreateTopics", "Produce"], "the last requests stay"

    with_broker(scenario)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ({"do": "take", "tape": 9, "after": 0}, "there is no recording 9"),
        ({"do": "take", "after": 0}, "there is no recording None"),
        ({"do": "take", "tape": [], "after": 0}, r"there is no recording \[\]"),
        ({"do": "end", "tape": "1"}, "there is no recording '1'"),
        ({"do": "topics"}, "ids must be a list of at most 1000"),
        ({"do": "topics", "ids": ["t"] * 1001}, "ids must be a list of at most 1000"),
        ({"do": "topics", "ids": ["t"]}, "'t' is not a uuid"),
    ],
)
def test_wrong_commands_are_refused(command: dict[str, Any], told: str, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        with pytest.raises(AssertionError, match=told):
            raise AssertionError((await do(node, **command))["refused"])

    with_broker(scenario)
