"""Tests that the regular expression of a consumer group matches only topics that a member may describe, and when
changed ACLs take effect."""

import asyncio
from collections.abc import Collection
from uuid import uuid4

import pytest

from compat_tests.conftest import Running
from kpybroker.client.dialer import Dialer
from kpybroker.client.peer import Peer
from kpybroker.config.login import Login
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.wire.rpc import consumer_group_heartbeat, create_acls, create_topics, delete_acls, find_coordinator
from kpybroker.world.real import real_world
from oracle.authorization import ALLOW, LITERAL, OWNER, PASSWORD, USER
from oracle.authorization_matrix import properties, some_ports
from oracle.broker import KPyBroker
from oracle.kafka import Kafka

REFRESHED = {"group.consumer.regex.refresh.interval.ms": "10000"}
"""The lowest value that Apache Kafka allows."""
PAUSE_S = 0.1
"""The pause between two heartbeats."""
STARTING = {14, 15, 16}
"""Errors of a coordinator that is not ready."""


class Cluster:
    """Creates topics and ACLs as a super user."""

    def __init__(self, admin: Peer, named_port: int) -> None:
        self.admin = admin
        self.named_port = named_port
        self.names: dict[bytes, str] = {}

    async def make(self, *names: str) -> None:
        topics = [create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        made = await self.admin.ask("CreateTopics", create_topics.Request(topics=topics, timeout_ms=10_000))
        assert not any(topic.error_code for topic in made.topics), made
        self.names.update({bytes(topic.topic_id): topic.name for topic in made.topics})

    async def allow(self, user: str, operation: Operation, resource: AclResource, *names: str) -> None:
        rows = [
            create_acls.AclCreation(
                resource_type=resource,
                resource_name=name,
                resource_pattern_type=LITERAL,
                principal=f"User:{user}",
                host="*",
                operation=operation,
                permission_type=ALLOW,
            )
            for name in names
        ]
        made = await self.admin.ask("CreateAcls", create_acls.Request(creations=rows))
        assert not any(row.error_code for row in made.results), made

    async def take(self, user: str, topic: str) -> None:
        gone = delete_acls.DeleteAclsFilter(
            resource_type_filter=AclResource.TOPIC,
            resource_name_filter=topic,
            pattern_type_filter=LITERAL,
            principal_filter=f"User:{user}",
            host_filter="*",
            operation=Operation.DESCRIBE,
            permission_type=ALLOW,
        )
        told = await self.admin.ask("DeleteAcls", delete_acls.Request(filters=[gone]))
        assert len(told.filter_results[0].matching_acls) == 1

    async def member(self, user: str, group: str, regex: str) -> "Member":
        asked = find_coordinator.Request(key_type=0, coordinator_keys=[group])
        while (await self.admin.ask("FindCoordinator", asked)).coordinators[0].error_code:
            await asyncio.sleep(PAUSE_S)
        login = Login("PLAIN", user, PASSWORD)
        peer = await Dialer(real_world().network, login).meet("127.0.0.1", self.named_port, client_id=user)
        return Member(self, peer, group, regex)


class Member:
    """A consumer that subscribes by expression, and adopts each assignment at once."""

    def __init__(self, cluster: Cluster, peer: Peer, group: str, regex: str) -> None:
        self._cluster, self._peer, self._group, self._regex = cluster, peer, group, regex
        self._id, self._epoch = str(uuid4()), 0
        self._owned: list[consumer_group_heartbeat.TopicPartitions] = []

    async def beat(self) -> set[str]:
        """Send a heartbeat. Returns the topics of which the member has partitions."""
        request = consumer_group_heartbeat.Request(
            group_id=self._group, member_id=self._id, member_epoch=self._epoch, topic_partitions=self._owned
        )
        if self._epoch == 0:
            request.rebalance_timeout_ms, request.subscribed_topic_regex = 60_000, self._regex
        heard = await self._peer.ask("ConsumerGroupHeartbeat", request)
        if heard.error_code not in STARTING:
            assert heard.error_code == 0, heard
            self._epoch = heard.member_epoch
            if heard.assignment is not None:
                self._owned = heard.assignment.topic_partitions
        return {self._cluster.names[bytes(each.topic_id)] for each in self._owned}

    async def until(self, *wanted: str, never: Collection[str], perhaps: Collection[str] = ()) -> None:
        """Send heartbeats until the member has exactly the `wanted` topics, not counting the topics in `perhaps`.
        Asserts that it is not assigned a topic in `never` before that."""
        while (has := await self.beat()) - set(perhaps) != set(wanted):
            assert not has & set(never), f"it has {has}"
            await asyncio.sleep(PAUSE_S)

    def close(self) -> None:
        self._peer.close()


async def play(port: int, named_port: int) -> None:
    admin = await Dialer(real_world().network).meet("127.0.0.1", port, client_id="admin")
    cluster = Cluster(admin, named_port)
    for user in (USER, OWNER):
        await cluster.allow(user, Operation.READ, AclResource.GROUP, "*")
    await cluster.make("aa1", "aa2", "aa3", "ab1")
    await cluster.allow(USER, Operation.DESCRIBE, AclResource.TOPIC, "aa1", "ab1")
    bob = await cluster.member(USER, "g", "aa.*")
    await bob.until("aa1", never=["aa2", "aa3", "ab1"])
    # changed ACLs take effect when the interval is over
    await cluster.allow(USER, Operation.DESCRIBE, AclResource.TOPIC, "aa2")
    await bob.until("aa1", "aa2", never=["aa3", "ab1"])
    await cluster.take(USER, "aa1")
    await bob.until("aa2", never=["aa3", "ab1"])
    # ... or when there is a new topic
    await cluster.allow(USER, Operation.DESCRIBE, AclResource.TOPIC, "aa4")
    await cluster.make("aa4", "aa5")
    await bob.until("aa2", "aa4", never=["aa1", "aa3", "aa5", "ab1"])
    bob.close()
    # the rights of the member whose heartbeat triggers the evaluation apply to all members
    await cluster.allow(OWNER, Operation.DESCRIBE, AclResource.TOPIC, "aa5", "ab1")
    first, second = await cluster.member(USER, "h", "aa.*"), await cluster.member(OWNER, "h", "a[a-z].*")
    await first.until("aa2", "aa4", never=["aa1", "aa3", "aa5", "ab1"])
    await second.until("ab1", perhaps=["aa5"], never=["aa1", "aa2", "aa3", "aa4"])
    await first.until(perhaps=["aa5"], never=["aa1", "aa3", "ab1"])
    for peer in (first, second, admin):
        peer.close()


@pytest.mark.timeout(180)
def test_a_regular_expression_finds_topics_that_may_be_described(target_name: str) -> None:
    ports = some_ports()
    given = {**properties(ports), **REFRESHED}
    broker: Running = KPyBroker(port=ports.broker, properties=given)
    if target_name == "kafka":
        broker = kafka = Kafka(port=ports.broker, properties=given, jvm=("-XX:TieredStopAtLevel=1",))
        kafka.controller_port = ports.controller
    with broker:
        asyncio.run(play(ports.broker, ports.named))
