"""Compacted logs with keys, tombstones and transactions, and a model of the records that a reader must find."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random

from kpybroker.config import LogSettings
from kpybroker.sim.world.disk import SimDisk
from kpybroker.sim.world.loop import Owner, VirtualLoop
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.compaction.candidates import look
from kpybroker.storage.compaction.cleaning import Cleaning, Limits
from kpybroker.storage.log.log import Log
from kpybroker.storage.producers.loading import snapshot_offsets
from kpybroker.storage.producers.transactions import NOT_NEEDED
from kpybroker.wire.records.batch import Batch, Record, encode_batch, read_records, split
from kpybroker.wire.records.markers import Marker, encode_marker, read_marker
from kpybroker.world import World
from kpybroker.world.expiry_clock import ExpiryClock
from tests.storage.workshop import WORLD

COMPACT = LogSettings(
    segment_bytes=1500,
    index_interval_bytes=150,
    file_delete_delay_ms=0,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)
LIMITS = Limits(map_bytes=1 << 30, read_bytes=1 << 16, bytes_per_second=lambda: 1e308)
Table = dict[bytes, bytes]


class VirtualWorld:
    """A process on a simulated disk. If the disk has a fuse, the process dies after that number of changes."""

    network = None

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.random = Random(1)
        self.expiry = ExpiryClock(self.steady_ms)
        self.loop = VirtualLoop()  # type: ignore[abstract]
        self.owner = Owner("p")
        self.disk = SimDisk(storage, self.loop, self.owner, 1, Random(1), self.wall_ms)

    def wall_ms(self) -> int:
        return 5000

    def steady_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def end(self) -> None:
        """Kill the process at any point, like SIGKILL."""
        self.owner.alive = False
        self.loop.bury(self.loop.simulation)

    def clean(self, log: Log, now_ms: int) -> None:
        """Clean until nothing is dirty."""
        while (dirty := look(log, now_ms)) is not None:
            self.loop.run_until_complete(Cleaning(dirty, LIMITS, now_ms).run())


def opened(path: Path, settings: LogSettings = COMPACT, world: World = WORLD) -> Log:
    return Log.open(world, str(path / "t-0"), "t", 0, settings, clean=True, producer_expiration_ms=1 << 60)


def clean(log: Log, now_ms: int, limits: Limits = LIMITS) -> int:
    """Clean the log once if there are dirty records. Return the offset up to which the log is clean."""
    dirty = look(log, now_ms)
    return log.cleaned_end if dirty is None else asyncio.run(Cleaning(dirty, limits, now_ms).run())


def append(log: Log, *batches: bytearray | bytes) -> None:
    """Append batches as a leader, write them and commit them."""
    for batch in batches:
        log.append(split(bytearray(batch)), 0, 0, client=False, verified=NOT_NEEDED)
    commit(log)


def commit(log: Log) -> None:
    log.flush()
    log.advance(log.end)


def keyed(*records: tuple[str, str | None], timestamp: int = 1000, **more: int) -> bytearray:
    plain = [Record(0, timestamp, key.encode(), None if value is None else value.encode()) for key, value in records]
    return encode_batch(plain, **more)  # type: ignore[arg-type]


def marker(producer_id: int, *, commits: bool, timestamp: int = 1000) -> bytearray:
    return encode_marker(Marker(producer_id, 0, 0, commits), timestamp)


def batches_of(log: Log) -> list[Batch]:
    """All written batches, read as a consumer reads them, from the disk if they are not in the page cache."""
    found: list[Batch] = []
    offset = log.start
    while offset < log.written_end:
        some = log.read(offset, 700, upper=log.written_end, min_one=True)
        if some is None:
            run = log.files.world.loop.run_until_complete if isinstance(log.files.world, VirtualWorld) else asyncio.run
            some = run(log.read_cold(offset, 700, upper=log.written_end, min_one=True))
        assert some, f"nothing at {offset} of {log!r}"
        found += split(bytes(some))
        offset = found[-1].next_offset
    return found


def records_of(log: Log) -> list[Record]:
    """All remaining data records, including records of aborted transactions."""
    return [record for batch in batches_of(log) if not batch.is_control for record in read_records(batch)]


def committed(log: Log) -> list[Record]:
    """The records that a read_committed consumer reads from the start. As in clients, records of aborted transactions
    are filtered out."""
    batches = batches_of(log)
    content = b"".join(bytes(batch.view) for batch in batches)
    aborted = sorted(log.aborted_within(log.start, content), key=lambda one: one.first_offset)
    aborting: set[int] = set()
    found: list[Record] = []
    for batch in batches:
        while aborted and aborted[0].first_offset <= batch.last_offset:
            aborting.add(aborted.pop(0).producer_id)
        if batch.is_control:
            said = read_marker(batch)
            if said is not None and not said.commits:
                aborting.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborting):
            found += read_records(batch)
    return found


def table(records: Iterable[Record]) -> Table:
    found: Table = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = record.value
    return found


@dataclass
class KeyedHistory:
    """A compacted log with a random history. `full` is a log of all records that were written, without compaction."""

    log: Log
    full: Log
    random: Random
    keys: int
    now_ms: int = 10_000
    sequences: dict[int, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    opened_at: set[int] = field(default_factory=set)
    """The offsets of the snapshots that shutdowns wrote. They are kept until the next start."""

    @classmethod
    def of(cls, path: Path, seed: int) -> KeyedHistory:
        random = Random(seed)
        settings = replace(COMPACT, segment_bytes=random.choice((500, 1500, 6000)))
        whole = replace(settings, segment_bytes=1 << 30)
        full = Log.open(WORLD, str(path / "full-0"), "full", 0, whole, clean=True, producer_expiration_ms=1 << 60)
        return cls(opened(path, settings), full, random, keys=random.choice((2, 8, 40)))

    def write(self, batch: bytearray) -> None:
        append(self.full, bytes(batch))
        append(self.log, batch)

    def some_records(self) -> list[tuple[str, str | None]]:
        random = self.random
        return [
            (f"k{random.randrange(self.keys)}", None if random.random() < 0.2 else f"v{random.getrandbits(40)}")
            for _ in range(random.choice((1, 1, 3, 8)))
        ]

    def append(self) -> None:
        self.now_ms += self.random.randrange(60)
        records = self.some_records()
        producer = self.random.randrange(4)
        more: dict[str, int] = {"codec": self.random.randrange(5)}
        if producer:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + len(records)
            more |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        if producer in (1, 2):
            more["transactional"] = True
            self.open.add(producer)
        self.write(keyed(*records, timestamp=self.now_ms, **more))

    def end(self) -> None:
        for producer in sorted(self.open):
            if self.random.random() < 0.7:
                self.open.discard(producer)
                self.write(marker(producer, commits=self.random.random() < 0.5, timestamp=self.now_ms))

    def clean(self) -> None:
        self.now_ms += self.random.choice((0, 0, 400, 2000))
        limits = LIMITS._replace(map_bytes=self.random.choice((1, 700, 1 << 20)))
        clean(self.log, self.now_ms, limits)

    def roll(self) -> None:
        self.log.roll()

    def delete(self) -> None:
        """Delete records, like DeleteRecords, from both logs."""
        start = self.random.randint(self.log.start, self.log.last_stable)
        for log in (self.log, self.full):
            log.advance_start(start)
        self.log.apply_retention(self.now_ms)

    def reopen(self) -> None:
        """Reopen the log after a clean shutdown, or after a kill with an older checkpoint."""
        was, stops = self.log, self.random.random() < 0.5
        cleaned_end = self.random.choice((0, was.cleaned_end))
        if stops:
            was.close()
        else:
            was.flush()
            was.drop_files()
        self.log = Log.open(
            WORLD,
            was.directory,
            "t",
            0,
            was.settings,
            clean=stops,
            log_start=was.start,
            cleaned_end=cleaned_end,
            producer_expiration_ms=1 << 60,
        )
        self.log.advance(self.log.end)
        self.opened_at.add(self.log.files.snapshot_end)

    def step(self) -> None:
        name = self.random.choices(("append", "end", "clean", "roll", "delete", "reopen"), (40, 8, 6, 2, 1, 1))[0]
        getattr(self, name)()

    # invariants

    def check(self) -> None:
        self.check_records()
        upper = self.log.last_stable
        assert upper == self.full.last_stable
        assert table(before(committed(self.log), upper)) == table(before(committed(self.full), upper))

    def check_records(self) -> None:
        """Check that each remaining record is the appended record at its offset, and that batches are in order."""
        ever = {record.offset: record for record in records_of(self.full)}
        for record in records_of(self.log):
            assert ever[record.offset] == record
        batches = batches_of(self.log)
        for one, other in pairwise(batches):
            assert one.next_offset <= other.base_offset
        assert all(batch.crc_ok() for batch in batches)
        assert self.log.end == self.full.end
        assert (batches[-1].next_offset if batches else self.log.start) == self.log.end
        assert set(snapshot_offsets(self.log.files.world.disk, self.log.directory)) <= (
            {segment.base_offset for segment in self.log.segments} | {self.log.files.snapshot_end} | self.opened_at
        )


def before(records: Iterable[Record], offset: int) -> list[Record]:
    return [record for record in records if record.offset < offset]
