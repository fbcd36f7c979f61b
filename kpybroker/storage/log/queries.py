"""The half of a log that is asked: reads, offsets by time and by epoch, and whether it is online at all."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from operator import itemgetter

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.storage.files.epochs import LeaderEpochs
from kpybroker.storage.files.file_pool import is_short
from kpybroker.storage.files.segment import SegmentGone
from kpybroker.storage.files.segments import Segments
from kpybroker.storage.files.txn_index import AbortedTransaction
from kpybroker.storage.log.reading import Reader, end_of
from kpybroker.storage.log.slices import Work, at_once
from kpybroker.storage.log.timestamps import Found, first_at_or_after, newest
from kpybroker.world import Buffer

log = logging.getLogger(__name__)


class ReadSide:
    """What answers need of a log."""

    __slots__ = ("offline", "on_io_error")

    directory: str
    topic: str
    partition: int
    start: int
    end: int
    written_end: int
    offline: str | None
    """Why the log serves nothing any more."""
    on_io_error: Callable[[str, int, str], None] | None
    """Told of topic, partition and `offline` when the disk has failed under the log."""
    segments: Segments
    epochs: LeaderEpochs
    reader: Reader

    def require_online(self) -> None:
        """Raises KAFKA_STORAGE_ERROR once the log is offline."""
        if self.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)

    def fail(self, error: OSError | Damage | KafkaError) -> Damage:
        """Take the log offline; returns what to raise."""
        if self.offline is None:
            self.offline = f"{self.topic}-{self.partition} in {self.directory}: {error}"
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                self.offline += "; free space and start the broker again: what was acknowledged is kept"
            log.error("log is offline: %s", self.offline)
            if isinstance(error, OSError) and not is_short(error) and self.on_io_error is not None:
                self.on_io_error(self.topic, self.partition, self.offline)
        return Damage(self.offline)

    def refusal(self, error: OSError | Damage) -> KafkaError:
        """What to answer to whoever asked, who has changed nothing yet: the log goes offline, and is as it was where
        descriptors are short."""
        if is_short(error):
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{error}; ask again when connections have closed")
        self.fail(error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)

    def unchanged(self, error: OSError) -> Damage | KafkaError:
        """What to raise who has changed nothing yet: a refusal where descriptors are short, else the log is offline."""
        return self.refusal(error) if is_short(error) else self.fail(error)

    def _check_range(self, offset: int) -> None:
        self.require_online()
        if not self.start <= offset <= self.end:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not within [{self.start}, {self.end}]")

    def read(self, offset: int, max_bytes: int, *, upper: int, min_one: bool) -> Buffer | None:
        """Whole batches from the one that holds `offset`, all records below `upper`, at most `max_bytes`.

        `min_one`: the first batch even if it is larger. None: it would wait for the disk, `read_cold` does. Raises
        OFFSET_OUT_OF_RANGE below `start` or above `end`, KAFKA_STORAGE_ERROR.
        """
        if self.offline is not None or not self.start <= offset <= self.end:
            self._check_range(offset)
        written_end = self.written_end
        try:
            return self.reader.read(offset, max_bytes, min(upper, written_end), written_end, min_one=min_one)
        except (OSError, Damage) as error:
            raise self.refusal(error) from error

    async def read_cold(self, offset: int, max_bytes: int, *, upper: int, min_one: bool) -> Buffer:
        """The same, off the loop."""
        while True:
            self._check_range(offset)
            try:
                return await self.reader.read_cold(offset, max_bytes, min(upper, self.written_end), min_one=min_one)
            except SegmentGone:
                continue  # cleaning has put another in its place; what retention took is out of range
            except (OSError, Damage) as error:
                raise self.refusal(error) from error

    def aborted_within(self, offset: int, records: Buffer) -> list[AbortedTransaction]:
        """The aborted transactions that have records among those read from `offset` on, by their first offset.

        May wait for the disk. Raises KAFKA_STORAGE_ERROR.
        """
        found: list[AbortedTransaction] = []
        if not self.segments.any_aborted:
            return found
        upper = -1
        try:
            for number in range(self.segments.number_for(offset), len(self.segments)):
                segment = self.segments[number]
                if len(segment.aborted):
                    upper = upper if upper >= 0 else end_of(records)
                    more, is_all = segment.aborted.within(offset, upper)
                    found += more
                    if is_all:
                        break
        except (OSError, Damage) as error:
            raise self.refusal(error) from error
        return sorted(found, key=itemgetter(1))

    def offset_for_timestamp(self, timestamp: int) -> Found | None:
        """(offset, timestamp, leader epoch) of the first record at or after `timestamp`. May wait for the disk."""
        return at_once(self.looking_up(timestamp))

    def max_timestamp(self) -> Found | None:
        """(offset, timestamp, leader epoch) of the first record with the largest timestamp (KIP-734)."""
        return at_once(self.looking_up(None))

    def looking_up(self, timestamp: int | None) -> Work[Found | None]:
        """`offset_for_timestamp` in slices, or `max_timestamp` for None."""
        self.require_online()
        try:
            if timestamp is None:
                return (yield from newest(self.segments, self.start))
            return (yield from first_at_or_after(self.segments, timestamp, self.start))
        except OSError as error:
            raise self.refusal(error) from error

    def epoch_at(self, offset: int) -> int:
        """The leader epoch that wrote `offset`, -1 when unknown."""
        return self.epochs.epoch_at(offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch at or below `epoch`, where it ended); (-1, -1) for an unknown one (KIP-320)."""
        return self.epochs.end_of(epoch, self.end)
