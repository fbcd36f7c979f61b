"""Scenes of the cluster APIs: some are sent by clients, and some to the controller's listener."""

from collections.abc import Callable
from typing import Any

from kpybroker.wire.api import by_name
from kpybroker.wire.codec.codec import build
from kpybroker.wire.codec.primitives import ZERO_UUID
from kpybroker.wire.rpc import (
    allocate_producer_ids,
    alter_partition,
    alter_partition_reassignments,
    api_versions,
    broker_heartbeat,
    broker_registration,
    controller_registration,
    create_topics,
    elect_leaders,
    envelope,
    list_partition_reassignments,
    metadata,
    unregister_broker,
    update_features,
)
from oracle.requests import versions

Ask = Callable[..., Any]
"""ask(name, version, request, note="") -> response; recorded if there is a note"""

TOPIC = "cluster"
STRANGER = 9
"""The id of a broker that registers but does not exist."""
NOBODY = 99
EVERY_LEVEL = (
    ("metadata.version", 7, 30),
    ("kraft.version", 0, 1),
    ("group.version", 0, 1),
    ("transaction.version", 0, 2),
    ("share.version", 0, 1),
    ("streams.version", 0, 1),
    ("eligible.leader.replicas.version", 0, 1),
)
ANONYMOUS = bytes.fromhex("0000 05") + b"User" + bytes.fromhex("0a") + b"ANONYMOUS" + bytes.fromhex("00 00")
"""The principal of an anonymous client, as serialized between nodes (version 0)."""


