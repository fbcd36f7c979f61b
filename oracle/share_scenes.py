"""Scenes of share groups (KIP-932), without an assignment interval, so that responses do not depend on the clock.

Each version of ShareFetch has a separate group. Requests without a note wait until Kafka has finished work in the
background.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kpybroker.wire.rpc import (
    alter_share_group_offsets,
    create_topics,
    delete_groups,
    delete_share_group_offsets,
    delete_share_group_state,
    describe_groups,
    describe_share_group_offsets,
    find_coordinator,
    incremental_alter_configs,
    initialize_share_group_state,
    join_group,
    list_groups,
    metadata,
    offset_commit,
    produce,
    read_share_group_state,
    read_share_group_state_summary,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    write_share_group_state,
)
from oracle.requests import batch, committed_partition, versions

Ask = Callable[..., Any]
"""ask(name, version, request, note="") -> response; recorded if there is a note"""
Ack = tuple[int, int, Sequence[int]]
"""First offset, last offset, types."""

SETTINGS = {"group.share.assignment.interval.ms": "0", "share.coordinator.state.topic.num.partitions": "4"}
TOPIC, PARTITIONS = "shared", 2
ACCEPT, RELEASE, REJECT, RENEW = (1,), (2,), (3,), (4,)
GROUP_TYPE, SHARE_TYPE = 0, 2
NOT_LOADED = (14, 15, 16)
WAIT_MS = 2000


class ShareScenes:
    """`ask` sends to the only node."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.topic_id = bytes(16)

    def all(self) -> None:
        self.begin()
        self.coordinators()
        for version in versions("WriteShareGroupState"):
            self.states(version)
        self.members()
        self.other_types()
        for version in versions("ShareFetch"):
            self.fetches(version)
            self.acknowledgements(version)
            self.limits(version)
        for version in versions("DescribeShareGroupOffsets"):
            self.offsets(version)
        self.deletions()

    def begin(self) -> None:
        topic = create_topics.CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
        self.ask("CreateTopics", 7, create_topics.Request(topics=[topic], timeout_ms=9000))
        while not self.topic_id.strip(b"\0"):
            asked = [metadata.MetadataRequestTopic(name=TOPIC)]
            [found] = self.ask("Metadata", 13, metadata.Request(topics=asked)).topics
            if found.error_code == 0:
                self.topic_id = bytes(found.topic_id)
        for first in (0, 10):
            data = produce.PartitionProduceData(index=0, records=batch(first, 10))
            row = produce.TopicProduceData(name=TOPIC, partition_data=[data])
            request = produce.Request(acks=-1, timeout_ms=9000, topic_data=[row])
            while self.ask("Produce", 9, request).responses[0].partition_responses[0].error_code:
                pass
        while (
            self.ask("FindCoordinator", 6, find_coordinator.Request(coordinator_keys=["none"]))
            .coordinators[0]
            .error_code
        ):
            pass
        self.joined("begin", "m")
        self.beat("begin", "m", -1)

    # -- requests ---------------------------------------------------------------------------------------------------

    def beat(self, group: str, member: str, epoch: int, note: str = "", **said: Any) -> Any:
        request = share_group_heartbeat.Request(group_id=group, member_id=member, member_epoch=epoch, **said)
        while True:
            told = self.ask("ShareGroupHeartbeat", 1, request, note)
            if note or told.error_code not in NOT_LOADED:
                return told

    def joined(self, group: str, member: str) -> int:
        """Join until the member has its partitions. Returns its epoch."""
        told = self.beat(group, member, 0, subscribed_topic_names=[TOPIC])
        while not told.assignment or not told.assignment.topic_partitions:
            told = self.beat(group, member, told.member_epoch, subscribed_topic_names=[TOPIC])
        return int(told.member_epoch)

    def fetch(
        self, version: int, group: str, epoch: int, note: str = "", *acks: Ack, member: str | None = "m", **said: Any
    ) -> Any:
        said = {"min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500, **said}
        partitions = [
            share_fetch.FetchPartition(
                partition_index=index,
                acknowledgement_batches=[
                    share_fetch.AcknowledgementBatch(
                        first_offset=first, last_offset=last, acknowledge_types=list(types)
                    )
                    for first, last, types in acks
                ],
            )
            for index in said.pop("partitions", [0])
        ]
        topics = [share_fetch.FetchTopic(topic_id=self.topic_id, partitions=partitions)] if partitions else []
        request = share_fetch.Request(
            group_id=group, member_id=member, share_session_epoch=epoch, topics=topics, **said
        )
        return self.ask("ShareFetch", version, request, note)

    def opened(self, version: int, group: str, **said: Any) -> None:
        """Open a session with a fetch that waits until records are acquired: the state may have to be loaded first."""
        setting = incremental_alter_configs.AlterableConfig(
            name="share.auto.offset.reset", config_operation=0, value="earliest"
        )
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=32, resource_name=group, configs=[setting]
        )
        self.ask("IncrementalAlterConfigs", 1, incremental_alter_configs.Request(resources=[resource]))
        self.joined(group, "m")
        self.fetch(version, group, 0, "opens a session", max_wait_ms=WAIT_MS, **said)

    def acknowledge(
        self, version: int, group: str, epoch: int, note: str, *acks: Ack, member: str | None = "m", **said: Any
    ) -> Any:
        partition = share_acknowledge.AcknowledgePartition(
            partition_index=said.pop("partition", 0),
            acknowledgement_batches=[
                share_acknowledge.AcknowledgementBatch(
                    first_offset=first, last_offset=last, acknowledge_types=list(types)
                )
                for first, last, types in acks
            ],
        )
        topic = share_acknowledge.AcknowledgeTopic(topic_id=said.pop("topic_id", self.topic_id), partitions=[partition])
        request = share_acknowledge.Request(
            group_id=group, member_id=member, share_session_epoch=epoch, topics=[topic], **said
        )
        return self.ask("ShareAcknowledge", version, request, note)

    # -- coordinators and their states ------------------------------------------------------------------------------

    def coordinators(self) -> None:
        for note, version, key in (
            ("no key of a share partition", 6, "bad"),
            ("no topic id in it", 6, "g:x:0"),
            ("of a version before share groups", 5, "bad"),
        ):
            request = find_coordinator.Request(key_type=SHARE_TYPE, coordinator_keys=[key])
            self.ask("FindCoordinator", version, request, f"share partition: {note}")

    def states(self, version: int) -> None:
        group = f"states-{version}"
        self._summary(version, group, "nobody has initialized it")
        self._read(version, group, 0, "nobody has initialized it")
        self._write(version, group, "nobody has initialized it", (1, 0, 5))
        self._initialize(version, group, 1, -1, "the first time")
        self._initialize(version, group, 1, -1, "again")
        self._initialize(version, group, 0, 5, "for an earlier epoch of the group")
        self._read(version, group, 0, "initialized")
        self._write(version, group, "accepted", (1, 0, 5), (5, 9, 2, 1), complete=5)
        self._summary(version, group, "after a write")
        self._read(version, group, 3, "by a later leader")
        self._read(version, group, 2, "by an earlier leader")
        self._write(version, group, "by an earlier leader", (1, 2, 5))
        self._write(version, group, "released", (1, 3, 5), (10, 12, 0, 2))
        self._write(version, group, "overlapping", (1, 3, 5), (12, 14, 2, 1), complete=7)
        self._write(version, group, "for an earlier epoch of the group", (0, 3, 5))
        self._read(version, group, 3, "with batches")
        self._write(version, group, "from a later start", (1, 3, 12))
        self._read(version, group, 3, "from a later start")
        self._initialize(version, group, 3, 7, "with a start offset")
        self._summary(version, group, "initialized anew")
        self._delete(version, group, "what is there")
        self._delete(version, group, "what is not there")
        for index, note in ((9, "no such partition"), (-1, "a negative partition")):
            self._initialize(version, group, 1, -1, note, index)
            self._summary(version, group, note, index)
            self._delete(version, group, note, index)
        self._initialize(version, "", 1, -1, "no group")
        self._read(version, "", 1, "no group")

    def _initialize(self, version: int, group: str, epoch: int, start: int, note: str, index: int = 0) -> None:
        rpc = initialize_share_group_state
        row = rpc.PartitionData(partition=index, state_epoch=epoch, start_offset=start)
        topics = [rpc.InitializeStateData(topic_id=self.topic_id, partitions=[row])]
        self._ask_state("InitializeShareGroupState", 0, rpc.Request(group_id=group, topics=topics), note)

    def _read(self, version: int, group: str, epoch: int, note: str) -> None:
        rpc = read_share_group_state
        row = rpc.PartitionData(partition=0, leader_epoch=epoch)
        topics = [rpc.ReadStateData(topic_id=self.topic_id, partitions=[row])]
        self._ask_state("ReadShareGroupState", 0, rpc.Request(group_id=group, topics=topics), note)

    def _write(
        self,
        version: int,
        group: str,
        note: str,
        of: tuple[int, int, int],
        *batches: tuple[int, int, int, int],
        complete: int = -1,
    ) -> None:
        rpc = write_share_group_state
        row = rpc.PartitionData(
            partition=0,
            state_epoch=of[0],
            leader_epoch=of[1],
            start_offset=of[2],
            delivery_complete_count=complete,
            state_batches=[
                rpc.StateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
                for first, last, state, count in batches
            ],
        )
        topics = [rpc.WriteStateData(topic_id=self.topic_id, partitions=[row])]
        self._ask_state("WriteShareGroupState", version, rpc.Request(group_id=group, topics=topics), note)

    def _summary(self, version: int, group: str, note: str, index: int = 0) -> None:
        rpc = read_share_group_state_summary
        row = rpc.PartitionData(partition=index, leader_epoch=0)
        topics = [rpc.ReadStateSummaryData(topic_id=self.topic_id, partitions=[row])]
        self._ask_state("ReadShareGroupStateSummary", version, rpc.Request(group_id=group, topics=topics), note)

    def _delete(self, version: int, group: str, note: str, index: int = 0) -> None:
        rpc = delete_share_group_state
        row = rpc.PartitionData(partition=index)
        topics = [rpc.DeleteStateData(topic_id=self.topic_id, partitions=[row])]
        self._ask_state("DeleteShareGroupState", 0, rpc.Request(group_id=group, topics=topics), note)

    def _ask_state(self, name: str, version: int, request: Any, note: str) -> None:
        self.ask(name, version, request, note)

    # -- members ----------------------------------------------------------------------------------------------------

    def members(self) -> None:
        group = "members"
        by_name = {"subscribed_topic_names": [TOPIC]}
        self.beat(group, "m", 1, "no such group")
        self.beat(group, "m", 0, "the first member has nothing yet", **by_name)
        epoch = self.joined(group, "m")
        self.beat(group, "m", epoch, "nothing new")
        self.beat(group, "m", epoch, "says everything", **by_name)
        self.beat(group, "m", epoch - 1, "did not hear the answer")
        self.beat(group, "m", epoch + 1, "a future epoch")
        self.beat(group, "m", 1, "a past epoch")
        self.beat(group, "m", 0, "joins again", **by_name)
        self.beat(group, "n", epoch, "not a member")
        self.describe("a member", group, "none", "")
        self.beat(group, "m", epoch, "subscribes to nothing", subscribed_topic_names=[])
        self.beat(group, "m", -1, "leaves")
        self.beat(group, "m", -1, "leaves again")
        self.describe("without members", group)
        self.beat("", "m", 0, "no group id", **by_name)
        self.beat(group, "", 0, "no member id", **by_name)
        self.beat(group, "x" * 37, 0, "a long member id", **by_name)
        self.beat(group, "m", 0, "an empty rack", rack_id="", **by_name)
        self.beat(group, "m", 0, "no subscription")
        self.beat(group, "m", 0, "subscribes to nothing as it joins", subscribed_topic_names=[])
        self.beat(group, "m", -2, "no such epoch")

    def describe(self, note: str, *groups: str) -> None:
        self.ask("ShareGroupDescribe", 1, share_group_describe.Request(group_ids=list(groups)), note)

    def other_types(self) -> None:
        group = "members"
        request = list_groups.Request(types_filter=["share"], states_filter=["empty"])
        self.ask("ListGroups", 5, request, "share groups")
        self.ask("DescribeGroups", 6, describe_groups.Request(groups=[group]), "a share group")
        topic = offset_commit.OffsetCommitRequestTopic(name=TOPIC, partitions=[committed_partition(0, 5, -1, "")])
        self.ask("OffsetCommit", 9, offset_commit.Request(group_id=group, topics=[topic]), "share group")
        protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=b"")
        joining = join_group.Request(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[protocol],
        )
        self.ask("JoinGroup", 9, joining, "of a share group")
        self.ask("OffsetCommit", 9, offset_commit.Request(group_id="simple", topics=[topic]))
        self.beat("simple", "m", 0, "a group of another type", subscribed_topic_names=[TOPIC])

    # -- records ----------------------------------------------------------------------------------------------------

    def fetches(self, version: int) -> None:
        group = f"fetches-{version}"
        self.opened(version, group)
        self.fetch(version, group, 1, "nothing is left")
        self.fetch(version, group, 2, "acknowledges", (0, 4, ACCEPT))
        self.fetch(version, group, 3, "no such partition", partitions=[7])
        self.fetch(version, group, 9, "a future epoch")
        self.fetch(version, group, 0, "acknowledges as it opens", (5, 5, ACCEPT))
        self.fetch(version, "none", 1, "no session")
        self.fetch(version, group, 4, "no member", member=None)
        self.fetch(version, group, 4, "an empty member", member="")
        self.fetch(version, group, -1, "closes, and acknowledges", (5, 9, ACCEPT))
        self.fetch(version, group, -1, "closes again")
        self.fetch(version, group, 0, "opens again", max_wait_ms=WAIT_MS)
        self.fetch(version, group, -1, "closes", partitions=[])

    def acknowledgements(self, version: int) -> None:
        group = f"acknowledgements-{version}"
        self.opened(version, group)
        epoch = 0
        for note, acks in {
            "accepted": [(0, 4, ACCEPT)],
            "one type for each": [(5, 9, (1, 2, 3, 0, 1))],
            "below the start": [(0, 1, ACCEPT)],
            "what another has, or nobody": [(6, 6, ACCEPT)],
            "behind what was acquired": [(50, 51, ACCEPT)],
            "in the wrong order": [(12, 11, ACCEPT)],
            "batches in the wrong order": [(12, 13, ACCEPT), (10, 11, ACCEPT)],
            "too few types": [(10, 12, (1, 1))],
            "no types": [(10, 11, ())],
            "an unknown type": [(10, 12, (9,))],
            "a negative type": [(10, 12, (-1,))],
            "a renewal that is not said to be one": [(10, 12, RENEW)],
            "all or nothing": [(10, 10, ACCEPT), (50, 50, ACCEPT)],
            "rejected": [(10, 11, REJECT)],
            "twice": [(10, 11, ACCEPT)],
            "nothing": [],
        }.items():
            epoch += 1
            self.acknowledge(version, group, epoch, note, *acks)
        self.fetch(version, group, epoch + 1, "what was released", max_wait_ms=WAIT_MS)
        self.acknowledge(version, group, epoch + 2, "no such partition", (10, 10, ACCEPT), partition=7)
        self.acknowledge(version, group, epoch + 3, "no such topic", (10, 10, ACCEPT), topic_id=bytes(15) + b"\7")
        self.acknowledge(version, group, epoch + 4, "a partition that was not fetched", (10, 10, ACCEPT), partition=1)
        self.acknowledge(version, group, epoch + 9, "a future epoch", (12, 12, ACCEPT))
        self.acknowledge(version, group, 0, "does not open", (12, 12, ACCEPT))
        self.acknowledge(version, "none", 1, "no session", (12, 12, ACCEPT))
        self.acknowledge(version, group, 1, "no member", (12, 12, ACCEPT), member=None)
        if version >= 2:
            self.acknowledge(version, group, epoch + 5, "renews", (12, 14, RENEW), is_renew_ack=True)
            renewing = {"min_bytes": 0, "max_bytes": 0, "max_records": 0, "is_renew_ack": True}
            self.fetch(version, group, epoch + 6, "renews", (15, 16, RENEW), **renewing)
            self.fetch(version, group, epoch + 7, "renews and fetches", is_renew_ack=True)
        self.acknowledge(version, group, -1, "closes", (12, 12, ACCEPT))
        self.acknowledge(version, group, -1, "closes again")

    def limits(self, version: int) -> None:
        group = f"limits-{version}"
        self.opened(version, group, max_records=5)
        self.fetch(version, group, 1, "ranges of a batch size", batch_size=5, max_wait_ms=WAIT_MS)
        self.acknowledge(version, group, 2, "released", (0, 19, RELEASE))
        if version >= 2:
            exact = {"share_acquire_mode": 1, "max_records": 3, "max_wait_ms": WAIT_MS}
            self.fetch(version, group, 3, "no more than three", **exact)
            self.fetch(version, group, 4, "three more", **exact)
        self.fetch(version, group, -1, "closes", partitions=[])

    # -- offsets ----------------------------------------------------------------------------------------------------

    def offsets(self, version: int) -> None:
        group = f"offsets-{version}"
        self.opened(2, group)
        self._describe_offsets(version, "of a group with a member", group, None)
        self._alter("of a group with a member", group, {0: 5})
        self._delete_offsets("of a group with a member", group, TOPIC)
        self.acknowledge(2, group, 1, "some", (0, 3, ACCEPT), (6, 7, ACCEPT))
        self._describe_offsets(version, "after acknowledgements", group, None)
        self._describe_offsets(version, "by name", group, [TOPIC])
        self._describe_offsets(version, "of an unknown topic", group, ["none"])
        self._describe_offsets(version, "of an unknown group", "none", None)
        self.fetch(2, group, -1, "closes", partitions=[])
        self.beat(group, "m", -1)
        self._alter("two partitions", group, {0: 5, 1: 0})
        self._describe_offsets(version, "altered", group, None)
        self._alter("an unknown topic", group, {0: 5}, "none")
        self._alter("a group that is made for it", f"altered-{version}", {0: 3})
        self._describe_offsets(version, "made for it", f"altered-{version}", None)
        self._alter("a group of another type", "simple", {0: 5})
        self._delete_offsets("an unknown topic", group, "none")
        self._delete_offsets("a topic", group, TOPIC)
        self._delete_offsets("a topic, again", group, TOPIC)
        self._delete_offsets("of an unknown group", "none", TOPIC)
        self._describe_offsets(version, "deleted", group, None)

    def _describe_offsets(self, version: int, note: str, group: str, names: list[str] | None) -> None:
        rpc = describe_share_group_offsets
        topics = names and [
            rpc.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=[0, 1]) for name in names
        ]
        asked = rpc.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics)
        self.ask("DescribeShareGroupOffsets", version, rpc.Request(groups=[asked]), note)

    def _alter(self, note: str, group: str, starts: dict[int, int], topic: str = TOPIC) -> None:
        rpc = alter_share_group_offsets
        rows = [
            rpc.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=start)
            for index, start in starts.items()
        ]
        topics = [rpc.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=rows)]
        self.ask("AlterShareGroupOffsets", 0, rpc.Request(group_id=group, topics=topics), note)

    def _delete_offsets(self, note: str, group: str, *topics: str) -> None:
        rpc = delete_share_group_offsets
        rows = [rpc.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
        self.ask("DeleteShareGroupOffsets", 0, rpc.Request(group_id=group, topics=rows), note)

    def deletions(self) -> None:
        self.joined("deleted", "m")
        self.ask("DeleteGroups", 2, delete_groups.Request(groups_names=["deleted"]), "a share group with a member")
        self.beat("deleted", "m", -1)
        self.ask("DeleteGroups", 2, delete_groups.Request(groups_names=["deleted"]), "an empty share group")
        self.describe("a deleted group", "deleted")
