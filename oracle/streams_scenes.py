"""Scenes of streams groups (KIP-1071), without delays of assignments, so that responses do not depend on the clock.

Requests without a note wait until Kafka has finished work in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kpybroker.wire.rpc import (
    consumer_group_heartbeat,
    create_topics,
    delete_groups,
    describe_groups,
    find_coordinator,
    incremental_alter_configs,
    join_group,
    list_groups,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    share_group_heartbeat,
    streams_group_describe,
)
from kpybroker.wire.rpc.streams_group_heartbeat import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    Request,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)
from oracle.requests import committed_partition

Ask = Callable[..., Any]
"""ask(name, version, request, note="") -> response; recorded if there is a note"""
Tasks = dict[str, list[int]]
"""Subtopology id -> partitions."""

SETTINGS = {
    "group.streams.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.share.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "4",
}
WIDE, NARROW, OWN = "wide", "narrow", "own"
"""Source topics with three partitions, with two, and one that no other group reads."""
NOT_LOADED = (14, 15, 16)
GROUP = 32
"""The type of resource for settings of a group."""


def counting(name: str, epoch: int = 0, source: str = WIDE) -> Topology:
    """A topology that sends the records of a topic through a repartition topic, and counts them."""
    configs = [KeyValue(key="cleanup.policy", value="compact")]
    return Topology(
        epoch=epoch,
        subtopologies=[
            Subtopology(subtopology_id="0", source_topics=[source], repartition_sink_topics=[f"{name}-repartition"]),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=[TopicInfo(name=f"{name}-repartition")],
                state_changelog_topics=[TopicInfo(name=f"{name}-changelog", topic_configs=configs)],
            ),
        ],
    )


def passing(*sources: str, epoch: int = 0, joined: bool = False, **more: Any) -> Topology:
    """A topology without internal topics."""
    groups = [CopartitionGroup(source_topics=list(range(len(sources))))] if joined else []
    only = Subtopology(subtopology_id="0", source_topics=list(sources), copartition_groups=groups, **more)
    return Topology(epoch=epoch, subtopologies=[only])


def rows(tasks: Tasks) -> list[TaskIds]:
    return [TaskIds(subtopology_id=name, partitions=partitions) for name, partitions in tasks.items()]


class StreamsScenes:
    """`ask` sends to the only node."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    def all(self) -> None:
        self.begin()
        self.malformed()
        self.topologies()
        self.tasks()
        self.standbys()
        self.epochs()
        self.statuses()
        self.endpoints()
        self.offsets()
        self.other_types()
        self.descriptions()
        self.deletions()

    def begin(self) -> None:
        counts = {WIDE: 3, NARROW: 2, OWN: 1}
        topics = [
            create_topics.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
            for name, count in counts.items()
        ]
        self.ask("CreateTopics", 7, create_topics.Request(topics=topics, timeout_ms=9000))
        asked = [metadata.MetadataRequestTopic(name=name) for name in counts]
        while any(topic.error_code for topic in self.ask("Metadata", 13, metadata.Request(topics=asked)).topics):
            pass
        request = find_coordinator.Request(coordinator_keys=["none"])
        while self.ask("FindCoordinator", 6, request).coordinators[0].error_code:
            pass
        for number in range(8):  # the coordinators of all partitions are running, and have the topics in their metadata
            group = f"begin-{number}"
            self.joined(group, "m", passing(*counts))
            self.beat(group, "m", -1)
            self.ask("DeleteGroups", 2, delete_groups.Request(groups_names=[group]))

    # -- requests ---------------------------------------------------------------------------------------------------

    def beat(self, group: str, member: str, epoch: int, note: str = "", **said: Any) -> Any:
        request = Request(group_id=group, member_id=member, member_epoch=epoch, **said)
        while True:
            told = self.ask("StreamsGroupHeartbeat", 0, request, note)
            if note or told.error_code not in NOT_LOADED:
                return told

    def join(self, group: str, member: str, topology: Topology | None, note: str = "", **said: Any) -> Any:
        given = {"rebalance_timeout_ms": 60_000, "process_id": f"process of {member}", **said}
        given = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": [], **given}
        return self.beat(group, member, 0, note, topology=topology, **given)

    def joined(self, group: str, member: str, topology: Topology, **said: Any) -> Any:
        """Join until the application has its topics. Returns the last response."""
        told = self.join(group, member, topology, **said)
        while told.error_code or told.status:
            told = self.join(group, member, topology, **said)
        return told

    def owning(
        self, group: str, member: str, epoch: int, active: Tasks, note: str = "", standby: Tasks | None = None
    ) -> Any:
        return self.beat(
            group,
            member,
            epoch,
            note,
            active_tasks=rows(active),
            standby_tasks=rows(standby or {}),
            warmup_tasks=[],
        )

    def configure(self, group: str, **settings: object) -> None:
        configs = [
            incremental_alter_configs.AlterableConfig(
                name=f"streams.{name.replace('_', '.')}", config_operation=0, value=str(value)
            )
            for name, value in settings.items()
        ]
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=GROUP, resource_name=group, configs=configs
        )
        self.ask("IncrementalAlterConfigs", 1, incremental_alter_configs.Request(resources=[resource]))

    def describe(self, *groups: str, note: str, **more: Any) -> None:
        self.ask("StreamsGroupDescribe", 0, streams_group_describe.Request(group_ids=list(groups), **more), note)

    # -- refused requests -------------------------------------------------------------------------------------------

    def malformed(self) -> None:
        topology = passing(WIDE)
        offset = TaskOffset(subtopology_id="0", partition=0, offset=1)
        self.join("", "m", topology, "no group")
        self.join("g", "", topology, "no member")
        self.join("g", "m", topology, "an empty rack", rack_id="")
        self.join("g", "m", topology, "a static member", instance_id="i")
        self.join("g", "m", topology, "an empty instance", instance_id="")
        self.join("g", "m", topology, "offsets of tasks", task_offsets=[offset])
        self.join("g", "m", topology, "end offsets of tasks", task_end_offsets=[offset])
        self.join("g", "m", topology, "a warm-up task", warmup_tasks=rows({"0": [0]}))
        self.join("g", "m", topology, "no timeout", rebalance_timeout_ms=-1)
        self.join("g", "m", topology, "joins with an active task", active_tasks=rows({"0": [0]}))
        self.join("g", "m", topology, "joins with a standby task", standby_tasks=rows({"0": [0]}))
        self.join("g", "m", None, "joins without a topology")
        self.join("g", "m", passing(WIDE, source_topic_regex=["w.*"]), "a regular expression")
        self.beat("g", "m", 1, "a topology while it stays", topology=topology)
        self.beat("g", "m", 1, "only active tasks", active_tasks=[])
        self.beat("g", "m", 1, "no such group")
        self.beat("g", "m", -1, "leaves no group")
        self.beat("g", "m", -2, "leaves for a while")
        self.beat("g", "m", -3, "an epoch below all")

    def topologies(self) -> None:
        self.join("g", "m", passing("__consumer_offsets"), "reads an internal topic")
        self.join("g", "m", passing("not/valid", ""), "names that are not valid")
        changelog = TopicInfo(name="c", partitions=2)
        self.join(
            "g", "m", passing(WIDE, state_changelog_topics=[changelog]), "a changelog with a number of partitions"
        )
        self.join("g", "m", passing(), "no sources")
        orphan = passing(WIDE, repartition_source_topics=[TopicInfo(name="r")])
        self.join("g", "m", orphan, "a repartition topic that nobody writes")
        loop = Topology(
            subtopologies=[
                Subtopology(
                    subtopology_id=name,
                    repartition_source_topics=[TopicInfo(name=source)],
                    repartition_sink_topics=[sink],
                )
                for name, source, sink in (("0", "a", "b"), ("1", "b", "a"))
            ]
        )
        self.join("g", "m", loop, "a loop")
        self.describe("g", note="after only refusals")

    # -- assignments ------------------------------------------------------------------------------------------------

    def tasks(self) -> None:
        group = "counting"
        everything = {"0": [0, 1, 2], "1": [0, 1, 2]}
        lacking = passing(WIDE, state_changelog_topics=[TopicInfo(name="lacking-changelog")])
        self.join("lacking", "m", lacking, "an internal topic is missing")
        epoch = self.joined(group, "m", counting(group)).member_epoch
        self.join(group, "m", counting(group), "joins again")
        self.describe(group, note="one member")
        self.owning(group, "m", epoch, everything, "has all tasks")
        self.beat(group, "m", epoch, "nothing new")
        second = self.join(group, "n", counting(group), "a second member").member_epoch
        self.beat(group, "m", epoch, "must revoke tasks")
        self.describe(group, note="a member revokes tasks")
        self.owning(group, "m", epoch, everything, "has not revoked them")
        self.owning(group, "n", second, {}, "waits for tasks")
        kept = {"0": [0, 1], "1": [0]}
        first = self.owning(group, "m", epoch, kept, "has revoked them").member_epoch
        self.owning(group, "n", second, {}, "gets them")
        self.owning(group, "m", first, {"0": [9], "1": []}, "a task that does not exist")
        self.owning(group, "m", first, {"7": [0]}, "a subtopology that does not exist")
        self.describe(group, note="two members")
        self.beat(group, "n", -1, "leaves")
        again = self.owning(group, "m", first, kept, "gets the tasks of the other").member_epoch
        self.owning(group, "m", again, everything, "has all tasks again")
        self.describe(group, note="one member is left")

    def standbys(self) -> None:
        group = "standbys"
        self.configure(group, num_standby_replicas=1, heartbeat_interval_ms=7000, session_timeout_ms=50_000)
        first = self.joined(group, "m", counting(group)).member_epoch
        self.join(group, "m", counting(group), "standby tasks without another process")
        second = self.join(group, "n", counting(group), "another process").member_epoch
        self.beat(group, "m", first, "revokes for standby tasks")
        moved = self.owning(group, "m", first, {"0": [0, 1], "1": [0]}, "standby tasks of the other").member_epoch
        self.owning(group, "n", second, {}, "standby tasks too")
        self.describe(group, note="standby tasks")
        self.configure(group, num_standby_replicas=0)
        while (found := self.beat(group, "m", moved)).member_epoch == moved and not found.active_tasks:
            pass
        self.describe(group, note="standby tasks are switched off")

    def epochs(self) -> None:
        group = "epochs"
        epoch = self.join(group, "m", passing(WIDE), "joins").member_epoch
        tasks = {"0": [0, 1, 2]}
        self.owning(group, "m", epoch + 1, tasks, "a greater epoch")
        self.beat(group, "m", epoch - 1, "a smaller epoch")
        self.owning(group, "m", epoch - 1, tasks, "a smaller epoch, with its tasks")
        self.beat(group, "nobody", 1, "not a member")
        self.beat(group, "nobody", -1, "not a member leaves")
        self.beat(group, "m", epoch, "another process", process_id="p", client_tags=[KeyValue(key="zone", value="a")])
        self.beat(group, "m", epoch + 1, "a rack", rack_id="r")
        self.describe(group, note="tags and racks")

    def statuses(self) -> None:
        self.join("stale", "m", passing(OWN, epoch=5), "the topology's epoch is 5")
        self.join("stale", "n", passing(WIDE, epoch=3), "a stale topology")
        self.join("stale", "o", passing(WIDE, epoch=5), "another topology of this epoch")
        self.join("stale", "o", passing(WIDE, epoch=6), "another topology of the next epoch")
        self.join("stale", "o", passing(OWN, epoch=6), "the same topology of the next epoch")
        self.describe("stale", note="a stale member")
        missing = passing("none", "there", "is", "not", OWN)
        self.join("sourceless", "m", missing, "sources are missing")
        self.describe("sourceless", note="sources are missing")
        self.join("uneven", "m", passing(WIDE, NARROW, joined=True), "sources are not copartitioned")
        self.describe("uneven", note="sources are not copartitioned")
        fixed = TopicInfo(name="fixed-repartition", partitions=2)
        writer = Subtopology(subtopology_id="0", source_topics=[OWN], repartition_sink_topics=["fixed-repartition"])
        joiner = Subtopology(
            subtopology_id="1",
            source_topics=[WIDE],
            repartition_source_topics=[fixed],
            copartition_groups=[CopartitionGroup(source_topics=[0], repartition_source_topics=[0])],
        )
        self.join("fixed", "m", Topology(subtopologies=[writer, joiner]), "a fixed number that does not fit")
        misfit = passing(WIDE, state_changelog_topics=[TopicInfo(name=NARROW)])
        self.join("misfit", "m", misfit, "a changelog topic that does not fit")
        self.configure("delayed", initial_rebalance_delay_ms=60_000)
        self.join("delayed", "m", passing(OWN), "the assignment is delayed")
        self.describe("delayed", note="the assignment is delayed")
        epoch = self.join("shutdown", "m", passing(OWN), "joins").member_epoch
        self.beat("shutdown", "m", epoch, "shuts the application down", shutdown_application=True)
        self.join("shutdown", "n", passing(OWN), "is to shut down")
        self.beat("shutdown", "m", -1, "leaves")
        self.beat("shutdown", "n", -1, "leaves, too")
        self.join("shutdown", "n", passing(OWN), "begins again")

    def endpoints(self) -> None:
        group = "endpoints"
        places = {"m": Endpoint(host="a.example", port=65_535), "n": Endpoint(host="b.example", port=1)}
        topology = passing(WIDE)
        epoch = self.join(
            group, "m", topology, "an endpoint", user_endpoint=places["m"], endpoint_information_epoch=-1
        ).member_epoch
        self.beat(group, "m", epoch, "has heard of the endpoints", endpoint_information_epoch=0)
        second = self.join(group, "n", topology, "a second endpoint", user_endpoint=places["n"]).member_epoch
        self.beat(group, "m", epoch, "hears of the second", endpoint_information_epoch=0)
        self.owning(group, "m", epoch, {"0": [0, 1]}, "has moved a task")
        self.owning(group, "n", second, {}, "has it")
        self.describe(group, note="endpoints")

    # -- offsets ----------------------------------------------------------------------------------------------------

    def offsets(self) -> None:
        group = "counting"
        known = self.join(group, "m", counting(group))
        epoch = known.member_epoch

        def commit(note: str, member: str, at: int, topic: str = WIDE, version: int = 9) -> None:
            committed = [committed_partition(0, 5, -1, "")]
            row = offset_commit.OffsetCommitRequestTopic(name=topic, partitions=committed)
            request = offset_commit.Request(
                group_id=group, member_id=member, generation_id_or_member_epoch=at, topics=[row]
            )
            self.ask("OffsetCommit", version, request, f"streams group: {note}")

        commit("its epoch", "m", epoch)
        commit("a greater epoch", "m", epoch + 1)
        commit("an earlier epoch since which it has the task", "m", epoch - 1)
        commit("an epoch before it had the task", "m", 1)
        commit("an earlier epoch, a topic that it does not read", "m", epoch - 1, NARROW)
        commit("not a member", "nobody", epoch)
        commit("without a member", "", -1)
        commit("an old version", "m", epoch, version=8)

        def fetch(note: str, member: str | None, at: int) -> None:
            topics = [offset_fetch.OffsetFetchRequestTopics(name=WIDE, partition_indexes=[0, 1])]
            wanted = offset_fetch.OffsetFetchRequestGroup(
                group_id=group, member_id=member, member_epoch=at, topics=topics
            )
            self.ask("OffsetFetch", 9, offset_fetch.Request(groups=[wanted]), f"streams group: {note}")

        fetch("its epoch", "m", epoch)
        fetch("another epoch", "m", epoch + 1)
        fetch("not a member", "nobody", epoch)
        fetch("without a member", None, -1)

    # -- other types ------------------------------------------------------------------------------------------------

    def other_types(self) -> None:
        group = "counting"
        request = list_groups.Request(types_filter=["streams"])
        self.ask("ListGroups", 5, request, "streams groups")
        self.ask("DescribeGroups", 6, describe_groups.Request(groups=[group]), "a streams group")
        self.ask("JoinGroup", 9, self._joining(group), "of a streams group")
        beat = consumer_group_heartbeat.Request(
            member_id="c", rebalance_timeout_ms=9000, subscribed_topic_names=[OWN], topic_partitions=[]
        )
        beat.group_id = group
        self.ask("ConsumerGroupHeartbeat", 1, beat, "of a streams group")
        share = share_group_heartbeat.Request(group_id=group, member_id="s", subscribed_topic_names=[OWN])
        self.ask("ShareGroupHeartbeat", 1, share, "of a streams group")
        for other, name, request in (
            ("of consumers", "ConsumerGroupHeartbeat", beat),
            ("of shares", "ShareGroupHeartbeat", share),
            ("of the classic protocol", "JoinGroup", self._joining("of the classic protocol")),
        ):
            request.group_id = other
            self.ask(name, 1 if name != "JoinGroup" else 3, request)
            self.join(other, "m", passing(OWN), f"a group {other}")
            self.beat(other, "m", 1, f"a member of a group {other}")
        row = offset_commit.OffsetCommitRequestTopic(name=OWN, partitions=[committed_partition(0, 5, -1, "")])
        self.ask("OffsetCommit", 9, offset_commit.Request(group_id="simple", topics=[row]))
        self.join("simple", "m", passing(OWN), "a group that only has offsets")
        self.beat("simple", "m", -1)
        self.beat("emptied", "m", -1, "no such group")
        self.join("emptied", "m", passing(OWN))
        self.beat("emptied", "m", -1)
        share.group_id, beat.group_id = "emptied", "emptied"
        self.ask("ConsumerGroupHeartbeat", 1, beat, "of an empty streams group")
        self.ask("ShareGroupHeartbeat", 1, share, "of an empty streams group")
        self.ask("JoinGroup", 3, self._joining("emptied"), "of an empty streams group")
        self.describe("emptied", note="now a classic group")

    def _joining(self, group: str) -> join_group.Request:
        protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=b"")
        return join_group.Request(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[protocol],
        )

    def descriptions(self) -> None:
        self.describe("none", "of consumers", "", "counting", note="some that are none")
        self.describe("counting", note="authorized operations", include_authorized_operations=True)

    def deletions(self) -> None:
        def delete(note: str, topics: Iterable[str]) -> None:
            rows = [
                offset_delete.OffsetDeleteRequestTopic(
                    name=name, partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=0)]
                )
                for name in topics
            ]
            self.ask("OffsetDelete", 0, offset_delete.Request(group_id="counting", topics=rows), note)

        delete("of a streams group with members", [WIDE, NARROW])
        request = delete_groups.Request(groups_names=["counting", "simple"])
        self.ask("DeleteGroups", 2, request, "a streams group with members, and one without")
        self.beat("counting", "m", -1)
        delete("of a streams group without members", [WIDE])
        self.ask("DeleteGroups", 2, request, "streams groups without members, and none")
        self.describe("counting", note="deleted")
