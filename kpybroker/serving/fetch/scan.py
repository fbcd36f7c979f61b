"""Reads the source of a view from an offset on, and keeps the batches and records that match the view's expression.

Batches with some matching records keep their offsets. Control batches and batches of which all records match are sent
as they are stored. Other batches are left out, except that the last one is sent without records if nothing follows it,
so that the consumer's position advances. Compaction leaves the same kinds of batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from kpybroker.errors import ConfigError, ErrorCode, KafkaError
from kpybroker.metadata.views import VIEWS_MAX
from kpybroker.replication.partition.stretches import Stretch
from kpybroker.storage.log.slices import nothing_open
from kpybroker.wire.records.batch import DECOMPRESSED_LIMIT_BYTES, HEADER_BYTES, Batch, header_at
from kpybroker.wire.records.compression import Codec, decompress, stored_pieces
from kpybroker.wire.records.decompressed import Part
from kpybroker.wire.records.record_filter import RecordFilter, parse_filter
from kpybroker.wire.records.record_removal import passed_over
from kpybroker.wire.records.record_selection import Selection, narrowed, select

if TYPE_CHECKING:
    from kpybroker.replication.partition.stretches import Scanned, Stretches
    from kpybroker.storage.files.txn_index import AbortedTransaction
    from kpybroker.storage.log.log import Log
    from kpybroker.storage.log.slices import SlicedWork, Work
    from kpybroker.world import Buffer

CHUNK_BYTES = 1 << 20
"""How many bytes of the source are read at a time."""
SLICE_BYTES = 1 << 20
"""Searching or decompressing this many bytes takes about a millisecond, after which other requests run."""
PARSED_BYTES = 2048
"""Parsing a record takes as long as searching this many bytes."""
LZ4_AT_ONCE_BYTES = 32 << 10
"""The largest LZ4 body that is decompressed in one call, a fifth of the time of pieces: it has at most 8 MB."""
PACKED_ON_LOOP_BYTES = 64 << 10
"""The largest body that is compressed on the event loop."""


@lru_cache(maxsize=VIEWS_MAX)
def compiled(where: str) -> RecordFilter:
    """The filter of an expression. Raises UNKNOWN_SERVER_ERROR if this version cannot read it."""
    try:
        return parse_filter(where)
    except ConfigError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the view cannot be read: {error}") from None


class Limits(NamedTuple):
    """The limits of a read: the exclusive offset up to which it may read; the size of what it may find, and whether a
    single batch may exceed that size; and whether the consumer reads only committed records."""

    upper: int
    size_bytes: int
    may_exceed: bool
    committed: bool


class Scan:
    """A read of one partition of a view, which can be continued when the source has grown.

    - position: the next offset of the source to read.
    - size_bytes: the size of what was found so far. It does not include the batch without records.
    - read_bytes: how many bytes of the source were read.
    """

    def __init__(self, scanned: Scanned, offset: int, stretches: Stretches) -> None:
        self.scanned = scanned
        self.position = offset
        self.size_bytes = 0
        self.read_bytes = 0
        self.is_full = False
        """Whether there may be more matching records than the limit allowed."""
        self.by = compiled(scanned.where)
        self._stretches = stretches
        self._found: list[bytes] = []
        self._last = b""
        """The batch without records at the end, if the last batch was left out."""
        self._aborted: dict[AbortedTransaction, None] = {}

    async def go_on(self, log: Log, limits: Limits, work: SlicedWork) -> None:
        """Pass over a known stretch, or read the next chunk of the source. Raises KafkaError."""
        generation = log.files.generation
        known = self._known(log, self.position, limits.upper)
        if known is not None:
            self.pass_over(known)
            return
        read = log.read(self.position, CHUNK_BYTES, upper=limits.upper, min_one=True)
        if read is None:
            read = await log.read_cold(self.position, CHUNK_BYTES, upper=limits.upper, min_one=True)
        if not read:
            self.is_full = True  # it was truncated or deleted meanwhile, which the next Fetch will find
            return
        chunk = bytes(read)
        if limits.committed:
            self._aborted.update(dict.fromkeys(log.aborted_within(self.position, chunk)))
        self.read_bytes += len(chunk)
        progress = _Progress(self, chunk, limits, lambda at: self._known(log, at, limits.upper))
        await work.run(progress.work)
        for stretch, size_bytes in progress.end():
            self._stretches.add(self.scanned, generation, stretch, size_bytes)

    def _known(self, log: Log, offset: int, upper: int) -> Stretch | None:
        return self._stretches.find(self.scanned, log.files.generation, offset, upper)

    def keep(self, batch: Batch, found: Buffer) -> None:
        """Note what is sent of a batch."""
        self.position = batch.next_offset
        self._found.append(bytes(found))
        self.size_bytes += len(found)
        self._last = b""

    def pass_over(self, stretch: Stretch) -> None:
        """Note that nothing is sent of these offsets."""
        self.position, self._last = stretch.end, stretch.last

    def records(self) -> bytes:
        """What is sent for the offsets from the first one up to `position`."""
        return b"".join((*self._found, self._last))

    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions with records in the part of the source that was read, by their first offset."""
        return sorted(self._aborted, key=lambda each: each.first_offset)


