"""When a log is opened, its files are trusted after a clean shutdown, and checked otherwise."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from kpybroker.config import LogSettings
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import Record, split
from tests.storage.old_messages import message
from tests.storage.workshop import SMALL, WORLD, batch_of, everything, plain, reopened


def filled(path: Path, count: int = 60) -> Log:
    log = Log.open(WORLD, str(path / "t-0"), "t", 0, SMALL, clean=True)
    for number in range(count):
        log.append([plain(timestamp=1000 + number, size=100)], number // 20, 5000)
    log.flush()
    log.high_watermark = log.last_stable = log.end
    return log


def directory(path: Path) -> Path:
    return path / "t-0"


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
def test_files_that_can_be_rebuilt_may_be_missing(tmp_path: Path, suffix: str) -> None:
    log = filled(tmp_path)
    content, epochs = everything(log), log.epochs.entries
    log.close()
    for file in directory(tmp_path).iterdir():
        if file.name.endswith(suffix):
            file.unlink()
    again = reopened(log, clean=True)
    assert everything(again) == content
    assert again.epochs.entries == epochs
    assert again.offset_for_timestamp(1030) == (30, 1030, 1)


@pytest.mark.parametrize("seed", range(4))
def test_batches_of_any_size_are_recovered(tmp_path: Path, seed: int) -> None:
    """The batches are smaller and larger than the chunks in which recovery reads. One of them may be damaged: it and
    all later ones are dropped."""
    random = Random(seed)
    settings = LogSettings(segment_bytes=4 << 20, index_interval_bytes=4096, max_message_bytes=2 << 20)
    log = Log.open(WORLD, str(tmp_path / "t-0"), "t", 0, settings, clean=True)
    now_ms = WORLD.wall_ms()  # producers with old batches are forgotten
    for number in range(40):
        size = random.choice((1, 1000, 300_000, 1 << 20, (1 << 20) - 150, 1_500_000))
        record = Record(0, now_ms, None, random.randbytes(size))
        log.append([batch_of([record], producer_id=number, producer_epoch=0, base_sequence=0)], number // 9, now_ms)
        log.flush()
    batches = split(everything(log, 1 << 20))
    first_lost = random.choice((None, *range(20, 40)))
    if first_lost is not None:
        segment = log.segments.holding(first_lost)
        located = segment.locate(first_lost)
        assert located is not None
        with Path(segment.path + ".log").open("r+b") as file:
            file.seek(located[0] + batches[first_lost].size_bytes - 1)
            file.write(bytes([batches[first_lost].view[-1] ^ 1]))
    for path in tmp_path.rglob("*index"):
        path.write_bytes(path.read_bytes() + bytes(10_000))
    kept = 40 if first_lost is None else first_lost
    again = reopened(log, clean=False, recovery_point=0)
    assert again.end == kept
    assert everything(again, 1 << 20) == b"".join(batch.view for batch in batches[:kept])
    assert sorted(known.producer_id for known in again.producers) == list(range(kept))
    assert again.epochs.entries == [entry for entry in log.epochs.entries if entry[1] < kept]
    for segment in again.segments:
        assert Path(segment.path + ".index").read_bytes() == segment.index().entries
        assert Path(segment.path + ".timeindex").read_bytes() == segment.times().entries


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
def test_files_that_can_be_rebuilt_may_be_torn(tmp_path: Path, suffix: str) -> None:
    log = filled(tmp_path)
    content, epochs = everything(log), log.epochs.entries
    log.close()
    for file in directory(tmp_path).iterdir():
        if file.name.endswith(suffix):
            file.write_bytes(bytes(10 << 10))
    again = reopened(log, clean=False, recovery_point=0)
    assert everything(again) == content
    assert again.epochs.entries == epochs
    assert again.offset_for_timestamp(1030) == (30, 1030, 1)


def test_a_tail_that_a_clean_shutdown_cannot_leave_is_damage(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    with Path(log.segments.active.path + ".log").open("ab") as file:
        file.write(b"x" * 100)
    with pytest.raises(Damage, match="after a clean shutdown"):
        reopened(log, clean=True)
    assert reopened(log, clean=False).end == 60


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_messages_of_an_old_format_are_not_truncated(tmp_path: Path, magic: int, size: int, is_clean: bool) -> None:
    log = filled(tmp_path)
    log.close()
    path = Path(log.segments.active.path + ".log")
    position = path.stat().st_size
    with path.open("ab") as file:
        file.write(message(60, magic, b"v" * size) + message(61, magic))
    before = files(tmp_path)
    with pytest.raises(Damage, match=f"{path}: a message of format {magic} at position {position}"):
        reopened(log, clean=is_clean, recovery_point=0)
    assert files(tmp_path) == before


@pytest.mark.parametrize("magic", [0, 1])
def test_a_torn_message_of_an_old_format_is_truncated(tmp_path: Path, magic: int) -> None:
    log = filled(tmp_path)
    log.close()
    with Path(log.segments.active.path + ".log").open("ab") as file:
        file.write(message(60, magic, b"v" * 100)[:-1])
    assert reopened(log, clean=False, recovery_point=0).end == 60


def test_a_message_of_an_old_format_that_is_read_is_named(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    path = Path(log.segments[0].path + ".log")
    path.write_bytes(message(0, 1) + path.read_bytes()[len(message(0, 1)) :])
    again = reopened(log, clean=True)
    with pytest.raises(KafkaError):
        again.read(0, 1000, upper=60, min_one=True)
    assert again.offline is not None
    assert f"{path}: a message of format 1 at position 0" in again.offline


def test_a_preallocated_tail_is_truncated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = filled(tmp_path)
    content = everything(log)
    active = Path(log.segments.active.path + ".log")
    size = active.stat().st_size
    with active.open("ab") as file:
        file.write(bytes(50_000))
    with caplog.at_level(logging.WARNING):
        again = reopened(log, clean=False)
    assert everything(again) == content
    assert active.stat().st_size == size
    (line,) = caplog.messages
    assert "truncated at offset 60" in line
    assert "50000 bytes and 0 later segments are dropped" in line


def test_leftovers_of_deletions_are_removed(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    for name in ("00000000000000000000.log.deleted", "leader-epoch-checkpoint.tmp", "00000000000000009999.index"):
        (directory(tmp_path) / name).write_bytes(b"x")
    before = {file.name for file in directory(tmp_path).iterdir()}
    reopened(log, clean=True)
    gone = before - {file.name for file in directory(tmp_path).iterdir()}
    assert gone == {"00000000000000000000.log.deleted", "leader-epoch-checkpoint.tmp", "00000000000000009999.index"}


def test_a_log_that_ends_before_its_start_begins_anew_there(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.drop_files()
    again = Log.open(WORLD, log.directory, "t", 0, SMALL, clean=False, log_start=100)
    assert (again.start, again.end, again.size_bytes) == (100, 100, 0)
    again.append([plain()], 9, 1000)
    again.flush()
    assert again.end == 101


def test_batches_before_the_recovery_point_are_not_read_again(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.sync_blocking()
    first = Path(log.segments.first.path + ".log")
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    assert reopened(log, clean=False).end == 60
    assert reopened(log, clean=False, recovery_point=0).end == log.segments[1].base_offset - 1


def test_recovered_batches_are_not_synced_yet(tmp_path: Path) -> None:
    log = filled(tmp_path)
    again = reopened(log, clean=False)
    assert (again.synced_end, again.written_end) == (0, 60)
    again.sync_blocking()
    assert again.synced_end == 60


def spoil(log: Log, number: int, at: int = -1) -> Path:
    """Flip a bit in a segment, at a position or in its last batch."""
    path = Path(log.segments[number].path + ".log")
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    return path


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory(path).glob("*.log")}


def test_batches_that_were_on_disk_are_not_truncated(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.drop_files()
    path, last = spoil(log, 1), log.segments[2].base_offset - 1
    before = files(tmp_path)
    with pytest.raises(Damage) as damage:
        Log.open(WORLD, log.directory, "t", 0, SMALL, clean=False, synced_end=last + 1)
    assert f"{path}: a batch with a wrong CRC at position" in str(damage.value)
    assert f"where offset {last} should be" in str(damage.value)
    assert files(tmp_path) == before
    assert Log.open(WORLD, log.directory, "t", 0, SMALL, clean=False, synced_end=last).end == last


def test_a_rebuilt_index_does_not_truncate_batches_after_damage(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    spoil(log, 1)
    Path(log.segments[1].path + ".index").unlink()
    before = files(tmp_path)
    with pytest.raises(Damage, match="had been on the disk"):
        reopened(log, clean=True)
    assert files(tmp_path) == before


def test_a_gap_in_synced_batches_is_accepted(tmp_path: Path) -> None:
    """`kpybroker storage repair` leaves a gap if it removes damaged batches."""
    log = filled(tmp_path)
    log.drop_files()
    first = log.segments.first
    last = list(first.walk())[-1]
    with Path(first.path + ".log").open("r+b") as file:
        file.truncate(last[0])
    again = Log.open(WORLD, log.directory, "t", 0, SMALL, clean=False, synced_end=60)
    assert again.end == 60
    assert everything(again).count(b"v" * 100) == 59


def test_a_read_that_finds_no_batch_takes_the_log_offline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = filled(tmp_path)
    log.close()
    position, base, _, _ = list(log.segments[1].walk())[1]
    path = spoil(log, 1, position + 8)
    again = reopened(log, clean=True)
    again.segments[1].index()
    assert again.read(base - 1, 1, upper=60, min_one=True)
    for _ in range(2):
        with pytest.raises(KafkaError) as refusal:
            again.read(base, 1000, upper=60, min_one=True)
        assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert again.offline is not None
    assert f"{path}: the bytes at position {position}, where the batch with offset {base}" in again.offline
    assert [line for line in caplog.messages if "are not a batch" in line] == [f"log is offline: {again.offline}"]


def test_a_read_off_the_loop_finds_it_too(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    position, base, _, _ = list(log.segments[1].walk())[1]
    spoil(log, 1, position + 8)
    again = reopened(log, clean=True)
    with pytest.raises(KafkaError, match="are not a batch"):
        asyncio.run(again.read_cold(base, 1000, upper=60, min_one=True))
    assert again.offline is not None


def read(log: Log, offset: int, *, is_cold: bool) -> object:
    if is_cold:
        return asyncio.run(log.read_cold(offset, 1 << 20, upper=log.end, min_one=True))
    return log.read(offset, 1 << 20, upper=log.end, min_one=True)


def zeroed(log: Log, number: int, batch: int) -> tuple[Path, int, int]:
    """Overwrite a part of a segment with zeros, as after a power failure. Return the file, the position and the
    offset."""
    path = Path(log.segments[number].path + ".log")
    position, base, _, size = list(log.segments[number].walk())[batch]
    content = bytearray(path.read_bytes())
    content[position : position + size + 30] = bytes(size + 30)
    path.write_bytes(content)
    return path, position, base


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("is_cold", [True, False])
def test_zeros_inside_a_segment_are_not_returned(tmp_path: Path, number: int, is_clean: bool, is_cold: bool) -> None:
    log = filled(tmp_path)
    log.close()
    path, position, offset = zeroed(log, number, 1)
    if not is_clean and number < 0:
        again = Log.open(WORLD, log.directory, "t", 0, SMALL, clean=False, recovery_point=0)
        assert again.end == offset, "recovery has read it and truncated it"
        return
    again = Log.open(WORLD, log.directory, "t", 0, SMALL, clean=is_clean, recovery_point=60, synced_end=60)
    first = again.segments[number].base_offset
    again.segments[number].index()
    with pytest.raises(KafkaError, match="are not a batch") as refusal:
        read(again, first, is_cold=is_cold)
    assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert f"{path}: the bytes at position {position}, where the batch with offset {offset}" in str(again.offline)


@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
def test_old_batches_are_checked_once(tmp_path: Path, max_bytes: int) -> None:
    log = filled(tmp_path)
    content = everything(log)
    log.close()
    again = reopened(log, clean=True)
    assert all(segment.unsure_bytes == segment.size_bytes for segment in again.segments)
    for _ in range(2):
        assert everything(again, max_bytes) == content
        assert {segment.unsure_bytes for segment in again.segments} == {0}
    again.append([plain()], 3, 5000)
    assert {segment.unsure_bytes for segment in again.segments} == {0}


def test_checked_ranges_are_merged(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    segment = reopened(log, clean=True).segments[1]
    size = segment.size_bytes
    segment.note_walked(600, 900)
    segment.note_walked(900, size)
    assert segment.is_walked(600, size)
    assert not segment.is_walked(599, 700)
    segment.note_walked(0, 650)
    assert segment.unsure_bytes == 0
    assert segment.is_walked(0, size)


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_emptied_segment_is_damage(tmp_path: Path, is_clean: bool) -> None:
    log = filled(tmp_path)
    log.close()
    path, base = Path(log.segments[1].path + ".log"), log.segments[1].base_offset
    path.write_bytes(b"")
    with pytest.raises(Damage, match=f"{path}: empty, where the batches from offset {base} to"):
        Log.open(WORLD, log.directory, "t", 0, SMALL, clean=is_clean, recovery_point=60, synced_end=60)
    for settings, cleaned_end in ((SMALL, 60), (replace(SMALL, cleanup_policy=frozenset({"compact"})), 0)):
        again = Log.open(WORLD, log.directory, "t", 0, settings, clean=is_clean, cleaned_end=cleaned_end, synced_end=60)
        assert again.end == 60, "cleaning may have left it like this"


def test_a_crash_may_empty_a_segment_that_was_not_synced(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.drop_files()
    base = log.segments[1].base_offset
    Path(log.segments[1].path + ".log").write_bytes(b"")
    assert Log.open(WORLD, log.directory, "t", 0, SMALL, clean=False, synced_end=base).end == base


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_end_below_the_synced_end_is_damage(tmp_path: Path, is_clean: bool) -> None:
    log = filled(tmp_path)
    log.close()
    active = log.segments.active
    Path(active.path + ".log").write_bytes(b"")
    with pytest.raises(
        Damage, match=f"{active.path}.log: its batches end at offset {active.base_offset}, but all below"
    ):
        Log.open(WORLD, log.directory, "t", 0, SMALL, clean=is_clean, recovery_point=60, synced_end=60)
