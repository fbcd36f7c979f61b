"""Views: the partitions that one Fetch reads, and the response that is built from them.

There are views for consumers (`consumer`), for consumers that may be sent to a nearer replica (`nearby`), and for
followers (`replica`). `reply` reads the partitions of a view once, and again when there may be more records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.sessions import INITIAL_EPOCH, Want
from kpybroker.wire.rpc.fetch import FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.call import Call
    from kpybroker.metadata.whereabouts import Leader
    from kpybroker.replication.partition.flush_queue import Waiter
    from kpybroker.replication.partition.sessions import Session
    from kpybroker.wire.rpc.fetch import Request
    from kpybroker.world import Buffer

ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
NOT_THERE = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Errors that are found before the log is read. Kafka's rows then have an empty list of aborted transactions, while the
rows of other errors have null."""
Looked = tuple[PartitionData, "Partition | None", bool]
"""The result of reading one partition: its row; the partition, if its bytes must be read from the disk first; and
whether the response should be sent even if it has fewer than `min_bytes`."""


class Cold(NamedTuple):
    """The result of a read that ended because the bytes of this partition are not in the page cache."""

    want: Want
    partition: Partition


class View:
    """The partitions of one Fetch. `wants` are the partitions to read, in this order."""

    __slots__ = ("_leaders", "_watched", "broker", "call", "cold", "request", "session", "wants")

    def __init__(
        self, broker: Broker, call: Call, request: Request, session: Session | None, wants: list[Want]
    ) -> None:
        self.broker = broker
        self.call = call
        self.request = request
        self.session = session
        self.wants = wants
        self.cold: dict[Want, Buffer] = {}
        """Bytes that were read from the disk for the next read of the partition."""
        self._leaders: dict[int, Leader] = {}
        """The leaders in error rows, by node id."""
        self._watched: list[Partition] = []

    def look_at(self, wants: list[Want]) -> None:
        """Read these wants from now on."""
        self.wants = wants

    def look(self, want: Want, room_bytes: int, *, is_first: bool) -> Looked:
        """Read one partition. `is_first` means that no earlier row has records. In that case, the first batch is
        returned whatever its size (KIP-74)."""
        raise NotImplementedError

    def upper(self, partition: Partition) -> int:
        """The exclusive offset up to which the Fetch may read."""
        raise NotImplementedError

    def hosted(self, topic: str, index: int) -> Partition:
        """The partition, if this broker may serve this Fetch from it. Raises KafkaError."""
        raise NotImplementedError

    def answer(self, *, final: bool) -> Response | Cold | None:
        """The response; None to wait for more records. If `final`, the result is not None."""
        request = self.request
        limit_bytes = min(request.max_bytes, self.broker.quotas.fetch_max_bytes)
        total_bytes = 0
        rows: list[tuple[Want, PartitionData]] = []
        for want in self.wants:
            row, cold, is_urgent = self.look(want, limit_bytes - total_bytes, is_first=total_bytes == 0)
            if cold is not None:
                return Cold(want, cold)
            rows.append((want, row))
            if is_urgent:
                final = True
            if row.records:
                total_bytes += len(row.records)
        if not (final or total_bytes >= min(request.min_bytes, limit_bytes)):
            return None
        self.cold.clear()
        return self.respond(rows)

    @property
    def is_empty(self) -> bool:
        """Whether the Fetch has no partitions, so that there is nothing to wait for."""
        return not self.wants

    @property
    def again_s(self) -> float | None:
        """The time after which to read again even without an append, when `answer` has returned None; None to wait for
        an append."""
        return None

    # ---- one partition

    def forget_leaders(self) -> None:
        """Remove the leaders that were added to earlier rows. Call this before reading all partitions again."""
        self._leaders.clear()

    def find(self, want: Want) -> Partition:
        """Find the partition of a want. Raises KafkaError."""
        topic = want.topic
        if topic is None:
            topic = self.broker.metadata.topic_name(want.topic_id)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return self.hosted(topic, want.index)

    def refuse(self, want: Want, error: KafkaError | Damage) -> Looked:
        """The row for an error. It contains the current leader if this broker knows it (KIP-951)."""
        if isinstance(error, Damage):
            error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        want.locate(None)
        row = PartitionData(
            partition_index=want.index,
            error_code=error.code,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted_transactions=[] if error.code in NOT_THERE else None,
            records=b"",
        )
        if error.code in ELSEWHERE:
            topic = want.topic or self.broker.metadata.topic_name(want.topic_id) or ""
            leader = self.broker.metadata.leader_of(topic, want.index, self.call.listener)
            if leader is not None:
                row.current_leader = LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
                self._leaders[leader.node_id] = leader
        return row, None, True

    # ---- the response

    def respond(self, rows: list[tuple[Want, PartitionData]]) -> Response:
        """The response with these rows. In a session, it contains only rows with new data for the client."""
        session = self.session
        is_incremental = session is not None and self.request.session_epoch > INITIAL_EPOCH
        topics: dict[str | bytes, FetchableTopicResponse] = {}
        for want, row in rows:
            key = want.topic if want.topic is not None else want.topic_id
            if session is not None:
                is_changed = want.tell(row.high_watermark, row.log_start_offset)
                if is_incremental and not (is_changed or _has_news(row)):
                    continue
                if row.error_code:
                    want.forget_told()
                elif row.records:
                    session.had_its_turn((key, want.index))
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchableTopicResponse(
                    topic=want.topic or "", topic_id=want.topic_id, partitions=[]
                )
            topic.partitions.append(row)
        session_id = session.id if session is not None else 0
        return Response(session_id=session_id, responses=list(topics.values()), node_endpoints=self._endpoints())

    def _endpoints(self) -> list[Any]:
        return [
            NodeEndpoint(node_id=leader.node_id, host=leader.host, port=leader.port, rack=leader.rack)
            for leader in self._leaders.values()
            if leader.host
        ]

    # ---- waiting

    @property
    def is_watching(self) -> bool:
        """Whether `watch` has found partitions to watch."""
        return bool(self._watched)

    def watch(self, reply: Waiter) -> None:
        """Have `reply.settle` called after each append to one of the partitions."""
        for want in self.wants:
            partition = want.partition
            if partition is not None:
                partition.fetches[reply] = None
                self._watched.append(partition)

    def unwatch(self, reply: Waiter) -> None:
        """Stop watching, because the reply is complete or its connection is closed."""
        for partition in self._watched:
            partition.fetches.pop(reply, None)
        self._watched = []


def _has_news(row: PartitionData) -> bool:
    return bool(row.records or row.error_code or row.diverging_epoch is not None or row.preferred_read_replica >= 0)
