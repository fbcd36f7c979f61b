"""Leader elections: scenarios with one correct result, with and without eligible leader replicas (KIP-966)."""

from __future__ import annotations

import pytest

from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import (
    AlterOp,
    AlterPartition,
    AlterReassignments,
    BrokerHeartbeat,
    BrokerLost,
    ChangeConfigs,
    CreateTopics,
    ElectionType,
    ElectLeaders,
    FeatureUpdate,
    IncrementalAlterConfigs,
    IsrResult,
    NewTopic,
    ProposedIsr,
    Reassignment,
    UpdateFeatures,
)
from kpybroker.errors import ErrorCode
from kpybroker.machine.contract import Tick
from kpybroker.metadata.image import ELR_FEATURE
from tests.controller.stage import Stage


def with_replicas(*replicas: int, brokers: int = 3, elr: bool = False) -> Stage:
    stage = Stage(brokers=brokers)
    if elr:
        stage.ask(UpdateFeatures((FeatureUpdate(ELR_FEATURE, 1),)))
    configs = (("min.insync.replicas", "2"),)
    stage.ask(CreateTopics((NewTopic("t", assignments=((0, replicas),), configs=configs),)))
    return stage


def fence(stage: Stage, *node_ids: int) -> None:
    for node_id in node_ids:
        stage.ask(BrokerLost(node_id, stage.epochs[node_id], dead=True))


def unfence(stage: Stage, *node_ids: int) -> None:
    for node_id in node_ids:
        stage.ask(BrokerHeartbeat(node_id, stage.epochs[node_id]))


def propose(stage: Stage, *members: int, recovery: int = 0) -> IsrResult:
    now = stage.partition()
    topic_id = stage.state.topics["t"].topic_id
    isr = tuple((node_id, stage.epochs[node_id]) for node_id in members)
    proposal = ProposedIsr(topic_id, 0, now.leader_epoch, now.partition_epoch, isr, recovery)
    result: IsrResult = stage.one(AlterPartition(now.leader, stage.epochs[now.leader], (proposal,)))
    return result


def test_the_last_in_sync_replica_is_waited_for() -> None:
    stage = with_replicas(1, 2, 3)
    fence(stage, 1, 2, 3)
    assert (stage.partition().leader, stage.partition().isr) == (-1, (3,))
    unfence(stage, 1, 2)
    assert stage.partition().leader == -1, "they may lack records"
    unfence(stage, 3)
    assert (stage.partition().leader, stage.partition().isr) == (3, (3,))
    assert propose(stage, 3, 1).error_code == 0
    assert stage.replayed() == stage.state


def test_an_eligible_replica_that_had_everything_may_lead() -> None:
    stage = with_replicas(1, 2, 3, elr=True)
    fence(stage, 1, 2, 3)
    now = stage.partition()
    assert (now.leader, now.isr, now.eligible_leader_replicas, now.last_known_elr) == (-1, (), (2, 3), (3,))
    unfence(stage, 1)
    assert stage.partition().leader == -1, "it left while enough others were in sync, so it lacks later records"
    unfence(stage, 2)
    now = stage.partition()
    assert (now.leader, now.isr, now.eligible_leader_replicas) == (2, (2,), (3,))
    unfence(stage, 3)
    propose(stage, 2, 3)
    now = stage.partition()
    assert (now.isr, now.eligible_leader_replicas, now.last_known_elr) == ((2, 3), (), ())
    assert stage.replayed() == stage.state


def test_a_broker_after_an_unclean_shutdown_is_no_longer_eligible() -> None:
    stage = with_replicas(1, 2, 3, elr=True)
    fence(stage, 1, 2, 3)
    stage.join(2, incarnation=2)
    now = stage.partition()
    assert (now.leader, now.eligible_leader_replicas) == (-1, (3,)), "its page cache may have been lost"
    stage.join(3, incarnation=2, previous_epoch=stage.epochs[3])
    assert (stage.partition().leader, stage.partition().isr) == (3, (3,))


def test_the_last_known_leader_leads_if_no_replica_is_eligible() -> None:
    stage = with_replicas(1, 2, elr=True)
    fence(stage, 2, 1)
    stage.join(2, incarnation=2)
    assert stage.partition().leader == -1
    stage.join(1, incarnation=2)
    now = stage.partition()
    assert (now.leader, now.isr, now.leader_recovery_state) == (1, (1,), 1), "it was the last leader"
    assert propose(stage, 1, 2).error_code == ErrorCode.NONE, "recovered, and followed"
    assert stage.partition().leader_recovery_state == 0


