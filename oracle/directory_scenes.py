"""Scenes of log directories: replicas move between a broker's directories, and the broker reports to the controller."""

from typing import Any

from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import (
    alter_replica_log_dirs,
    assign_replicas_to_dirs,
    broker_heartbeat,
    create_topics,
    describe_log_dirs,
)
from oracle.cluster_scenes import STRANGER, TOPIC, ClusterScenes
from oracle.requests import versions

FIRST, SECOND, THIRD = (bytes([STRANGER, number]) * 8 for number in (1, 2, 3))
ASSIGNED = "assigned"


class DirectoryScenes(ClusterScenes):
    """A broker with one directory, and a fake broker with two."""

    def all(self) -> None:
        self.begin()
        self.moves()
        self.join()
        self.assignments()

    def moves(self) -> None:
        name, rpc = "AlterReplicaLogDirs", alter_replica_log_dirs
        (here,) = self.ask("DescribeLogDirs", 4, describe_log_dirs.Request(topics=None)).results

        def asked(path: str, topic: str, *partitions: int) -> Any:
            named = rpc.AlterReplicaLogDirTopic(name=topic, partitions=list(partitions))
            return rpc.Request(dirs=[rpc.AlterReplicaLogDir(path=path, topics=[named])])

        for version in versions(name):
            self.ask(name, version, asked(here.log_dir, TOPIC, 0), "at its current place")
            self.ask(name, version, asked("/nosuch", TOPIC, 0), "to an unknown directory")
            self.ask(name, version, asked(here.log_dir, TOPIC, 7), "no such partition")
            self.ask(name, version, asked(here.log_dir, "nosuch", 0), "no such topic")
            self.ask(name, version, asked(here.log_dir, "t" * 240, 0), "a name that is too long")
            self.ask(name, version, rpc.Request(dirs=[]), "nothing")

    def join(self) -> None:
        """Register the fake broker, and give it a partition."""
        wanted = self._registration(log_dirs=[FIRST, SECOND])
        self.epoch = self.ask_controller("BrokerRegistration", by_name["BrokerRegistration"].max, wanted).broker_epoch
        self.beat()
        here = create_topics.CreatableReplicaAssignment(partition_index=0, broker_ids=[STRANGER])
        topic = create_topics.CreatableTopic(
            name=ASSIGNED, num_partitions=-1, replication_factor=-1, assignments=[here]
        )
        told = self.ask_controller("CreateTopics", 7, create_topics.Request(topics=[topic]))
        self.assigned = told.topics[0].topic_id

    def beat(self) -> None:
        alive = broker_heartbeat.Request(broker_id=STRANGER, broker_epoch=self.epoch, current_metadata_offset=1 << 40)
        self.ask_controller("BrokerHeartbeat", 1, alive)

    def assignments(self) -> None:
        name, rpc = "AssignReplicasToDirs", assign_replicas_to_dirs

        def tell(directory: bytes, topic_id: bytes, index: int, note: str, epoch: int = 0) -> None:
            topic = rpc.TopicData(topic_id=topic_id, partitions=[rpc.PartitionData(partition_index=index)])
            request = rpc.Request(
                broker_id=STRANGER,
                broker_epoch=self.epoch + epoch,
                directories=[rpc.DirectoryData(id=directory, topics=[topic])],
            )
            self.ask_controller(name, 0, request, note)

        self.beat()
        tell(FIRST, self.assigned, 0, "of another epoch", epoch=5)
        tell(FIRST, self.assigned, 0, "the first directory")
        tell(FIRST, self.assigned, 0, "the same again")
        tell(SECOND, self.assigned, 0, "the second directory")
        tell(FIRST, self.assigned, 7, "no such partition")
        tell(FIRST, bytes(range(16)), 0, "no such topic")
        tell(FIRST, self.topic_id, 0, "of a broker without a replica")
        tell(THIRD, self.assigned, 0, "a directory that is not registered")
