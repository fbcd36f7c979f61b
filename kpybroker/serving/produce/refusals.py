"""Error responses to Produce, for the whole request or for one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.wire.rpc.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    Request,
    Response,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

ACKS_WITH_REPLY: Final = (-1, 1)
WITHOUT_LOG_START: Final = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.KAFKA_STORAGE_ERROR)
"""Errors that Kafka finds before it looks at the log, so that it does not return the log start offset."""


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition. With acks=0 there is no response; raise MalformedFrame instead to close the
    connection."""
    if request.acks not in ACKS_WITH_REPLY:
        raise MalformedFrame(f"a produce with acks={request.acks} was refused: {refusal.code.name}")
    response = Response()
    for topic in request.topic_data:
        told = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
        response.responses.append(told)
        for data in topic.partition_data:
            answer = PartitionProduceResponse(index=data.index)
            refuse_partition(answer, refusal)
            told.partition_responses.append(answer)
    return response


def refuse_partition(answer: PartitionProduceResponse, refusal: KafkaError) -> None:
    """Set the error in a partition's part of the response."""
    answer.error_code = refusal.code
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    if refusal.code in WITHOUT_LOG_START:
        answer.log_start_offset = -1
    answer.error_message = refusal.message
    if refusal.code == ErrorCode.INVALID_RECORD and refusal.records:
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=why)
            for index, why in refusal.records
        ]


def name_leader(
    broker: Broker, call: Call, response: Response, topic: str | None, answer: PartitionProduceResponse
) -> None:
    """Add the current leader and its address to the response, if this broker knows them (KIP-951)."""
    leader = broker.metadata.leader_of(topic or "", answer.index, call.listener)
    if leader is None:
        return
    answer.current_leader = LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
    if leader.host and all(node.node_id != leader.node_id for node in response.node_endpoints):
        response.node_endpoints.append(
            NodeEndpoint(node_id=leader.node_id, host=leader.host, port=leader.port, rack=leader.rack)
        )


def first_error(result: Response) -> str:
    """The name of the first error in a response that has at least one."""
    codes = [a.error_code for t in result.responses for a in t.partition_responses if a.error_code]
    return ErrorCode(codes[0]).name
