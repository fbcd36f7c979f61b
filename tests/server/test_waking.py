"""If requests behind a waiting Fetch are run during the flush of another connection, none of them is lost."""

from __future__ import annotations

import asyncio

import pytest

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.frame import encode_request
from kpybroker.wire.records.batch import read_records, split
from tests.asking import fetched, get, make, produced, put
from tests.conftest import WithBroker
from tests.server.raw import raw

COUNT = 12


@pytest.mark.parametrize("cut", [0, 30, 600, 1200])
def test_a_request_behind_a_woken_fetch_is_stored_unchanged(cut: int, with_broker: WithBroker) -> None:
    """`cut` bytes of a further request have arrived. They move to the front of the buffer when the earlier requests are
    complete."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "news")
        await make(peer, "kept")
        values = [bytes([65 + number]) * 100 for number in range(COUNT)]
        last = b"z" * 1500
        async with raw(node) as other:
            other.ask(0, "Fetch", fetched("news", 0, wait_ms=30_000), 12)
            for number, value in enumerate(values, 1):
                other.ask(number, "Produce", produced("kept", value), 9)
            frame = b"".join(encode_request(COUNT + 1, api_table.by_name["Produce"], 9, produced("kept", last), "raw"))
            other.send(frame[:cut])
            await other.writer.drain()
            [connection] = [one for one in node.server.connections() if one.peer.endswith(port_of(other.writer))]
            while connection.is_quiet:
                await asyncio.sleep(0)
            await put(peer, "news", b"now")
            assert (await other.answer("Fetch", 12))[0] == 0
            for number in range(1, COUNT + 1):
                correlation_id, told = await other.answer("Produce", 9)
                answer = told.responses[0].partition_responses[0]
                assert (correlation_id, answer.error_code, answer.base_offset) == (number, 0, number - 1)
            other.send(frame[cut:])
            assert (await other.answer("Produce", 9))[0] == COUNT + 1
        records = (await get(peer, "kept", 0)).records
        batches = split(records)
        assert all(batch.crc_ok() for batch in batches)
        assert [record.value for batch in batches for record in read_records(batch)] == [*values, last]

    with_broker(scenario)


def port_of(writer: asyncio.StreamWriter) -> str:
    return f":{writer.get_extra_info('sockname')[1]}"
