"""Snapshot files: written files are read back, Kafka's own files are written with the same bytes, and an incomplete
file raises Damage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import Damage
from kpybroker.wire.records.batch import Batch, header_at
from kpybroker.wire.records.snapshot import (
    KRAFT_VERSION,
    RECORDS_A_BATCH,
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
    control_record,
    decode_snapshot,
    encode_snapshot,
)
from kpybroker.wire.stored import metadata, quorum


def snapshot_of(count: int) -> bytes:
    records = [metadata.TopicRecord(name=f"t{number}", topic_id=number.to_bytes(16, "big")) for number in range(count)]
    version = control_record(KRAFT_VERSION, quorum.KRaftVersionRecord(kraft_version=1))
    return b"".join(encode_snapshot(records, epoch=3, now_ms=1000, last_timestamp_ms=900, control=[version]))


@pytest.mark.parametrize("count", [0, 1, RECORDS_A_BATCH, 2 * RECORDS_A_BATCH + 1])
def test_written_snapshots_are_read_back(count: int) -> None:
    data = snapshot_of(count)
    records, control = decode_snapshot(data, "x")
    assert [record.name for record in records] == [f"t{number}" for number in range(count)]
    assert [kind for kind, _ in control] == [SNAPSHOT_HEADER, KRAFT_VERSION, SNAPSHOT_FOOTER]
    assert control[0][1].last_contained_log_timestamp == 900
    assert control[1][1].kraft_version == 1


def test_offsets_count_through_the_file_and_a_batch_has_one_timestamp() -> None:
    data = memoryview(snapshot_of(RECORDS_A_BATCH + 5))
    at, offset = 0, 0
    while at < len(data):
        size = header_at(data, at)[1]
        batch = Batch(data[at : at + size])
        assert (batch.base_offset, batch.leader_epoch) == (offset, 3)
        assert (batch.base_timestamp, batch.max_timestamp) == (1000, 1000)
        at, offset = at + size, batch.next_offset
    assert offset == RECORDS_A_BATCH + 5 + 3


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_an_incomplete_or_changed_snapshot_is_damage(data: st.DataObject) -> None:
    good = snapshot_of(3)
    at = data.draw(st.integers(0, len(good) - 1))
    with pytest.raises(Damage, match=r"the-file: (the batch at byte \d+ is incomplete|the footer is missing)"):
        decode_snapshot(good[:at], "the-file")
    batch_at, outside_the_crc = 0, range(12, 16)  # the CRC does not cover the leader epoch
    while True:
        size = header_at(good, batch_at)[1]
        if at < batch_at + size:
            break
        batch_at += size
    if at - batch_at >= 8 and at - batch_at not in outside_the_crc:
        mutated = bytearray(good)
        mutated[at] ^= data.draw(st.integers(1, 255))
        with pytest.raises(Damage, match="the-file"):
            decode_snapshot(bytes(mutated), "the-file")