def test_the_sole_in_sync_leader_leads_again_although_a_move_began() -> None:
    """The reassignment removes the leadership. The old leader was the only in-sync replica, and after a crash no
    replica is eligible."""
    stage = with_replicas(1, elr=True)
    fence(stage, 1)
    stage.ask(AlterReassignments((Reassignment("t", 0, (2, 3, 1)),)))
    assert (stage.partition().leader, stage.partition().isr) == (-1, (1,))
    stage.join(1, incarnation=2)
    now = stage.partition()
    assert (now.leader, now.isr, now.leader_recovery_state) == (1, (1,), 1)
    assert stage.replayed() == stage.state


def test_a_leader_that_recovers_is_alone() -> None:
    stage = with_replicas(1, 2, 3)
    fence(stage, 2, 3, 1)
    unfence(stage, 2)
    stage.ask(ElectLeaders(ElectionType.UNCLEAN, (("t", (0,)),)))
    assert (stage.partition().leader, stage.partition().leader_recovery_state) == (2, 1)
    unfence(stage, 3)
    assert propose(stage, 2, 3, recovery=1).error_code == ErrorCode.INVALID_REQUEST
    assert propose(stage, 2, recovery=0).error_code == 0
    assert propose(stage, 2, recovery=1).error_code == ErrorCode.INVALID_REQUEST, "the recovery does not start again"
    assert propose(stage, 2, 3).error_code == 0


def test_unclean_leaders_are_elected_where_a_topic_allows_it() -> None:
    stage = with_replicas(1, 2, 3)
    fence(stage, 1, 2, 3)
    unfence(stage, 2)
    assert stage.partition().leader == -1
    allow = ChangeConfigs(ResourceType.TOPIC, "t", (("unclean.leader.election.enable", AlterOp.SET, "true"),))
    stage.ask(IncrementalAlterConfigs((allow,)))
    stage.ask(Tick())
    stage.now_ms += 300_000
    unfence(stage, 2)
    stage.ask(Tick())
    assert (stage.partition().leader, stage.partition().leader_recovery_state) == (2, 1)


def test_leaderships_return_to_preferred_leaders() -> None:
    stage = with_replicas(1, 2, 3)
    stage.ask(Tick())
    fence(stage, 1)
    unfence(stage, 1)
    propose(stage, 2, 3, 1)
    assert stage.partition().leader == 2
    stage.now_ms += 300_000
    unfence(stage, 1, 2, 3)
    stage.ask(Tick())
    assert (stage.partition().leader, stage.partition().isr) == (1, (2, 3, 1))


def test_a_replica_that_restarted_is_not_in_sync_by_an_old_epoch() -> None:
    stage = with_replicas(1, 2)
    old = stage.epochs[2]
    stage.join(2, incarnation=2)
    stage.epochs[2], new = old, stage.epochs[2]
    assert propose(stage, 1, 2).error_code == ErrorCode.INELIGIBLE_REPLICA
    stage.epochs[2] = new
    assert propose(stage, 1, 2).error_code == ErrorCode.NONE


def test_a_reassignment_ends_when_all_are_in_sync_and_the_removed_leader_gets_an_epoch() -> None:
    stage = with_replicas(1, 2, brokers=4)
    assert stage.one(AlterReassignments((Reassignment("t", 0, (3, 4)),))).error_code == 0
    now = stage.partition()
    assert (now.replicas, now.adding_replicas, now.removing_replicas) == ((3, 4, 1, 2), (3, 4), (1, 2))
    assert propose(stage, 1, 2, 3).error_code == 0
    result = propose(stage, 1, 2, 3, 4)
    assert (result.error_code, result.leader, result.isr) == (ErrorCode.NEW_LEADER_ELECTED, 3, (3, 4))
    now = stage.partition()
    assert (now.replicas, now.adding_replicas, now.removing_replicas, now.leader_epoch) == ((3, 4), (), (), 1)
    assert now.directories == (bytes([3]) * 16, bytes([4]) * 16)
    assert stage.replayed() == stage.state


def test_a_move_with_a_new_target_keeps_the_original_replicas() -> None:
    stage = with_replicas(1, 2, brokers=4)
    stage.ask(AlterReassignments((Reassignment("t", 0, (3, 2)),)))
    stage.ask(AlterReassignments((Reassignment("t", 0, (4, 2)),)))
    now = stage.partition()
    assert (now.replicas, now.adding_replicas, now.removing_replicas) == ((4, 2, 1), (4,), (1,))
    stage.ask(AlterReassignments((Reassignment("t", 0, None),)))
    assert sorted(stage.partition().replicas) == [1, 2]


@pytest.mark.parametrize("target", [(2, 1), None], ids=["elsewhere", "called off"])
def test_the_only_replica_with_all_records_is_not_removed(target: tuple[int, ...] | None) -> None:
    """The partition is being reassigned to 3 and 4, and now only 3 is in sync."""
    stage = with_replicas(1, brokers=4)
    stage.ask(AlterReassignments((Reassignment("t", 0, (4, 3)),)))
    propose(stage, 1, 3)
    fence(stage, 1)
    assert (stage.partition().leader, stage.partition().isr) == (3, (3,))
    result = stage.one(AlterReassignments((Reassignment("t", 0, target),)))
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert stage.partition().isr == (3,)


