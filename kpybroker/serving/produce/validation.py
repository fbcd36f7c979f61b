"""Validation of the batches of a Produce. All batches are validated before the first is appended.

Batches that need little work are validated at once, and the others in slices. In the meantime the connection waits and
keeps the bytes, because later records of the same producer must not be appended first.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from kpybroker.call import Call, Reply
from kpybroker.config import LogSettings
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.machine.contract import Stored
from kpybroker.scheduled.division import divided, settings_for_deliveries
from kpybroker.scheduled.entries import check_record
from kpybroker.serving.produce.append import BATCHES_MAX, Validated, Verdicts, append_all
from kpybroker.storage.log.admission import check_header, opening
from kpybroker.storage.log.reencoding import refusal
from kpybroker.storage.log.slices import OffLoop, Work, nothing_open
from kpybroker.storage.producers.producers import DELIVERY_PRODUCER
from kpybroker.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC, scheduled_topic_of
from kpybroker.wire.records.batch import Batch, read_records, split
from kpybroker.wire.records.record_scan import SLICE_RECORDS
from kpybroker.wire.rpc.produce import PartitionProduceData, Request

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

SLICES_AT_ONCE = 4
"""How many slices run before other connections are served. They take a few milliseconds at most."""
REPLAYED_LIMIT_BYTES = 8 << 20
"""The limit on the decompressed size of a batch that a coordinator will replay, because it reads a record at once."""
ENTRY_LIMIT_BYTES = 64 << 20
"""The same limit for the scheduled records of one batch, with their rows."""
REPLAYED_ON_LOOP_BYTES = 16 << 10
"""The size up to which such a batch is read on the event loop. Larger or compressed batches are read on a thread."""
AS_IT_IS = ("producer", "uncompressed")
"""The values of compression.type with which a topic keeps a batch that is not compressed."""
BYTES_A_RECORD = 1000
"""Computing the checksum of this many bytes takes as long as scanning one record."""


def validating_one(
    data: PartitionProduceData, batch: Batch, topic: str, settings: LogSettings, now_ms: int
) -> Work[Validated]:
    """Validate one batch, and convert it if the topic's settings require that."""
    is_delivery = batch.producer_id == DELIVERY_PRODUCER
    if is_delivery:
        settings = settings_for_deliveries(settings)
    try:
        if is_delivery and settings.compression_type in AS_IT_IS:
            check_header(batch, settings, now_ms)  # a broker has encoded its records
            return {id(data): batch}
        found = yield from opening(batch, settings, now_ms)
        if settings.delivery_scheduled and not is_delivery:
            return {id(data): (yield from divided(found, settings, now_ms))}
        check = check_of(topic)
        if check is not None:
            work = partial(check_replayable, found, check, _limit_bytes(topic))
            if found.codec or found.size_bytes > REPLAYED_ON_LOOP_BYTES:
                yield work
            else:
                work()
        return {id(data): found}
    except KafkaError as refusal:
        return {id(data): refusal}


def check_of(topic: str) -> Callable[[Stored], None] | None:
    """For an internal topic, a function that raises Damage if the topic's coordinator could not replay a record; None
    for other topics. A broker without such coordinators imports none of their modules."""
    if topic == OFFSETS_TOPIC:
        from kpybroker.groups import record_check

        return record_check.check_record
    if topic == TRANSACTION_TOPIC:
        from kpybroker.transactions import records

        return records.check_record
    return None if scheduled_topic_of(topic) is None else _check_delivery_record


def _check_delivery_record(record: Stored) -> None:
    check_record(record.key, record.value)


def _limit_bytes(topic: str) -> int:
    return REPLAYED_LIMIT_BYTES if scheduled_topic_of(topic) is None else ENTRY_LIMIT_BYTES


