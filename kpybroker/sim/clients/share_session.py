"""The share session of a member with one broker (KIP-932): ShareFetch and ShareAcknowledge, and their responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.shares.leader import LedSharePartition
from kpybroker.shares.partition import AcknowledgeType
from kpybroker.shares.sessions import CLOSING, OPENING
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.share_sight import ShareSight
from kpybroker.sim.laws.share_law import NOT_HELD, Delivery, ShareLaw
from kpybroker.wire.records.batch import read_records, split
from kpybroker.wire.rpc import share_acknowledge, share_fetch

RECORD_LIMIT = 1
"""The acquire mode record_limit, in which max_records is a strict limit (KIP-1206)."""


class Range(NamedTuple):
    """Records that were delivered together."""

    partition: int
    deliveries: list[Delivery]
    has_record: list[bool]
    """For each offset, whether there is a record; if not, it is a gap."""


class AckBatch(NamedTuple):
    """The acknowledgement of a range, with a type for each offset. decoy: an offset that the member does not hold."""

    of: Range
    kinds: list[int]
    decoy: int | None = None

    @property
    def deliveries(self) -> list[tuple[Delivery, int]]:
        return list(zip(self.of.deliveries, self.kinds, strict=True))


class Wanted(NamedTuple):
    """The limits of one ShareFetch."""

    max_wait_ms: int
    max_bytes: int
    max_records: int
    batch_size: int
    mode: int


NOTHING = Wanted(max_wait_ms=0, max_bytes=0, max_records=0, batch_size=0, mode=0)


class NodeSession:
    """One member's session with one broker. is_committed: the group reads committed records only."""

    def __init__(
        self,
        client: SimClient,
        group: str,
        member_id: str,
        node_id: int,
        topic: str,
        topic_id: bytes,
        law: ShareLaw,
        sight: ShareSight,
        *,
        is_committed: bool,
    ) -> None:
        self._client = client
        self._group = group
        self._member_id = member_id
        self.node_id = node_id
        self._topic = topic
        self._topic_id = topic_id
        self._law = law
        self._sight = sight
        self._is_committed = is_committed
        self._epoch = OPENING
        self._peer: Peer | None = None
        self._places: set[int] = set()
        self._held: list[Range] = []
        """The delivered ranges that have not been acknowledged yet."""
        self._kept: list[tuple[float, Range]] = []
        """The ranges to acknowledge later, each with the time in seconds from which this may be done."""

    def take_held(self) -> list[Range]:
        """Remove and return the ranges that have to be acknowledged. The caller chooses the types."""
        held, self._held = self._held, []
        return held

    def take_kept(self, now_s: float) -> list[Range]:
        """Remove and return the kept ranges whose time has come."""
        due = [each for at_s, each in self._kept if at_s <= now_s]
        self._kept = [(at_s, each) for at_s, each in self._kept if at_s > now_s]
        return due

    def hold(self, ranges: Iterable[Range]) -> None:
        """Put ranges back, so that they will be acknowledged again."""
        self._held += ranges

    def keep(self, at_s: float, each: Range) -> None:
        """Keep a range, and acknowledge it only from `at_s` on."""
        self._kept.append((at_s, each))

    def decoy(self, ack: AckBatch, distance: int) -> AckBatch:
        """Add to the acknowledgement the RELEASE of an offset that was never delivered to the member. If the chosen
        offset was delivered, return the acknowledgement unchanged."""
        offset = ack.of.deliveries[-1].offset + distance
        return ack if self._law.was_delivered(ack.of.partition, offset, self._member_id) else ack._replace(decoy=offset)

    # ---- requests; all of them raise Unanswered, Refused

    async def renew(self, renewals: Sequence[AckBatch]) -> None:
        """Extend locks with a ShareFetch, which then fetches nothing."""
        await self._fetch(sorted(self._places), renewals, NOTHING, renews=True)

    async def fetch(self, indexes: Sequence[int], acks: Sequence[AckBatch], wanted: Wanted) -> None:
        """Fetch from these partitions, with acknowledgements."""
        await self._fetch(indexes, acks, wanted, renews=False)

    async def _fetch(self, indexes: Sequence[int], acks: Sequence[AckBatch], wanted: Wanted, *, renews: bool) -> None:
        await self._connect()
        if self._epoch == OPENING:
            acks = ()
            if renews:
                return
        topics = {index: share_fetch.FetchPartition(partition_index=index) for index in indexes}
        for index, some in _by_index(acks).items():
            row = topics.setdefault(index, share_fetch.FetchPartition(partition_index=index))
            row.acknowledgement_batches = _rows(some, share_fetch.AcknowledgementBatch)
        known = {each.of.partition for each in acks}
        rows = [row for index, row in sorted(topics.items()) if index not in self._places or index in known]
        gone = sorted(self._places.union(known).difference(indexes))
        request = share_fetch.Request(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=wanted.max_wait_ms,
            min_bytes=0 if renews else 1,
            max_bytes=wanted.max_bytes,
            max_records=wanted.max_records,
            batch_size=wanted.batch_size,
            share_acquire_mode=wanted.mode,
            is_renew_ack=renews,
            topics=[share_fetch.FetchTopic(topic_id=self._topic_id, partitions=rows)] if rows else [],
        )
        if gone:
            request.forgotten_topics_data = [share_fetch.ForgottenTopic(topic_id=self._topic_id, partitions=gone)]
        self._places = set(indexes)
        asked_s = self._client.history.now_s
        reigns = {index: self._sight.reign(self.node_id, self._topic_id, index) for index in indexes}
        response = await self._ask("ShareFetch", request, acks)
        codes = {}
        acquired = 0
        for topic in response.responses:
            for row in topic.partitions:
                codes[row.partition_index] = row.acknowledge_error_code
                acquired += self._take(row, asked_s, response.acquisition_lock_timeout_ms / 1000, reigns)
        if wanted.mode == RECORD_LIMIT and acquired > wanted.max_records:
            self._client.history.breach(
                f"{self._client.name} requested at most {wanted.max_records} records and acquired {acquired}"
            )
        self._answered(acks, codes, asked_s + response.acquisition_lock_timeout_ms / 1000)
        errors = [row.error_code for topic in response.responses for row in topic.partitions if row.error_code]
        if errors:
            raise Refused(errors[0])

    async def acknowledge(self, acks: Sequence[AckBatch], *, renews: bool = False, closes: bool = False) -> None:
        """Acknowledge without a fetch. closes: also end the session."""
        await self._connect()
        if self._epoch == OPENING:
            return
        rows = [
            share_acknowledge.AcknowledgePartition(
                partition_index=index, acknowledgement_batches=_rows(some, share_acknowledge.AcknowledgementBatch)
            )
            for index, some in _by_index(acks).items()
        ]
        request = share_acknowledge.Request(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=CLOSING if closes else self._epoch,
            is_renew_ack=renews,
            topics=[share_acknowledge.AcknowledgeTopic(topic_id=self._topic_id, partitions=rows)] if rows else [],
        )
        asked_s = self._client.history.now_s
        if closes:
            self.drop()
        response = await self._ask("ShareAcknowledge", request, acks)
        codes = {row.partition_index: row.error_code for topic in response.responses for row in topic.partitions}
        self._answered(acks, codes, asked_s + response.acquisition_lock_timeout_ms / 1000)
        if closes:
            self._epoch = OPENING

    async def _connect(self) -> None:
        """Connect to the broker. A new connection means a new session."""
        peer = await self._client.peer(self.node_id)
        if peer is not self._peer:
            self.drop()
            self._peer = peer

    async def _ask(self, name: str, request: Any, acks: Sequence[AckBatch]) -> Any:
        for ack in acks:
            self._law.acknowledges(ack.of.partition, ack.deliveries)
        try:
            response = await self._client.ask(self.node_id, name, request)
        except Unanswered:
            if name == "ShareFetch":
                self._law.fetch_lost(self._places)
            for ack in acks:
                self._law.unanswered(ack.deliveries)
            self.drop()
            raise
        if response.error_code:
            for ack in acks:
                self._law.refused(ack.of.partition, ack.deliveries, response.error_code, is_sound=False)
            self.drop()
            raise Refused(response.error_code)
        self._epoch += 1
        return response

    def _answered(self, acks: Sequence[AckBatch], codes: dict[int, int], until_s: float) -> None:
        law, client = self._law, self._client
        for index, some in _by_index(acks).items():
            deliveries = [each for ack in some for each in ack.deliveries]
            code = codes.get(index)
            if code is None:
                law.unanswered(deliveries)
            elif code:
                client.note(
                    f"acknowledgement refused for partition {index} with {ErrorCode(code).name}: {_shown(some)}"
                )
                law.refused(index, deliveries, code, is_sound=all(ack.decoy is None for ack in some))
                client.history.count("share acknowledgements refused")
                if code in NOT_HELD:
                    self._held += [ack.of for ack in some if ack.decoy is not None]
            else:
                client.note(f"acknowledged offsets of partition {index}: {_shown(some)}")
                law.confirmed(index, deliveries, until_s)
                client.history.count("records acknowledged", len(deliveries))

    # ---- deliveries

    def _take(self, row: Any, asked_s: float, lock_s: float, reigns: Mapping[int, LedSharePartition | None]) -> int:
        """Keep and check the records of a partition. Returns how many offsets were acquired."""
        if not row.acquired_records:
            return 0
        index, law, client = row.partition_index, self._law, self._client
        chunks = row.records
        data = b"" if chunks is None else b"".join(chunks) if isinstance(chunks, list) else bytes(chunks)
        batches = split(memoryview(data)) if data else []
        ranges = [(each.first_offset, each.last_offset) for each in row.acquired_records]
        law.ranges(client.name, index, ranges, [(each.base_offset, each.next_offset - 1) for each in batches])
        values = {
            record.offset: record.value or b""
            for batch in batches
            if not batch.is_control
            for record in read_records(batch)
        }
        reign = self._sight.reign(self.node_id, self._topic_id, index)
        reign = reign if reign is reigns.get(index) else None
        session = self._sight.session(self.node_id, self._member_id)
        taken = 0
        for each in row.acquired_records:
            offsets = range(each.first_offset, each.last_offset + 1)
            client.note(
                f"acquired offsets {offsets.start}-{offsets.stop - 1} of partition {index}, "
                f"delivery count {each.delivery_count}"
            )
            deliveries = [
                Delivery(
                    self._member_id,
                    self.node_id,
                    offset,
                    each.delivery_count,
                    asked_s,
                    asked_s + lock_s,
                    reign,
                    -1 if reign is None else reign.leader_epoch,
                    session,
                )
                for offset in offsets
            ]
            for delivery in deliveries:
                law.delivered(index, delivery)
                if delivery.offset in values:
                    law.read(index, client.name, delivery.offset, values[delivery.offset], committed=self._is_committed)
            self._held.append(Range(index, deliveries, [offset in values for offset in offsets]))
            taken += len(offsets)
        client.history.count("records delivered to share consumers", taken)
        return taken

    def drop(self) -> None:
        """Forget the session, because it has ended: the broker may deliver its records to other members."""
        for each in (*self._held, *(kept for _, kept in self._kept)):
            for delivery in each.deliveries:
                delivery.give_up()
        self.forget()

    def forget(self) -> None:
        """Forget the session without closing it. The broker may still have it."""
        self._held.clear()
        self._kept.clear()
        self._places.clear()
        self._epoch = OPENING
        self._peer = None


