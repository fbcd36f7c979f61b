"""Two hundred members join one consumer group (KIP-848), each on its own connection, until all own a partition."""

import time
import uuid
from collections.abc import Sequence
from statistics import mean, median

from bench.control import create_topic, delete_topic, fresh_name
from bench.joining import find_coordinator_of, timed_join
from bench.measure import Better, Case, LoadError, Measure
from bench.raw import HEADER_BYTES, Connection, frame
from bench.target import Target
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.rpc import consumer_group_heartbeat, incremental_alter_configs

MEMBERS = 200
GROUPS = 3
KEY, VERSION = 68, 1
BEAT_S = 0.02
"""Interval of heartbeats without changes; stock clients use the broker's setting, five seconds."""
LEAVING = -1


class Member:
    """A member that takes over assigned partitions at once, and reports them in the next heartbeat."""

    def __init__(self, connection: Connection, group: str, topic: str) -> None:
        self.connection = connection
        self.group = group
        self.topic = topic
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: list[consumer_group_heartbeat.TopicPartitions] = []
        self.waits = False
        self.next_beat_s = 0.0

    @property
    def partitions(self) -> list[int]:
        return [partition for topic in self.owned for partition in topic.partitions]

    @property
    def is_idle(self) -> bool:
        return not self.waits

    def join(self) -> None:
        """Send the first heartbeat."""
        self.beat()

    def beat(self) -> None:
        joins = self.epoch == 0
        request = consumer_group_heartbeat.Request(
            group_id=self.group,
            member_id=self.id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=30_000 if joins else -1,
            subscribed_topic_names=[self.topic] if joins else None,
            topic_partitions=self.owned,
        )
        self.waits = True
        self.connection.socket.sendall(frame(KEY, VERSION, request))

    def read(self) -> None:
        """Read the pending reply, and confirm a new assignment at once."""
        self.waits = False
        response = parse(consumer_group_heartbeat.Response, VERSION, self.connection.reply(), HEADER_BYTES)
        if response.error_code != ErrorCode.NONE:
            refused = ErrorCode(response.error_code).name
            raise LoadError(f"{self.connection.target.name} refused a member: {refused} {response.error_message}")
        self.epoch = response.member_epoch
        self.next_beat_s = time.monotonic() + BEAT_S
        if response.assignment is not None:
            self.owned = response.assignment.topic_partitions
            self.beat()


class Join(Case):
    """Time from the first heartbeat until each member owns one partition in the same epoch. The group has no assignment
    interval: with the default of a second, the first member owns all partitions until it has passed."""

    family = "groups"
    name = "consumer-group-join"
    measures = (
        Measure(
            "consumer-group-join.ms",
            f"{MEMBERS} members join one group of the consumer protocol: time until each has a partition",
            "ms",
            Better.LOWER,
            1.0,
            0.5,
        ),
        Measure("consumer-group-join.cpu", "… broker CPU", "ms", Better.LOWER),
    )

    def __init__(self) -> None:
        self.topics: dict[str, str] = {}

    def prepare(self, target: Target) -> None:
        self.topics[target.name] = fresh_name(self.name)
        create_topic(target, self.topics[target.name], MEMBERS)

    def slice(self, target: Target) -> dict[str, float]:
        """The median over several groups, one after the other."""
        joined = [self._join(target) for _ in range(GROUPS)]
        times, cpu = self.measures
        return {times.key: median(ms for ms, _ in joined), cpu.key: mean(cpu_ms for _, cpu_ms in joined)}

    def clean(self, target: Target) -> None:
        delete_topic(target, self.topics[target.name])

    def _join(self, target: Target) -> tuple[float, float]:
        group = fresh_name(self.name)
        find_coordinator_of(target, group)
        _assign_at_once(target, group)
        members = [Member(Connection(target), group, self.topics[target.name]) for _ in range(MEMBERS)]
        return timed_join(members, _stable, _leave, BEAT_S)


def _assign_at_once(target: Target, group: str) -> None:
    """Let every change of the group lead to a new assignment."""
    setting = incremental_alter_configs.AlterableConfig(name="consumer.assignment.interval.ms", value="0")
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=ResourceType.GROUP, resource_name=group, configs=[setting]
    )
    request = incremental_alter_configs.Request(resources=[resource])
    with Connection(target) as connection:
        (response,) = connection.ask(44, 1, request, incremental_alter_configs.Response).responses
    if response.error_code:
        raise LoadError(f"{target.name} refused a setting of a group: {ErrorCode(response.error_code).name}")


def _stable(members: Sequence[Member]) -> bool:
    """Whether each member owns one partition that no other member owns, and all members are in one epoch."""
    if len({member.epoch for member in members}) > 1:
        return False
    owned = [tuple(member.partitions) for member in members]
    return len(set(owned)) == MEMBERS and all(len(each) == 1 for each in owned)


def _leave(members: Sequence[Member]) -> None:
    """Let the members leave one after the other, each after its pending reply."""
    for member in members:
        while member.waits:
            member.read()
        request = consumer_group_heartbeat.Request(group_id=member.group, member_id=member.id, member_epoch=LEAVING)
        response = member.connection.ask(KEY, VERSION, request, consumer_group_heartbeat.Response)
        if response.error_code:
            raise LoadError(f"the group refused a LeaveGroup: {ErrorCode(response.error_code).name}")


def cases() -> list[Case]:
    return [Join()]
