"""Scenes of WriteTxnMarkers from a transaction coordinator: which producers they fence, and when they are refused."""

from collections.abc import Callable
from typing import Any

from kpybroker.wire.rpc import create_topics, describe_producers, write_txn_markers
from oracle.requests import versions

Ask = Callable[..., Any]
"""ask(name, version, request, note="") -> response; recorded if there is a note"""

TOPIC = "marked"
NOBODY_MS = 9000


class MarkerScenes:
    """Each version has its own producer, which has never written."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    def all(self) -> None:
        topic = create_topics.CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
        self.ask("CreateTopics", 5, create_topics.Request(topics=[topic], timeout_ms=NOBODY_MS))
        asked = describe_producers.Request(
            topics=[describe_producers.TopicRequest(name=TOPIC, partition_indexes=[0, 1])]
        )
        while any(row.error_code for row in self.ask("DescribeProducers", 0, asked).topics[0].partitions):
            pass
        for version in versions("WriteTxnMarkers"):
            self._fencing(version, 70_000 + version)

    def _fencing(self, version: int, producer_id: int) -> None:
        rpc = write_txn_markers

        def marker(epoch: int, coordinator_epoch: int, **facts: Any) -> Any:
            topics = facts.pop("topics", {TOPIC: [0]})
            of = [rpc.WritableTxnMarkerTopic(name=name, partition_indexes=found) for name, found in topics.items()]
            known = {"producer_id": producer_id, "producer_epoch": epoch, "coordinator_epoch": coordinator_epoch}
            return rpc.WritableTxnMarker(topics=of, **{**known, **facts})

        for note, markers in {
            "of an unknown producer": [marker(3, 0, transaction_result=True)],
            "again": [marker(3, 0, transaction_result=True)],
            "of an older epoch": [marker(2, 0)],
            "of a newer coordinator": [marker(3, 5)],
            "of a coordinator that was deposed": [marker(3, 4)],
            "of both": [marker(2, 4)],
            "of a newer epoch": [marker(4, 5)],
            "nowhere": [marker(4, 5, topics={"nowhere": [0], TOPIC: [0, 1, 9]})],
            "of nobody": [marker(0, 0, producer_id=-1)],
            "of no epoch": [marker(-1, 0)],
            "several": [marker(4, 5), marker(4, 5, producer_id=producer_id + 50, topics={TOPIC: [0, 1]})],
            "none": [],
        }.items():
            self.ask("WriteTxnMarkers", version, rpc.Request(markers=markers), note)
        if version >= 2:
            for note, epoch in {
                "of the second protocol": 4,
                "of its next epoch": 5,
                "of its next epoch, again": 5,
            }.items():
                request = rpc.Request(markers=[marker(epoch, 5, transaction_version=2)])
                self.ask("WriteTxnMarkers", version, request, note)
