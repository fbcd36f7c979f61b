"""A connection meets the requirements of event loops.

The buffer has room whenever reading is not paused, `get_buffer` has no side effects, one connection does not block the
loop for long, and data that was passed to the transport does not change until it has been sent.

libuv crashes if a stream is paused or closed between `get_buffer` and `buffer_updated`.
"""

from __future__ import annotations

import asyncio
import sys
from random import Random
from typing import Any

import pytest

from kpybroker.call import BROKER
from kpybroker.client.peer import Peer
from kpybroker.server.connections.connection import REPLIES_LIMIT, Connection
from kpybroker.server.connections.listener import ListenerState
from kpybroker.server.connections.receive_memory import IDLE_BUFFER_BYTES
from kpybroker.server.connections.writing import SMALL_WRITE_BYTES
from kpybroker.server.node import Node
from kpybroker.server.requests.long_requests import ROWS_AT_ONCE
from kpybroker.wire import api as api_table
from kpybroker.wire.encoded import Encoded
from kpybroker.wire.frame import encode_request
from kpybroker.wire.records.batch import read_records, split
from kpybroker.wire.rpc import list_groups, metadata
from kpybroker.world.buffers import ReadBuffer
from tests.asking import fetched, get, make, produced, put
from tests.conftest import WithBroker
from tests.handlers import sharing


