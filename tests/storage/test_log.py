"""A log contains exactly the batches that were appended to it, after any sequence of operations."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import split
from kpybroker.world.real import RealDisk, RealWorld
from tests.storage.workshop import SMALL, WORLD, History, plain, reopened

seeds = st.integers(0, 1 << 40)
some = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def make(path: Path, **changed: object) -> Log:
    return Log.open(WORLD, str(path / "t-0"), "t", 0, replace(SMALL, **changed), clean=True)  # type: ignore[arg-type]


@given(seeds)
@some
def test_a_log_holds_flushed_batches_that_were_not_truncated(tmp_path: Path, seed: int) -> None:
    history = History.of(tmp_path, seed)
    for _ in range(history.random.randrange(20, 80)):
        happened = history.step()
        history.settle()
        if happened not in ("append", "flush", "lead"):
            history.check_bytes()
            history.check_producers()
    history.flush()
    history.check_bytes()
    history.check_producers()


@given(seeds)
@some
def test_a_read_equals_a_scan(tmp_path: Path, seed: int) -> None:
    history = History.of(tmp_path, seed)
    for _ in range(40):
        history.step()
    history.flush()
    log, random = history.log, history.random
    for _ in range(40):
        offset = random.randint(log.start, log.end)
        upper = random.randint(offset, log.end)
        max_bytes = random.choice((1, 100, 400, 3000, 20_000))
        expected = history.expected_read(offset, max_bytes, upper)
        min_one = random.random() < 0.7
        cold = bytes(asyncio.run(log.read_cold(offset, max_bytes, upper=upper, min_one=min_one)))
        found = log.read(offset, max_bytes, upper=upper, min_one=min_one)
        assert found is not None, "recently read bytes are in the page cache"
        if found:
            batches = split(bytes(found))
            assert [bytes(b.view) for b in batches] == [bytes(b.view) for b in expected[: len(batches)]]
        else:
            assert not expected or (expected[0].size_bytes > max_bytes and not min_one)
        assert cold == found


@given(seeds)
@some
def test_the_bytes_up_to_a_record_include_its_batch_and_little_more(tmp_path: Path, seed: int) -> None:
    history = History.of(tmp_path, seed)
    for _ in range(40):
        history.step()
    history.flush()
    log, random = history.log, history.random
    for _ in range(40):
        offset = random.randint(log.start, log.end)
        last = random.randint(offset, log.end)
        asyncio.run(log.load_index(offset))
        size_bytes = log.bytes_up_to(offset, last)
        assert size_bytes is not None, "the index is in memory"
        following = log.segments.after(log.segments.holding(offset))
        upper = log.end if following is None else following.base_offset
        if offset >= upper:
            continue
        found = log.read(offset, size_bytes, upper=upper, min_one=True)
        assert found is not None, "recently read bytes are in the page cache"
        whole = history.expected_read(offset, 1 << 20, upper)
        needed = [batch for batch in whole if batch.base_offset <= last]
        batches = split(bytes(found))
        assert [batch.base_offset for batch in batches[: len(needed)]] == [batch.base_offset for batch in needed]
        largest = max(batch.size_bytes for batch in whole)
        beyond = sum(batch.size_bytes for batch in batches[len(needed) :])
        assert beyond <= 2 * (log.settings.index_interval_bytes + largest), "an entry follows each interval"


def test_the_bytes_up_to_a_record_are_unknown_without_the_index(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes=1000)
    for _ in range(60):
        log.append([plain()], 0, 1000)
    log.flush()
    log.segments[0].close_files()
    assert log.bytes_up_to(0, 1) is None
    asyncio.run(log.load_index(0))
    assert log.bytes_up_to(0, 1)


def test_a_read_from_the_start_of_a_segment_needs_no_index(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes=1000)
    for _ in range(40):
        log.append([plain(size=100)], 0, 1000)
    log.flush()
    log.close()
    log = reopened(log, clean=True)
    older = list(log.segments)[:-1]
    assert len(older) > 2
    for segment in older:
        assert log.read(segment.base_offset, 1, upper=log.end, min_one=True) is not None
    assert not any(segment.has_indexes for segment in older)
    assert log.read(older[0].base_offset + 2, 1, upper=log.end, min_one=True) is None


@given(seeds)
@some
def test_searches_by_time_equal_a_scan(tmp_path: Path, seed: int) -> None:
    history = History.of(tmp_path, seed)
    for _ in range(40):
        history.step()
    history.flush()
    for _ in range(20):
        timestamp = history.random.randint(9_000, history.now_ms + 100)
        assert history.log.offset_for_timestamp(timestamp) == history.expected_time(timestamp)
    assert history.log.max_timestamp() == history.expected_newest()


@given(seeds)
@some
def test_epochs_are_those_of_the_batches(tmp_path: Path, seed: int) -> None:
    history = History.of(tmp_path, seed)
    for _ in range(60):
        history.step()
    history.flush()
    log = history.log
    for batch in history.visible():
        if batch.base_offset >= log.start:
            assert log.epoch_at(batch.base_offset) == batch.leader_epoch
    for epoch in range(history.epoch + 2):
        after = [batch for batch in history.visible() if batch.leader_epoch > epoch]
        found, end = log.end_of_epoch(epoch)
        if after and found >= 0:
            assert end == max(after[0].base_offset, log.start)
        elif not after and found >= 0:
            assert (found, end) == (epoch, log.end)


def test_reads_outside_the_log_are_refused(tmp_path: Path) -> None:
    log = make(tmp_path)
    log.append([plain(3)], 0, 1000)
    log.flush()
    log.high_watermark = log.last_stable = 3
    log.advance_start(2)
    for offset in (1, 4):
        with pytest.raises(KafkaError) as refusal:
            log.read(offset, 100, upper=3, min_one=True)
        assert refusal.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(3, 100, upper=3, min_one=True) == b""


def test_queued_batches_cannot_be_read(tmp_path: Path) -> None:
    log = make(tmp_path)
    log.append([plain()], 0, 1000)
    assert log.end == 1
    assert log.written_end == 0
    assert log.read(0, 1000, upper=1, min_one=True) == b""
    log.flush()
    assert log.read(0, 1000, upper=1, min_one=True)


def test_segments_roll_by_the_records_time(tmp_path: Path) -> None:
    log = make(tmp_path, segment_ms=1000)
    for timestamp in (5000, 5900, 6000, 6001, 6100, 9000):
        log.append([plain(timestamp=timestamp)], 0, 10_000)
    log.flush()
    assert [segment.base_offset for segment in log.segments] == [0, 3, 5]


def test_segments_roll_when_their_index_is_full(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes=1 << 20, segment_index_bytes=60, index_interval_bytes=1)
    for _ in range(30):
        log.append([plain()], 0, 1000)
    log.flush()
    assert len(log.segments) > 3
    assert all(len(segment.index()) <= 60 // 8 for segment in log.segments)


def test_a_failed_write_takes_the_log_offline(tmp_path: Path) -> None:
    log = make(tmp_path)
    log.append([plain()], 0, 1000)
    log.flush()
    log.files.world.disk.close(log.segments.active.handle())
    log.append([plain()], 0, 1000)
    with pytest.raises(Exception, match="t-0 in"):
        log.flush()
    with pytest.raises(KafkaError) as refusal:
        log.append([plain()], 0, 1000)
    assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.written_end == 1


def test_a_clean_shutdown_leaves_the_same_files_as_kafka(tmp_path: Path) -> None:
    log = make(tmp_path)
    log.append([plain()], 3, 1000)
    log.close()
    assert sorted(file.name for file in (tmp_path / "t-0").iterdir()) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000001.snapshot",
        "leader-epoch-checkpoint",
    ]
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n3 0\n"
    again = reopened(log, clean=True)
    assert (again.start, again.end, again.epoch_at(0)) == (0, 1, 3)


class Short(RealDisk):
    """A disk that cannot open files while `short` is set, because no file descriptor is free."""

    short = False

    def open(self, path: str, *, create: bool = False) -> int:
        if self.short:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().open(path, create=create)


def test_without_descriptors_nothing_changes_and_the_log_continues(tmp_path: Path) -> None:
    disk, world = Short(), RealWorld(seed=0)
    world.disk = disk
    log = Log.open(world, str(tmp_path / "t-0"), "t", 0, SMALL, clean=True, lazy=True, topic_id=bytes(range(16)))
    batch = plain()
    disk.short = True
    for _ in range(2):
        with pytest.raises(KafkaError) as refusal:
            log.append([batch], 0, 1000)
        assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError):
            log.append_replicated([batch])
    assert (log.offline, log.end) == (None, 0)
    disk.short = False
    log.append([batch], 0, 1000)
    log.flush()
    log.segments.active.close_files()
    disk.short = True
    with pytest.raises(KafkaError) as refusal:
        log.read(0, 1000, upper=1, min_one=True)
    assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.short = False
    assert log.read(0, 1000, upper=1, min_one=True)
    assert (log.offline, log.written_end) == (None, 1)
