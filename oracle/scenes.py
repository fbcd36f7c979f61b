"""The scenes of the golden vectors: requests of each API that succeed, and requests that are refused."""

from collections.abc import Callable
from typing import Any

from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from oracle.edges import Edges
from oracle.requests import FIRST_MS, batch, committed_partition, config_of, deletion, versions

Ask = Callable[..., Any]
"""ask(name, version, request, note="") -> response; recorded if there is a note"""

UNKNOWN_ID = bytes(range(16))
SUBSCRIPTION = bytes.fromhex("0001 00000001 0006 676f6c64656e ffffffff 00000000")
ASSIGNMENT = bytes.fromhex("0001 00000001 0006 676f6c64656e 00000001 00000000 ffffffff")
TOPIC, BROKER, GROUP = 2, 4, 32


class Scenes:
    """The scenes, in an order in which each scene finds what it needs."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.topic_id = bytes(16)

    def all(self) -> None:
        self.discovery()
        self.topics()
        self.configs()
        self.records()
        self.offsets()
        self.groups()
        self.committed()
        self.removals()
        Edges(self.ask).all()

    def discovery(self) -> None:
        for version in versions("ApiVersions"):
            request = api_versions.Request(client_software_name="golden", client_software_version="1")
            self.ask("ApiVersions", version, request, "all of them")
        self.ask("ApiVersions", 3, api_versions.Request(client_software_name="?"), "an invalid client name")
        for version in versions("DescribeCluster"):
            self.ask("DescribeCluster", version, describe_cluster.Request(), "one node")
        for version in versions("FindCoordinator"):
            request = find_coordinator.Request(key="golden", coordinator_keys=["golden", "other"])
            # The first request creates __consumer_offsets; until this topic exists, the response is an error.
            while True:
                found = self.ask("FindCoordinator", version, request)
                if found.error_code == 0 and all(one.error_code == 0 for one in found.coordinators):
                    break
            self.ask("FindCoordinator", version, request, "of groups")
            wrong = find_coordinator.Request(key="golden", key_type=9, coordinator_keys=["golden"])
            if version > 0:
                self.ask("FindCoordinator", version, wrong, "an unknown type of key")

    def topics(self) -> None:
        def topic(name: str, **facts: Any) -> Any:
            facts = {"num_partitions": 1, "replication_factor": 1, **facts}
            return create_topics.CreatableTopic(name=name, **facts)

        for version in versions("CreateTopics"):
            setting = create_topics.CreatableTopicConfig(name="retention.ms", value="-1")
            wrong = create_topics.CreatableTopicConfig(name="no.such.setting", value="1")
            asked = [topic(f"made-{version}", num_partitions=2, configs=[setting]), topic(f"again-{version}")]
            self.ask("CreateTopics", version, create_topics.Request(topics=asked), "two topics, one with a setting")
            asked = [topic(f"made-{version}"), topic("a b"), topic("none", num_partitions=0)]
            asked += [topic("wide", replication_factor=2), topic("set", configs=[wrong])]
            self.ask("CreateTopics", version, create_topics.Request(topics=asked), "refused, each for its own reason")
            only = create_topics.Request(topics=[topic("not-made")], validate_only=True)
            self.ask("CreateTopics", version, only, "validated only")
        self.ask("CreateTopics", 7, create_topics.Request(topics=[topic("golden")]))
        self._await_leader("golden")
        for version in versions("CreatePartitions"):
            more = create_partitions.CreatePartitionsTopic
            asked = [more(name=f"again-{by_name['CreateTopics'].min}", count=2 + version, assignments=None)]
            self.ask("CreatePartitions", version, create_partitions.Request(topics=asked, timeout_ms=9000), "more")
            asked = [more(name="golden", count=1, assignments=None), more(name="unknown", count=2, assignments=None)]
            self.ask("CreatePartitions", version, create_partitions.Request(topics=asked, timeout_ms=9000), "refused")
        for version in versions("Metadata"):
            # Before v4 a client could not prevent topic creation.
            asked = [metadata.MetadataRequestTopic(name="golden"), metadata.MetadataRequestTopic(name="a b")]
            request = metadata.Request(topics=asked, allow_auto_topic_creation=version < 4)
            self.ask("Metadata", version, request, "a topic, and an invalid name")
            if version >= 1:
                self.ask("Metadata", version, metadata.Request(topics=[]), "of no topic")
            if version >= 12:
                asked = [metadata.MetadataRequestTopic(name=None, topic_id=UNKNOWN_ID)]
                asked += [metadata.MetadataRequestTopic(name=None, topic_id=self.topic_id)]
                self.ask("Metadata", version, metadata.Request(topics=asked), "by topic id, one unknown")
        asked = [describe_topic_partitions.TopicRequest(name=name) for name in ("golden", "unknown")]
        self.ask("DescribeTopicPartitions", 0, describe_topic_partitions.Request(topics=asked), "one unknown")
        many = describe_topic_partitions.TopicRequest(name=f"again-{by_name['CreateTopics'].min}")
        request = describe_topic_partitions.Request(topics=[many], response_partition_limit=2)
        self.ask("DescribeTopicPartitions", 0, request, "more partitions than asked for: a cursor")

    def _await_leader(self, name: str) -> None:
        while True:
            [topic] = self.ask(
                "Metadata", 13, metadata.Request(topics=[metadata.MetadataRequestTopic(name=name)])
            ).topics
            if topic.error_code == 0 and topic.partitions and topic.partitions[0].leader_id >= 0:
                self.topic_id = bytes(topic.topic_id)
                return

    def configs(self) -> None:
        for version in versions("IncrementalAlterConfigs"):
            change = incremental_alter_configs.AlterableConfig
            of = incremental_alter_configs.AlterConfigsResource
            sets = change(name="segment.ms", config_operation=0, value="60000")
            appends = change(name="cleanup.policy", config_operation=2, value="compact")
            good = of(resource_type=TOPIC, resource_name="golden", configs=[sets, appends])
            wrong_value = change(name="segment.ms", config_operation=0, value="soon")
            bad = of(resource_type=TOPIC, resource_name="golden", configs=[wrong_value])
            unknown = of(resource_type=TOPIC, resource_name="unknown", configs=[sets])
            for resources, note in (([good], "set and append"), ([bad], "no number"), ([unknown], "unknown topic")):
                request = incremental_alter_configs.Request(resources=resources)
                self.ask("IncrementalAlterConfigs", version, request, note)
        for version in versions("AlterConfigs"):
            setting = alter_configs.AlterableConfig(name="retention.ms", value="-1")
            of_old = alter_configs.AlterConfigsResource
            request = alter_configs.Request(
                resources=[of_old(resource_type=TOPIC, resource_name="golden", configs=[setting])]
            )
            self.ask("AlterConfigs", version, request, "all other settings are reset to their defaults")
            wrong = alter_configs.AlterableConfig(name="no.such.setting", value="1")
            request = alter_configs.Request(
                resources=[of_old(resource_type=TOPIC, resource_name="golden", configs=[wrong])]
            )
            self.ask("AlterConfigs", version, request, "an unknown name")
        for version in versions("DescribeConfigs"):
            keys = ["retention.ms", "segment.bytes", "cleanup.policy", "min.insync.replicas"]
            asked = [config_of(TOPIC, "golden", keys), config_of(TOPIC, "unknown", None)]
            asked += [config_of(BROKER, "1", ["log.retention.hours", "node.id", "listeners"])]
            request = describe_configs.Request(resources=asked, include_synonyms=True)
            self.ask("DescribeConfigs", version, request, "some keys, with synonyms")
        request = describe_configs.Request(resources=[config_of(TOPIC, "golden", None)])
        self.ask("DescribeConfigs", by_name["DescribeConfigs"].max, request, "all of a topic's")
        request = describe_configs.Request(resources=[config_of(TOPIC, "golden", ["segment.ms"])])
        request.include_documentation = True
        self.ask("DescribeConfigs", by_name["DescribeConfigs"].max, request, "with documentation")
        for version in versions("ListConfigResources"):
            request = list_config_resources.Request(resource_types=[TOPIC, BROKER] if version else [])
            self.ask("ListConfigResources", version, request, "topics and brokers" if version else "client metrics")

    def records(self) -> None:
        for version in versions("InitProducerId"):
            request = init_producer_id.Request(transactional_id=None, transaction_timeout_ms=60000)
            # The first request fetches a block of ids; until the block has arrived, the response is an error.
            while self.ask("InitProducerId", version, request).error_code:
                pass
            producer = self.ask("InitProducerId", version, request, "an idempotent producer")
        first, count = 0, 3
        for version in versions("Produce"):

            def data(records: bytes, name: str = "golden", index: int = 0, acks: int = -1) -> Any:
                topic_id = self.topic_id if name == "golden" else UNKNOWN_ID
                partition = produce.PartitionProduceData(index=index, records=records)
                topic = produce.TopicProduceData(name=name, topic_id=topic_id, partition_data=[partition])
                return produce.Request(transactional_id=None, acks=acks, timeout_ms=9000, topic_data=[topic])

            self.ask("Produce", version, data(batch(first, count)), "a batch")
            own = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
            numbered = batch(first, count, **own, base_sequence=first)
            self.ask("Produce", version, data(numbered), "of an idempotent producer")
            self.ask("Produce", version, data(numbered), "the same again: a duplicate")
            gap = batch(first, count, **own, base_sequence=first + 100)
            self.ask("Produce", version, data(gap), "a gap in the sequence")
            self.ask("Produce", version, data(batch(0, 1), index=7), "no such partition")
            self.ask("Produce", version, data(batch(0, 1), name="unknown"), "no such topic")
            self.ask("Produce", version, data(batch(0, 1), acks=2), "invalid acks")
            broken = bytearray(batch(0, 1))
            broken[-1] ^= 1
            self.ask("Produce", version, data(bytes(broken)), "a wrong CRC")
            first += count
        asked = [describe_producers.TopicRequest(name="golden", partition_indexes=[0, 7])]
        self.ask("DescribeProducers", 0, describe_producers.Request(topics=asked), "one producer; no such partition")
        for version in versions("Fetch"):
            self._fetches(version)

    def _fetches(self, version: int) -> None:
        def request(offset: int, index: int = 0, known: bool = True, **facts: Any) -> Any:
            partition = fetch.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            topic = fetch.FetchTopic(
                topic="golden" if known else "unknown",
                topic_id=self.topic_id if known else UNKNOWN_ID,
                partitions=[partition],
            )
            return fetch.Request(max_wait_ms=10, max_bytes=1 << 20, topics=[topic], **facts)

        self.ask("Fetch", version, request(1), "from inside a batch")
        self.ask("Fetch", version, request(10_000), "beyond the end")
        self.ask("Fetch", version, request(0, index=7), "no such partition")
        self.ask("Fetch", version, request(0, known=False), "no such topic")
        if version >= 7:
            opened = self.ask("Fetch", version, request(0, session_epoch=0), "opens a session")
            goes_on = fetch.Request(max_wait_ms=10, session_id=opened.session_id, session_epoch=1)
            self.ask("Fetch", version, goes_on, "continues in the session: the same partition again")
            wrong = fetch.Request(max_wait_ms=10, session_id=opened.session_id, session_epoch=9)
            self.ask("Fetch", version, wrong, "a wrong session epoch")
            unknown = fetch.Request(max_wait_ms=10, session_id=1, session_epoch=1)
            self.ask("Fetch", version, unknown, "an unknown session")

    def offsets(self) -> None:
        for version in versions("ListOffsets"):
            times = [-1, -2, FIRST_MS + 1, FIRST_MS + 10**9]
            times += [-3, -4] if version >= 8 else []
            for time_ms in times:
                partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=time_ms)
                topic = list_offsets.ListOffsetsTopic(name="golden", partitions=[partition])
                request = list_offsets.Request(replica_id=-1, topics=[topic], timeout_ms=9000)
                self.ask("ListOffsets", version, request, f"at {time_ms}")
            topic = list_offsets.ListOffsetsTopic(name="unknown", partitions=[partition])
            request = list_offsets.Request(replica_id=-1, topics=[topic], timeout_ms=9000)
            self.ask("ListOffsets", version, request, "no such topic")
        for version in versions("OffsetForLeaderEpoch"):
            ask = offset_for_leader_epoch.OffsetForLeaderPartition
            partitions = [ask(partition=0, leader_epoch=0), ask(partition=7, leader_epoch=0)]
            topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic="golden", partitions=partitions)
            request = offset_for_leader_epoch.Request(replica_id=-1, topics=[topic])
            self.ask("OffsetForLeaderEpoch", version, request, "the current epoch; no such partition")
            future = ask(partition=0, leader_epoch=9)
            topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic="golden", partitions=[future])
            request = offset_for_leader_epoch.Request(replica_id=-1, topics=[topic])
            self.ask("OffsetForLeaderEpoch", version, request, "a future epoch")
        for version in versions("DescribeLogDirs"):
            topic = describe_log_dirs.DescribableLogDirTopic(topic="golden", partitions=[0])
            self.ask("DescribeLogDirs", version, describe_log_dirs.Request(topics=[topic]), "of one partition")

    def _await_coordinator(self, group: str) -> None:
        while self.ask("DescribeGroups", 5, describe_groups.Request(groups=[group])).groups[0].error_code:
            pass

    def groups(self) -> None:
        names = ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "DescribeGroups")
        marks = [(by_name[name].min, by_name[name].flexible, by_name[name].max) for name in names]
        for at, mark in enumerate(("first", "flexible", "last")):
            join, sync, beat, leave, describe = (versions_of[at] for versions_of in marks)
            group = f"golden-{mark}"
            self._await_coordinator(group)
            asked = join_group.Request(
                group_id=group,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                protocol_type="consumer",
                protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
            )
            joined = self.ask("JoinGroup", join, asked, "a new member")
            if joined.error_code == 79:
                asked.member_id = joined.member_id
                joined = self.ask("JoinGroup", join, asked, "with the assigned member id")
            member = {"group_id": group, "member_id": joined.member_id}
            share = sync_group.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=ASSIGNMENT)
            protocol = {"protocol_type": "consumer", "protocol_name": "range"}
            number = joined.generation_id
            request = sync_group.Request(generation_id=number, assignments=[share], **protocol, **member)
            self.ask("SyncGroup", sync, request, "the leader sends the assignment")
            self.ask("Heartbeat", beat, heartbeat.Request(generation_id=number, **member), "in the group")
            self.ask("Heartbeat", beat, heartbeat.Request(generation_id=number + 1, **member), "a wrong generation")
            stranger = heartbeat.Request(group_id=group, generation_id=number, member_id="nobody")
            self.ask("Heartbeat", beat, stranger, "a stranger")
            stale = sync_group.Request(generation_id=number + 1, **protocol, **member)
            self.ask("SyncGroup", sync, stale, "a wrong generation")
            other = join_group.Request(
                group_id=group,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                protocol_type="connect",
                protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
            )
            self.ask("JoinGroup", join, other, "another type of protocol")
            impatient = join_group.Request(group_id=group, session_timeout_ms=1, protocol_type="consumer")
            self.ask("JoinGroup", join, impatient, "a session timeout that is not allowed")
            request = describe_groups.Request(groups=[group, "unknown"])
            self.ask("DescribeGroups", describe, request, "a stable one and an unknown one")
            identity = leave_group.MemberIdentity(member_id=joined.member_id, reason="enough")
            nobody = leave_group.MemberIdentity(member_id="nobody")
            self.ask(
                "LeaveGroup", leave, leave_group.Request(**member, members=[identity, nobody]), "a member (and nobody)"
            )
            gone = leave_group.Request(**member, members=[identity])
            self.ask("LeaveGroup", leave, gone, "a member that has left")
        for version in versions("ListGroups"):
            self.ask("ListGroups", version, list_groups.Request(), "all")
            if version >= 4:
                self.ask("ListGroups", version, list_groups.Request(states_filter=["Stable"]), "by state: none")

    def committed(self) -> None:
        self._await_coordinator("golden")
        self._await_coordinator("unknown")
        for version in versions("OffsetCommit"):
            partition = committed_partition(0, version, 0, "a note")
            beyond = committed_partition(7, 1, -1, None)
            of = offset_commit.OffsetCommitRequestTopic
            topics = [
                of(name="golden", topic_id=self.topic_id, partitions=[partition, beyond]),
                of(name="unknown", topic_id=UNKNOWN_ID, partitions=[partition]),
            ]
            request = offset_commit.Request(group_id="golden", topics=topics)
            self.ask("OffsetCommit", version, request, "outside of a generation; no such partition, no such topic")
            stranger = offset_commit.Request(
                group_id="golden", generation_id_or_member_epoch=3, member_id="x", topics=topics[:1]
            )
            self.ask("OffsetCommit", version, stranger, "a stranger")
        for version in versions("OffsetFetch"):
            old = offset_fetch.OffsetFetchRequestTopic(name="golden", partition_indexes=[0, 1])
            new = offset_fetch.OffsetFetchRequestTopics(name="golden", topic_id=self.topic_id, partition_indexes=[0, 1])
            for group in ("golden", "unknown"):
                wanted = offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=[new])
                request = offset_fetch.Request(group_id=group, topics=[old], groups=[wanted])
                self.ask("OffsetFetch", version, request, f"one partition with a commit, group {group}")
            if version >= 2:
                wanted = offset_fetch.OffsetFetchRequestGroup(group_id="golden", topics=None)
                request = offset_fetch.Request(group_id="golden", topics=None, groups=[wanted])
                self.ask("OffsetFetch", version, request, "all of a group's")

    def removals(self) -> None:
        partition = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
        topic = offset_delete.OffsetDeleteRequestTopic(name="golden", partitions=[partition])
        self.ask("OffsetDelete", 0, offset_delete.Request(group_id="golden", topics=[topic]), "a commit")
        self.ask("OffsetDelete", 0, offset_delete.Request(group_id="unknown", topics=[topic]), "an unknown group")
        for version, mark in zip(sorted({*versions("DeleteGroups")}), ("first", "flexible"), strict=True):
            request = delete_groups.Request(groups_names=[f"golden-{mark}", "unknown"])
            self.ask("DeleteGroups", version, request, "an empty one and an unknown one")
        for version in versions("DeleteRecords"):
            self.ask("DeleteRecords", version, deletion({0: 2 + version, 7: 0}), "the first ones; no such partition")
            self.ask("DeleteRecords", version, deletion({0: 10_000}), "beyond the end")
        for version, made in zip(versions("DeleteTopics"), versions("CreateTopics"), strict=True):
            names = [f"made-{made}", "unknown"]
            states = [delete_topics.DeleteTopicState(name=name) for name in names]
            states += [delete_topics.DeleteTopicState(name=None, topic_id=UNKNOWN_ID)]
            request = delete_topics.Request(topics=states, topic_names=names, timeout_ms=9000)
            self.ask("DeleteTopics", version, request, "one topic, and missing topics")
