"""Tests of groups whose members use both protocols (KIP-848): the JoinGroup requests that are refused, and the
conversion to a classic group."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kpybroker.errors import ErrorCode, MalformedFrame
from kpybroker.groups.classic.subscription import build_assignment, read_assignment
from kpybroker.wire.rpc import (
    consumer_group_describe,
    consumer_group_heartbeat,
    create_topics,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    sync_group,
)
from oracle.asking import ask
from oracle.broker import KPyBroker
from oracle.kafka import Kafka

TOPIC, PARTITIONS = "consumed", 4
NAME = len(TOPIC).to_bytes(2, "big") + TOPIC.encode()
SUBSCRIPTION = bytes.fromhex("0001 00000001") + NAME + bytes.fromhex("ffffffff 00000000")
MODERN = "a" * 22
"""The member id of the member that uses the consumer protocol."""
NEWEST = 9
NO_ONE = (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, -1, "")
NOT_CONSUMER = "Group {} is not a consumer group."
CUSTOM_ASSIGNOR = (
    "Cannot upgrade classic group g to consumer group because an unsupported custom assignor is in use. Please refer "
    "to the documentation or switch to a default assignor before re-attempting the upgrade."
)


class Groups:
    """Sends requests about groups to one broker, each on its own connection."""

    def __init__(self, port: int) -> None:
        self.address = "127.0.0.1", port
        topic = create_topics.CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
        self._ask("CreateTopics", 7, create_topics, topics=[topic], timeout_ms=9000)
        while self.beat("none", "nobody", 1) != ErrorCode.UNKNOWN_MEMBER_ID:
            self._ask("FindCoordinator", 6, find_coordinator, coordinator_keys=["none"])
            time.sleep(0.1)

    def _ask(self, name: str, version: int, api: Any, **fields: Any) -> Any:
        return ask(self.address, name, version, api.Request(**fields), api.Response, 20)

    def join(
        self, group: str, member: str = "", version: int = NEWEST, subscription: bytes = SUBSCRIPTION, **fields: Any
    ) -> Any:
        protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=subscription)
        timeouts = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 60_000}
        fields = {"protocol_type": "consumer", "protocols": [protocol], **timeouts, **fields}
        return self._ask("JoinGroup", version, join_group, group_id=group, member_id=member, **fields)

    def refusal(self, *said: Any, **fields: Any) -> tuple[int, int, str]:
        """A JoinGroup's error, generation and member id."""
        answer = self.join(*said, **fields)
        return answer.error_code, answer.generation_id, answer.member_id

    def sync(
        self, group: str, member: str, generation: int, assignment: bytes = b"", instance: str | None = None
    ) -> tuple[int, list[int]]:
        """A SyncGroup's error and the partitions in its assignment. `assignment` is for the member itself."""
        rows = [sync_group.SyncGroupRequestAssignment(member_id=member, assignment=assignment)] if assignment else []
        answer = self._ask(
            "SyncGroup",
            5,
            sync_group,
            group_id=group,
            member_id=member,
            generation_id=generation,
            group_instance_id=instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=rows,
        )
        return answer.error_code, partitions(answer.assignment)

    def classic(self, group: str, assignment: bytes, **fields: Any) -> str:
        """A stable group with one member of the classic protocol. Returns the member's id."""
        member = self.join(group, **fields).member_id
        generation = self.join(group, member, **fields).generation_id
        self.sync(group, member, generation, assignment)
        return str(member)

    def beat(self, group: str, member: str, generation: int) -> int:
        request = {"group_id": group, "member_id": member, "generation_id": generation}
        return int(self._ask("Heartbeat", 4, heartbeat, **request).error_code)

    def modern(self, group: str, epoch: int, **fields: Any) -> Any:
        """A ConsumerGroupHeartbeat of MODERN; it joins with epoch 0."""
        if epoch == 0:
            said = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [TOPIC], "topic_partitions": []}
            fields = said | fields
        request = {"group_id": group, "member_id": MODERN, "member_epoch": epoch, **fields}
        return self._ask("ConsumerGroupHeartbeat", 1, consumer_group_heartbeat, **request)

    def state(self, group: str) -> tuple[str, list[list[int]]]:
        """The state of a classic group, and the partitions of each member in order."""
        [found] = self._ask("DescribeGroups", 5, describe_groups, groups=[group]).groups
        return found.group_state, sorted(partitions(member.member_assignment) for member in found.members)

    def described(self, group: str) -> tuple[int, str | None]:
        [found] = self._ask("ConsumerGroupDescribe", 1, consumer_group_describe, group_ids=[group]).groups
        return found.error_code, found.error_message


