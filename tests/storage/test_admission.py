"""Clients may append only valid batches, which are changed according to the settings of the topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from struct import pack_into

import cramjam
import pytest

from kpybroker.config import LogSettings
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.storage.log.admission import opening
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.reencoding import (
    COMPRESSED_ON_LOOP_BYTES,
    PLAIN_LIMIT_BYTES,
    RECOMPRESSED_LIMIT_BYTES,
    RECORDS_LIMIT,
    SLOWLY_ON_LOOP_BYTES,
    compressed_on_loop_bytes,
)
from kpybroker.storage.log.slices import Work, at_once
from kpybroker.wire.records.batch import HEADER_BYTES, Batch, Record, encode_batch, read_records, split, with_body
from kpybroker.wire.records.checksum import crc32c
from kpybroker.wire.records.compression import Codec, compress
from kpybroker.wire.records.record_scan import BLAMED_LIMIT
from tests.storage.workshop import WORLD, batch_of

NOW = 1_700_000_000_000


def make(path: Path, **changed: object) -> Log:
    settings = replace(LogSettings(), **changed)  # type: ignore[arg-type]
    return Log.open(WORLD, str(path / "t-0"), "t", 0, settings, clean=True)


def refusal_of(log: Log, batches: list[Batch]) -> KafkaError:
    with pytest.raises(KafkaError) as refusal:
        log.append(batches, 0, NOW)
    assert log.end == 0, "a refused batch leaves nothing"
    return refusal.value


def changed(at: int, form: str, value: int, *, with_crc: bool = True) -> Batch:
    """A valid batch in which one field is overwritten."""
    content = encode_batch(
        [(b"k", b"v"), (b"k", b"w")], timestamp_ms=NOW, producer_id=5, producer_epoch=0, base_sequence=0
    )
    pack_into(form, content, at, value)
    if with_crc:
        pack_into(">I", content, 17, crc32c(memoryview(content)[21:]))
    return Batch(memoryview(content))


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (lambda: changed(0, ">q", 5), ErrorCode.INVALID_RECORD),
        (lambda: changed(17, ">I", 5, with_crc=False), ErrorCode.CORRUPT_MESSAGE),
        (lambda: changed(23, ">i", 5), ErrorCode.INVALID_RECORD),
        (lambda: changed(57, ">i", 5), ErrorCode.INVALID_RECORD),
        (lambda: changed(57, ">i", -1), ErrorCode.INVALID_RECORD),
        (lambda: changed(21, ">h", 0x20), ErrorCode.INVALID_RECORD),
        (lambda: changed(21, ">h", 0x10), ErrorCode.INVALID_TXN_STATE),
        (lambda: changed(21, ">h", 0x08), ErrorCode.INVALID_TIMESTAMP),
        (lambda: changed(21, ">h", 0x05), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (lambda: changed(53, ">i", -1), ErrorCode.INVALID_RECORD),
        (lambda: changed(35, ">q", NOW + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_an_impossible_header_is_refused(tmp_path: Path, batch: Callable[[], Batch], code: ErrorCode) -> None:
    assert refusal_of(make(tmp_path), [batch()]).code == code


def test_a_request_has_one_batch_per_partition(tmp_path: Path) -> None:
    two = [batch_of([Record(0, NOW, b"k", b"v")]) for _ in range(2)]
    assert refusal_of(make(tmp_path), two).code == ErrorCode.INVALID_RECORD


def test_sizes_have_limits(tmp_path: Path) -> None:
    batch = batch_of([Record(0, NOW, b"k", b"v" * 1000)])
    exact = make(tmp_path / "1", max_message_bytes=batch.size_bytes)
    exact.append([batch], 0, NOW)
    fresh = batch_of([Record(0, NOW, b"k", b"v" * 1000)])
    small = make(tmp_path / "2", max_message_bytes=batch.size_bytes - 1)
    assert refusal_of(small, [fresh]).code == ErrorCode.MESSAGE_TOO_LARGE
    short = make(tmp_path / "3", segment_bytes=batch.size_bytes - 1)
    assert refusal_of(short, [fresh]).code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_old_records_are_refused_if_the_topic_demands_it(tmp_path: Path) -> None:
    """They are refused even if the batch has newer records as well, so that its header does not show the old ones."""
    for codec in Codec:
        log = make(tmp_path / codec.name, message_timestamp_before_max_ms=1000)
        records = [Record(0, at, b"k", b"v") for at in (NOW - 1001, NOW - 1000, NOW)]
        refusal = refusal_of(log, [batch_of(records, codec=codec)])
        assert refusal.code == ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in refusal.records] == [0]
        log.append([batch_of(records[1:], codec=codec)], 0, NOW)


def test_a_compacted_topic_needs_keys(tmp_path: Path) -> None:
    log = make(tmp_path, cleanup_policy=frozenset({"compact"}))
    for codec in Codec:
        records = [Record(0, NOW, b"k", b"v"), Record(0, NOW, None, b"v"), Record(0, NOW, None, b"w")]
        refusal = refusal_of(log, [batch_of(records, codec=codec)])
        assert refusal.code == ErrorCode.INVALID_RECORD
        assert [index for index, _ in refusal.records] == [1, 2]


def test_the_brokers_clock_can_stamp(tmp_path: Path) -> None:
    log = make(tmp_path, message_timestamp_type="LogAppendTime")
    appended = log.append([batch_of([Record(0, 5, b"k", b"v")] * 3)], 0, NOW)
    assert appended.log_append_time_ms == NOW
    log.flush()
    (stored,) = split(bytes(log.read(0, 1000, upper=3, min_one=True) or b""))
    assert stored.crc_ok()
    assert stored.log_append_time
    assert [record.timestamp for record in read_records(stored)] == [NOW] * 3
    assert log.offset_for_timestamp(NOW) == (0, NOW, 0)


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_can_choose_its_codec(tmp_path: Path, name: str) -> None:
    log = make(tmp_path, compression_type=name)
    records = [Record(0, NOW + index, b"k%d" % index, b"v" * 50, (("h", None),)) for index in range(20)]
    log.append([batch_of(records, codec=Codec.GZIP, producer_id=9, producer_epoch=1, base_sequence=0)], 4, NOW)
    log.flush()
    (stored,) = split(bytes(log.read(0, 10_000, upper=20, min_one=True) or b""))
    assert stored.crc_ok()
    assert stored.codec == {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[name]
    assert (stored.producer_id, stored.producer_epoch, stored.base_sequence, stored.leader_epoch) == (9, 1, 0, 4)
    assert [record[1:] for record in read_records(stored)] == [record[1:] for record in records]


@pytest.mark.parametrize("codec", Codec)
def test_a_topic_that_opens_batches_checks_every_record(tmp_path: Path, codec: Codec) -> None:
    settings: dict[str, object] = {"cleanup_policy": frozenset({"compact"})}
    noise = encode_batch([(b"k", b"v" * 99)] * 3, timestamp_ms=NOW)[HEADER_BYTES:]
    noise[-10:] = b"\xff" * 10
    good = batch_of([Record(0, NOW, b"k", b"v")] * 3)
    assert refusal_of(make(tmp_path, **settings), [with_body(good, codec, compress(codec, noise), NOW)]).code == (
        ErrorCode.INVALID_RECORD
    )


def test_every_record_of_an_opened_batch_has_an_acceptable_time(tmp_path: Path) -> None:
    times = [NOW - 1000, NOW - 1001, -1, NOW + 3_600_000, NOW - 5000]
    records = [Record(0, at, b"k", b"v") for at in times]
    settings: dict[str, object] = {"compression_type": "zstd", "message_timestamp_before_max_ms": 1000}
    refusal = refusal_of(make(tmp_path / "1", **settings), [batch_of(records)])
    assert refusal.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in refusal.records] == [1, 4], "a record without a time is accepted"
    stamped = make(tmp_path / "2", **settings, message_timestamp_type="LogAppendTime")
    assert stamped.append([batch_of(records)], 0, NOW).log_append_time_ms == NOW


def test_the_header_has_the_newest_timestamp(tmp_path: Path) -> None:
    batch = batch_of([Record(0, NOW + late, b"k", b"v") for late in (0, 70, 30)])
    pack_into(">q", batch.view, 35, NOW)
    pack_into(">I", batch.view, 17, crc32c(batch.view[21:]))
    log = make(tmp_path, compression_type="gzip")
    log.append([Batch(batch.view)], 0, NOW)
    log.flush()
    assert log.offset_for_timestamp(NOW + 70) == (1, NOW + 70, 0)


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{}, {"cleanup_policy": frozenset({"compact"})}, {"compression_type": "gzip"}])
def test_opened_batches_have_limits(tmp_path: Path, changed: dict[str, object]) -> None:
    """A few bytes of zstd can contain many decompressed bytes. A batch at the limit is accepted, and a larger one is
    refused before it is decompressed."""
    most = RECOMPRESSED_LIMIT_BYTES if "compression_type" in changed else PLAIN_LIMIT_BYTES
    for size, is_taken in ((most - 20, True), (most, False)):
        log = make(tmp_path / str(size), **changed)
        batch = batch_of([Record(0, NOW, b"k", bytes(size))], codec=Codec.ZSTD)
        if is_taken:
            log.append([batch], 0, NOW)
            assert log.end == 1
        else:
            assert refusal_of(log, [batch]).code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(("more", "code"), [(0, ErrorCode.INVALID_RECORD), (1, ErrorCode.MESSAGE_TOO_LARGE)])
def test_a_compressed_batch_has_no_more_records_than_the_limit(tmp_path: Path, more: int, code: ErrorCode) -> None:
    """A batch above the limit is refused because of its header, with an error that makes clients split it. A batch at
    the limit is opened and found to be invalid."""
    good = batch_of([Record(0, NOW, b"k", b"v")], codec=Codec.ZSTD)
    batch = with_body(good, Codec.ZSTD, compress(Codec.ZSTD, bytes(8) * RECORDS_LIMIT), NOW)
    assert refusal_of(make(tmp_path), [counted(batch, RECORDS_LIMIT + more)]).code == code


def counted(batch: Batch, count: int) -> Batch:
    """The batch with another record count in its header."""
    content = bytearray(batch.view)
    pack_into(">i", content, 23, count - 1)
    pack_into(">i", content, 57, count)
    pack_into(">I", content, 17, crc32c(memoryview(content)[21:]))
    return Batch(memoryview(content))


@pytest.mark.parametrize("validation", [True, False])
@pytest.mark.parametrize("codec", Codec)
def test_impossible_record_counts_are_refused(tmp_path: Path, codec: Codec, validation: bool) -> None:
    log = make(tmp_path, record_validation_full=validation)
    good = batch_of([Record(0, NOW, b"k", b"v")])
    nine = with_body(good, codec, b"\0" * 9, NOW)
    assert refusal_of(log, [counted(nine, (1 << 31) - 1)]).code == ErrorCode.INVALID_RECORD


def broken_bodies() -> dict[str, bytes]:
    """Bytes that are not two records, for a batch whose header states two records."""
    body = bytes(batch_of([Record(0, NOW, b"k", b"v"), Record(0, NOW, b"k", b"w")]).view[HEADER_BYTES:])
    first, second = body[:9], body[9:]
    return {
        "noise": bytes(range(200, 250)),
        "one record": first,
        "three records": body + second,
        "a trailing byte": body + b"\0",
        "a record too short": first + b"\x0e" + second[1:],
        "a record too long": first + b"\x12" + second[1:],
        "a negative length": first + b"\x0f" + second[1:],
        "a key too long": first + second[:4] + b"\x40" + second[5:],
        "a value too long": first + second[:6] + b"\x40" + second[7:],
        "a key of length -2": first + second[:4] + b"\x03" + second[5:],
        "a header that is not there": body[:-1] + b"\x02",
        "headers of a negative number": body[:-1] + b"\x01",
        "the same offset twice": first + first,
        "offsets with a gap": first + second[:3] + b"\x04" + second[4:],
        "a length of six bytes": first + b"\x90\x80\x80\x80\x80\x00" + second[1:],
    }


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("what", broken_bodies())
def test_records_that_no_consumer_can_read_are_refused(tmp_path: Path, what: str, codec: Codec) -> None:
    good = batch_of([Record(0, NOW, b"k", b"v"), Record(0, NOW, b"k", b"w")])
    batch = with_body(good, codec, compress(codec, broken_bodies()[what]), NOW)
    assert refusal_of(make(tmp_path), [batch]).code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
@pytest.mark.parametrize("cut", [False, True])
def test_records_that_cannot_be_decompressed_are_refused(tmp_path: Path, codec: Codec, cut: bool) -> None:
    good = batch_of([Record(0, NOW, b"k", b"v"), Record(0, NOW, b"k", b"w")])
    body = compress(codec, bytes(good.view[HEADER_BYTES:]))[:-1] if cut else bytes(range(50, 100))
    refusal = refusal_of(make(tmp_path), [with_body(good, codec, body, NOW)])
    assert refusal.code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_RECORD), "clients do not retry"


@pytest.mark.parametrize("codec", Codec)
def test_a_wrong_newest_timestamp_is_corrected(tmp_path: Path, codec: Codec) -> None:
    """The newest timestamp in the header must be correct, because searches by timestamp read the headers first."""
    batch = batch_of([Record(0, NOW + late, b"k", b"v") for late in (0, 70, 30)], codec=codec)
    pack_into(">q", batch.view, 35, NOW + 5000)
    pack_into(">I", batch.view, 17, crc32c(batch.view[21:]))
    log = make(tmp_path)
    log.append([Batch(batch.view)], 0, NOW)
    log.flush()
    (stored,) = split(bytes(log.read(0, 10_000, upper=3, min_one=True) or b""))
    assert stored.crc_ok()
    assert stored.max_timestamp == NOW + 70
    assert log.max_timestamp() == (1, NOW + 70, 0)


def test_fewer_checks_can_be_configured(tmp_path: Path) -> None:
    log = make(tmp_path, record_validation_full=False)
    good = batch_of([Record(0, NOW, b"k", b"v"), Record(0, NOW, b"k", b"w")])
    log.append([with_body(good, Codec.GZIP, b"no gzip at all", NOW)], 0, NOW)
    assert log.end == 2


def test_a_refusal_names_a_bounded_number_of_records(tmp_path: Path) -> None:
    log = make(tmp_path, cleanup_policy=frozenset({"compact"}))
    refusal = refusal_of(log, [batch_of([Record(0, NOW, None, b"v")] * (BLAMED_LIMIT + 1))])
    assert [index for index, _ in refusal.records] == list(range(BLAMED_LIMIT))


def test_a_repeated_batch_has_the_first_ones_offsets(tmp_path: Path) -> None:
    log = make(tmp_path)
    for _ in range(2):
        for sequence in range(3):
            batch = batch_of([Record(0, NOW, b"k", b"v")], producer_id=9, producer_epoch=0, base_sequence=sequence)
            appended = log.append([batch], 0, NOW)
            assert (appended.base_offset, appended.last_offset) == (sequence, sequence)
    assert log.end == 3


@pytest.mark.parametrize("codec", ["producer", "zstd"])
def test_linked_lz4_is_refused_from_a_client_and_read_where_it_is_stored(codec: str, tmp_path: Path) -> None:
    good = batch_of([Record(0, NOW + number, b"k", b"v") for number in range(3)])
    linked = with_body(good, Codec.LZ4, bytes(cramjam.lz4.compress(bytes(good.view[HEADER_BYTES:]))), NOW + 2)
    log = make(tmp_path, compression_type=codec)
    assert refusal_of(log, [linked]).code == ErrorCode.UNKNOWN_SERVER_ERROR
    log.append_replicated([linked])
    log.flush()
    stored = split(bytes(log.read(0, 1 << 20, upper=log.end, min_one=True) or b""))
    assert [record.value for batch in stored for record in read_records(batch)] == [b"v"] * 3
    assert at_once(log.looking_up(NOW + 1))[0] == 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("codec", "level", "most_bytes"),
    [
        (Codec.NONE, None, RECOMPRESSED_LIMIT_BYTES),
        (Codec.SNAPPY, None, COMPRESSED_ON_LOOP_BYTES),
        (Codec.GZIP, -1, COMPRESSED_ON_LOOP_BYTES),
        (Codec.GZIP, 9, SLOWLY_ON_LOOP_BYTES),
        (Codec.LZ4, 9, COMPRESSED_ON_LOOP_BYTES),  # Kafka's default is the fast compressor
        (Codec.LZ4, 17, SLOWLY_ON_LOOP_BYTES),
        (Codec.ZSTD, 3, COMPRESSED_ON_LOOP_BYTES),
        (Codec.ZSTD, 22, SLOWLY_ON_LOOP_BYTES),
    ],
)
def test_slow_compression_runs_on_a_thread(codec: Codec, level: int | None, most_bytes: int) -> None:
    levels = {} if level is None else {f"compression_{codec.name.lower()}_level": level}
    settings = replace(LogSettings(), compression_type=codec.name.lower().replace("none", "uncompressed"), **levels)
    assert compressed_on_loop_bytes(codec, level) == most_bytes
    for size in (most_bytes - 100, most_bytes + 100) if codec else (1 << 19,):
        other = Codec.GZIP if codec != Codec.GZIP else Codec.LZ4
        steps: list[object] = []
        changed = at_once(
            noted(opening(batch_of([Record(0, NOW, b"k", bytes(size))], codec=other), settings, NOW), steps)
        )
        assert changed.codec == codec
        compressing = [step for step in steps if isinstance(step, partial) and step.func is compress]
        assert len(compressing) == (size > most_bytes)


def noted(work: Work[Batch], steps: list[object]) -> Work[Batch]:
    """Run the work, and add all steps that it yields to `steps`."""
    told = None
    while True:
        try:
            step = work.send(told)
        except StopIteration as finished:
            changed: Batch = finished.value
            return changed
        steps.append(step)
        told = yield step
