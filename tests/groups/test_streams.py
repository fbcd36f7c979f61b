"""Tests streams groups (KIP-1071): the owners of tasks, moves of tasks, and the state after a replay."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    DescribeStreamsGroup,
    FetchOffsets,
    ListGroups,
    PartitionCommit,
    ShareHeartbeat,
    StreamsHeartbeat,
)
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.machine import GroupMachine
from kpybroker.groups.streams import transitions
from kpybroker.groups.streams.group import CurrentAssignment, StreamsGroup
from kpybroker.groups.streams.tasks import HeldTasks, Task, Tasks
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.rpc import share_group_heartbeat
from kpybroker.wire.rpc.streams_group_heartbeat import Request, Subtopology, TopicInfo, Topology
from kpybroker.wire.stored import metadata as stored
from oracle.streams_scenes import counting, passing
from tests.builds import replaces_code
from tests.groups.stage import Stage
from tests.groups.stage import join as join_classic
from tests.groups.streaming import AT_ONCE, Client, beat, join, owning, response, tasks

STEPS, SEEDS = 120, 12
RETENTION_MS = AT_ONCE.offsets_retention_ms
STATEFUL = counting("app", source="t")
ALL = {(name, index) for name in "01" for index in range(3)}


def refusal_of(stage: Stage, command: Any) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        stage.answer(command)
    return refused.value


def code_of(stage: Stage, command: Any) -> ErrorCode:
    return refusal_of(stage, command).code


def kinds_of(records: list[Any]) -> list[tuple[int, bool]]:
    """The kinds of the records, and whether they are tombstones."""
    return [(int.from_bytes(record.key[:2], "big"), record.value is None) for record in records]


def group_of(machine: GroupMachine, group_id: str = "g") -> StreamsGroup:
    found: StreamsGroup = machine.kinds["streams"].groups[group_id]
    return found


def state(machine: GroupMachine) -> dict[str, Any]:
    """The state of the groups according to their records."""
    return {
        group_id: (
            group.epoch,
            group.metadata_hash,
            group.validated_epoch,
            group.assignment_configs,
            group.assignment_epoch,
            group.assigned_at_ms,
            group.topology,
            {name: (member.metadata, member.current) for name, member in group.members.items()},
            group.targets,
        )
        for group_id, group in machine.kinds["streams"].groups.items()
    }


def check_replay(stage: Stage) -> None:
    """Check that a coordinator that replays the log has the same groups."""
    replayed = stage.replayed()
    replayed.decide(None, ListGroups(), stage.now)  # type: ignore[arg-type]  # nobody waits for it
    assert state(replayed) == state(stage.machine)


def configure(stage: Stage, **settings: object) -> None:
    """Set settings of group g, without `streams.` and with _ for the dots."""
    records = [
        stored.ConfigRecord(
            resource_type=ResourceType.GROUP,
            resource_name="g",
            name=f"streams.{name.replace('_', '.')}",
            value=str(value),
        )
        for name, value in settings.items()
    ]
    stage.image = stage.image.apply(records, stage.image.offset + 1, 0)


def staged(settings: GroupSettings = AT_ONCE, partitions: int = 3) -> Stage:
    """A stage with all topics of STATEFUL."""
    stage = Stage(settings)
    for name in ("t", "app-repartition", "app-changelog"):
        stage.topic(name, partitions)
    return stage


# -- records -----------------------------------------------------------------------------------------------------------


def test_the_records_of_a_member_are_kafkas_in_its_order() -> None:
    stage = staged()
    _, _, written = stage.ask(join("a"))
    assert kinds_of(written) == [(kind, False) for kind in (19, 23, 17, 21, 20, 22)]
    _, _, written = stage.ask(beat("a", 2))
    assert written == []
    _, _, written = stage.ask(beat("a", -1))
    assert kinds_of(written) == [(22, True), (21, True), (19, True), (17, False)]
    _, _, written = stage.ask(DeleteGroup("g"))
    assert kinds_of(written) == [(20, True), (17, True), (23, True)]
    assert stage.replayed().kinds["streams"].stored == {}


def test_a_topology_is_the_same_after_a_replay() -> None:
    stage = staged()
    stage.topic("u", 3)
    topology = passing("t", "u", joined=True, state_changelog_topics=[TopicInfo(name="app-changelog")])
    sent = parse(Request, 0, build(join("a", topology).request, 0))
    assert response(stage, StreamsHeartbeat(sent, "client", "/127.0.0.1")).member_epoch == 2
    stage.restart()
    assert response(stage, join("a", topology)).member_epoch == 2
    assert code_of(stage, join("a", passing("u", "t", joined=True))) is ErrorCode.INVALID_REQUEST


def test_a_deleted_group_leaves_nothing_behind_a_member_neither() -> None:
    stage = staged()
    stage.answer(join("a"))
    assert code_of(stage, DeleteGroup("g")) is ErrorCode.NON_EMPTY_GROUP
    stage.answer(beat("a", -1))
    assert stage.answer(DeleteGroup("g")) is False
    assert code_of(stage, beat("a", 2)) is ErrorCode.GROUP_ID_NOT_FOUND


# -- tasks that move ---------------------------------------------------------------------------------------------------


def test_a_task_moves_when_its_owner_has_confirmed_that_it_is_revoked() -> None:
    stage = staged()
    first = response(stage, join("a", STATEFUL))
    assert (first.member_epoch, tasks(first.active_tasks)) == (2, ALL)
    second = response(stage, join("b", STATEFUL))
    assert (second.member_epoch, tasks(second.active_tasks)) == (3, set())
    told = response(stage, beat("a", 2))
    assert told.member_epoch == 2
    kept = tasks(told.active_tasks)
    assert kept is not None
    assert len(kept) == 3
    everything = {"0": [0, 1, 2], "1": [0, 1, 2]}
    told = response(stage, owning("a", 2, everything))
    assert tasks(told.active_tasks) == kept, "it has not revoked them yet, and is told again"
    assert response(stage, owning("b", 3, {})).active_tasks is None
    assert group_of(stage.machine).state == "Reconciling"
    stage.answer(owning("a", 2, {name: [at for each, at in kept if each == name] for name in "01"}))
    assert tasks(response(stage, owning("b", 3, {})).active_tasks) == ALL - kept
    assert group_of(stage.machine).state == "Stable"


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    stage = staged()
    client, other = Client("a", "p", STATEFUL), Client("b", "q", STATEFUL)
    client.beat(stage)
    other.beat(stage)
    response(stage, beat("a", 2))
    for _ in range(7):  # both are in session all the time
        stage.wait(10_000)
        if "a" in group_of(stage.machine).members:
            stage.answer(beat("a", 2))
        other.beat(stage)
    assert code_of(stage, beat("a", 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    other.beat(stage)
    assert other.active == ALL


def test_a_member_without_heartbeats_is_removed() -> None:
    stage = staged()
    stage.answer(join("a"))
    stage.wait(AT_ONCE.streams_session_timeout_ms)
    assert code_of(stage, beat("a", 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    check_replay(stage)


class Broken(AssertionError):
    """Two members have a task at the same time."""


def check_owners(clients: list[Client]) -> None:
    """Check that no task is active on two members, and that no process has a task twice. Raises Broken."""
    twice = [task for task, count in Counter(task for each in clients for task in each.active).items() if count > 1]
    for process in {each.process for each in clients}:
        mine = [task for each in clients if each.process == process for task in (*each.active, *each.standby)]
        twice += [task for task, count in Counter(mine).items() if count > 1]
    if twice:
        raise Broken(twice)


def beat_or_abandon(stage: Stage, client: Client, **how: bool) -> None:
    """Send a heartbeat. A fenced member abandons all its tasks."""
    try:
        client.beat(stage, **how)
    except KafkaError as refusal:
        if refusal.code not in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            raise
        client.abandon()


def play(seed: int, steps: int = STEPS) -> Stage:
    """Run random events: clients join, leave, crash and miss responses; topics and settings change; coordinators
    end."""
    chance = Random(seed)
    stage = staged(partitions=4)
    clients = [Client(name, process, STATEFUL) for name, process in zip("abcd", "ppqr", strict=True)]
    for _ in range(steps):
        client = chance.choice(clients)
        what = chance.randrange(20)
        if what == 0 and client.is_in:
            stage.answer(beat(client.member, -1))
            client.abandon()
        elif what == 1:
            stage.restart()
        elif what == 2:
            configure(stage, num_standby_replicas=chance.randrange(3))
        elif what == 3:
            stage.wait(chance.randrange(AT_ONCE.streams_session_timeout_ms))
            for each in clients:  # the member learns that its session has ended
                if each.is_in and each.member not in group_of(stage.machine).members:
                    each.abandon()
        else:
            beat_or_abandon(stage, client, tells=chance.random() < 0.8, hears=chance.random() < 0.9)
        check_owners(clients)
        check_replay(stage)
    settle(stage, clients)
    return stage


def settle(stage: Stage, clients: list[Client]) -> None:
    """Check that heartbeats alone are enough to assign each task to its owner."""
    for _ in range(3 * len(clients)):
        for client in clients:
            beat_or_abandon(stage, client)
            check_owners(clients)
    group = group_of(stage.machine)
    assert group.state == "Stable"
    everything = {(name, index) for name in "01" for index in range(4)}
    assert Counter(task for each in clients for task in each.active) == Counter(everything)
    assert max(len(each.active) for each in clients) - min(len(each.active) for each in clients) <= 1


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_task_has_two_owners_and_each_gets_one(seed: int) -> None:
    play(seed)


def hasty(group: StreamsGroup, member: Any, epoch: int, target: Tasks, owned: Tasks | None) -> CurrentAssignment:
    """A mutant that assigns every member its target at once."""
    current = member.current
    if member.is_at(epoch):
        return CurrentAssignment(*current)
    assigned = HeldTasks(dict.fromkeys(target.active, epoch), target.standby, target.warmup)
    return CurrentAssignment(epoch, current.epoch, current.state, assigned)


@replaces_code
def test_a_hasty_reconciliation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "reconciled", hasty)
    with pytest.raises(Broken):
        play(0)


# -- topics ------------------------------------------------------------------------------------------------------------


def statuses(told: Any) -> dict[int, str]:
    return {status.status_code: status.status_detail for status in told.status}


def test_missing_internal_topics_are_named_with_their_partitions() -> None:
    stage = Stage(AT_ONCE)
    stage.topic("t", 5)
    found = stage.answer(join("a", STATEFUL))
    assert {name: topic.partitions for name, topic in found.missing.items()} == {
        "app-repartition": 5,
        "app-changelog": 5,
    }
    assert found.missing["app-changelog"].configs == {"cleanup.policy": "compact"}
    assert list(statuses(found.response)) == [3]
    assert (found.response.active_tasks, group_of(stage.machine).state) == ([], "NotReady")
    for name in found.missing:
        stage.topic(name, 5)
    found = stage.answer(beat("a", found.response.member_epoch))
    assert found.missing == {}
    assert len(tasks(found.response.active_tasks) or ()) == 10


def test_new_partitions_of_a_source_are_new_tasks() -> None:
    stage = staged()
    assert len(tasks(response(stage, join("a")).active_tasks) or ()) == 3
    stage.topic("t", 5)
    assert len(tasks(response(stage, beat("a", 2)).active_tasks) or ()) == 5
    check_replay(stage)


def test_a_deleted_source_takes_the_tasks_away() -> None:
    stage = staged()
    stage.answer(join("a"))
    stage.drop_topic("t")
    told = response(stage, beat("a", 2))
    assert statuses(told) == {1: "Source topics t are missing."}
    assert tasks(told.active_tasks) == set()
    stage.topic("t", 3)
    told = response(stage, owning("a", told.member_epoch, {}))
    told = response(stage, owning("a", told.member_epoch, {}))
    assert tasks(told.active_tasks) == {("0", index) for index in range(3)}


def test_topologies_that_nothing_can_fit_are_refused() -> None:
    stage = staged()

    def why(*subtopologies: Subtopology) -> str:
        refused = refusal_of(stage, join("a", Topology(subtopologies=list(subtopologies))))
        assert refused.code is ErrorCode.STREAMS_INVALID_TOPOLOGY
        return refused.message or ""

    def reads(name: str, *topics: str, **more: Any) -> Subtopology:
        return Subtopology(subtopology_id=name, source_topics=list(topics), **more)

    assert "same id" in why(reads("0", "t"), reads("0", "t"))
    assert "No source topics" in why(reads("0"))
    assert "negative number" in why(reads("0", "t", state_changelog_topics=[TopicInfo(name="c", partitions=-1)]))
    assert "501 subtopologies" in why(*(reads(f"{at}", "t") for at in range(501)))
    assert "5001" in why(reads("0", *(f"t{at}" for at in range(5001))))
    assert stage.machine.kinds["streams"].groups == {}


def test_the_first_assignment_waits_for_more_members() -> None:
    stage = staged(GroupSettings(first_join_pause_ms=0, streams_assignment_interval_ms=0))
    told = response(stage, join("a"))
    assert (told.member_epoch, tasks(told.active_tasks), list(statuses(told))) == (1, set(), [5])
    assert list(statuses(response(stage, join("b")))) == [5]
    stage.wait(3000)
    assert len(tasks(response(stage, owning("a", 1, {})).active_tasks) or ()) == 2
    assert len(tasks(response(stage, owning("b", 1, {})).active_tasks) or ()) == 1
    check_replay(stage)


def test_assignments_wait_for_their_interval() -> None:
    stage = staged(GroupSettings(first_join_pause_ms=0, streams_initial_rebalance_delay_ms=0))
    assert tasks(response(stage, join("a")).active_tasks)
    told = response(stage, join("b"))
    assert (told.member_epoch, list(statuses(told))) == (2, [5])
    stage.wait(1000)
    assert response(stage, owning("b", 2, {})).status == []


# -- other groups ------------------------------------------------------------------------------------------------------


def commit_of(member: str, epoch: int, topic: str = "t", partition: int = 0, **more: Any) -> CommitOffsets:
    commits = [(topic, bytes(16), [PartitionCommit(partition, 7, -1, "")])]
    return CommitOffsets("g", member, None, epoch, -1, commits, more.pop("knows", True), **more)


def test_who_may_commit() -> None:
    stage = staged()
    stage.answer(join("a"))
    stage.topic("t", 4)
    stage.answer(beat("a", 2))
    assert stage.answer(commit_of("a", 3)) == [ErrorCode.NONE]
    assert stage.answer(commit_of("a", 2)) == [ErrorCode.NONE], "it has had the task since then"
    assert code_of(stage, commit_of("a", 2, partition=3)) is ErrorCode.STALE_MEMBER_EPOCH
    assert code_of(stage, commit_of("a", 2, "u")) is ErrorCode.STALE_MEMBER_EPOCH
    assert code_of(stage, commit_of("a", 4)) is ErrorCode.STALE_MEMBER_EPOCH
    assert code_of(stage, commit_of("b", 3)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(stage, commit_of("", -1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(stage, commit_of("a", 3, knows=False)) is ErrorCode.UNSUPPORTED_VERSION
    assert code_of(stage, commit_of("a", 4, transaction=(1, 0))) is ErrorCode.ILLEGAL_GENERATION
    assert stage.answer(commit_of("", -1, transaction=(1, 0))) == [ErrorCode.NONE]
    assert stage.answer(FetchOffsets("g", [("t", [0])], "a", 3))
    assert code_of(stage, FetchOffsets("g", None, "a", 2)) is ErrorCode.STALE_MEMBER_EPOCH
    assert stage.answer(DeleteOffsets("g", [("t", [0])])) == frozenset("t")
    stage.answer(beat("a", -1))
    assert stage.answer(commit_of("", -1)) == [ErrorCode.NONE]
    assert stage.answer(DeleteOffsets("g", [("t", [0])])) == frozenset()


def test_a_group_id_belongs_to_one_type() -> None:
    stage = staged()
    stage.answer(join("a"))
    assert code_of(stage, DescribeGroup("g")) is ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.answer(join_classic(group="g")).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    share = ShareHeartbeat(
        share_group_heartbeat.Request(group_id="g", member_id="s", subscribed_topic_names=["t"]), "c", "h"
    )
    assert code_of(stage, share) is ErrorCode.GROUP_ID_NOT_FOUND
    stage.answer(beat("a", -1))
    assert code_of(stage, share) is ErrorCode.GROUP_ID_NOT_FOUND, "an empty one does not give way to share groups"
    assert stage.answer(join_classic(group="g", version=3)).error_code == ErrorCode.NONE
    assert [each.group_type for each in stage.answer(ListGroups())] == ["classic"]
    assert "is not a streams group" in str(refusal_of(stage, join("a")))
    assert "is not a streams group" in str(refusal_of(stage, DescribeStreamsGroup("g")))


def test_a_group_that_only_has_offsets_becomes_a_streams_group() -> None:
    stage = staged()
    stage.answer(commit_of("", -1))
    stage.answer(join("a"))
    assert [each.group_type for each in stage.answer(ListGroups())] == ["streams"]
    assert stage.answer(FetchOffsets("g", None)), "and keeps them"
    check_replay(stage)


def test_offsets_of_topics_that_are_not_read_expire_and_the_empty_group_after_them() -> None:
    settings = GroupSettings(
        streams_assignment_interval_ms=0,
        streams_initial_rebalance_delay_ms=0,
        streams_session_timeout_ms=3 * RETENTION_MS,
    )
    stage = staged(settings)
    stage.answer(join("a"))
    stage.answer(commit_of("a", 2))
    stage.answer(commit_of("a", 2, "app-changelog"))
    stage.wait(2 * RETENTION_MS)
    assert [topic for topic, _ in stage.answer(FetchOffsets("g", None))] == ["t"]
    stage.answer(beat("a", -1))
    stage.wait(2 * RETENTION_MS)
    assert stage.answer(FetchOffsets("g", None)) == []
    assert stage.answer(ListGroups()) == []


def test_a_group_has_no_more_members_than_it_may() -> None:
    stage = staged(GroupSettings(first_join_pause_ms=0, streams_max_size=1))
    stage.answer(join("a"))
    assert code_of(stage, join("b")) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_topology_must_fit_into_a_batch() -> None:
    stage = staged(GroupSettings(first_join_pause_ms=0, max_batch_bytes=1000))
    names = [TopicInfo(name="c" * 200 + f"{at}") for at in range(5)]
    assert code_of(stage, join("a", passing("t", state_changelog_topics=names))) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert stage.answer(ListGroups()) == []


def test_settings_of_a_group_change_its_assignment() -> None:
    stage = staged()
    clients = [Client("a", "p", STATEFUL), Client("b", "q", STATEFUL)]

    def beats() -> set[Task]:
        for _ in range(4):
            for client in clients:
                client.beat(stage)
        return {task for client in clients for task in client.standby}

    assert beats() == set()
    configure(stage, num_standby_replicas=1)
    assert beats() == {("1", index) for index in range(3)}
    configure(stage, num_standby_replicas=0)
    assert beats() == set()


def test_a_shutdown_is_told_to_all_until_the_group_is_empty() -> None:
    stage = staged()
    stage.answer(join("a"))
    stage.answer(join("b"))
    assert 4 in statuses(response(stage, beat("a", 2, shutdown_application=True)))
    assert 4 in statuses(response(stage, beat("b", 3)))
    stage.answer(beat("a", -1))
    stage.answer(beat("b", -1))
    assert statuses(response(stage, join("b"))) == {}