def test_a_feature_that_is_switched_off_leaves_nothing_behind() -> None:
    stage = with_replicas(1, 2, 3, elr=True)
    fence(stage, 3, 2)
    assert stage.partition().eligible_leader_replicas == (2,)
    stage.ask(UpdateFeatures((FeatureUpdate(ELR_FEATURE, 0, upgrade_type=2),)))
    assert stage.partition().eligible_leader_replicas == ()
    assert stage.replayed() == stage.state
    seen = stage.image().topics["t"].partitions[0]
    assert (seen.isr, seen.eligible_leader_replicas) == ((1,), ())


def test_a_replica_without_its_directory_is_not_in_sync_even_if_it_is_the_only_one() -> None:
    stage = with_replicas(1, 2)
    fence(stage, 2, 1)
    stage.join(1, incarnation=2, directory=1)
    assert (stage.partition().leader, stage.partition().isr) == (-1, ())
    assert stage.partition().directories == (bytes([17]) * 16, bytes([2]) * 16)
    stage.join(2, incarnation=2)
    assert stage.partition().leader == -1, "it left the ISR before later records were written"
    stage.ask(Tick())
    assert stage.partition().leader == -1
    stage.ask(ElectLeaders(ElectionType.UNCLEAN, (("t", (0,)),)))
    assert stage.partition().leader in (1, 2)
    assert stage.replayed() == stage.state


def test_with_eligible_leaders_a_replica_that_lost_its_directory_is_not_the_last_known_one() -> None:
    stage = with_replicas(1, 2, elr=True)
    fence(stage, 2, 1)
    stage.join(1, incarnation=2, directory=1)
    now = stage.partition()
    assert (now.leader, now.isr, now.eligible_leader_replicas, now.last_known_elr) == (-1, (), (2,), ())
    stage.join(2, incarnation=2)
    now = stage.partition()
    assert (now.leader, now.eligible_leader_replicas, now.last_known_elr) == (-1, (), ()), "2 stopped uncleanly"
    stage.ask(ElectLeaders(ElectionType.UNCLEAN, (("t", (0,)),)))
    assert stage.partition().leader in (1, 2)
    assert stage.replayed() == stage.state


def test_the_only_replica_does_not_lead_without_its_directory() -> None:
    stage = with_replicas(1)
    stage.join(1, incarnation=2)
    assert stage.partition().leader == 1, "it crashed, but still has its records"
    stage.join(1, incarnation=3, directory=1)
    assert (stage.partition().leader, stage.partition().isr) == (-1, ())
    stage.join(1, incarnation=4, directory=1)
    assert (stage.partition().leader, stage.partition().isr) == (-1, ()), "for good"


def test_others_continue_to_lead_if_one_lost_its_directory() -> None:
    stage = with_replicas(1, 2, 3)
    stage.join(1, incarnation=2, directory=1)
    assert stage.partition().leader in (2, 3)
    assert set(stage.partition().isr) == {2, 3}
    epoch = stage.partition().leader_epoch
    stage.join(1, incarnation=3, directory=1)
    assert stage.partition().leader_epoch == epoch


def test_min_insync_replicas_is_the_same_for_the_whole_cluster() -> None:
    """KIP-966, with the responses of Kafka 4.3.1."""
    stage = with_replicas(1, 2, 3, elr=True)
    fence(stage, 3, 2)
    assert stage.partition().eligible_leader_replicas == (2,)

    def alter(kind: ResourceType, name: str, op: AlterOp, value: str | None) -> tuple[ErrorCode, str | None]:
        change = ChangeConfigs(kind, name, (("min.insync.replicas", op, value),))
        return stage.code(IncrementalAlterConfigs((change,)))

    for op, value in ((AlterOp.SET, "2"), (AlterOp.DELETE, None)):
        refused = (ErrorCode.INVALID_CONFIG, "Broker-level min.insync.replicas cannot be altered while ELR is enabled.")
        assert alter(ResourceType.BROKER, "1", op, value) == refused
    removed = (ErrorCode.INVALID_CONFIG, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.")
    assert alter(ResourceType.BROKER, "", AlterOp.DELETE, None) == removed
    assert stage.partition().eligible_leader_replicas == (2,)
    assert alter(ResourceType.TOPIC, "other", AlterOp.SET, "3")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(ResourceType.TOPIC, "t", AlterOp.SET, "3")[0] == 0
    assert stage.partition().eligible_leader_replicas == (), "it was eligible under another min.insync.replicas"
    assert alter(ResourceType.BROKER, "", AlterOp.SET, "2")[0] == 0
    assert stage.replayed() == stage.state
    assert stage.image().topics["t"].partitions[0].eligible_leader_replicas == ()
