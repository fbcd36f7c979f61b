"""What an event loop may rely on: there is room whenever reading is not paused, and `get_buffer` does nothing else.

libuv calls through a null pointer where a stream is paused or closed between `get_buffer` and `buffer_updated`.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from kpybroker.peer import Peer
from kpybroker.server.connection import IDLE_BUFFER_BYTES, Connection
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.batch import read_records, split
from kpybroker.wire.frame import encode_request
from tests.asking import get, make, produced
from tests.conftest import WithBroker


class Pipe(asyncio.Transport):
    """The event loop's side of a socket: its reads are as large as chance wants them."""

    def __init__(self, connection: Connection, chance: Random) -> None:
        super().__init__({"peername": ("192.0.2.1", 9)})
        self.chance = chance
        self.paused = False
        self.is_in_get_buffer = False
        self.sent = bytearray()
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
        self.sent += data

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def get_write_buffer_size(self) -> int:
        return 0

    async def deliver(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            # as libuv does: on and on, while a read fills the whole buffer
            for _ in range(32):
                if self.paused or at == len(data):
                    break
                self.is_in_get_buffer = True
                room = self.connection.get_buffer(-1)
                self.is_in_get_buffer = False
                assert len(room), "no room, and not paused"
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
        pipe = Pipe(Connection(node.server), chance)
        row = api_table.by_name["Produce"]
        frames = [b"".join(encode_request(n, row, 9, produced("t", value), "p")) for n, value in enumerate(values)]
        await pipe.deliver(b"".join(frames))
        while node.broker.hosting.leads("t", 0).log.high_watermark < len(values):
            await asyncio.sleep(0)
        records = (await get(peer, "t", 0)).records
        found = [record.value for batch in split(records) for record in read_records(batch)]
        assert found == values
        pipe.connection.connection_lost(None)

    with_broker(scenario)
