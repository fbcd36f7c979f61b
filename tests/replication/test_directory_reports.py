"""A broker reports the directories of its replicas until the controller has taken them, or refuses them for good."""

from __future__ import annotations

import asyncio

import pytest

from kpybroker.client.dialer import Dialer
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.node import directory_reports
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.replication.node.directory_reports import DirectoryReports
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.rpc.assign_replicas_to_dirs import (
    DirectoryDataReply,
    PartitionDataReply,
    Request,
    Response,
    TopicDataReply,
)
from kpybroker.world.real import RealWorld
from tests.replication.controller_pointer import ControllerPointer
from tests.replication.leading import NODE

TOPIC, OTHER = (bytes(15) + letter for letter in (b"t", b"u"))
A, B = b"a" * 16, b"b" * 16
REFUSED = (TOPIC, 1)
REPORTS = {(TOPIC, 0): A, REFUSED: A, (TOPIC, 2): B, (OTHER, 1): A}
EPOCH = 9


class Controller:
    """Records the reports of each request. `failures` has the errors of the first requests, and `codes` those of the
    report REFUSED in the next ones."""

    def __init__(self, codes: list[ErrorCode], failures: list[ErrorCode | KafkaError]) -> None:
        self.codes = codes
        self.failures = failures
        self.asked: list[dict[TopicIdPartition, bytes]] = []

    async def answer(self, name: str, request: Request) -> Response:
        assert name == "AssignReplicasToDirs"
        assert (request.broker_id, request.broker_epoch) == (NODE, EPOCH)
        rows = [
            (directory.id, topic.topic_id, row.partition_index)
            for directory in request.directories
            for topic in directory.topics
            for row in topic.partitions
        ]
        self.asked.append({(topic_id, index): directory for directory, topic_id, index in rows})
        assert len(self.asked[-1]) == len(rows)
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, KafkaError):
                raise failure
            return Response(error_code=failure)
        code = self.codes.pop(0) if self.codes else ErrorCode.NONE
        return Response(
            directories=[
                DirectoryDataReply(id=directory, topics=[TopicDataReply(topic_id=topic_id, partitions=[told])])
                for directory, topic_id, index in rows
                for told in [
                    PartitionDataReply(partition_index=index, error_code=code if (topic_id, index) == REFUSED else 0)
                ]
            ]
        )


def asked_of(
    monkeypatch: pytest.MonkeyPatch, codes: list[ErrorCode], failures: list[ErrorCode | KafkaError]
) -> list[dict[TopicIdPartition, bytes]]:
    """The reports in each request that a broker sends until it has nothing to report."""
    monkeypatch.setattr(directory_reports, "RETRY_MS", 0)

    async def whole() -> list[dict[TopicIdPartition, bytes]]:
        world, pointer, controller = RealWorld(1), ControllerPointer(), Controller(codes, failures)
        pointer.is_leader = True
        channel = ControllerChannel(Dialer(world.network), pointer, "tests")
        channel.answer_here(controller.answer)
        reports = DirectoryReports(channel, NODE, lambda: EPOCH)
        before = asyncio.all_tasks()
        for (topic_id, index), directory in REPORTS.items():
            reports.assign(topic_id, index, directory)
        (sending,) = asyncio.all_tasks() - before
        await sending
        channel.close()
        world.close()
        return controller.asked

    return asyncio.run(asyncio.wait_for(whole(), 20))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ],
)
def test_a_report_about_a_replica_that_the_broker_no_longer_has_is_sent_once(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked_of(monkeypatch, [code] * 3, []) == [REPORTS]


@pytest.mark.parametrize("code", sorted({*ErrorCode} - {ErrorCode.NONE, *directory_reports.IN_VAIN}))
def test_a_report_that_is_refused_for_another_reason_is_sent_again(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of the same request are not."""
    again = {REFUSED: REPORTS[REFUSED]}
    assert asked_of(monkeypatch, [code] * 2, []) == [REPORTS, again, again]


def test_all_reports_of_a_refused_request_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the error of the request is one after which a single report would be dropped."""
    failures: list[ErrorCode | KafkaError] = [
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        KafkaError(ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert asked_of(monkeypatch, [], failures) == [REPORTS] * 4
