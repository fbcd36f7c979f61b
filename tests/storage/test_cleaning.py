"""A reader of a compacted log finds the same final state as in the whole log."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from pathlib import Path

import pytest

from kpybroker.errors import Damage
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.compaction import cleaned_segment
from kpybroker.storage.compaction.candidates import look
from kpybroker.storage.compaction.cleaned_segment import CleanedSegment
from kpybroker.storage.compaction.cleaning import Abandoned, Cleaning
from kpybroker.storage.files.segment import Segment
from kpybroker.storage.log.log import Log
from kpybroker.storage.producers.loading import snapshot_offsets
from kpybroker.storage.producers.producers import ProducerStates
from kpybroker.wire.records.batch import encode_batch, put_varint, read_records, sealed, split
from kpybroker.wire.records.record_removal import delete_horizon_ms
from tests.storage.compacting import (
    COMPACT,
    LIMITS,
    KeyedHistory,
    VirtualWorld,
    append,
    batches_of,
    clean,
    committed,
    keyed,
    marker,
    opened,
    records_of,
    table,
)
from tests.storage.workshop import reopened


def left(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in records_of(log)]


def filled(path: Path, *batches: bytearray) -> Log:
    """A log in which each batch has its own segment. The active segment contains a single record, which is kept."""
    log = opened(path)
    for batch in batches:
        append(log, batch)
        log.roll()
    append(log, keyed(("active", "x")))
    return log


@pytest.mark.parametrize("seed", range(30))
def test_a_reader_of_the_compacted_log_gets_the_same_table(seed: int, tmp_path: Path) -> None:
    history = KeyedHistory.of(tmp_path, seed)
    for _ in range(120):
        history.step()
    history.check()
    history.clean()
    history.check()


def test_the_newest_record_of_each_key_stays_at_its_offset(tmp_path: Path) -> None:
    log = filled(tmp_path, keyed(("a", "1"), ("b", "1")), keyed(("a", "2")), keyed(("a", "3"), ("c", "1")))
    assert clean(log, 5000) == log.segments.active.base_offset == 5
    assert left(log) == [(1, b"1"), (3, b"3"), (4, b"1"), (5, b"x")]
    assert len(log.segments) == 2, "small neighbouring segments are merged"
    assert look(log, 5000) is None


def test_replaced_segments_are_freed_without_a_full_collection(tmp_path: Path) -> None:
    log = filled(tmp_path, *[keyed(("a", str(number))) for number in range(8)])
    gc.collect()
    gc.disable()
    try:
        clean(log, 5000)
        kept = [one for one in gc.get_objects() if isinstance(one, Segment) and one.path.startswith(str(tmp_path))]
    finally:
        gc.enable()
    assert len(kept) == len(log.segments) == 2


def test_keys_of_any_length_are_distinguished(tmp_path: Path) -> None:
    names = ["", "x" * 64, "x" * 65, "y" * 65, "x" * 1000]
    log = filled(tmp_path, *[keyed(*[(name, str(turn)) for name in names]) for turn in range(3)])
    clean(log, 5000)
    assert [record.value for record in records_of(log)][:-1] == [b"2"] * len(names)


def test_records_without_a_key_are_removed(tmp_path: Path) -> None:
    log = filled(tmp_path, keyed(("a", "1")))
    append(log, keyed(("b", "1")))
    append(log, encode_batch([(None, b"no key")], timestamp_ms=1000))
    log.roll()
    clean(log, 5000)
    assert b"no key" not in [value for _, value in left(log)]


def test_a_tombstone_is_removed_after_its_delete_horizon(tmp_path: Path) -> None:
    log = filled(tmp_path, keyed(("a", "1")), keyed(("a", None), ("b", "1")), keyed(("c", "1")))
    clean(log, 5000)
    assert left(log)[:2] == [(1, None), (2, b"1")]
    assert delete_horizon_ms(batches_of(log)[0]) == 5000 + COMPACT.delete_retention_ms
    for now_ms, stays in ((5999, True), (6000, False)):
        append(log, keyed(("d", "1")))
        log.roll()
        clean(log, now_ms)
        assert (1, None) in left(log) or not stays
        assert stays or (1, None) not in left(log)
        assert (2, b"1") in left(log)
    assert records_of(log)[0].timestamp == 1000, "times are unchanged"


def test_a_batch_that_loses_records_keeps_its_header(tmp_path: Path) -> None:
    for codec in range(5):
        log = filled(
            tmp_path / str(codec),
            keyed(("a", "1"), ("b", "1"), ("c", "1"), codec=codec, producer_id=7, producer_epoch=3, base_sequence=11),
            keyed(("a", "2"), ("c", "2")),
        )
        clean(log, 5000)
        [thin, *_] = batches_of(log)
        assert (thin.base_offset, thin.last_offset, thin.record_count) == (0, 2, 1)
        assert (thin.producer_id, thin.producer_epoch, thin.base_sequence, thin.codec) == (7, 3, 11, codec)
        assert thin.leader_epoch == 0


def test_the_last_batch_of_a_producer_stays_without_its_records(tmp_path: Path) -> None:
    log = filled(
        tmp_path,
        keyed(("a", "1"), producer_id=7, producer_epoch=0, base_sequence=0),
        keyed(("a", "2"), producer_id=7, producer_epoch=0, base_sequence=1),
        keyed(("a", "3")),
    )
    clean(log, 5000)
    assert [(batch.base_offset, batch.record_count) for batch in batches_of(log)] == [(1, 0), (2, 1), (3, 1)]
    empty = batches_of(log)[0]
    assert (empty.producer_id, empty.base_sequence, empty.last_sequence) == (7, 1, 1)
    known = reopened(log, clean=False, recovery_point=0).producers.get(7)
    assert known is not None
    assert known.last_sequence == 1


def test_the_end_of_the_clean_part_is_stored(tmp_path: Path) -> None:
    log = filled(tmp_path, keyed(("a", "1")), keyed(("active", "0")))
    clean(log, 5000)
    assert [(batch.base_offset, batch.record_count) for batch in batches_of(log)] == [(0, 1), (1, 1), (2, 1)]
    append(log, keyed(("active", "1"), ("z", "1")))
    log.roll()
    clean(log, 5000)
    assert batches_of(log)[-1].next_offset == log.end


def test_a_cleaned_segment_reaches_into_the_last_one_that_it_replaces(tmp_path: Path) -> None:
    """If a swap is interrupted, the next start deletes the segments within the offsets of the new one. All old segments
    must be among them, so that no old record remains."""
    large = "v" * 1200
    log = filled(tmp_path, keyed(("a", large)), keyed(("gone", "1")), keyed(("b", large)), keyed(("gone", None)))
    clean(log, 5000)
    assert log.segments[1].base_offset == 2
    assert [(batch.base_offset, batch.record_count) for batch in batches_of(log)][:3] == [(0, 1), (1, 0), (2, 1)]


def test_aborted_records_are_removed_and_later_their_marker(tmp_path: Path) -> None:
    more = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    log = filled(
        tmp_path,
        keyed(("a", "kept")),
        keyed(("a", "aborted"), base_sequence=0, **more),
        marker(7, commits=False),
        keyed(("b", "1"), base_sequence=1, **more),
        marker(7, commits=True),
    )
    clean(log, 5000)
    assert left(log) == [(0, b"kept"), (3, b"1"), (5, b"x")]
    assert table(committed(log)) == {b"a": b"kept", b"b": b"1", b"active": b"x"}
    assert [batch.base_offset for batch in batches_of(log)] == [0, 2, 3, 4, 5], "the marker stays with its transaction"
    seen = []
    for now_ms in (5000, 5999, 6000, 9000):
        append(log, keyed(("c", "1")))
        log.roll()
        clean(log, now_ms)
        seen.append([batch.base_offset for batch in batches_of(log) if batch.is_control])
    assert seen == [[2, 4], [2, 4], [4], [4]], "a committed record is left, and so is its marker"


def test_records_that_may_not_be_final_are_not_cleaned(tmp_path: Path) -> None:
    log = filled(tmp_path, *[keyed(("a", str(number)), timestamp=number) for number in range(6)])
    log.last_stable = 3
    assert clean(log, 5000) == 3
    assert [offset for offset, _ in left(log)][:2] == [2, 3]
    log.advance(log.end)
    log.configure(replace(log.settings, min_compaction_lag_ms=5000 - 4))
    assert clean(log, 5000) == 5, "the record of the time 5 is too young"
    log.configure(replace(log.settings, cleanup_policy=frozenset({"delete"})))
    assert look(log, 9000) is None


def test_overdue_records_are_cleaned_however_few_they_are(tmp_path: Path) -> None:
    log = filled(tmp_path, *[keyed((str(number), "v" * 50)) for number in range(20)])
    clean(log, 5000)
    append(log, keyed(("a", "1"), timestamp=7000))
    log.roll()
    log.configure(replace(log.settings, min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=100))
    for now_ms, overdue in ((1050, False), (7000, True)):
        found = look(log, now_ms)
        assert found is not None
        assert found.ratio < 0.5
        assert (found.is_worth_while, found.is_overdue) == (overdue, overdue)


def test_max_compaction_lag_ms_rolls(tmp_path: Path) -> None:
    log = opened(tmp_path, replace(COMPACT, max_compaction_lag_ms=100))
    append(log, keyed(("a", "1"), timestamp=1000), keyed(("a", "2"), timestamp=1100))
    assert len(log.segments) == 1
    append(log, keyed(("a", "3"), timestamp=1101))
    assert len(log.segments) == 2


def test_with_a_full_map_cleaning_takes_several_passes(tmp_path: Path) -> None:
    batches = [keyed(*[(f"k{number}", str(turn)) for number in range(10)]) for turn in range(4)]
    log = filled(tmp_path, *batches)
    small = LIMITS._replace(map_bytes=3 * 162)
    ends = [clean(log, 5000, small)]
    assert 0 < ends[0] < 10, "not even the keys of the first batch fit"
    while ends[-1] < 40:
        ends.append(clean(log, 5000, small))
        assert ends[-1] > ends[-2]
    assert table(records_of(log)) == {f"k{number}".encode(): b"3" for number in range(10)} | {b"active": b"x"}


@pytest.mark.slow
def test_a_large_batch_is_cleaned_like_any_other(tmp_path: Path) -> None:
    log = opened(tmp_path, replace(COMPACT, segment_bytes=1 << 28))
    for codec in (0, 4):
        records = [(f"k{number % 30_000}", "v" * 60) for number in range(40_000)]
        append(log, keyed(*records, codec=codec))
    log.roll()
    clean(log, 5000)
    assert len(records_of(log)) == 30_000
    assert all(batch.crc_ok() for batch in batches_of(log))


def test_a_search_by_time_skips_removed_records(tmp_path: Path) -> None:
    log = filled(
        tmp_path,
        keyed(("a", "1"), timestamp=9000, producer_id=7, producer_epoch=0, base_sequence=0),
        keyed(("a", "2"), timestamp=2000),
    )
    clean(log, 20_000)
    assert batches_of(log)[0].record_count == 0
    assert log.max_timestamp() == (1, 2000, 0)
    assert log.offset_for_timestamp(1500) == (1, 2000, 0)
    assert log.offset_for_timestamp(8000) is None


def test_the_leaders_producers_are_known_after_a_crash(tmp_path: Path) -> None:
    history = KeyedHistory.of(tmp_path, 5)
    for _ in range(150):
        history.step()
    expected = ProducerStates()
    for batch in batches_of(history.full):
        if batch.producer_id >= 0:
            expected.update(batch)
    again = reopened(history.log, clean=False, recovery_point=0)
    for one in expected:
        known = again.producers.get(one.producer_id)
        assert known is not None
        assert (known.producer_epoch, known.last_sequence) == (one.producer_epoch, one.last_sequence)
        assert known.current_txn_first_offset == one.current_txn_first_offset


# faults


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    world = VirtualWorld(Storage())
    log = Log.open(world, "/data/t-0", "t", 0, COMPACT, clean=True)
    for number in range(10):
        append(log, keyed((f"k{number}", "1"), ("a", str(number))))
        log.roll()
    before = left(log)
    world.storage.leave_free(100)
    with pytest.raises(OSError, match="no space"):
        world.clean(log, 5000)
    assert left(log) == before
    assert log.offline is None
    assert [name for name in world.disk.list("/data/t-0") if "cleaned" in name] == []
    world.storage.mend()
    world.clean(log, 5000)
    assert len(left(log)) == 11


@pytest.mark.parametrize("at", [16, 21, 70])
def test_a_damaged_batch_is_reported_and_the_log_stays(at: int, tmp_path: Path) -> None:
    log = filled(tmp_path, keyed(("a", "1")), keyed(("a", "2"), ("b", "2")), keyed(("a", "3")))
    path = Path(log.segments[1].path + ".log")
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(Damage, match=f"{path.name}: .* at position 0"):
        clean(log, 5000)
    assert log.offline is None
    assert len(log.segments) == 4


def test_a_log_that_is_truncated_during_cleaning_is_left_alone(tmp_path: Path) -> None:
    log = filled(tmp_path, *[keyed(("a", str(number)), (f"k{number}", "1")) for number in range(8)])
    dirty = look(log, 5000)
    assert dirty is not None

    async def cut_meanwhile() -> None:
        cleaning = asyncio.ensure_future(Cleaning(dirty, LIMITS, 5000).run())
        await asyncio.sleep(0)
        log.truncate_to(5)
        with pytest.raises(Abandoned):
            await cleaning

    asyncio.run(cut_meanwhile())
    assert [offset for offset, _ in left(log)] == [0, 1, 2, 3]
    assert log.cleaned_end == 0


def test_records_after_a_truncation_are_dirty_again(tmp_path: Path) -> None:
    log = filled(tmp_path, *[keyed(("a", str(number)), (f"k{number}", "1")) for number in range(8)])
    clean(log, 5000)
    assert log.cleaned_end == 16
    told: list[int] = []
    log.listen(lambda: told.append(log.cleaned_end), lambda offset: None, None)
    log.truncate_to(6)
    assert log.cleaned_end == log.end
    assert told == [log.end]


@pytest.mark.parametrize("delay_ms", range(0, 14, 2))
def test_a_reader_in_the_middle_of_a_segment_continues(delay_ms: int) -> None:
    """The segment is replaced during the read: before its indexes are loaded, before its bytes are read, or after
    that."""
    world = VirtualWorld(Storage())
    log = Log.open(world, "/data/t-0", "t", 0, COMPACT, clean=True)
    for number in range(4):
        append(log, keyed(("a", str(number)), ("b", "1")), keyed(("c", "1"), ("d", "1")))
        log.roll()
    old = list(log.segments)[:-1]
    for segment in old:
        segment.close_files()

    async def read_while_swapping() -> list[int]:
        cleaned = CleanedSegment(world.disk, Segment(world.disk, log.files.pool, log.directory, 0), 150)
        for segment in old:
            for batch in split(segment.read(segment.written_bytes, 0)):
                await cleaned.add(bytes(batch.view))
        fresh = await cleaned.finish()
        for segment in old:
            segment.close_files()
        reading = asyncio.ensure_future(log.read_cold(0, 1, upper=log.end, min_one=True))
        await asyncio.sleep(delay_ms / 1000)
        log.files.swap(old, fresh, log.settings.file_delete_delay_ms)
        found = split(bytes(await reading))
        while found[-1].next_offset < log.end:
            some = log.read(found[-1].next_offset, 1, upper=log.end, min_one=True)
            if some is None:
                some = await log.read_cold(found[-1].next_offset, 1, upper=log.end, min_one=True)
            found += split(bytes(some))
        return [batch.base_offset for batch in found]

    assert world.loop.run_until_complete(read_while_swapping()) == [0, 2, 4, 6, 8, 10, 12, 14]


# batches that were written before the topic was compacted, and whose records were never checked


def raw(offsets: list[int], *, base_timestamp: int = 1000, delta: int = 0, last: int | None = None) -> bytearray:
    """A batch whose records have these offset deltas and this timestamp delta."""
    body = bytearray()
    for offset in offsets:
        record = bytearray(1)
        for field in (delta, offset, 1):
            put_varint(record, field)
        record += b"k"
        put_varint(record, -1)
        put_varint(record, 0)
        put_varint(body, len(record))
        body += record
    count = len(offsets)
    header = (0, count - 1 if last is None else last, base_timestamp, 1000, -1, -1, -1, count)
    return sealed(0, 0, header, body)


@pytest.mark.parametrize("offsets", [[0, 2], [1, 0], [0, 0], [0, -1], [0, 1 << 40]], ids=str)
def test_offsets_outside_the_batch_are_damage(offsets: list[int], tmp_path: Path) -> None:
    """Otherwise a record in one batch could replace records with the same key in other batches."""
    log = filled(tmp_path, keyed(("k", "1")), raw(offsets), keyed(("k", "3")))
    with pytest.raises(Damage, match="the batch at offset 1"):
        clean(log, 5000)
    assert log.offline is None
    assert (0, b"1") in left(log)[:1]


@pytest.mark.parametrize("base_timestamp", [(1 << 63) - 1, -(1 << 63), 0])
@pytest.mark.parametrize("delta", [(1 << 63) - 1, -(1 << 63), 0, 1])
def test_times_are_added_as_clients_add_them(base_timestamp: int, delta: int, tmp_path: Path) -> None:
    log = filled(tmp_path, raw([0], base_timestamp=base_timestamp, delta=delta))
    clean(log, 5000)
    thin = batches_of(log)[0]
    assert thin.crc_ok()
    assert delete_horizon_ms(thin) == 5000 + COMPACT.delete_retention_ms
    [record] = read_records(thin)
    assert (record.timestamp - base_timestamp - delta) % (1 << 64) == 0


def test_tombstones_may_stay_for_ever(tmp_path: Path) -> None:
    log = filled(tmp_path, keyed(("a", "1")), keyed(("a", None)))
    log.configure(replace(log.settings, delete_retention_ms=(1 << 63) - 1))
    clean(log, 5000)
    [record, _] = records_of(log)
    assert (record.offset, record.timestamp, record.value) == (1, 1000, None)


# gaps


def test_a_truncation_in_a_gap_leaves_nothing_after_it(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, keyed(("k", "0")), keyed(("a", "1")), keyed(("a", "2")), keyed(("l", "3")))
    log.roll()
    append(log, keyed(("a", "4")))
    log.roll()
    clean(log, 5000)
    assert [batch.base_offset for batch in batches_of(log)] == [0, 3, 4]
    log.truncate_to(2)
    assert log.end <= 2
    assert left(log) == [(0, b"0")]


def test_a_removed_transaction_is_not_open_after_a_crash(tmp_path: Path) -> None:
    """A producer snapshot shows the transaction as open, and its marker has been removed."""
    log = opened(tmp_path)
    append(log, keyed(("fills the segment", "x" * 1250)))
    append(log, keyed(("a", "1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    append(log, keyed(("its last record", "1")))
    log.roll()
    append(log, marker(7, commits=True), keyed(("a", "2"), producer_id=7, producer_epoch=0, base_sequence=1))
    large = "x" * COMPACT.segment_bytes
    for now_ms in (5000, 6000, 8000):
        append(log, keyed(("b", large)))
        log.roll()
        clean(log, now_ms)
    assert not any(batch.is_control for batch in batches_of(log))
    assert 3 in snapshot_offsets(log.files.world.disk, log.directory)
    assert log.segments[1].base_offset == 3
    assert log.last_stable == log.end
    for point in range(log.end + 1):
        again = reopened(log, clean=False, recovery_point=point)
        again.advance(again.end)
        assert again.last_stable == log.end, f"from {point}"


def test_tombstones_that_would_outgrow_a_segment_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would need more bytes with a delete horizon, because of larger timestamp deltas."""
    log = filled(tmp_path, keyed(*[(f"{number}", None) for number in range(50)]))
    before = log.segments.first.size_bytes
    monkeypatch.setattr(cleaned_segment, "SIZE_LIMIT_BYTES", before)
    with pytest.raises(Damage, match=f"more than {before} bytes"):
        clean(log, 1 << 40)
    assert (log.offline, len(left(log)), log.segments.first.size_bytes) == (None, 51, before)
