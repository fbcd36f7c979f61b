"""The batches of a Produce are opened before any of them is appended: at once where that takes little, else in slices.

Meanwhile the connection waits, and holds the bytes: what its producer sends later must not be appended earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from kpybroker.call import Call, Reply
from kpybroker.config import LogSettings
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.groups import record_check as groups_checking
from kpybroker.handlers.produce import TOO_MANY, Opened, Verdicts, append_all
from kpybroker.machine.contract import Stored
from kpybroker.storage.log.admission import batch_time_is_ours, check_header, opening_unstamped
from kpybroker.storage.log.reencoding import refusal
from kpybroker.storage.log.slices import OffLoop, Work, nothing_open
from kpybroker.transactions import records as transactions_records
from kpybroker.wire.records.batch import Batch, read_records, split
from kpybroker.wire.records.record_scan import SLICE_RECORDS
from kpybroker.wire.rpc.produce import PartitionProduceData, Request

if TYPE_CHECKING:
    from kpybroker.broker import Broker

SLICES_AT_ONCE = 4
"""Before others have their turn; a few milliseconds at most."""
REPLAYED_LIMIT_BYTES = 8 << 20
"""What a batch may decompress to that coordinators are to replay: a record of theirs is read in one go."""
REPLAYED_ON_LOOP_BYTES = 16 << 10
"""Of such a batch, read on the loop; a larger one, or one that is compressed, is read on a thread."""
CHECKS: dict[str, Callable[[Stored], None]] = {
    "__consumer_offsets": groups_checking.check_record,
    "__transaction_state": transactions_records.check_record,
}
"""By topic: raises Damage where its coordinator could not replay a record."""

BYTES_A_RECORD = 1000
"""Of a batch: its checksum takes as long for them as the walk over one record."""


def opening_one(
    data: PartitionProduceData, batch: Batch, topic: str, settings: LogSettings, now_ms: int
) -> Work[Opened]:
    """The only batch of a request."""
    try:
        found = yield from opening_unstamped(batch, settings, now_ms)
        check = CHECKS.get(topic)
        if check is not None:
            work = partial(check_replayed, found, check)
            if found.codec or found.size_bytes > REPLAYED_ON_LOOP_BYTES:
                yield work
            else:
                work()
        if batch_time_is_ours(settings):
            found.stamp(now_ms)  # in place, and so last: a client's batch that is stamped would be refused
        return {id(data): found}
    except KafkaError as refusal:
        return {id(data): refusal}


def check_replayed(batch: Batch, check: Callable[[Stored], None]) -> None:
    """Refuse what a coordinator could not replay. Raises KafkaError: INVALID_RECORD, MESSAGE_TOO_LARGE."""
    for index, record in enumerate(read_records(batch, REPLAYED_LIMIT_BYTES)):
        try:
            check(Stored(record.key, record.value))
        except Damage as unreadable:
            text = f"the coordinator of this topic cannot read the record: {unreadable}"
            raise refusal(ErrorCode.INVALID_RECORD, text, [index]) from unreadable


def checked(batch: Batch, settings: LogSettings, now_ms: int) -> Batch | KafkaError:
    """A batch whose records are sound, as soon as its header is."""
    try:
        check_header(batch, settings, now_ms)
    except KafkaError as refusal:
        return refusal
    return batch


def opening_all(broker: Broker, call: Call, request: Request, found: Opened) -> Work[Opened]:
    """Those of all partitions that are led here; what is wrong with the others their append will say.

    What has been opened is put into `found`, and what is there already is not opened again: work that begins anew with
    the same `found` goes on behind the last batch that was done.
    """
    done = 0
    for topic in request.topic_data:
        name = topic.name if call.version < 13 else broker.topic_name(topic.topic_id)
        for data in topic.partition_data:
            if id(data) in found:
                continue
            try:
                log = broker.hosting.leads(name or "", data.index).log
                batches = split(data.records or b"", TOO_MANY)
            except KafkaError:
                continue
            if len(batches) > 1:
                continue
            (batch,) = batches
            if name in CHECKS or log.opens(batch):
                found |= yield from opening_one(data, batch, name or "", log.settings, broker.world.wall_ms())
            else:
                found[id(data)] = checked(batch, log.settings, broker.world.wall_ms())
            done += batch.record_count + batch.size_bytes // BYTES_A_RECORD
            if done >= SLICE_RECORDS or found[id(data)] is not batch:  # what it took does not show where it is refused
                done = 0
                yield nothing_open
    return found


def first_slices(work: Work[Opened]) -> tuple[Opened | None, OffLoop | None]:
    """What was opened, where a few slices were enough; else what `SlicedWork.run` needs to go on."""
    try:
        for _ in range(SLICES_AT_ONCE):
            step = next(work)
            if step is not None and step is not nothing_open:
                return None, step
    except StopIteration as finished:
        opened: Opened = finished.value
        return opened, None
    return None, None


def open_and_append(
    broker: Broker, call: Call, request: Request, verdicts: Verdicts
) -> Reply | Coroutine[Any, Any, Reply]:
    """All of a Produce; `verdicts` says where a transaction may begin, or why not."""
    begin = partial(opening_all, broker, call, request, {})
    begun = begin()
    opened, step = first_slices(begun)
    if opened is None:
        return append_later(broker, call, request, verdicts, begin, begun, step)
    return append_all(broker, call, request, verdicts, opened)


async def append_later(
    broker: Broker,
    call: Call,
    request: Request,
    verdicts: Verdicts,
    begin: Callable[[], Work[Opened]],
    begun: Work[Opened] | None = None,
    step: OffLoop | None = None,
) -> Reply:
    """Append once all has been opened, and answer as any Produce: what was appended is written, so that the next
    request may begin. Where opening did not get a place in time nothing is appended: REQUEST_TIMED_OUT."""
    timeout_ms = request.timeout_ms if request.acks else None  # with acks=0 nobody would be told
    opened: Opened
    try:
        opened = await broker.log_dirs.sliced_work.run(begin, begun, step, timeout_ms)
    except KafkaError as refusal:
        opened = {id(data): refusal for topic in request.topic_data for data in topic.partition_data}
    reply = append_all(broker, call, request, verdicts, opened)
    broker.hosting.flush()
    return reply
