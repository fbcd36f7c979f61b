"""Produce (0): append batches to partitions, and respond once they are as durable as `acks` requires.

v9 is flexible; v10 returns the new leader (KIP-951); v12 has the transactions of KIP-890; v13 has topic ids. The
implementation is in `serving/produce`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kpybroker.call import Call, Result
from kpybroker.serving.produce.refusals import ACKS_WITH_REPLY
from kpybroker.serving.produce.refusals import refuse as refuse
from kpybroker.serving.produce.single import append_one
from kpybroker.wire.rpc.produce import Request, TopicProduceData

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

AT_ONCE_BYTES: Final = 8 * 1024 * 1024
"""Batches of several partitions up to this total size are checked and written without a pause, in about 15 ms."""


def handle(broker: Broker, call: Call, request: Request) -> Result:
    """Append the batches. Each partition accepts or refuses its batches independently."""
    topics = request.topic_data
    if len(topics) == 1 and request.acks in ACKS_WITH_REPLY:
        partitions = topics[0].partition_data
        if len(partitions) == 1:
            return append_one(broker, call, request, topics[0], partitions[0])
    if call.is_long or _size_bytes(topics) > AT_ONCE_BYTES:
        from kpybroker.serving.produce.slices import produce_in_slices

        return produce_in_slices(broker, call, request, AT_ONCE_BYTES)
    from kpybroker.serving.produce.transactional import produce

    return produce(broker, call, request)


def _size_bytes(topics: list[TopicProduceData]) -> int:
    return sum([len(data.records or b"") for topic in topics for data in topic.partition_data])
