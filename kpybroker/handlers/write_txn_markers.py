"""WriteTxnMarkers (27): write commit or abort markers to partitions that this broker leads.

v1 is flexible; v2 contains the transaction version of each marker (KIP-1228).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.wire.rpc.write_txn_markers import (
    Request,
    Response,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Write the markers. Return an error code for each partition of each marker."""
    return await broker.coordinators.txn_markers.write(request)


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition of every marker."""
    return Response(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=refusal.code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )
