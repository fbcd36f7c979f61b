"""If a request is nearly equal to an earlier request of the connection, its own content is used, not the cached one."""

from __future__ import annotations

import asyncio

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.frame import encode_request
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import delete_records, find_coordinator, join_group
from tests.asking import NOW_MS, make, produced, put
from tests.conftest import WithBroker
from tests.server.raw import raw
from tests.serving import dialled

ADMIN = "__admin_client"


def test_another_client_id_of_the_same_length(with_broker: WithBroker) -> None:
    """Only the admin client may produce to internal topics; the header of every request is checked."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "__consumer_offsets")
        row, keyed = api_table.by_name["Produce"], bytes(encode_batch([(b"k", b"x")], timestamp_ms=NOW_MS))
        async with raw(node) as other:
            for client_id, code in ((ADMIN, 0), ("__admin_cliens", ErrorCode.INVALID_TOPIC_EXCEPTION), (ADMIN, 0)):
                asked = produced("__consumer_offsets", records=keyed)
                other.send(b"".join(encode_request(1, row, 9, asked, client_id)))
                told = (await other.answer("Produce", 9))[1]
                assert told.responses[0].partition_responses[0].error_code == code

    with_broker(scenario)


def test_an_acknowledgement_has_the_current_log_start(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        for number in range(6):
            told = await put(peer, "t", b"x")
            assert (told.base_offset, told.log_start_offset) == (number, max(number - 1, 0))
            rows = [delete_records.DeleteRecordsPartition(partition_index=0, offset=number)]
            topic = delete_records.DeleteRecordsTopic(name="t", partitions=rows)
            await peer.ask("DeleteRecords", delete_records.Request(topics=[topic], timeout_ms=1000), version=2)

    with_broker(scenario)


def test_a_client_that_disconnects_while_parked_is_not_waited_for(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        protocols = [join_group.JoinGroupRequestProtocol(name="range", metadata=b"")]
        request = join_group.Request(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=protocols,
        )
        await peer.ask("FindCoordinator", find_coordinator.Request(key="g", key_type=0), version=3)
        await node.broker.coordinators.groups.loaded()
        runner = node.broker.coordinators.groups.runner("g")
        while not runner.waiters:  # the coordinator always has one waiter of its own
            await asyncio.sleep(0)
        async with dialled(node) as other:
            asked = asyncio.ensure_future(other.ask("JoinGroup", request, version=3))
            while runner.waiters == 1:
                await asyncio.sleep(0)
        while runner.waiters > 1:
            await asyncio.sleep(0)
        asked.cancel()

    with_broker(scenario, {"group.initial.rebalance.delay.ms": "60000"})
