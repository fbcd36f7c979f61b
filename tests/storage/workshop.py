"""Logs with a random history, and a model that stores the appended batches in a list."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random

from kpybroker.config import LogSettings
from kpybroker.storage.log.log import Log
from kpybroker.storage.producers.producers import ProducerStates
from kpybroker.wire.records.batch import Batch, Record, encode_batch, read_records, split
from kpybroker.world import World
from kpybroker.world.real import RealWorld

SMALL = LogSettings(segment_bytes=2000, index_interval_bytes=150, file_delete_delay_ms=0)


def batch_of(records: list[Record], **more: int) -> Batch:
    return split(encode_batch(records, **more))[0]  # type: ignore[arg-type]


def plain(records: int = 1, *, timestamp: int = 1000, size: int = 20) -> Batch:
    return batch_of([Record(0, timestamp, b"k", b"v" * size) for _ in range(records)])


def reopened(log: Log, *, clean: bool, recovery_point: int | None = None) -> Log:
    """Open the log as the next process does. `clean` requires that the log was closed."""
    if not clean:
        log.drop_files()
    return Log.open(
        log.files.world,
        log.directory,
        log.topic,
        log.partition,
        log.settings,
        clean=clean,
        recovery_point=log.synced_end if recovery_point is None else recovery_point,
        log_start=log.start,
        producer_expiration_ms=log.producer_expiration_ms,
    )


def everything(log: Log, max_bytes: int = 700) -> bytes:
    """All written bytes from the start, read as a consumer reads them."""
    parts, offset = [], log.start
    while offset < log.written_end:
        found = log.read(offset, max_bytes, upper=log.written_end, min_one=True)
        if found is None:
            log.segments.holding(offset).index()  # load the indexes, as a cold read would
            found = log.read(offset, max_bytes, upper=log.written_end, min_one=True)
        assert found, f"nothing at {offset} of {log!r}"
        batches = split(bytes(found))
        offset = batches[-1].next_offset
        parts.append(bytes(found))
    return b"".join(parts)


WORLD = RealWorld(1)
"""A World that all tests share, because each World has its own threads."""
_numbers = count()


@dataclass
class History:
    """A log and the batches that it must contain. Batches in `written` are in its files, and those in `queued` are
    not."""

    log: Log
    random: Random
    written: list[Batch] = field(default_factory=list)
    queued: list[Batch] = field(default_factory=list)
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    now_ms: int = 10_000

    @classmethod
    def of(cls, path: Path, seed: int, settings: LogSettings = SMALL, world: World = WORLD) -> History:
        random = Random(seed)
        settings = replace(
            settings, segment_bytes=random.choice((600, 1200, 4000)), index_interval_bytes=random.choice((1, 150, 1000))
        )
        log = Log.open(world, str(path / f"t-{next(_numbers)}"), "t", 0, settings, clean=True)
        log.producer_expiration_ms = 1 << 60
        return cls(log, random)

    def visible(self) -> list[Batch]:
        """The written batches that are not below the start offset."""
        return [batch for batch in self.written if batch.next_offset > self.log.start]

    def append(self) -> None:
        random = self.random
        self.now_ms += random.randrange(50)
        records = [
            Record(0, max(self.now_ms - random.randrange(200), 0), b"key", random.randbytes(random.randrange(60)))
            for _ in range(random.choice((1, 1, 2, 5)))
        ]
        more = {"codec": random.randrange(5)}
        producer = random.randrange(4)
        if producer:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + len(records)
            more |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        batch = batch_of(records, **more)
        end = self.log.end
        appended = self.log.append([batch], self.epoch, self.now_ms)
        assert (appended.base_offset, appended.last_offset) == (end, end + len(records) - 1)
        self.queued.append(Batch(memoryview(bytes(batch.view))))
        self.settle()
        if random.random() < 0.5:
            self.flush()

    def flush(self) -> None:
        self.log.flush()
        self.settle()

    def settle(self) -> None:
        """Move batches that the log has written from `queued` to `written`. A roll writes, too."""
        while self.queued and self.queued[0].base_offset < self.log.written_end:
            self.written.append(self.queued.pop(0))
        self.log.high_watermark = self.log.last_stable = self.log.written_end

    def roll(self) -> None:
        self.log.roll()
        self.settle()

    def lead(self) -> None:
        self.epoch += 1

    def sync(self) -> None:
        self.flush()
        self.log.sync_blocking()

    def truncate(self) -> None:
        self.flush()
        if self.log.end > self.log.start:
            offset = self.random.randint(self.log.start, self.log.end)
            self.log.truncate_to(offset)
            self.keep(lambda batch: batch.next_offset <= offset)

    def delete_records(self) -> None:
        self.flush()
        self.log.advance_start(self.random.randint(self.log.start, self.log.high_watermark))

    def retain(self) -> None:
        self.flush()
        self.log.configure(replace(self.log.settings, retention_ms=self.random.choice((-1, 100, 1000))))
        self.log.apply_retention(self.now_ms)

    def stop(self) -> None:
        self.flush()
        if self.random.random() < 0.5:
            self.log.close()
        else:
            asyncio.run(self.log.close_soon())
        self.check_files(0)
        self._take(reopened(self.log, clean=True))

    def kill(self) -> None:
        """Kill the process. Queued batches are lost, and written batches are in the page cache."""
        self.queued.clear()
        self.check_files(1)
        self._take(reopened(self.log, clean=False))
        self._number()

    def crash(self) -> None:
        """Let the machine fail, so that the file is damaged somewhere after the synced part."""
        self.flush()
        unsynced = [batch for batch in self.written if batch.base_offset >= max(self.log.synced_end, self.log.start)]
        if not unsynced:
            return
        torn = self.random.choice(unsynced)
        segment = self.log.segments.holding(torn.base_offset)
        located = segment.locate(torn.base_offset)
        assert located is not None
        file = Path(segment.path + ".log")
        position = located[0] + self.random.randrange(torn.size_bytes)
        content = bytearray(file.read_bytes())
        if self.random.random() < 0.5 or position < located[0] + 12:
            del content[position:]
        else:
            content[position] ^= 1 << self.random.randrange(8)
            if located[0] + 12 <= position < located[0] + 16:
                content = content[: position + 1]  # the leader epoch is outside the checksum
        file.write_bytes(content)
        self.keep(lambda batch: batch.base_offset < torn.base_offset)
        self._take(reopened(self.log, clean=False))

    def _take(self, log: Log) -> None:
        high_watermark = log.end
        log.high_watermark = log.last_stable = high_watermark
        self.log = log

    def keep(self, wanted: object) -> None:
        assert callable(wanted)
        self.written = [batch for batch in self.written if wanted(batch)]
        self._number()

    def _number(self) -> None:
        """Set the next sequence of each producer from the written batches."""
        self.sequences = {}
        for batch in self.written:
            if batch.producer_id >= 0:
                self.sequences[batch.producer_id] = batch.last_sequence + 1
        self.epoch = max(self.epoch, self.log.epochs.latest) + 1

    def step(self) -> str:
        name = self.random.choices(
            (
                "append",
                "flush",
                "roll",
                "lead",
                "sync",
                "truncate",
                "delete_records",
                "retain",
                "stop",
                "kill",
                "crash",
            ),
            (30, 4, 2, 2, 2, 1, 1, 1, 1, 2, 2),
        )[0]
        getattr(self, name)()
        return name

    # the invariants, in the simple model

    def check_bytes(self) -> None:
        log = self.log
        assert log.written_end == (self.written[-1].next_offset if self.written else log.written_end)
        assert everything(log) == b"".join(bytes(batch.view) for batch in self.visible())
        assert log.start <= log.last_stable <= log.high_watermark <= log.end

    def check_files(self, first: int) -> None:
        """Every segment from offset `first` on has its indexes. Without one, Apache Kafka logs an error and
        recovers."""
        directory = Path(self.log.directory)
        names = {file.name for file in directory.iterdir()} if directory.exists() else set()
        for name in sorted(names):
            stem, suffix = os.path.splitext(name)
            if suffix == ".log" and int(stem) >= first:
                assert {f"{stem}.index", f"{stem}.timeindex"} <= names, f"{stem} lacks an index"

    def expected_read(self, offset: int, max_bytes: int, upper: int) -> list[Batch]:
        found: list[Batch] = []
        for batch in self.written:
            if batch.next_offset > offset:
                size = sum(one.size_bytes for one in found) + batch.size_bytes
                if batch.next_offset > upper or (found and size > max_bytes):
                    break
                found.append(batch)
        return found

    def expected_time(self, timestamp: int) -> tuple[int, int, int] | None:
        for batch in self.visible():
            for record in read_records(batch):
                if record.timestamp >= timestamp and record.offset >= self.log.start:
                    return record.offset, record.timestamp, batch.leader_epoch
        return None

    def expected_newest(self) -> tuple[int, int, int] | None:
        best: tuple[int, int, int] | None = None
        for batch in self.visible():
            for record in read_records(batch):
                if record.offset >= self.log.start and (best is None or record.timestamp > best[1]):
                    best = record.offset, record.timestamp, batch.leader_epoch
        return best

    def check_producers(self) -> None:
        expected = ProducerStates()
        for batch in [*self.written, *self.queued]:
            if batch.producer_id >= 0:
                expected.update(batch)
        assert {one.producer_id for one in self.log.producers} == {one.producer_id for one in expected}
        for one in self.log.producers:
            known = expected.get(one.producer_id)
            assert known is not None
            assert (one.producer_epoch, one.last_timestamp) == (known.producer_epoch, known.last_timestamp)
            assert one.batches
            assert known.batches[-len(one.batches) :] == one.batches
