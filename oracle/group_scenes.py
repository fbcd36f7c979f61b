"""Scenes of consumer groups (KIP-848). group.consumer.assignment.interval.ms is 0, so that responses do not depend on
the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc import (
    consumer_group_describe,
    create_topics,
    delete_groups,
    describe_groups,
    find_coordinator,
    join_group,
    list_groups,
    metadata,
    offset_commit,
    offset_fetch,
)
from kpybroker.wire.rpc import consumer_group_heartbeat as beat
from oracle.requests import committed_partition, versions

Ask = Callable[..., Any]
"""ask(name, version, request, note="") -> response; recorded if there is a note"""

SETTINGS = {"group.consumer.assignment.interval.ms": "0"}
TOPIC, PARTITIONS = "consumed", 4
SUBSCRIPTION = bytes.fromhex("0001 00000001 0008 636f6e73756d6564 ffffffff 00000000")
HEARTBEAT = "ConsumerGroupHeartbeat"


class GroupScenes:
    """`ask` sends to the only node."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.topic_id = bytes(16)

    def all(self) -> None:
        self.begin()
        for version in versions(HEARTBEAT):
            self.members(version)
            self.static_members(version)
            self.refusals(version)
        self.offsets()
        self.expressions()
        self.classic_members()

    def begin(self) -> None:
        topic = create_topics.CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
        self.ask("CreateTopics", 7, create_topics.Request(topics=[topic], timeout_ms=9000))
        while not self.topic_id.strip(b"\0"):
            asked = [metadata.MetadataRequestTopic(name=TOPIC)]
            [found] = self.ask("Metadata", 13, metadata.Request(topics=asked)).topics
            if found.error_code == 0:
                self.topic_id = bytes(found.topic_id)
        while True:
            self.ask("FindCoordinator", 6, find_coordinator.Request(coordinator_keys=["none"]))
            told = self.ask(HEARTBEAT, 1, beat.Request(group_id="none", member_id="nobody", member_epoch=1))
            if told.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                return

    # -- requests of members ----------------------------------------------------------------------------------------

    def beat(self, version: int, group: str, member: str, epoch: int, note: str = "", **said: Any) -> Any:
        owned = said.pop("owned", None)
        if owned is not None:
            said["topic_partitions"] = [beat.TopicPartitions(topic_id=self.topic_id, partitions=owned)] if owned else []
        request = beat.Request(group_id=group, member_id=member, member_epoch=epoch, **said)
        return self.ask(HEARTBEAT, version, request, note)

    def join(self, version: int, group: str, member: str, note: str = "", **said: Any) -> Any:
        said = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [TOPIC], "owned": [], **said}
        return self.beat(version, group, member, 0, note, **said)

    def describe(self, note: str, *groups: str, version: int = 1) -> Any:
        request = consumer_group_describe.Request(group_ids=list(groups))
        return self.ask("ConsumerGroupDescribe", version, request, note)

    # -- the scenes -----------------------------------------------------------------------------------------------

    def members(self, version: int) -> None:
        group = f"members-{version}"
        self.join(version, group, "a", "the first member is assigned all partitions")
        self.join(version, group, "b", "the second waits for partitions of the first")
        self.describe("one member revokes, one waits", group, version=version)
        self.beat(version, group, "a", 2, "is told to revoke partitions")
        self.beat(version, group, "a", 2, "has not revoked them yet", owned=[0, 1, 2, 3])
        self.beat(version, group, "b", 3, "waits")
        self.beat(version, group, "a", 2, "has revoked them", owned=[0, 1])
        self.beat(version, group, "a", 2, "lost the response, and owns only assigned partitions", owned=[0, 1])
        self.beat(version, group, "a", 2, "lost the response, and does not send its partitions")
        self.beat(version, group, "b", 3, "is assigned the revoked partitions")
        self.beat(version, group, "b", 9, "a future epoch")
        self.beat(version, group, "b", 1, "a past epoch", owned=[2])
        self.join(version, group, "b", "joins again and keeps its partitions")
        everything = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [TOPIC], "owned": [0, 1]}
        self.beat(version, group, "a", 3, "says everything", **everything)
        self.beat(version, group, "a", 3, "requests another assignor", server_assignor="range")
        self.describe("at rest", group, "no such group", "", version=version)
        self.beat(version, group, "a", 3, "subscribes to nothing", subscribed_topic_names=[])
        self.beat(version, group, "a", 3, "has revoked all partitions", owned=[])
        self.beat(version, group, "b", 3, "gets the rest")
        self.beat(version, group, "b", -1, "leaves")
        self.beat(version, group, "b", -1, "leaves again")
        self.beat(version, group, "a", -1, "the last member leaves")
        self.describe("without members", group, version=version)

    def static_members(self, version: int) -> None:
        group = f"static-{version}"
        mine = {"instance_id": "one"}
        self.join(version, group, "a", "a static member", **mine)
        self.join(version, group, "b", "its instance id is in use", **mine)
        self.beat(version, group, "b", 2, "another member has the instance id", **mine)
        self.beat(version, group, "a", 2, "an unknown instance id", instance_id="two")
        self.beat(version, group, "a", -2, "leaves temporarily", **mine)
        self.describe("a static member is absent", group, version=version)
        self.beat(version, group, "a", 2, "is absent", **mine)
        self.join(version, group, "b", "returns with another member id", **mine)
        self.beat(version, group, "a", 2, "its earlier member id is fenced", **mine)
        self.describe("a static member has returned", group, version=version)
        self.beat(version, group, "b", -1, "leaves permanently", **mine)

    def refusals(self, version: int) -> None:
        group = f"refused-{version}"
        self.beat(version, "", "a", 0, "no group id")
        self.beat(version, group, "", 1, "no member id")
        self.beat(version, group, "a", -3, "no such epoch")
        self.beat(version, group, "a", -2, "static, without an instance id")
        self.beat(version, group, "a", -1, "leaves an unknown group")
        self.beat(version, group, "a", 1, "no such group")
        self.join(version, group, "a", "no rebalance timeout", rebalance_timeout_ms=-1)
        self.join(version, group, "a", "joins with partitions", owned=[0])
        self.join(version, group, "a", "joins without sending its partitions", owned=None)
        self.join(version, group, "a", "subscribes to no topics", subscribed_topic_names=None)
        self.join(version, group, "a", "an empty instance id", instance_id="")
        self.join(version, group, "a", "an empty rack", rack_id="")
        self.join(version, group, "a", "an unknown assignor", server_assignor="mine")

    def offsets(self) -> None:
        """The error codes of commits and fetches, by member epoch."""
        self.join(1, "commits", "a")
        self.join(1, "commits", "b")
        self.beat(1, "commits", "a", 2)
        self._commit("commits", "a", 2, "while it revokes partitions")
        self.beat(1, "commits", "a", 2, owned=[0, 1])
        self.beat(1, "commits", "b", 3)
        for member, epoch, note in (
            ("a", 3, "its epoch"),
            ("a", 2, "the epoch in which it was assigned the partition"),
            ("a", 1, "a stale epoch"),
            ("a", 4, "a future epoch"),
            ("b", 2, "a stale epoch of a member without the partition"),
            ("nobody", 3, "not a member"),
            ("", -1, "no member id, a group with members"),
        ):
            self._commit("commits", member, epoch, note)
        self._commit("commits", "a", 3, "a version without member epochs", version=8)
        for who, epoch, note in (
            ("a", 3, "its epoch"),
            ("a", 2, "a stale epoch"),
            ("nobody", 3, "not a member"),
            (None, -1, "anybody"),
        ):
            topics = [offset_fetch.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
            asked = offset_fetch.OffsetFetchRequestGroup(
                group_id="commits", member_id=who, member_epoch=epoch, topics=topics
            )
            self.ask("OffsetFetch", 9, offset_fetch.Request(groups=[asked]), f"consumer group: {note}")
        self.ask("DeleteGroups", 2, delete_groups.Request(groups_names=["commits"]), "a consumer group with members")
        self.ask("DescribeGroups", 6, describe_groups.Request(groups=["commits"]), "a consumer group")
        for member in ("a", "b"):
            self.beat(1, "commits", member, -1)
        self._commit("commits", "", -1, "no member id, a group without members")
        request = list_groups.Request(states_filter=["Empty"], types_filter=["consumer"])
        self.ask("ListGroups", 5, request, "consumer groups")
        self.ask("DeleteGroups", 2, delete_groups.Request(groups_names=["commits"]), "an empty consumer group")

    def _commit(self, group: str, member: str, epoch: int, note: str, version: int = 9) -> None:
        topic = offset_commit.OffsetCommitRequestTopic(name=TOPIC, partitions=[committed_partition(0, 5, -1, "")])
        request = offset_commit.Request(
            group_id=group, member_id=member, generation_id_or_member_epoch=epoch, topics=[topic]
        )
        self.ask("OffsetCommit", version, request, f"consumer group: {note}")

    def expressions(self) -> None:
        by = {"subscribed_topic_names": None}
        self.join(1, "expressions", "a", "does not compile", subscribed_topic_regex="(", **by)
        self.join(1, "expressions", "a", "is not RE2's", subscribed_topic_regex="a(?=b)", **by)
        self.join(1, "expressions", "a", "by expression: not evaluated yet", subscribed_topic_regex="consume.*", **by)
        while self.describe("", "expressions").groups[0].group_epoch < 2:
            pass
        self.beat(1, "expressions", "a", 1, "is assigned the matching topics")
        self.describe("by expression", "expressions")
        self.beat(1, "expressions", "a", 2, "another expression that does not compile", subscribed_topic_regex="[")
        self.beat(1, "expressions", "a", 2, "by name again", subscribed_topic_regex="", subscribed_topic_names=[TOPIC])
        self.beat(1, "expressions", "a", -1, "the member that subscribed by expression leaves")

    def classic_members(self) -> None:
        """A group that migrates between protocols."""
        self._classic("mixed")
        self.join(1, "mixed", "a", "joins a classic group that has no assignment yet")
        self.describe("one member of each protocol", "mixed")
        self.beat(1, "mixed", "a", -1, "the last member of the consumer protocol leaves")
        self.describe("a classic group again", "mixed")
        self._classic("connect", "connect")
        self.join(1, "connect", "a", "joins a classic group of another type")

    def _classic(self, group: str, protocol_type: str = "consumer") -> Any:
        protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)
        request = join_group.Request(
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            protocol_type=protocol_type,
            protocols=[protocol],
        )
        return self.ask("JoinGroup", 3, request)