class _Progress:
    """The search in one chunk, as a work that may start again, and then goes on after the last finished batch. It ends
    early where `known` finds a stretch that need not be searched."""

    def __init__(self, scan: Scan, chunk: bytes, limits: Limits, known: Callable[[int], Stretch | None]) -> None:
        self._known = known
        self._scan = scan
        self._chunk = chunk
        self._at = 0
        self._limits = limits
        self._next = scan.position
        """The offset after the last finished batch."""
        self._begin: int | None = None
        """The first offset of the stretch without a match before that offset, its size, and its last batch."""
        self._size_bytes = 0
        self._left_out: Batch | None = None
        self._spent_bytes = 0
        """The work since other requests ran."""
        self._ended: list[tuple[Stretch, int]] = []

    def work(self) -> Work[None]:
        scan, view = self._scan, memoryview(self._chunk)
        while self._at + HEADER_BYTES <= len(view):
            end = self._at + header_at(view, self._at)[1]
            batch = Batch(view[self._at : end])
            if self._at and self._known(batch.base_offset) is not None:
                return
            found: Buffer = batch.view
            if not batch.record_count:
                found = b""
            elif not batch.is_control:
                found = yield from self._narrowed(batch, end)
            if found and self._is_too_much(len(found)):
                scan.is_full = True
                return
            if found:
                self._end_stretch()
                scan.keep(batch, found)
            else:
                self._leave_out(batch)
            self._at, self._next = end, batch.next_offset
            self._spent_bytes += batch.size_bytes
            if self._spent_bytes >= SLICE_BYTES:
                self._spent_bytes = 0
                yield nothing_open

    def end(self) -> list[tuple[Stretch, int]]:
        """End the search. Returns the stretches without a match, with their sizes in bytes."""
        self._end_stretch()
        return self._ended

    def _leave_out(self, batch: Batch) -> None:
        if self._begin is None:
            self._begin, self._size_bytes = self._next, 0
        self._size_bytes += batch.size_bytes
        self._left_out = batch

    def _end_stretch(self) -> None:
        if self._begin is None:
            return
        assert self._left_out is not None, "the stretch has a last batch"
        stretch = Stretch(self._begin, self._next, passed_over(self._left_out))
        self._scan.pass_over(stretch)
        self._ended.append((stretch, self._size_bytes))
        self._begin = None

    def _is_too_much(self, size_bytes: int) -> bool:
        has, limits = self._scan.size_bytes, self._limits
        return has + size_bytes > limits.size_bytes and not (limits.may_exceed and not has)

    def _narrowed(self, batch: Batch, end: int) -> Work[Buffer]:
        if batch.codec:
            plain = yield from _unpacked(batch)
            self._spent_bytes += len(plain)
            searching = select(batch, plain, 0, len(plain), self._scan.by)
        else:
            searching = select(batch, self._chunk, self._at + HEADER_BYTES, end, self._scan.by)
        selection: Selection | None = None
        for selection in searching:
            if selection is None:
                yield None
        assert selection is not None, "the search ends with a selection"
        self._spent_bytes += selection.parsed * PARSED_BYTES
        if not selection.records:
            return b""
        if selection.records == batch.record_count:
            return batch.view
        if not batch.codec or len(selection.body) <= PACKED_ON_LOOP_BYTES:
            return narrowed(batch, selection)
        found: bytes = yield lambda: narrowed(batch, selection)
        return found


def _unpacked(batch: Batch) -> Work[bytes]:
    body = batch.view[HEADER_BYTES:]
    if batch.codec == Codec.LZ4 and len(body) <= LZ4_AT_ONCE_BYTES:
        return bytes(decompress(batch.codec, body, DECOMPRESSED_LIMIT_BYTES))
    plain = bytearray()
    for piece in stored_pieces(batch.codec, body, DECOMPRESSED_LIMIT_BYTES):
        if isinstance(piece, Part):
            plain += piece
            if len(plain) > SLICE_BYTES:
                yield None
        else:
            yield piece
    return bytes(plain)
