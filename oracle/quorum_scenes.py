"""Scenes of the quorum APIs, sent to the quorum's only voter. All requests are refused or read-only."""

from collections.abc import Callable
from typing import Any

from kpybroker.wire.rpc import (
    begin_quorum_epoch,
    describe_cluster,
    describe_quorum,
    end_quorum_epoch,
    fetch_snapshot,
    vote,
)
from oracle.requests import versions

Ask = Callable[..., Any]
"""ask(name, version, request, note="") -> response; recorded if there is a note"""

METADATA = "__cluster_metadata"
VOTER = 1
STRANGER = 9
OTHER_CLUSTER = "x" * 22


class QuorumScenes:
    """`ask` sends to the broker listener, `ask_controller` to the controller listener of the same node."""

    def __init__(self, ask: Ask, ask_controller: Ask) -> None:
        self.ask = ask
        self.ask_controller = ask_controller
        self.cluster_id = ""

    def all(self) -> None:
        self.cluster_id = self.ask("DescribeCluster", 0, describe_cluster.Request()).cluster_id
        self.descriptions()
        self.votes()
        self.leaders()
        self.snapshots()

    def descriptions(self) -> None:
        def asked(topic: str, index: int) -> Any:
            rpc = describe_quorum
            partition = rpc.PartitionData(partition_index=index)
            return rpc.Request(topics=[rpc.TopicData(topic_name=topic, partitions=[partition])])

        for version in versions("DescribeQuorum"):
            self.ask("DescribeQuorum", version, asked(METADATA, 0), "of the metadata")
            self.ask("DescribeQuorum", version, asked("nosuch", 0), "of another topic")

    def votes(self) -> None:
        def asked(cluster_id: str, epoch: int, topic: str = METADATA) -> Any:
            partition = vote.PartitionData(replica_epoch=epoch, replica_id=STRANGER)
            topics = [vote.TopicData(topic_name=topic, partitions=[partition])]
            return vote.Request(cluster_id=cluster_id, voter_id=VOTER, topics=topics)

        for version in versions("Vote"):
            self.ask_controller("Vote", version, asked(OTHER_CLUSTER, 0), "of another cluster")
            self.ask_controller("Vote", version, asked(self.cluster_id, 1), "in an epoch that has its leader")
            self.ask_controller("Vote", version, asked(self.cluster_id, 0, "nosuch"), "about another topic")

    def leaders(self) -> None:
        for name, rpc in (("BeginQuorumEpoch", begin_quorum_epoch), ("EndQuorumEpoch", end_quorum_epoch)):
            for version in versions(name):
                for cluster_id, note in (
                    (OTHER_CLUSTER, "of another cluster"),
                    (self.cluster_id, "of a past epoch"),
                ):
                    partition = rpc.PartitionData(leader_id=STRANGER, leader_epoch=0)
                    topics = [rpc.TopicData(topic_name=METADATA, partitions=[partition])]
                    self.ask_controller(name, version, rpc.Request(cluster_id=cluster_id, topics=topics), note)

    def snapshots(self) -> None:
        rpc = fetch_snapshot
        partition = rpc.PartitionSnapshot(snapshot_id=rpc.SnapshotId(end_offset=123456, epoch=1))
        topics = [rpc.TopicSnapshot(name=METADATA, partitions=[partition])]
        asked = rpc.Request(cluster_id=OTHER_CLUSTER, replica_id=STRANGER, topics=topics)
        for version in versions("FetchSnapshot"):
            self.ask_controller("FetchSnapshot", version, asked, "of another cluster")
