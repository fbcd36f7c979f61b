"""Simulated clients of KIP-848: they send heartbeats, revoke and take over partitions, lose responses, crash, and
return.

`Colony` is a group of such clients, and checks the invariants.
"""

from __future__ import annotations

from random import Random
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.consumer.group import ConsumerGroup
from kpybroker.groups.consumer.records import read_group
from kpybroker.groups.ground.commands import ConsumerHeartbeat, DescribeConsumerGroup
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.rpc import consumer_group_heartbeat as rpc
from tests.groups.stage import Stage

REBALANCE_MS = 8_000
START_AGAIN = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.FENCED_INSTANCE_ID}


def topic_partitions(places: set[TopicIdPartition]) -> list[rpc.TopicPartitions]:
    by_topic: dict[bytes, list[int]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(partition)
    return [rpc.TopicPartitions(topic_id=topic, partitions=found) for topic, found in by_topic.items()]


class Consumer:
    """One client."""

    def __init__(self, member_id: str, instance: str | None, wants: dict[str, Any]) -> None:
        self.member_id = member_id
        self.instance = instance
        self.wants = wants
        self.epoch = 0
        self.owned: set[TopicIdPartition] = set()
        self.told: set[TopicIdPartition] | None = None
        """The assignment in the coordinator's last response; the client moves to it step by step."""
        self.unsure = True
        """Whether the client sends all fields in the next heartbeat, because it joins or has not received the last
        response."""

    def request(self, epoch: int | None = None) -> rpc.Request:
        request = rpc.Request(group_id="g", member_id=self.member_id, instance_id=self.instance)
        request.member_epoch = self.epoch if epoch is None else epoch
        if self.unsure or self.epoch == 0:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names = self.wants.get("names", [])
            request.subscribed_topic_regex = self.wants.get("regex")
            request.server_assignor = self.wants.get("assignor")
            # partitions that it is about to take over count, or the coordinator would assume them revoked
            request.topic_partitions = topic_partitions(self.owned | (self.told or set()))
        elif self.told is not None and self.owned == self.told:
            request.topic_partitions = topic_partitions(self.owned)  # the client has applied the last response
            self.told = None
        return request

    def hear(self, answer: rpc.Response) -> None:
        self.unsure = False
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.told = {
                (bytes(each.topic_id), partition)
                for each in answer.assignment.topic_partitions
                for partition in each.partitions
            }

    def work(self) -> None:
        """First revoke partitions; when that is done, take over the new ones."""
        if self.told is None:
            return
        if self.owned - self.told:
            self.owned &= self.told
        else:
            self.owned = set(self.told)

    def start_again(self) -> None:
        self.epoch, self.owned, self.told, self.unsure = 0, set(), None, True


class Colony:
    """A group, its clients, and its topics."""

    def __init__(self, chance: Random, settings: GroupSettings) -> None:
        self.chance = chance
        self.stage = Stage(settings)
        self.stage.topic("ta", 5)
        self.stage.topic("tb", 3)
        self.consumers: list[Consumer] = []
        self.born = 0

    @property
    def group(self) -> ConsumerGroup | None:
        return self.stage.machine.kinds["consumer"].groups.get("g")

    # -- events ---------------------------------------------------------------------------------------------------

    def disturb(self) -> None:
        chance = self.chance
        self.stage.wait(chance.choice([0, 0, 100, 1_000, 3_000]))
        what = chance.randrange(20)
        if what < 2 and len(self.consumers) < 6:
            self.be_born()
        elif not self.consumers:
            return
        elif what == 2:
            self.part(chance.choice(self.consumers), epoch=chance.choice([-1, -1, -2]))
        elif what == 3 and chance.random() < 0.5:
            self.consumers.remove(chance.choice(self.consumers))  # it crashes
        elif what == 4 and chance.random() < 0.3:
            self.stage.restart()
        elif what == 5 and chance.random() < 0.3:
            self.stage.topic(chance.choice(["ta", "tb", "tc"]), chance.randrange(1, 9))
        elif what == 6:
            one = chance.choice(self.consumers)
            one.wants, one.unsure = self.wish(), True
        elif what < 12:
            chance.choice(self.consumers).work()
        else:
            self.beat(chance.choice(self.consumers), heard=chance.random() < 0.9)
        self.watch()

    def wish(self) -> dict[str, Any]:
        names = self.chance.choice([["ta"], ["ta", "tb"], ["ta", "tb"], ["tb"], []])
        regex = self.chance.choice([None, "", "", "t.*", "t[bc]"])
        return {"names": names, "regex": regex, "assignor": self.chance.choice([None, "range", "uniform"])}

    def be_born(self) -> None:
        self.born += 1
        taken = {each.instance for each in self.consumers}
        instance = self.chance.choice([None, None, "one", "two"])
        self.consumers.append(Consumer(f"m{self.born}", None if instance in taken else instance, self.wish()))

    def part(self, one: Consumer, epoch: int) -> None:
        self.consumers.remove(one)
        self.ask(one, one.request(epoch if one.instance is not None else -1))

    def beat(self, one: Consumer, *, heard: bool = True) -> None:
        answer = self.ask(one, one.request())
        if not heard:
            one.unsure = True
        elif isinstance(answer, rpc.Response):
            one.hear(answer)
        elif answer in START_AGAIN:
            one.start_again()
        else:
            assert answer is ErrorCode.UNRELEASED_INSTANCE_ID, answer
            one.start_again()

    def ask(self, one: Consumer, request: rpc.Request) -> rpc.Response | ErrorCode:
        try:
            answer: rpc.Response = self.stage.answer(ConsumerHeartbeat(request, one.member_id, "/h"))
        except KafkaError as refusal:
            return refusal.code
        return answer

    # -- invariants -----------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Check the invariants that hold at any time: no partition has two owners, and the records contain the whole
        state."""
        group = self.group
        if group is None:
            return
        seen: set[TopicIdPartition] = set()
        for one in self.consumers:
            member = group.members.get(one.member_id)
            if member is None:
                continue  # the client is informed of it in the response to its next heartbeat
            may_have = member.current.assigned.keys() | member.current.revoking.keys()
            assert one.owned <= may_have, f"{one.member_id} owns a partition that it was not assigned"
        for member in group.members.values():
            has = member.current.assigned.keys() | member.current.revoking.keys()
            assert not seen & has, "a partition has two owners"
            seen |= has
        assert group.owners.keys() == seen
        again = (
            read_group("g", self.stage.machine.kinds["consumer"].stored["g"])
            if self.stage.machine.kinds["consumer"].stored
            else None
        )
        assert again is not None
        assert told(again) == told(group), "the replayed state differs from the live one"

    def settle(self) -> None:
        """Let all clients run without faults, until sessions have expired and topics have been found."""
        for _ in range(60):
            self.stage.wait(2_000)
            for one in self.consumers:
                one.work()
                self.beat(one)
                one.work()
            self.watch()

    def assert_at_rest(self) -> None:
        """Check that every subscribed partition has one owner, and that the group is stable."""
        group = self.group
        if not self.consumers:
            assert group is None or not group.members
            return
        assert group is not None
        assert group.members.keys() == {one.member_id for one in self.consumers}
        assert group.state == "Stable"
        described = self.stage.answer(DescribeConsumerGroup("g"))
        assert all(each.assignment == each.target_assignment for each in described.members)
        owned = [place for one in self.consumers for place in one.owned]
        assert len(owned) == len(set(owned))
        wanted = {
            (topic.id, partition)
            for name, topic in self.stage.image.topics.items()
            if group.subscribes(name)
            for partition in range(len(topic.partitions))
        }
        assert set(owned) == wanted
        before = (group.epoch, dict(group.targets))
        for one in self.consumers:
            one.unsure = True
            self.beat(one)
        if all(one.instance is None for one in self.consumers):
            for one in self.consumers:
                one.start_again()
                self.beat(one)
        assert (group.epoch, group.targets) == before, "joining again without a change moves nothing"


def told(group: ConsumerGroup) -> Any:
    """The state of a group according to its records."""
    members = {
        each.member_id: (*each.said()[:4], set(each.names), *each.said()[5:], each.current)
        for each in group.members.values()
    }
    targets = {member_id: target for member_id, target in group.targets.items() if target}
    return group.epoch, group.assignment_epoch, members, targets, group.instances, group.resolved, group.owners
