"""The Fetch of one partition without a session. Its response is built from a template of the partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import Damage, KafkaError
from kpybroker.security.authorizer import Operation
from kpybroker.serving.authorization import allows_topic
from kpybroker.serving.fetch.consumer import READ_COMMITTED
from kpybroker.wire.response_templates import Fetched, fetch_form
from kpybroker.wire.rpc.fetch import Request

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def fetch_one(broker: Broker, call: Call, request: Request) -> Fetched | None:
    """The response if enough bytes are in memory; None if the general code has to process the Fetch."""
    topic = request.topics[0]
    if len(topic.partitions) != 1:
        return None
    asked = topic.partitions[0]
    try:
        if call.version < 13:
            partition = broker.replication.hosting.leads(topic.topic, asked.partition)
        else:
            found = broker.replication.hosting.leads_id(topic.topic_id, asked.partition)
            if found is None:
                return None
            partition = found
        if broker.metadata.authorizer is not None and not allows_topic(broker, call, Operation.READ, partition.topic):
            return None
        if asked.current_leader_epoch != -1:
            partition.check_epoch(asked.current_leader_epoch)
        storage = partition.log
        committed = request.isolation_level == READ_COMMITTED
        upper = storage.last_stable if committed else storage.high_watermark
        if asked.fetch_offset >= upper or (committed and storage.segments.any_aborted):
            return None
        size_bytes = min(asked.partition_max_bytes, request.max_bytes, broker.quotas.fetch_max_bytes)
        if size_bytes < 0:
            return None
        records = storage.read(asked.fetch_offset, size_bytes, upper=upper, min_one=True)
    except (KafkaError, Damage):
        return None
    if not records or len(records) < request.min_bytes:
        return None
    templates, key = partition.fetch_templates, call.version << 1 | committed
    if key not in templates:
        form = fetch_form(partition.topic, partition.topic_id, partition.index, call.version, committed=committed)
        templates[key] = form
    template = templates[key]
    if template is None:
        return None
    return Fetched(template, 0, (storage.high_watermark, storage.last_stable, storage.start), records)
