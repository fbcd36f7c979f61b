"""ElectLeaders (43): elect preferred leaders, or unclean leaders (KIP-460).

v0 elects only preferred leaders; v2 is flexible.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller import commands
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.serving.fair_loop import partitions_in_slices
from kpybroker.wire.rpc.elect_leaders import PartitionResult, ReplicaElectionResult, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    """Return a row for each partition; if the request names none, only for partitions that needed an election."""
    there = ((topic.name, range(len(topic.partitions))) for topic in broker.metadata.image.topics.values())
    named = request.topic_partitions
    asked = there if named is None else ((each.topic, each.partitions) for each in named)
    response = Response(replica_election_results=[])
    told = response.replica_election_results
    for number, some in enumerate(partitions_in_slices(asked)):
        if number:
            await broker.long_work.turn()
        command = commands.ElectLeaders(request.election_type, some)
        results = await broker.controller.ask(command, request.timeout_ms)
        for row in _response(results, shows_all=named is not None).replica_election_results:
            if told and told[-1].topic == row.topic:
                told[-1].partition_result += row.partition_result
            else:
                told.append(row)
    return response


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse the whole request. In v0, only partitions have an error code."""
    response = _response(
        [
            commands.PartitionResult(topic, index, refusal.code, refusal.message)
            for topic, indexes in _asked(request) or ()
            for index in indexes
        ],
        shows_all=True,
    )
    response.error_code = int(refusal.code)
    return response


def _asked(request: Request) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    if request.topic_partitions is None:
        return None
    return tuple((each.topic, tuple(each.partitions)) for each in request.topic_partitions)


def _response(results: list[commands.PartitionResult], *, shows_all: bool) -> Response:
    """Build the response. Without `shows_all`, partitions that needed no election are omitted."""
    return Response(
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic,
                partition_result=[
                    PartitionResult(
                        partition_id=each.partition, error_code=each.error_code, error_message=each.error_message
                    )
                    for each in of_topic
                    if shows_all or each.error_code is not ErrorCode.ELECTION_NOT_NEEDED
                ],
            )
            for topic, of_topic in groupby(results, key=lambda each: each.topic)
        ]
    )
