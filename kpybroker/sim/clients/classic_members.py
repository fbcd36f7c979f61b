"""Clients that are members of classic groups, and clients that commit offsets without being members."""

from __future__ import annotations

import asyncio
from struct import pack, unpack_from

from kpybroker.errors import ErrorCode
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.laws.assignment_law import PartitionOwnership
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import heartbeat, join_group, leave_group, offset_commit, offset_fetch, sync_group

SESSION_MS = 6000
REBALANCE_MS = 8000
REBALANCE_LIMIT_S = 15.0
MOVED = frozenset({int(ErrorCode.NOT_COORDINATOR), int(ErrorCode.COORDINATOR_NOT_AVAILABLE)})
MEMBER_ID_REQUIRED = int(ErrorCode.MEMBER_ID_REQUIRED)
REBALANCE = int(ErrorCode.REBALANCE_IN_PROGRESS)
LOST = frozenset({int(ErrorCode.UNKNOWN_MEMBER_ID), int(ErrorCode.FENCED_INSTANCE_ID)})
LEAVING_ODDS = 0.03
STATIC_ODDS = 0.3
ANY_GENERATION = -1


def _subscription(topics: tuple[str, ...]) -> bytes:
    """A consumer's subscription (ConsumerProtocolSubscription, version 0)."""
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", 0, len(topics)) + names + pack(">i", -1)


def _assignment(places: list[TopicPartition]) -> bytes:
    """The assignment of a member (ConsumerProtocolAssignment, version 0)."""
    rows = [pack(">h", len(name)) + name.encode() + pack(">ii", 1, index) for name, index in places]
    return pack(">hi", 0, len(rows)) + b"".join(rows) + pack(">i", -1)


def _places(assignment: bytes) -> list[TopicPartition]:
    """The partitions of an assignment; none if it is empty."""
    if not assignment:
        return []
    found, position = [], 6
    for _ in range(unpack_from(">i", assignment, 2)[0]):
        (size,) = unpack_from(">h", assignment, position)
        name = assignment[position + 2 : position + 2 + size].decode()
        (count,) = unpack_from(">i", assignment, position + 2 + size)
        position += 6 + size
        found += [(name, index) for index in unpack_from(f">{count}i", assignment, position)]
        position += 4 * count
    return found