def partitions(assignment: bytes) -> list[int]:
    """The assigned partitions of TOPIC; none if the assignment cannot be parsed."""
    try:
        return sorted(read_assignment(bytes(assignment)).partitions.get(TOPIC, ()))
    except MalformedFrame:
        return []


@contextlib.contextmanager
def serving(target_name: str, **settings: str) -> Iterator[Groups]:
    """A broker with these settings (with _ for .), whose assignments do not depend on the clock."""
    broker = Kafka() if target_name == "kafka" else KPyBroker()
    broker.properties |= {
        "group.consumer.assignment.interval.ms": "0",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    with broker:
        yield Groups(broker.port)


@pytest.mark.parametrize("policy", ["disabled", "upgrade", "downgrade", "bidirectional"])
def test_who_may_join(target_name: str, policy: str) -> None:
    with serving(target_name, group_consumer_migration_policy=policy) as groups:
        assert groups.modern("g", 0).error_code == 0
        if policy == "disabled":
            for version in (0, 3, 4, NEWEST):
                assert groups.refusal("g", version=version) == NO_ONE
            for said in ({"member": "b"}, {"group_instance_id": "i"}, {"subscription": b"\0"}):
                assert groups.refusal("g", **said) == NO_ONE
        else:
            for subscription in (SUBSCRIPTION, b"\0"):
                code, _, member = groups.refusal("g", subscription=subscription)
                assert code == ErrorCode.MEMBER_ID_REQUIRED, "the subscription is read later"
                assert member
            assert groups.refusal("g", version=3, subscription=b"\0") == (ErrorCode.UNKNOWN_SERVER_ERROR, -1, "")
            assert groups.join("g", version=3).generation_id == 3
            static = groups.refusal("g", "b", group_instance_id="i")
            assert static == (ErrorCode.UNKNOWN_MEMBER_ID, -1, ""), "a static member that is not known"
        assert groups.refusal("g", protocol_type="connect") == NO_ONE
        assert groups.refusal("g", protocols=[]) == NO_ONE
        echoed = groups.refusal("g", "b", session_timeout_ms=3)
        assert echoed == (ErrorCode.INVALID_SESSION_TIMEOUT, -1, "b"), "refused before the group is looked at"


@pytest.mark.parametrize("policy", ["disabled", "upgrade", "downgrade", "bidirectional"])
def test_a_classic_group_that_a_member_of_the_consumer_protocol_joins(target_name: str, policy: str) -> None:
    with serving(target_name, group_consumer_migration_policy=policy) as groups:
        groups.classic("g", build_assignment(1, {TOPIC: [0, 1]}))
        other = NOT_CONSUMER.format("g")
        for epoch in (1, -1):
            refused = groups.modern("g", epoch)
            assert (refused.error_code, refused.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, other)
        assert groups.described("g") == (ErrorCode.GROUP_ID_NOT_FOUND, other)
        joined = groups.modern("g", 0)
        if policy in ("upgrade", "bidirectional"):
            assert (joined.error_code, joined.member_epoch) == (0, 2)
            return
        assert joined.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        why = "Cannot upgrade classic group g to consumer group because online upgrade is disabled."
        assert joined.error_message == why


def test_a_custom_assignor_cannot_migrate(target_name: str) -> None:
    with serving(target_name, group_consumer_migration_policy="bidirectional") as groups:
        user_data = bytes.fromhex("00000004 01020304")
        classic = groups.classic("g", build_assignment(1, {TOPIC: [0, 1, 2, 3]})[:-4] + user_data)
        refused = groups.modern("g", 0)
        assert (refused.error_code, refused.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, CUSTOM_ASSIGNOR)
        assert groups.beat("g", classic, 1) == 0
        assert groups.state("g") == ("Stable", [[0, 1, 2, 3]])


def test_an_assignment_that_cannot_be_read(target_name: str) -> None:
    with serving(target_name, group_consumer_migration_policy="bidirectional") as groups:
        groups.classic("g", b"\0\1\0")
        refused = groups.modern("g", 0)
        why = "Cannot upgrade classic group g to consumer group because the embedded consumer protocol is malformed."
        assert (refused.error_code, refused.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, why)


def test_the_last_member_of_the_consumer_protocol_leaves(target_name: str) -> None:
    """The classic group rebalances; until then its members keep their target assignments."""
    with serving(target_name, group_consumer_migration_policy="downgrade") as groups:
        assert groups.modern("g", 0).error_code == 0
        classic = groups.join("g").member_id
        generation = groups.join("g", classic).generation_id
        assert groups.modern("g", -1).error_code == 0
        state, [has] = groups.state("g")
        assert (state, len(has)) == ("PreparingRebalance", 2)
        assert groups.sync("g", classic, generation) == (ErrorCode.REBALANCE_IN_PROGRESS, [])
        assert groups.beat("g", classic, generation) == ErrorCode.REBALANCE_IN_PROGRESS
        joined = groups.join("g", classic)
        assert (joined.generation_id, joined.leader) == (generation + 1, classic)


def test_the_last_member_of_the_consumer_protocol_returns_with_the_classic_one(target_name: str) -> None:
    """The member is static: the classic group continues without a rebalance, and each member receives its
    assignment."""
    with serving(target_name, group_consumer_migration_policy="downgrade") as groups:
        assert groups.modern("g", 0, instance_id="i").error_code == 0
        other = groups.join("g").member_id
        generation = groups.join("g", other).generation_id
        assert groups.modern("g", -2, instance_id="i").error_code == 0
        returned = groups.join("g", group_instance_id="i")
        assert (returned.generation_id, returned.leader) == (generation, "")
        assert groups.state("g")[0] == "Stable"
        has = [
            groups.sync("g", returned.member_id, generation, instance="i"),
            groups.sync("g", other, generation),
        ]
        assert [code for code, _ in has] == [0, 0]
        assert sorted(partition for _, some in has for partition in some) == [0, 1, 2, 3]
        assert groups.beat("g", other, generation) == 0


def test_a_dynamic_member_that_changes_its_protocol_stays_in_a_consumer_group(target_name: str) -> None:
    with serving(target_name, group_consumer_migration_policy="downgrade") as groups:
        assert groups.modern("g", 0).member_epoch == 2
        assert groups.join("g", MODERN).generation_id == 2
        assert groups.state("g") == ("Dead", []), "not a classic group"
        assert groups.described("g") == (0, None)
        assert groups.sync("g", MODERN, 2) == (0, [0, 1, 2, 3])
        assert groups.beat("g", MODERN, 2) == 0


def test_a_protocol_that_is_not_served(target_name: str) -> None:
    with serving(target_name, group_coordinator_rebalance_protocols="classic") as groups:
        refused = groups.modern("g", 0)
        assert (refused.error_code, refused.error_message) == (ErrorCode.UNSUPPORTED_VERSION, None)
        assert groups.described("g") == (ErrorCode.UNSUPPORTED_VERSION, None)
