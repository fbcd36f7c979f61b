"""DescribeQuorum (55): describe the leader of the metadata quorum and the progress of its replicas.

See KIP-595, KIP-836 and KIP-853.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc.describe_quorum import PartitionDataReply, Request, Response, TopicDataReply

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Describe the quorum. Raises NOT_LEADER_OR_FOLLOWER if this node is not the leader."""
    asked = [(topic.topic_name, row.partition_index) for topic in request.topics for row in topic.partitions]
    if asked == [(METADATA_TOPIC, 0)]:
        return broker.quorum.describe()
    return Response(topics=[_unknown(topic) for topic in request.topics])


def _unknown(topic: object) -> TopicDataReply:
    rows = [
        PartitionDataReply(
            partition_index=row.partition_index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message="This server does not host this topic-partition.",
        )
        for row in topic.partitions  # type: ignore[attr-defined]  # of the request
    ]
    return TopicDataReply(topic_name=topic.topic_name, partitions=rows)  # type: ignore[attr-defined]