def _by_index(acks: Iterable[AckBatch]) -> dict[int, list[AckBatch]]:
    found: dict[int, list[AckBatch]] = {}
    for ack in sorted(acks, key=lambda each: (each.of.partition, each.of.deliveries[0].offset)):
        found.setdefault(ack.of.partition, []).append(ack)
    return found


def _rows(acks: Iterable[AckBatch], make: Any) -> list[Any]:
    rows = []
    for ack in acks:
        first, last = ack.of.deliveries[0].offset, ack.of.deliveries[-1].offset
        kinds = ack.kinds[:1] if len(set(ack.kinds)) == 1 else ack.kinds
        rows.append(make(first_offset=first, last_offset=last, acknowledge_types=[int(kind) for kind in kinds]))
        if ack.decoy is not None:
            kind = int(AcknowledgeType.RELEASE)
            rows.append(make(first_offset=ack.decoy, last_offset=ack.decoy, acknowledge_types=[kind]))
    return sorted(rows, key=lambda row: int(row.first_offset))


def _shown(acks: Iterable[AckBatch]) -> str:
    return ", ".join(
        f"{ack.of.deliveries[0].offset}-{ack.of.deliveries[-1].offset} as {sorted({int(kind) for kind in ack.kinds})}"
        for ack in acks
    )