class ClusterScenes:
    """`ask` sends to the broker listener, `ask_controller` to the controller listener of the same node."""

    def __init__(self, ask: Ask, ask_controller: Ask) -> None:
        self.ask = ask
        self.ask_controller = ask_controller
        self.cluster_id = ""
        self.topic_id = ZERO_UUID

    def all(self) -> None:
        self.begin()
        self.versions_at_controller()
        self.elections()
        self.reassignments()
        self.features()
        self.registrations()
        self.heartbeats()
        self.in_sync_sets()
        self.envelopes()
        self.departures()
        self.controllers()

    def begin(self) -> None:
        topic = create_topics.CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
        self.ask("CreateTopics", 7, create_topics.Request(topics=[topic]))
        asked = metadata.Request(topics=[metadata.MetadataRequestTopic(name=TOPIC)])
        for _ in range(500):
            told = self.ask("Metadata", 12, asked)
            if told.topics[0].error_code == 0 and all(p.leader_id >= 0 for p in told.topics[0].partitions):
                break
        self.cluster_id, self.topic_id = told.cluster_id, told.topics[0].topic_id

    def versions_at_controller(self) -> None:
        named = api_versions.Request(client_software_name="golden", client_software_version="1")
        self.ask_controller("ApiVersions", 4, named, "at the controller")

    def elections(self) -> None:
        def asked(*partitions: tuple[str, list[int]], kind: int = 0) -> Any:
            named = [elect_leaders.TopicPartitions(topic=topic, partitions=at) for topic, at in partitions]
            return elect_leaders.Request(election_type=kind, topic_partitions=named)

        for version in versions("ElectLeaders"):
            self.ask("ElectLeaders", version, asked((TOPIC, [0, 7])), "not needed, and an unknown partition")
            self.ask("ElectLeaders", version, asked(("nosuch", [0])), "no such topic")
            self.ask("ElectLeaders", version, elect_leaders.Request(topic_partitions=None), "all")
        latest = by_name["ElectLeaders"].max
        self.ask("ElectLeaders", latest, asked((TOPIC, [1]), kind=1), "unclean, with a leader")

    def reassignments(self) -> None:
        rpc = alter_partition_reassignments

        def asked(topic: str, index: int, replicas: list[int] | None, **facts: Any) -> Any:
            moved = rpc.ReassignablePartition(partition_index=index, replicas=replicas)
            return rpc.Request(topics=[rpc.ReassignableTopic(name=topic, partitions=[moved])], **facts)

        name = "AlterPartitionReassignments"
        for version in versions(name):
            self.ask(name, version, asked(TOPIC, 0, [1]), "at its current place")
            self.ask(name, version, asked(TOPIC, 0, [NOBODY]), "to an unknown broker")
            self.ask(name, version, asked(TOPIC, 0, [1, 1]), "twice to one broker")
            self.ask(name, version, asked(TOPIC, 0, []), "to no broker")
            self.ask(name, version, asked(TOPIC, 7, [1]), "no such partition")
            self.ask(name, version, asked("nosuch", 0, [1]), "no such topic")
            self.ask(name, version, asked(TOPIC, 0, None), "nothing to cancel")
        name = "ListPartitionReassignments"
        listed = list_partition_reassignments
        self.ask(name, 0, listed.Request(topics=None), "all")
        for topic in (TOPIC, "nosuch"):
            named = listed.ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0, 7])
            self.ask(name, 0, listed.Request(topics=[named]), f"of {topic}")

    def features(self) -> None:
        def asked(feature: str, level: int, **facts: Any) -> Any:
            update = update_features.FeatureUpdateKey(feature=feature, max_version_level=level, **facts)
            return update_features.Request(feature_updates=[update])

        for version in versions("UpdateFeatures"):
            self.ask("UpdateFeatures", version, asked("metadata.version", 30), "as it is")
            self.ask("UpdateFeatures", version, asked("metadata.version", 120), "from the future")
            self.ask("UpdateFeatures", version, asked("nosuch.version", 1), "not known")
        self.ask("UpdateFeatures", 2, asked("metadata.version", 30, upgrade_type=7), "an unknown kind of upgrade")

    def _registration(self, incarnation: int = 1, **facts: Any) -> Any:
        rpc = broker_registration
        wanted: dict[str, Any] = {
            "broker_id": STRANGER,
            "cluster_id": self.cluster_id,
            "incarnation_id": bytes([incarnation]) * 16,
            "listeners": [rpc.Listener(name="PLAINTEXT", host="127.0.0.1", port=9999)],
            "features": [
                rpc.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, low, high in EVERY_LEVEL
            ],
            "rack": None,
            "log_dirs": [bytes([STRANGER]) * 16],
        }
        return rpc.Request(**{**wanted, **facts})

    def registrations(self) -> None:
        name, latest = "BrokerRegistration", by_name["BrokerRegistration"].max
        self.ask_controller(name, 0, self._registration(cluster_id="x" * 22), "of another cluster")
        for version in versions(name):
            self.ask_controller(name, version, self._registration(features=[]), "without features")
        told = self.ask_controller(name, latest, self._registration(), "of a stranger")
        self.epoch = told.broker_epoch
        self.ask_controller(name, latest, self._registration(), "again")
        told = self.ask_controller(name, latest, self._registration(incarnation=2), "of another incarnation")
        self.epoch = told.broker_epoch
        twice = [bytes([7]) * 16] * 2
        self.ask_controller(name, latest, self._registration(broker_id=8, log_dirs=twice), "one directory twice")
        theirs = [bytes([STRANGER]) * 16]
        self.ask_controller(name, latest, self._registration(broker_id=8, log_dirs=theirs), "another's directory")

    def controllers(self) -> None:
        name, rpc = "ControllerRegistration", controller_registration

        def asked(incarnation: int, **facts: Any) -> Any:
            return rpc.Request(controller_id=STRANGER, incarnation_id=bytes([STRANGER, incarnation]) * 8, **facts)

        levels = [
            rpc.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in EVERY_LEVEL
        ]
        listeners = [rpc.Listener(name="CONTROLLER", host="127.0.0.1", port=1)]
        for version in versions(name):
            self.ask_controller(name, version, asked(1), "without listeners and features")
            self.ask_controller(name, version, asked(2, listeners=listeners, features=levels), "of a stranger")
            self.ask_controller(name, version, asked(2, listeners=listeners, features=levels), "again")

    def heartbeats(self) -> None:
        name = "BrokerHeartbeat"

        def asked(epoch: int, offset: int = 0, **wants: bool) -> Any:
            return broker_heartbeat.Request(
                broker_id=STRANGER, broker_epoch=epoch, current_metadata_offset=offset, **wants
            )

        for version in versions(name):
            self.ask_controller(name, version, asked(self.epoch + 5), "of another epoch")
            self.ask_controller(name, version, asked(self.epoch, want_fence=True), "fenced")
            self.ask_controller(name, version, asked(self.epoch), "behind")
        latest = by_name["BrokerRegistration"].max
        again = self._registration(incarnation=3)
        self.ask_controller("BrokerRegistration", latest, again, "of another incarnation, while this one is alive")
        for version in versions("AllocateProducerIds"):
            rpc = allocate_producer_ids
            wrong, right = (
                rpc.Request(broker_id=STRANGER, broker_epoch=epoch) for epoch in (self.epoch + 5, self.epoch)
            )
            self.ask_controller("AllocateProducerIds", version, wrong, "of another epoch")
            self.ask_controller("AllocateProducerIds", version, right, "a block")

    def in_sync_sets(self) -> None:
        rpc = alter_partition

        def asked(topic_id: bytes, index: int, leader_epoch: int, broker_epoch: int) -> Any:
            partition = rpc.PartitionData(
                partition_index=index,
                leader_epoch=leader_epoch,
                new_isr=[STRANGER],
                new_isr_with_epochs=[rpc.BrokerState(broker_id=STRANGER, broker_epoch=broker_epoch)],
                partition_epoch=0,
            )
            topic = rpc.TopicData(topic_id=topic_id, partitions=[partition])
            return rpc.Request(broker_id=STRANGER, broker_epoch=broker_epoch, topics=[topic])

        for version in versions("AlterPartition"):

            def tell(request: Any, note: str, version: int = version) -> None:
                self.ask_controller("AlterPartition", version, request, note)

            tell(asked(self.topic_id, 0, 0, self.epoch + 5), "of another broker epoch")
            tell(asked(bytes(range(16)), 0, 0, self.epoch), "an unknown topic")
            tell(asked(self.topic_id, 7, 0, self.epoch), "an unknown partition")
            tell(asked(self.topic_id, 0, 5, self.epoch), "a future leader epoch")
            tell(asked(self.topic_id, 0, -1, self.epoch), "a past leader epoch")
            tell(asked(self.topic_id, 0, 0, self.epoch), "of a broker that does not lead")

    def envelopes(self) -> None:
        def asked(name: str, version: int, request: Any) -> Any:
            api = by_name[name]
            head = api.key.to_bytes(2, "big") + version.to_bytes(2, "big") + (77).to_bytes(4, "big")
            client = (6).to_bytes(2, "big") + b"inside" + (b"\0" if version >= api.flexible else b"")
            return envelope.Request(
                request_data=head + client + build(request, version),
                request_principal=ANONYMOUS,
                client_host_address=bytes([127, 0, 0, 1]),
            )

        listed = list_partition_reassignments.Request(topics=None)
        self.ask_controller("Envelope", 0, asked("ListPartitionReassignments", 0, listed), "of a request")
        gone = unregister_broker.Request(broker_id=NOBODY)
        self.ask_controller("Envelope", 0, asked("UnregisterBroker", 0, gone), "of a request that is refused")
        other = api_versions.Request(client_software_name="a", client_software_version="1")
        self.ask_controller("Envelope", 0, asked("ApiVersions", 3, other), "of an API that is not forwarded")

    def departures(self) -> None:
        name = "BrokerHeartbeat"
        leaving = broker_heartbeat.Request(broker_id=STRANGER, broker_epoch=self.epoch, want_shut_down=True)
        self.ask_controller(name, by_name[name].max, leaving, "wants to go")
        for broker_id, note in ((STRANGER, "the stranger"), (STRANGER, "again"), (NOBODY, "nobody")):
            self.ask("UnregisterBroker", 0, unregister_broker.Request(broker_id=broker_id), note)