def check_replayable(batch: Batch, check: Callable[[Stored], None], limit_bytes: int) -> None:
    """Refuse a record that a coordinator could not replay. Raises KafkaError: INVALID_RECORD, MESSAGE_TOO_LARGE."""
    for index, record in enumerate(read_records(batch, limit_bytes)):
        try:
            check(Stored(record.key, record.value))
        except Damage as unreadable:
            text = f"the coordinator of this topic cannot read the record: {unreadable}"
            raise refusal(ErrorCode.INVALID_RECORD, text, [index]) from unreadable


def _with_sound_header(batch: Batch, settings: LogSettings, now_ms: int) -> Batch | KafkaError:
    try:
        check_header(batch, settings, now_ms)
    except KafkaError as refusal:
        return refusal
    return batch


def validating_all(broker: Broker, call: Call, request: Request, found: Validated) -> Work[Validated]:
    """Validate the batches of all partitions that this broker leads. `append_all` refuses the others.

    The results are added to `found`. Batches that already have a result there are not validated again, so a second run
    with the same `found` continues after the last validated batch.
    """
    done = 0
    for topic in request.topic_data:
        name = topic.name if call.version < 13 else broker.metadata.topic_name(topic.topic_id)
        for data in topic.partition_data:
            if id(data) in found:
                continue
            try:
                log = broker.replication.hosting.leads(name or "", data.index).log
                batches = split(data.records or b"", BATCHES_MAX)
            except KafkaError:
                continue
            if len(batches) > 1:
                continue
            if done >= SLICE_RECORDS:
                done = 0
                yield nothing_open
            (batch,) = batches
            settings = log.settings
            is_special = settings.delivery_scheduled or batch.producer_id == DELIVERY_PRODUCER
            if is_special or check_of(name or "") is not None or log.opens(batch):
                found |= yield from validating_one(data, batch, name or "", settings, broker.world.wall_ms())
            else:
                found[id(data)] = _with_sound_header(batch, settings, broker.world.wall_ms())
            done += batch.record_count + batch.size_bytes // BYTES_A_RECORD
            if found[id(data)] is not batch:  # it took an unknown time
                done = SLICE_RECORDS
    return found


def first_slices(work: Work[Validated]) -> tuple[Validated | None, OffLoop | None]:
    """Run a few slices. Return the result if the work is complete, and the step with which `SlicedWork.run` continues
    otherwise."""
    try:
        for _ in range(SLICES_AT_ONCE):
            step = next(work)
            if step is not None and step is not nothing_open:
                return None, step
    except StopIteration as finished:
        validated: Validated = finished.value
        return validated, None
    return None, None


def validate_and_append(
    broker: Broker, call: Call, request: Request, verdicts: Verdicts
) -> Reply | Coroutine[Any, Any, Reply]:
    """Append all batches once they have been validated. `verdicts` has the same meaning as in `append_all`."""
    begin = partial(validating_all, broker, call, request, {})
    begun = begin()
    validated, step = first_slices(begun)
    if validated is None:
        return append_later(broker, call, request, verdicts, begin, begun, step)
    return append_all(broker, call, request, verdicts, validated)


async def append_later(
    broker: Broker,
    call: Call,
    request: Request,
    verdicts: Verdicts,
    begin: Callable[[], Work[Validated]],
    begun: Work[Validated] | None = None,
    step: OffLoop | None = None,
) -> Reply:
    """Validate in slices, append, and flush, so that the next request of the connection may begin.

    If the validation cannot begin before the request's timeout, nothing is appended and the error is REQUEST_TIMED_OUT.
    """
    timeout_ms = request.timeout_ms if request.acks else None  # with acks=0 the client would not receive the error
    validated: Validated
    try:
        validated = await broker.storage.log_dirs.sliced_work.run(begin, begun, step, timeout_ms)
    except KafkaError as refusal:
        validated = {id(data): refusal for topic in request.topic_data for data in topic.partition_data}
    reply = append_all(broker, call, request, verdicts, validated)
    broker.replication.flush_queue.flush()
    return reply
