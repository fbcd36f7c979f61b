"""The Fetch of a consumer, which reads only committed records.

A response contains whole batches, beginning with the batch that contains the fetch offset, up to the high watermark, or
for read_committed up to the last stable offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.security.authorizer import Operation
from kpybroker.serving.authorization import allows_topic
from kpybroker.serving.fetch.view import Looked, View
from kpybroker.wire.rpc.fetch import AbortedTransaction, PartitionData

if TYPE_CHECKING:
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.replication.partition.sessions import Want
    from kpybroker.storage.log.log import Log

READ_COMMITTED: Final = 1
FOLLOWERS_SERVE: Final = 11
"""The first version in which followers serve consumers, too (KIP-392)."""
_EMPTY: Final = b""


class ConsumerView(View):
    """The view for a Fetch of a consumer."""

    __slots__ = ()

    def require_read(self, want: Want) -> None:
        """Raise TOPIC_AUTHORIZATION_FAILED unless the caller may read the topic. `find` raises the error for an unknown
        topic id."""
        if self.broker.metadata.authorizer is None:
            return
        topic = want.topic if want.topic is not None else self.broker.metadata.topic_name(want.topic_id)
        if topic is not None and not allows_topic(self.broker, self.call, Operation.READ, topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def look(self, want: Want, room_bytes: int, *, is_first: bool) -> Looked:
        row = PartitionData(partition_index=want.index, high_watermark=-1, records=_EMPTY)
        partition = want.partition
        try:
            self.require_read(want)
            if partition is None or partition.offline is not None or partition.leader_id != self.broker.node_id:
                partition = want.locate(self.find(want))
            if want.leader_epoch != -1:
                partition.check_epoch(want.leader_epoch)
            storage = partition.log
            committed = self.request.isolation_level == READ_COMMITTED
            row.high_watermark = storage.high_watermark
            row.last_stable_offset = storage.last_stable
            row.log_start_offset = storage.start
            row.aborted_transactions = [] if committed else None
            upper = storage.last_stable if committed else storage.high_watermark
            offset = want.fetch_offset
            if not storage.start <= offset <= storage.end:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if offset >= upper or (room_bytes <= 0 and not is_first):
                return row, None, False
            records = self.cold.get(want)
            if records is None:
                size_bytes = max(min(want.max_bytes, room_bytes), 0)
                records = storage.read(offset, size_bytes, upper=upper, min_one=is_first)
                if records is None:
                    return row, partition, False
            row.records = records if isinstance(records, bytes) else memoryview(records)
            if committed and storage.segments.any_aborted:
                row.aborted_transactions = [
                    AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                    for aborted in storage.aborted_within(offset, records)
                ]
        except (KafkaError, Damage) as error:
            return self.refuse(want, error)
        return row, None, False

    @property
    def is_committed(self) -> bool:
        """Whether the Fetch reads only committed records of transactions."""
        return self.request.isolation_level == READ_COMMITTED

    def empty_row(self, want: Want, storage: Log) -> PartitionData:
        """A row with the offsets of the log, without records."""
        return PartitionData(
            partition_index=want.index,
            high_watermark=storage.high_watermark,
            last_stable_offset=storage.last_stable,
            log_start_offset=storage.start,
            aborted_transactions=[] if self.is_committed else None,
            records=b"",
        )

    def hosted(self, topic: str, index: int) -> Partition:
        hosting = self.broker.replication.hosting
        topic, index = self.broker.metadata.image.stored_as(topic, index)
        return hosting.replica(topic, index) if self.call.version >= FOLLOWERS_SERVE else hosting.leads(topic, index)

    def upper(self, partition: Partition) -> int:
        storage = partition.log
        return storage.last_stable if self.request.isolation_level == READ_COMMITTED else storage.high_watermark
