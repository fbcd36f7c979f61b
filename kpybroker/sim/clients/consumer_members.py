"""Clients that are members of groups with the consumer protocol (KIP-848)."""

from __future__ import annotations

import asyncio

from kpybroker.errors import ErrorCode
from kpybroker.sim.clients.classic_members import LEAVING_ODDS, MOVED, STATIC_ODDS, ClassicMembership
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.laws.assignment_law import PartitionOwnership
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import consumer_group_describe, consumer_group_heartbeat
from kpybroker.wire.rpc.consumer_group_heartbeat import TopicPartitions

REBALANCE_TIMEOUT_MS = 60_000
REGEX_ODDS = 0.2
DESCRIBING_ODDS = 0.05
JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2
STALE = int(ErrorCode.STALE_MEMBER_EPOCH)
COUNTED_OUT = frozenset(
    int(code)
    for code in (
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    )
)
"""Errors after which a member drops all partitions and joins again."""


class ConsumerGroupMember:
    """A member of a consumer group. When it has left or was fenced, it joins again with a new member id."""

    def __init__(
        self, client: SimClient, group: str, topics: list[str], ownership: PartitionOwnership, *, pace_s: float
    ) -> None:
        self._client = client
        self._group = group
        self._topics = topics
        self._ownership = ownership
        self._pace_s = pace_s
        self._instance_id = client.name if client.random.random() < STATIC_ODDS else None
        self._uses_regex = client.random.random() < REGEX_ODDS
        self._membership = ClassicMembership(client, group, instance_id=self._instance_id)
        self._owned: set[TopicPartition] = set()
        self._number = 0
        self._start_over()

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                await self._take_part()
                client.succeeded()
            except (Unanswered, Refused) as failed:
                client.note(f"in epoch {self._epoch} failed: {failed}")
                self._says_all = True
                if isinstance(failed, Refused) and failed.code in COUNTED_OUT:
                    self._start_over()
                elif not (isinstance(failed, Refused) and failed.code == STALE):
                    client.forget_coordinator(self._group)
                    await client.nap(0.5)

    def _start_over(self) -> None:
        """Drop all partitions, and choose a new member id."""
        self._ownership.revokes(self._client.name, self._owned)
        self._owned.clear()
        self._number += 1
        self._member_id = f"{self._client.name}.{self._number}"
        self._membership.become(self._member_id, self._membership.generation)
        self._epoch, self._says_all = JOIN, True

    async def _take_part(self) -> None:
        """Send a heartbeat, commit offsets, and sometimes leave. Raises Unanswered, Refused."""
        client, before = self._client, set(self._owned)
        await self._beat()
        for place in sorted(self._owned - before):
            await self._membership.fetch(place)
        for place in sorted(self._owned):
            await self._membership.commit(place, client.random.randint(1, 3))
        if client.random.random() < DESCRIBING_ODDS:
            await self._describe()
        if client.random.random() < LEAVING_ODDS:
            await self._leave()
        elif before == self._owned:
            await asyncio.sleep(0.1 + client.random.random() * self._pace_s)

    async def _beat(self) -> None:
        client = self._client
        sent_at_s = client.history.now_s
        request = self._request(self._epoch)
        if self._says_all:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.server_assignor = client.random.choice((None, "range", "uniform"))
            if self._uses_regex:
                request.subscribed_topic_regex = "topic[0-9]+"
            else:
                request.subscribed_topic_names = list(self._topics)
        request.topic_partitions = await self._told() if self._epoch != JOIN else []
        response = await self._ask(request)
        self._says_all = False
        if response.member_epoch != self._epoch:
            client.note(f"is in epoch {response.member_epoch}")
        self._epoch = response.member_epoch
        self._membership.become(self._member_id, self._epoch)
        if response.assignment is not None:
            names = await self._names()
            wanted = {
                (names[row.topic_id], index)
                for row in response.assignment.topic_partitions
                for index in row.partitions
                if row.topic_id in names
            }
            self._ownership.revokes(client.name, self._owned - wanted)
            self._owned = wanted
        self._ownership.owns(client.name, self._owned, sent_at_s)

    async def _describe(self) -> None:
        """Check that no partition has two owners in ConsumerGroupDescribe."""
        request = consumer_group_describe.Request(group_ids=[self._group])
        node_id = await self._client.coordinator(self._group)
        response = (await self._client.ask(node_id, "ConsumerGroupDescribe", request)).groups[0]
        if response.error_code:
            raise Refused(response.error_code)
        shown = [
            (topic.topic_name, index)
            for member in response.members
            for topic in member.assignment.topic_partitions
            for index in topic.partitions
        ]
        if len(shown) != len(set(shown)):
            self._client.history.breach(f"ConsumerGroupDescribe returns {shown} for {self._group}")

    async def _leave(self) -> None:
        """Leave permanently or, as a static member, to rejoin with the same instance id."""
        epoch = LEAVE if self._instance_id is None or self._client.random.random() < 0.5 else LEAVE_FOR_A_WHILE
        request = self._request(epoch)
        self._start_over()
        await self._ask(request)

    def _request(self, epoch: int) -> consumer_group_heartbeat.Request:
        return consumer_group_heartbeat.Request(
            group_id=self._group,
            member_id=self._member_id,
            member_epoch=epoch,
            instance_id=self._instance_id,
        )

    async def _ask(self, request: consumer_group_heartbeat.Request) -> consumer_group_heartbeat.Response:
        node_id = await self._client.coordinator(self._group)
        response: consumer_group_heartbeat.Response = await self._client.ask(node_id, "ConsumerGroupHeartbeat", request)
        if response.error_code in MOVED:
            self._client.forget_coordinator(self._group)
        if response.error_code:
            raise Refused(response.error_code)
        return response

    async def _names(self) -> dict[bytes, str]:
        """Topics by id. Raises Unanswered."""
        return {(await self._client.topic(name)).topic_id: name for name in self._topics}

    async def _told(self) -> list[TopicPartitions]:
        """The owned partitions, in the form that a heartbeat needs."""
        return [
            TopicPartitions(
                topic_id=topic_id, partitions=sorted(index for topic, index in self._owned if topic == name)
            )
            for topic_id, name in (await self._names()).items()
            if any(topic == name for topic, _ in self._owned)
        ]
