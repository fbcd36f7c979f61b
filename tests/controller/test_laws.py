"""Invariants of any sequence of commands: eligible leaders, ISRs, and acknowledged records after elections."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import (
    AlterOp,
    AlterPartition,
    AlterReassignments,
    BrokerHeartbeat,
    BrokerLost,
    ChangeConfigs,
    CreatePartitions,
    CreateTopics,
    ElectionType,
    ElectLeaders,
    FeatureUpdate,
    IncrementalAlterConfigs,
    NewPartitions,
    NewTopic,
    ProposedIsr,
    Reassignment,
    UnregisterBroker,
    UpdateFeatures,
)
from kpybroker.controller.leadership import RECOVERING
from kpybroker.controller.state import ControllerState
from kpybroker.errors import KafkaError
from kpybroker.machine.contract import Tick
from kpybroker.metadata.image import ELR_FEATURE
from kpybroker.metadata.topics import PartitionImage
from tests.controller.stage import Stage

NODES = 4
NODE = st.integers(1, NODES)
REPLICAS = st.lists(NODE, min_size=1, max_size=NODES, unique=True).map(tuple)
PLACE = st.tuples(st.sampled_from("abc"), st.integers(0, 1))
STEPS = st.one_of(
    st.tuples(st.just("fence"), NODE),
    st.tuples(st.just("unfence"), NODE),
    st.tuples(st.just("silence"), NODE),
    st.tuples(st.just("dead"), NODE),
    st.tuples(st.just("stop"), NODE),
    st.tuples(st.just("restart"), NODE, st.booleans()),
    st.tuples(st.just("unregister"), NODE),
    st.tuples(st.just("isr"), PLACE, st.lists(NODE, max_size=NODES).map(tuple), st.booleans()),
    st.tuples(st.just("shrink"), PLACE),
    st.tuples(st.just("expand"), PLACE),
    st.tuples(st.just("elect"), st.sampled_from(ElectionType), st.none() | PLACE),
    st.tuples(st.just("move"), PLACE, st.none() | REPLICAS),
    st.tuples(st.just("grow"), st.sampled_from("abc"), REPLICAS),
    st.tuples(st.just("unclean"), st.sampled_from("abc"), st.booleans()),
    st.tuples(st.just("wait"), st.integers(1, 400_000)),
)


class Play:
    """A cluster of four brokers with two topics, and the steps of a script."""

    def __init__(self, *, elr: bool) -> None:
        self.stage = Stage(brokers=NODES)
        self.incarnation = 1
        if elr:
            self.stage.ask(UpdateFeatures((FeatureUpdate(ELR_FEATURE, 1),)))
        rows = (("a", ((1, 2, 3), (2, 3, 4))), ("b", ((4, 1), (1, 2))), ("c", ((3,), (2,))))
        self.stage.ask(
            CreateTopics(
                tuple(
                    NewTopic(name, assignments=tuple(enumerate(rows)), configs=(("min.insync.replicas", "2"),))
                    for name, rows in rows
                )
            )
        )

    def step(self, kind: str, *facts: Any) -> None:
        try:
            getattr(self, kind)(*facts)
        except KafkaError:
            return

    def beat(self, node_id: int, **wants: bool) -> None:
        self.stage.ask(BrokerHeartbeat(node_id, self.stage.epochs[node_id], **wants))

    def fence(self, node_id: int) -> None:
        self.beat(node_id, want_fence=True)

    def unfence(self, node_id: int) -> None:
        self.beat(node_id)

    def stop(self, node_id: int) -> None:
        self.beat(node_id, want_shut_down=True)

    def silence(self, node_id: int) -> None:
        self.stage.ask(BrokerLost(node_id, self.stage.epochs[node_id]))

    def dead(self, node_id: int) -> None:
        self.stage.ask(BrokerLost(node_id, self.stage.epochs[node_id], dead=True))

    def restart(self, node_id: int, cleanly: bool) -> None:
        self.incarnation += 1
        previous = self.stage.epochs[node_id] if cleanly else -1
        self.stage.join(node_id, incarnation=self.incarnation, previous_epoch=previous)

    def unregister(self, node_id: int) -> None:
        self.stage.ask(UnregisterBroker(node_id))

    def isr(self, place: tuple[str, int], members: tuple[int, ...], is_current: bool) -> None:
        self.propose(place, members, stale=not is_current)

    def shrink(self, place: tuple[str, int]) -> None:
        self.propose(place, (self.stage.partition(*place).leader,))

    def expand(self, place: tuple[str, int]) -> None:
        replicas = self.stage.partition(*place).replicas
        self.propose(place, tuple(node_id for node_id in replicas if self.stage.state.active(node_id)))

    def propose(self, place: tuple[str, int], members: tuple[int, ...], *, stale: bool = False) -> None:
        now = self.stage.partition(*place)
        proposal = ProposedIsr(
            self.stage.state.topics[place[0]].topic_id,
            place[1],
            now.leader_epoch - stale,
            now.partition_epoch,
            tuple((node_id, self.stage.epochs.get(node_id, -1)) for node_id in members),
        )
        (result,) = self.stage.ask(AlterPartition(now.leader, self.stage.epochs.get(now.leader, -1), (proposal,)))
        after = self.stage.partition(*place)
        if result.error_code == 0:
            assert (result.leader, result.leader_epoch, result.isr, result.partition_epoch) == (
                after.leader,
                after.leader_epoch,
                after.isr,
                after.partition_epoch,
            )

    def elect(self, kind: ElectionType, place: tuple[str, int] | None) -> None:
        self.stage.ask(ElectLeaders(kind, None if place is None else ((place[0], (place[1],)),)))

    def move(self, place: tuple[str, int], replicas: tuple[int, ...] | None) -> None:
        self.stage.ask(AlterReassignments((Reassignment(*place, replicas),)))

    def grow(self, topic: str, replicas: tuple[int, ...]) -> None:
        total = len(self.stage.state.topics[topic].partitions) + 1
        self.stage.ask(CreatePartitions((NewPartitions(topic, total, (replicas,)),)))

    def unclean(self, topic: str, on: bool) -> None:
        change = ("unclean.leader.election.enable", AlterOp.SET, str(on).lower())
        self.stage.ask(IncrementalAlterConfigs((ChangeConfigs(ResourceType.TOPIC, topic, (change,)),)))

    def wait(self, ms: int) -> None:
        """Let time pass for the controller, with Ticks on time. No broker sends a heartbeat."""
        end_ms = self.stage.now_ms + ms
        for _ in range(20):
            deadline_ms = self.stage.machine.deadline_ms()
            if deadline_ms is None or deadline_ms > end_ms:
                break
            self.stage.now_ms = max(deadline_ms, self.stage.now_ms)
            self.stage.ask(Tick())
        self.stage.now_ms = end_ms


def everybody(state: ControllerState) -> dict[tuple[str, int], PartitionImage]:
    return {(name, index): each for name, topic in state.topics.items() for index, each in topic.partitions.items()}


def assert_sound(state: ControllerState, *, elr: bool) -> None:
    for place, now in everybody(state).items():
        assert len(set(now.replicas)) == len(now.replicas) == len(now.directories), place
        for part in (now.isr, now.eligible_leader_replicas, now.removing_replicas, now.adding_replicas):
            assert set(part) <= set(now.replicas), place
            assert len(set(part)) == len(part), place
        assert not set(now.isr) & set(now.eligible_leader_replicas), place
        assert not set(now.adding_replicas) & set(now.removing_replicas), place
        if now.leader != -1:
            assert now.leader in now.isr, place
            alone = now.replicas == (now.leader,) and now.leader in state.brokers  # see docs/decisions/0006
            assert alone or state.active(now.leader), place
            assert alone or all(state.active(node_id) for node_id in now.isr), place
        if not elr:
            assert now.isr, place
            assert not now.eligible_leader_replicas, place


def assert_follows(before: PartitionImage, after: PartitionImage, place: tuple[str, int]) -> None:
    """Check one change of a partition: epochs grow with every change, and a clean election chooses a replica that has
    all records."""
    assert after.partition_epoch >= before.partition_epoch, place
    assert after.leader_epoch >= before.leader_epoch, place
    if after != before:
        assert after.partition_epoch > before.partition_epoch, place
    if after.leader != before.leader:
        assert after.leader_epoch > before.leader_epoch, place
        complete = set(before.isr) | set(before.eligible_leader_replicas)
        unclean = after.leader_recovery_state == RECOVERING
        assert after.leader == -1 or after.leader in complete or unclean, place


@pytest.mark.slow
@pytest.mark.parametrize("elr", [False, True], ids=["isr", "elr"])
@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_the_invariants_of_leadership(elr: bool, steps: list[tuple[Any, ...]]) -> None:
    play = Play(elr=elr)
    for kind, *facts in steps:
        before, offset = copy.deepcopy(everybody(play.stage.state)), len(play.stage.log)
        play.step(kind, *facts)
        assert_sound(play.stage.state, elr=elr)
        after = everybody(play.stage.state)
        for place in before:
            # the others take several steps, or are not elections
            if kind not in ("wait", "restart", "expand", "isr", "shrink"):
                assert_follows(before[place], after[place], place)
            assert after[place].leader_epoch >= before[place].leader_epoch
        if kind in ("fence", "dead", "stop", "unfence"):
            assert len(play.stage.log) - offset <= 1 + len(before)
    assert play.stage.replayed() == play.stage.state


@settings(max_examples=30, deadline=None)
@given(st.lists(STEPS, max_size=20))
def test_when_all_brokers_are_back_every_partition_has_a_leader(steps: list[tuple[Any, ...]]) -> None:
    """Without eligible leader replicas, there is always a last in-sync replica, so its return is sufficient."""
    play = Play(elr=False)
    for kind, *facts in steps:
        play.step(kind, *facts)
    for node_id in range(1, NODES + 1):
        play.step("restart", node_id, False)
    assert all(each.leader != -1 for each in everybody(play.stage.state).values())
    image = play.stage.image()
    for (name, index), each in everybody(play.stage.state).items():
        seen = image.topics[name].partitions[index]
        assert (seen.leader, seen.leader_epoch, seen.partition_epoch) == (
            each.leader,
            each.leader_epoch,
            each.partition_epoch,
        )
        assert (seen.replicas, seen.isr, seen.directories) == (each.replicas, each.isr, each.directories)
        assert (seen.adding_replicas, seen.removing_replicas) == (each.adding_replicas, each.removing_replicas)
