"""Retention deletes only whole segments, the oldest first, and never deletes uncommitted records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kpybroker.storage.log.log import Log
from tests.storage.workshop import SMALL, WORLD, everything, plain, reopened


def filled(path: Path, count: int = 60, **changed: object) -> Log:
    settings = replace(SMALL, **changed)  # type: ignore[arg-type]
    log = Log.open(WORLD, str(path / "t-0"), "t", 0, settings, clean=True)
    for number in range(count):
        log.append([plain(timestamp=1000 + number * 10, size=100)], 0, 5000)
    log.flush()
    log.high_watermark = log.last_stable = log.end
    return log


def files(path: Path, suffix: str) -> list[str]:
    return sorted(file.name for file in (path / "t-0").glob(f"*{suffix}"))


def test_segments_whose_newest_record_is_too_old_are_deleted(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=300)
    newest = {segment.base_offset: segment.largest_timestamp() for segment in log.segments}
    assert log.apply_retention(1700) > 0
    assert all(1700 - newest[segment.base_offset] <= 300 for segment in log.segments)
    assert log.start == log.segments.first.base_offset > 0
    assert len(everything(log)) == log.size_bytes


def test_all_segments_may_be_deleted(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=0)
    log.apply_retention(100_000)
    assert (log.start, log.end, log.size_bytes) == (60, 60, 0)
    log.append([plain()], 0, 5000)
    log.flush()
    assert (reopened(log, clean=False).start, reopened(log, clean=False).end) == (60, 61)


def test_the_size_stays_just_above_the_limit(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_bytes=4000, retention_ms=-1)
    log.apply_retention(100_000)
    assert 4000 <= log.size_bytes < 4000 + SMALL.segment_bytes


def test_uncommitted_records_stay(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=0)
    log.high_watermark = log.last_stable = log.segments[1].base_offset + 1
    assert log.apply_retention(100_000) == 1


def test_deleted_records_free_their_segments(tmp_path: Path) -> None:
    log = filled(tmp_path, cleanup_policy=frozenset({"compact"}), retention_ms=0)
    assert log.apply_retention(100_000) == 0, "compaction alone deletes nothing by time"
    log.advance_start(log.segments[2].base_offset)
    assert log.apply_retention(100_000) == 2


def test_files_are_renamed_now_and_unlinked_later(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=300, file_delete_delay_ms=1000)
    count = log.apply_retention(1700)
    assert len(files(tmp_path, ".log.deleted")) == count
    now_ms = WORLD.steady_ms()
    assert log.files.take_garbage(now_ms - 1) == []
    assert len(log.files.take_garbage(now_ms + 1000)) == 3 * count
    assert files(tmp_path, ".snapshot")[0] == f"{log.start:020d}.snapshot"
    log.close()
    again = reopened(log, clean=True)
    assert files(tmp_path, ".deleted") == []
    assert everything(again) == everything(log) if again.size_bytes else True


def test_an_empty_log_keeps_its_segment(tmp_path: Path) -> None:
    log = filled(tmp_path, 0, retention_ms=0)
    assert log.apply_retention(100_000) == 0
    assert len(log.segments) == 1


def test_offsets_continue_after_a_crash_when_all_segments_were_deleted(tmp_path: Path) -> None:
    """The next offset is in the name of the empty segment, because no record is left."""
    log = filled(tmp_path, retention_ms=0)
    assert log.apply_retention(100_000) > 0
    log.drop_files()
    again = Log.open(WORLD, log.directory, log.topic, 0, log.settings, clean=False)
    assert (again.start, again.end) == (60, 60)