class Pipe(asyncio.Transport):
    """A transport that delivers data to a connection in reads of random sizes."""

    def __init__(self, connection: Connection, chance: Random) -> None:
        super().__init__({"peername": ("192.0.2.1", 9)})
        self.chance = chance
        self.paused = False
        self.is_in_get_buffer = False
        self.pieces: list[Any] = []
        """The data that was passed to this transport for sending, without copies."""
        self.unsent_bytes = 0
        self.connection = connection
        connection.connection_made(self)

    def changed(self) -> None:
        assert not self.is_in_get_buffer

    def pause_reading(self) -> None:
        self.changed()
        self.paused = True

    def resume_reading(self) -> None:
        self.changed()
        self.paused = False

    def close(self) -> None:
        self.changed()

    def abort(self) -> None:
        self.changed()

    def write(self, data: Any) -> None:
        self.changed()
        self.pieces.append(data)

    def writelines(self, pieces: Any) -> None:
        self.changed()
        self.pieces += pieces

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing, because this transport never asks its connection to pause writing."""

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    async def deliver(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            # like libuv, read repeatedly while reads fill the whole buffer
            for _ in range(32):
                if self.paused or at == len(data):
                    break
                self.is_in_get_buffer = True
                room = self.connection.get_buffer(-1)
                self.is_in_get_buffer = False
                assert len(room), "if there is no room, reading must be paused"
                size = min(len(data) - at, len(room) if self.chance.random() < 0.7 else self.chance.randrange(1, 3000))
                size = min(size, len(room))
                room[:size] = data[at : at + size]
                at += size
                self.connection.buffer_updated(size)
                if size < len(room):
                    break
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(12))
def test_pipelined_frames_of_any_size_in_reads_of_any_size(seed: int, with_broker: WithBroker) -> None:
    chance = Random(seed)
    values = [chance.randbytes(chance.choice((1, 50, 900, IDLE_BUFFER_BYTES, 20_000))) for _ in range(60)]

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        pipe = Pipe(Connection(node.server.port, ListenerState("PLAINTEXT", BROKER, is_open=True)), chance)
        row = api_table.by_name["Produce"]
        frames = [b"".join(encode_request(n, row, 9, produced("t", value), "p")) for n, value in enumerate(values)]
        await pipe.deliver(b"".join(frames))
        while node.broker.replication.hosting.leads("t", 0).log.high_watermark < len(values):
            await asyncio.sleep(0)
        records = (await get(peer, "t", 0)).records
        found = [record.value for batch in split(records) for record in read_records(batch)]
        assert found == values
        pipe.connection.connection_lost(None)

    with_broker(scenario)


def framed(number: int, name: str, request: Any, version: int) -> bytes:
    return b"".join(encode_request(number, api_table.by_name[name], version, request, "p"))


def test_many_requests_at_once_are_answered_in_slices(with_broker: WithBroker) -> None:
    """Other connections are served in between, and the recursion depth is bounded, however many requests are in the
    buffer."""
    count = 30_000

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        pipe = Pipe(Connection(node.server.port, ListenerState("PLAINTEXT", BROKER, is_open=True)), Random(1))
        await pipe.deliver(framed(0, "Produce", produced("t", b"x" * 900_000), 9))  # makes the buffer grow
        slices: list[int] = []
        handled = node.server.port.dispatch.__self__.routes  # type: ignore[attr-defined]
        delivery = asyncio.create_task(pipe.deliver(framed(1, "ListGroups", list_groups.Request(), 3) * count))
        while not slices or sum(slices) < count:
            await asyncio.sleep(0)
            done = handled["ListGroups"].count if "ListGroups" in handled else handled[16].count if 16 in handled else 0
            slices.append(done - sum(slices))
        assert max(slices) <= 4 * REPLIES_LIMIT
        await delivery
        pipe.connection.connection_lost(None)  # otherwise the node would wait for this connection when it stops

    with_broker(scenario)


@pytest.mark.parametrize("is_sent", [True, False])
def test_memory_that_is_being_sent_is_not_read_into(is_sent: bool, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for topic, fill in (("a", b"a"), ("b", b"b")):
            await make(peer, topic)
            await put(peer, topic, fill * 100_000)
        slow, other = (
            Pipe(Connection(node.server.port, ListenerState("PLAINTEXT", BROKER, is_open=True)), Random(1))
            for _ in range(2)
        )
        for number in range(2):  # at the second Fetch, the position is known and the memory is reused
            await slow.deliver(framed(number, "Fetch", fetched("a", 0), 12))
            slow.unsent_bytes = 0 if is_sent else 100_000
        lent = [piece for piece in slow.pieces if isinstance(piece, memoryview) and isinstance(piece.obj, ReadBuffer)]
        assert lent, "the records are in the page cache"
        before = [bytes(piece) for piece in lent]
        for number in range(4):
            await slow.deliver(framed(9, "ListGroups", list_groups.Request(), 3))  # returns the memory of sent data
            await other.deliver(framed(number, "Fetch", fetched("b", 0), 12))
        assert ([bytes(piece) for piece in lent] == before) is not is_sent
        for pipe in (slow, other):
            pipe.connection.connection_lost(None)

    with_broker(scenario)


def test_memory_of_several_batches_is_returned_once(with_broker: WithBroker) -> None:
    """A ShareFetch response has a view of each batch, and all are views of one read buffer. If the buffer were returned
    for each of them, later reads for two clients would share it."""

    async def scenario(peer: Peer, node: Node) -> None:
        for name, fill in (("a", b"a"), ("b", b"b")):
            await make(peer, name)
            await put(peer, name, fill * 100_000)
        topic_id = await sharing.topic(peer, batches=0)
        for _ in range(2):
            await put(peer, "t", b"t" * 50_000)
        await sharing.configure(peer, "g", auto_offset_reset="earliest")
        await sharing.joined(peer)
        shared = await sharing.fetch(peer, topic_id, 0, min_bytes=100_000)
        assert len(split(memoryview(shared.responses[0].partitions[0].records))) == 2
        for topic in ("a", "b"):  # these positions are known at the second Fetch; the connection returns its memory
            await get(peer, topic, 0)
        slow = [
            Pipe(Connection(node.server.port, ListenerState("PLAINTEXT", BROKER, is_open=True)), Random(1))
            for _ in range(2)
        ]
        for pipe, topic in zip(slow, ("a", "b"), strict=True):
            await peer.ask("ListGroups", list_groups.Request())  # returns the memory of sent data
            pipe.unsent_bytes = 100_000
            await pipe.deliver(framed(1, "Fetch", fetched(topic, 0), 12))
        lent = [
            piece
            for pipe in slow
            for piece in pipe.pieces
            if isinstance(piece, memoryview) and isinstance(piece.obj, ReadBuffer)
        ]
        assert len(lent) == 2, "the records are in the page cache"
        assert [bytes(piece)[-20:-10] for piece in lent] == [b"a" * 10, b"b" * 10]
        for pipe in slow:
            pipe.connection.connection_lost(None)

    with_broker(scenario, sharing.AT_ONCE)


def test_nothing_of_a_large_response_stays_after_it_was_sent(with_broker: WithBroker) -> None:
    """Encoded responses are freed at once. Records are in read buffers, which are returned at the next check."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "a")
        await put(peer, "a", b"a" * 100_000)
        pipe = Pipe(Connection(node.server.port, ListenerState("PLAINTEXT", BROKER, is_open=True)), Random(1))
        topics = [metadata.MetadataRequestTopic(name=f"none-{number}") for number in range(ROWS_AT_ONCE + 500)]
        wanted = metadata.Request(topics=topics, allow_auto_topic_creation=False)
        await pipe.deliver(framed(1, "Metadata", wanted, 12))
        while not pipe.pieces:
            await asyncio.sleep(0)
        assert [len(piece) for piece in pipe.pieces if isinstance(piece, Encoded)] > [SMALL_WRITE_BYTES]
        assert pipe.connection.lent == []
        for number in range(2):  # at the second Fetch, the position is known and the records are read without waiting
            await pipe.deliver(framed(number, "Fetch", fetched("a", 0), 12))
        pipe.unsent_bytes = 100_000
        pipe.connection.look(node.server.now)
        assert [len(piece) >= 100_000 for piece in pipe.connection.lent] == [True]
        pipe.unsent_bytes = 0
        pipe.connection.look(node.server.now)
        assert pipe.connection.lent == []
        pipe.connection.connection_lost(None)

    with_broker(scenario)


def test_cached_requests_keep_no_bytes(with_broker: WithBroker) -> None:
    """A receive buffer is freed when it is replaced, although requests that were in it are cached."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=3)
        pipe = Pipe(Connection(node.server.port, ListenerState("PLAINTEXT", BROKER, is_open=True)), Random(1))
        for index in range(3):
            for acks in (1, 5):
                await pipe.deliver(framed(1, "Produce", produced("t", b"x" * 200_000, index=index, acks=acks), 9))
        for _ in range(5):
            await asyncio.sleep(0)
        large = pipe.connection.get_buffer(-1).obj
        assert isinstance(large, bytearray)
        assert len(large) > 200_000
        pipe.connection.shrink()
        assert sys.getrefcount(large) == 2, "this test's, and the call's"
        pipe.connection.connection_lost(None)

    with_broker(scenario)