class ClassicMembership:
    """The requests of one client to the coordinator of its group."""

    def __init__(self, client: SimClient, group: str, *, instance_id: str | None = None, topics: tuple[str, ...] = ()):
        self._client = client
        self.group = group
        self.instance_id = instance_id
        """Set for a static member (KIP-345)."""
        self._subscription = _subscription(topics)
        self.member_id = ""
        self.generation = ANY_GENERATION
        self._protocol: str | None = None

    def become(self, member_id: str, generation: int) -> None:
        """Set the member id and the generation, or member epoch, of this client."""
        self.member_id, self.generation = member_id, generation

    async def shown(self, place: TopicPartition) -> TopicPartition:
        """The name of a partition in requests. Raises Unanswered."""
        return place

    async def is_outdated(self, node_id: int, place: TopicPartition, shown: TopicPartition) -> bool:
        """Whether a response that lacks a commit is no breach, because the node is no longer the coordinator. Raises
        Unanswered."""
        return await self._client.is_deposed(node_id, self.group)

    async def commit(self, place: TopicPartition, step: int) -> None:
        """Commit an offset that is higher than all earlier ones. Raises Unanswered, Refused."""
        client, (name, index) = self._client, await self.shown(place)
        commits = client.history.committed(self.group, place)
        offset = commits.send(max(commits.sent, 0) + step)
        row = offset_commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        topic_id = (await client.topic(name)).topic_id
        topic = offset_commit.OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=[row])
        request = offset_commit.Request(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[topic],
        )
        try:
            response = await client.ask(await client.coordinator(self.group), "OffsetCommit", request)
        except Unanswered:
            commits.unanswered.append((client.history.now_s, offset))
            raise
        self._check(response.topics[0].partitions[0].error_code)
        commits.acknowledge(offset)
        client.history.count("commits")

    async def fetch(self, place: TopicPartition) -> int:
        """The committed offset; -1 if there is none. Raises Unanswered, Refused."""
        client, (name, index) = self._client, await self.shown(place)
        floor = client.history.committed(self.group, place).floor(client.history.now_s)
        topic_id = (await client.topic(name)).topic_id
        topic = offset_fetch.OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=[index])
        group = offset_fetch.OffsetFetchRequestGroup(group_id=self.group, topics=[topic])
        request = offset_fetch.Request(groups=[group], require_stable=True)
        node_id = await client.coordinator(self.group)
        response = await client.ask(node_id, "OffsetFetch", request)
        answer = response.groups[0]
        self._check(answer.error_code)
        row = answer.topics[0].partitions[0]
        self._check(row.error_code)
        if row.committed_offset < floor and await self.is_outdated(node_id, place, (name, index)):
            self._check(int(ErrorCode.NOT_COORDINATOR))
        client.history.fetched_commit(self.group, place, floor, row.committed_offset)
        return int(row.committed_offset)

    async def join(self) -> dict[str, bytes]:
        """Join the next generation. Returns its members if this one is the leader. Raises Unanswered, Refused."""
        client = self._client
        request = join_group.Request(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[
                join_group.JoinGroupRequestProtocol(name=name, metadata=self._subscription)
                for name in client.random.choice((("range",), ("range", "sticky"), ("sticky", "range")))
            ],
        )
        node_id = await client.coordinator(self.group)
        response = await client.ask(node_id, "JoinGroup", request, limit_s=REBALANCE_LIMIT_S)
        if response.error_code == MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            request.member_id = response.member_id
            response = await client.ask(node_id, "JoinGroup", request, limit_s=REBALANCE_LIMIT_S)
        self._check(response.error_code)
        self.member_id, self.generation = response.member_id, response.generation_id
        self._protocol = response.protocol_name
        return {member.member_id: member.metadata for member in response.members}

    async def sync(self, shares: dict[str, bytes]) -> bytes:
        """Send the leader's assignments, and return this member's assignment. Raises Unanswered, Refused."""
        client = self._client
        assignments = [
            sync_group.SyncGroupRequestAssignment(member_id=member, assignment=share)
            for member, share in shares.items()
        ]
        request = sync_group.Request(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            group_instance_id=self.instance_id,
            protocol_name=self._protocol,
            assignments=assignments,
        )
        node_id = await client.coordinator(self.group)
        response = await client.ask(node_id, "SyncGroup", request, limit_s=REBALANCE_LIMIT_S)
        self._check(response.error_code)
        return bytes(response.assignment)

    async def share_of(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """Join and sync the next generation. Returns this member's partitions. Raises Unanswered, Refused."""
        client = self._client
        members = await self.join()
        shares = {member: _assignment(places[number :: len(members)]) for number, member in enumerate(sorted(members))}
        own = _places(await self.sync(shares))
        client.note(f"is in generation {self.generation} with {len(own)} partitions")
        return own

    async def beat(self) -> None:
        """Send a heartbeat. Raises Unanswered, Refused."""
        request = heartbeat.Request(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        response = await self._client.ask(await self._client.coordinator(self.group), "Heartbeat", request)
        self._check(response.error_code)

    async def leave(self) -> None:
        """Leave the group. Raises Unanswered, Refused."""
        member = leave_group.MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        request = leave_group.Request(group_id=self.group, members=[member])
        response = await self._client.ask(await self._client.coordinator(self.group), "LeaveGroup", request)
        self._check(response.error_code or response.members[0].error_code)
        self.member_id, self.generation = "", ANY_GENERATION

    def _check(self, code: int) -> None:
        if not code:
            return
        if code in MOVED:
            self._client.forget_coordinator(self.group)
        if code in LOST:
            self.member_id, self.generation = "", ANY_GENERATION
        raise Refused(code)


class Committer:
    """Commits increasing offsets without being a member, and fetches them."""

    def __init__(self, client: SimClient, group: str, place: TopicPartition, *, pace_s: float) -> None:
        self._client = client
        self._place = place
        self._pace_s = pace_s
        self._membership = ClassicMembership(client, group)

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                await self._membership.commit(self._place, client.random.randint(1, 5))
                await self._membership.fetch(self._place)
                client.succeeded()
                await client.nap(self._pace_s)
            except (Unanswered, Refused) as failed:
                client.note(f"cannot commit: {failed}")
                client.forget_coordinator(self._membership.group)
                client.forget_topic(self._place[0])
                await client.nap(0.5)


class ClassicGroupMember:
    """A member of a classic group: joins, commits offsets of its partitions, and sends heartbeats."""

    def __init__(
        self,
        client: SimClient,
        group: str,
        places: list[TopicPartition],
        *,
        pace_s: float,
        ownership: PartitionOwnership | None = None,
    ) -> None:
        """`ownership`: must be given if other members may use the consumer protocol, because ownership is then not tied
        to generations."""
        self._client = client
        self._places = places
        self._ownership = ownership
        self._pace_s = pace_s
        instance_id = client.name if client.random.random() < STATIC_ODDS else None
        topics = tuple(sorted({name for name, _ in places}))
        self._membership = ClassicMembership(client, group, instance_id=instance_id, topics=topics)

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                await self._take_part()
            except (Unanswered, Refused) as failed:
                client.note(f"leaves generation {self._membership.generation}: {failed}")
                if not (isinstance(failed, Refused) and failed.code == REBALANCE):
                    client.forget_coordinator(self._membership.group)
                    client.forget_topic(self._places[0][0])
                    await client.nap(0.5)

    async def _take_part(self) -> None:
        """Take part in one generation until it ends. Raises Unanswered, Refused."""
        client, membership = self._client, self._membership
        if self._ownership is not None:
            self._ownership.revokes(client.name, self._places)
        sent_at_s = client.history.now_s
        own = await membership.share_of(self._places)
        if self._ownership is not None:
            self._ownership.owns(client.name, own, sent_at_s)
        else:
            client.history.assigned(membership.group, membership.generation, client.name, own)
        for place in own:
            await membership.fetch(place)
        while not client.stopping:
            for place in own:
                await membership.commit(place, client.random.randint(1, 3))
            sent_at_s = client.history.now_s
            await membership.beat()
            if self._ownership is not None:
                self._ownership.owns(client.name, own, sent_at_s)
            client.succeeded()
            if client.random.random() < LEAVING_ODDS:
                if self._ownership is not None:
                    self._ownership.revokes(client.name, own)
                await membership.leave()
                return
            await asyncio.sleep(0.2 + client.random.random() * self._pace_s)
