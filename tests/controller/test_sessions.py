"""Broker sessions: the fencing of a silent broker, a controller that was suspended, and controlled shutdown."""

from __future__ import annotations

from random import Random

import pytest

from kpybroker.controller.commands import BrokerHeartbeat, BrokerLost, CreateTopics, NewTopic, RegisterBroker
from kpybroker.controller.machine import LATE_MS, ControllerMachine
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import Stored, Tick
from tests.controller.stage import NOW_MS, Stage

SESSION_MS = 3000


def three() -> Stage:
    stage = Stage(brokers=3)
    stage.ask(CreateTopics((NewTopic("t", assignments=((0, (1, 2, 3)),)),)))
    return stage


def beat(stage: Stage, *node_ids: int) -> None:
    for node_id in node_ids:
        stage.ask(BrokerHeartbeat(node_id, stage.epochs[node_id]))


def fall_behind(stage: Stage, *node_ids: int) -> None:
    """Let these brokers report a lower metadata offset from now on. The stage's heartbeats report that all is
    applied."""
    for node_id in node_ids:
        stage.machine.sessions.end(node_id)
        stage.ask(BrokerHeartbeat(node_id, stage.epochs[node_id], metadata_offset=0))


def tick(stage: Stage) -> None:
    """Run a Tick on time, at the machine's own deadline."""
    deadline_ms = stage.machine.deadline_ms()
    assert deadline_ms is not None
    stage.now_ms = deadline_ms
    stage.ask(Tick())


def test_only_a_broker_that_is_silent_for_a_session_is_fenced() -> None:
    stage = three()
    stage.now_ms += SESSION_MS - 1
    beat(stage, 2, 3)
    tick(stage)
    assert stage.now_ms == NOW_MS + SESSION_MS
    assert [node_id for node_id, broker in stage.state.brokers.items() if broker.fenced] == [1]
    assert (stage.partition().leader, stage.partition().isr) == (2, (2, 3))
    beat(stage, 1)
    assert not stage.state.brokers[1].fenced


def test_a_new_controller_gives_every_broker_a_full_session() -> None:
    stage = three()
    fresh = ControllerMachine(stage.machine.config, Random(1), lambda: len(stage.log))
    for offset, record in enumerate(stage.records()):
        fresh.apply(Stored(None, None, NOW_MS, offset, record))
    stage.machine = fresh
    stage.now_ms += 10 * SESSION_MS
    stage.ask(Tick())
    assert not any(broker.fenced for broker in fresh.state.brokers.values())
    assert fresh.deadline_ms() == stage.now_ms + SESSION_MS


def test_a_controller_that_was_suspended_fences_no_broker() -> None:
    stage = three()
    stage.now_ms += SESSION_MS + LATE_MS + 1
    stage.ask(Tick())
    assert not any(broker.fenced for broker in stage.state.brokers.values())
    tick(stage)
    assert sum(broker.fenced for broker in stage.state.brokers.values()) == 1, "each Tick fences one broker"
    tick(stage)
    tick(stage)
    assert all(broker.fenced for broker in stage.state.brokers.values())


def test_another_incarnation_waits_for_the_end_of_the_session() -> None:
    stage = three()
    features = stage.state.brokers[3].features
    again = RegisterBroker(3, b"new" + bytes(13), (), features, log_dirs=(bytes([3]) * 16,))
    with pytest.raises(KafkaError) as refused:
        stage.ask(again)
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    stage.ask(BrokerLost(3, stage.epochs[3]))
    assert not stage.state.brokers[3].fenced, "its session continues, in case it returns"
    assert stage.ask(again) > stage.epochs[3]
    assert stage.state.brokers[3].fenced


def test_the_broker_of_the_controllers_own_node_need_not_wait() -> None:
    stage = three()
    features = stage.state.brokers[3].features
    assert stage.ask(RegisterBroker(3, b"new" + bytes(13), (), features, log_dirs=(bytes([3]) * 16,), is_own=True))


def test_a_dead_broker_is_fenced_unless_another_incarnation_has_registered() -> None:
    stage = three()
    stage.ask(BrokerLost(2, stage.epochs[2] + 1, dead=True))
    assert not stage.state.brokers[2].fenced
    stage.ask(BrokerLost(2, stage.epochs[2], dead=True))
    assert stage.state.brokers[2].fenced


def test_a_broker_may_stop_when_all_brokers_know_the_new_leaders() -> None:
    stage = three()
    leaving = BrokerHeartbeat(1, stage.epochs[1], want_shut_down=True)
    fall_behind(stage, 2, 3)
    assert not stage.ask(leaving).should_shut_down
    assert stage.partition().leader == 2, "leadership has moved already"
    assert not stage.state.brokers[1].fenced
    moved_at = len(stage.log) - 1
    for node_id, offset in ((2, moved_at), (3, moved_at - 1)):
        stage.ask(BrokerHeartbeat(node_id, stage.epochs[node_id], metadata_offset=offset))
    assert not stage.ask(leaving).should_shut_down
    stage.ask(BrokerHeartbeat(3, stage.epochs[3], metadata_offset=moved_at))
    assert stage.ask(leaving).should_shut_down
    assert stage.state.brokers[1].fenced
    assert stage.replayed() == stage.state


def test_a_new_controller_continues_a_shutdown_in_progress() -> None:
    stage = three()
    leaving = BrokerHeartbeat(1, stage.epochs[1], want_shut_down=True)
    fall_behind(stage, 2, 3)
    assert not stage.ask(leaving).should_shut_down
    fresh = ControllerMachine(stage.machine.config, Random(1), lambda: len(stage.log))
    for offset, record in enumerate(stage.records()):
        fresh.apply(Stored(None, None, NOW_MS, offset, record))
    stage.machine = fresh
    assert not stage.ask(leaving).should_shut_down, "the controller does not know yet how far the others are"
    beat(stage, 2, 3)
    assert stage.ask(leaving).should_shut_down
