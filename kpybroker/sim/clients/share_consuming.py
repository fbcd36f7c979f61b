"""Share consumers (KIP-932): members of a share group that fetch from their assigned partitions, and acknowledge
most of the records."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kpybroker.errors import ErrorCode
from kpybroker.shares.partition import AcknowledgeType
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.share_session import AckBatch, NodeSession, Range, Wanted
from kpybroker.sim.clients.share_sight import ShareSight
from kpybroker.sim.laws.share_law import ShareLaw
from kpybroker.wire.rpc import share_group_heartbeat

JOIN, LEAVE = 0, -1
BEATS_EVERY_S = 1.0
STALE_S = 0.3
"""The time after the end of a lock at which a consumer sends its acknowledgement when it is to be late."""
COUNTED_OUT = frozenset(
    int(code) for code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)
)
"""Errors after which a member joins again."""
MOVED = frozenset(
    int(code)
    for code in (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    )
)
ACCEPT, RELEASE, REJECT, MIXED, KEEP, RENEW = "accept", "release", "reject", "mixed", "keep", "renew"
MANNERS = (ACCEPT,) * 14 + (RELEASE, RELEASE, REJECT, MIXED, MIXED, KEEP, RENEW)
"""The ways in which a consumer acknowledges a range of records, weighted by repetition."""
KINDS = {ACCEPT: AcknowledgeType.ACCEPT, RELEASE: AcknowledgeType.RELEASE, REJECT: AcknowledgeType.REJECT}
CRASH_ODDS, VANISH_ODDS, RECONNECT_ODDS, CLOSE_ODDS, LEAVE_ODDS = 0.015, 0.015, 0.015, 0.015, 0.01
DECOY_ODDS = 0.05


@dataclass(slots=True)
class Stage:
    """Instructions for all members of the group."""

    is_empty: bool = False
    """Whether to leave the group, and not to join it again until this is false."""
    drains: bool = False
    """Whether to accept every record at once."""

    def empty(self, on: bool) -> None:
        self.is_empty = on

    def drain(self) -> None:
        """Accept every record from now on."""
        self.drains = True


class ShareConsumer:
    """A member of a share group. After a crash it takes a new member id."""

    def __init__(
        self,
        client: SimClient,
        group: str,
        topic: str,
        stage: Stage,
        law: ShareLaw,
        sight: ShareSight,
        *,
        is_committed: bool,
        pace_s: float,
    ) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._stage = stage
        self._law = law
        self._sight = sight
        self._is_committed = is_committed
        self._pace_s = pace_s
        self._number = 0
        self._sessions: dict[int, NodeSession] = {}
        self._begin_again()

    @property
    def is_out(self) -> bool:
        """Whether the consumer has left the group."""
        return self._epoch == JOIN and not self._sessions

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                if self._stage.is_empty:
                    await self._leave()
                    client.succeeded()
                    await client.nap(0.5)
                    continue
                await self._beat()
                await self._consume()
                client.succeeded()
                if not self._stage.drains:
                    await self._misbehave()
                await client.nap(0.1 if self._stage.drains else self._pace_s)
            except (Unanswered, Refused) as failed:
                client.note(f"of {self._group} failed: {failed}")
                client.forget_topic(self._topic)
                if isinstance(failed, Refused) and failed.code in COUNTED_OUT:
                    self._epoch = JOIN
                else:
                    await client.nap(0.5)

    # ---- membership

    def _begin_again(self) -> None:
        """Continue as a new member, without the state of the previous one."""
        self._number += 1
        self._member_id = f"{self._client.name}.{self._number}"
        self._epoch = JOIN
        self._says_all = True
        """Whether the next heartbeat contains the subscription. After a failure it does, because the response with the
        assignment may have been lost; Kafka's clients do the same."""
        self._assigned: set[int] = set()
        self._next_beat_s = 0.0
        self._sessions.clear()

    async def _beat(self) -> None:
        client = self._client
        if client.history.now_s < self._next_beat_s and self._epoch != JOIN:
            return
        response = await self._heartbeat(self._epoch)
        if response.member_epoch != self._epoch:
            client.note(f"is in epoch {response.member_epoch} of {self._group}")
        self._epoch = response.member_epoch
        self._next_beat_s = client.history.now_s + client.random.random() * BEATS_EVERY_S
        if response.assignment is not None:
            self._assigned = {index for row in response.assignment.topic_partitions for index in row.partitions}

    async def _heartbeat(self, epoch: int) -> share_group_heartbeat.Response:
        client = self._client
        request = share_group_heartbeat.Request(group_id=self._group, member_id=self._member_id, member_epoch=epoch)
        if epoch == JOIN or self._says_all:
            request.subscribed_topic_names = [self._topic]
        self._says_all = True
        try:
            node_id = await client.coordinator(self._group)
            response: share_group_heartbeat.Response = await client.ask(node_id, "ShareGroupHeartbeat", request)
        except Unanswered:
            client.forget_coordinator(self._group)
            raise
        if response.error_code in MOVED:
            client.forget_coordinator(self._group)
        if response.error_code:
            raise Refused(response.error_code)
        self._says_all = False
        return response

    async def _leave(self) -> None:
        """Close all sessions, and leave the group. Raises Unanswered, Refused."""
        for node_id, session in list(self._sessions.items()):
            try:
                await session.acknowledge((), closes=True)
            except (Unanswered, Refused):
                self._client.drop(node_id)
                session.drop()
            del self._sessions[node_id]
        if self._epoch != JOIN:
            await self._heartbeat(LEAVE)
            self._begin_again()

    async def _misbehave(self) -> None:
        """Sometimes crash, vanish, reconnect, close a session or leave. Raises Unanswered, Refused."""
        client, drawn = self._client, self._client.random.random()
        node_ids = sorted(self._sessions)
        if (drawn := drawn - CRASH_ODDS) < 0:
            client.note("crashes")
            for node_id in node_ids:
                client.drop(node_id)
                self._sessions[node_id].drop()
            self._begin_again()
        elif (drawn := drawn - VANISH_ODDS) < 0:
            client.note("vanishes")
            client.vanish()
            for node_id in node_ids:
                self._sessions[node_id].forget()
            self._begin_again()
        elif (drawn := drawn - RECONNECT_ODDS) < 0 and node_ids:
            client.drop(client.random.choice(node_ids))
        elif (drawn := drawn - CLOSE_ODDS) < 0 and node_ids:
            await self._sessions[client.random.choice(node_ids)].acknowledge((), closes=True)
        elif drawn - LEAVE_ODDS < 0:
            await self._leave()

    # ---- records

    async def _consume(self) -> None:
        """Fetch from each leader, and acknowledge. Raises Unanswered, Refused."""
        client = self._client
        wanted: dict[int, list[int]] = {node_id: [] for node_id in self._sessions}
        topic_id = b""
        for index in sorted(self._assigned):
            leader = await client.leader(self._topic, index)
            topic_id = leader.topic_id
            wanted.setdefault(leader.node_id, []).append(index)
        for node_id, indexes in sorted(wanted.items()):
            session = self._sessions.get(node_id)
            if session is None:
                session = self._sessions[node_id] = NodeSession(
                    client,
                    self._group,
                    self._member_id,
                    node_id,
                    self._topic,
                    topic_id,
                    self._law,
                    self._sight,
                    is_committed=self._is_committed,
                )
            await self._serve(session, indexes)

    async def _serve(self, session: NodeSession, indexes: list[int]) -> None:
        client, random = self._client, self._client.random
        acks, renewals = self._decide(session)
        if renewals:
            try:
                if random.random() < 0.5:
                    await session.renew(renewals)
                else:
                    await session.acknowledge(renewals, renews=True)
            finally:
                session.hold(each.of for each in renewals if not each.of.deliveries[0].is_given_up)
        if acks and random.random() < 0.4:
            await session.acknowledge(acks)
            acks = []
        if not indexes and not acks:
            await session.acknowledge((), closes=True)
            del self._sessions[session.node_id]
            return
        wanted = Wanted(
            max_wait_ms=random.choice((0, 100, 400)),
            max_bytes=random.choice((1, 400, 100_000)),
            max_records=random.choice((1, 2, 5, 500)),
            batch_size=random.choice((1, 3, 500)),
            mode=random.choice((0, 1)),
        )
        if self._stage.drains:
            wanted = wanted._replace(max_bytes=100_000, max_records=500)
        await session.fetch(indexes, acks, wanted)
        client.history.count("share fetches")
        if self._stage.drains:  # at once, as locks may be short and the network slow
            acks, _ = self._decide(session)
            if acks:
                await session.acknowledge(acks)

    def _decide(self, session: NodeSession) -> tuple[list[AckBatch], list[AckBatch]]:
        """The acknowledgements to send now, and the renewals."""
        random, now_s = self._client.random, self._client.history.now_s
        drains = self._stage.drains
        due = session.take_kept(math.inf if drains else now_s)
        acks = [self._ack(each, AcknowledgeType.ACCEPT) for each in due]
        renewals = []
        for each in session.take_held():
            manner = ACCEPT if drains else random.choice(MANNERS)
            if manner == KEEP:
                late_s = each.deliveries[0].until_s + random.choice((-STALE_S, STALE_S))
                session.keep(late_s, each)
            elif manner == RENEW:
                renewals.append(AckBatch(each, [AcknowledgeType.RENEW] * len(each.deliveries)))
            elif manner == MIXED:
                kinds = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
                acks.append(AckBatch(each, [int(random.choice(kinds)) for _ in each.deliveries]))
            else:
                acks.append(self._ack(each, KINDS[manner]))
        if acks and not drains and random.random() < DECOY_ODDS:
            acks[-1] = session.decoy(acks[-1], random.choice((1, 2, 1000)))
        return acks, renewals

    def _ack(self, each: Range, kind: int) -> AckBatch:
        """One acknowledgement type for all records, and GAP for offsets without a record."""
        fills = self._client.random.random() < 0.5
        return AckBatch(each, [int(kind if has or fills else AcknowledgeType.GAP) for has in each.has_record])
