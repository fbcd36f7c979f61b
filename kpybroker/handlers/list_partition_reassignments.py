"""ListPartitionReassignments (46): list the reassignments in progress (KIP-455)."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import ListReassignments
from kpybroker.serving.fair_loop import partitions_in_slices
from kpybroker.wire.rpc.list_partition_reassignments import (
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    """Return the reassignments of the requested partitions, or of all partitions. Partitions that do not exist or are
    not being reassigned are omitted."""
    asked = request.topics
    if asked is None:
        found = await broker.controller.ask(ListReassignments(None), request.timeout_ms)
    else:
        found = []
        for some in partitions_in_slices((topic.name, topic.partition_indexes) for topic in asked):
            found += await broker.controller.ask(ListReassignments(some), request.timeout_ms)
            await broker.long_work.turn()
    return Response(
        error_message=None,
        topics=[
            OngoingTopicReassignment(
                name=name,
                partitions=[
                    OngoingPartitionReassignment(
                        partition_index=each.partition,
                        replicas=list(each.replicas),
                        adding_replicas=list(each.adding),
                        removing_replicas=list(each.removing),
                    )
                    for each in of_topic
                ],
            )
            for name, of_topic in groupby(found, key=lambda each: each.topic)
        ],
    )
