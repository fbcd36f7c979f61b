"""Examines one segment file, which may be damaged: finds the valid batches, and repairs headers if possible.

The CRC does not cover base offset, length, leader epoch and magic of a batch. If only these are damaged, and their
values can be derived from the neighbouring batches, they are repaired. The whole file is read into memory.

Messages of the formats 0 and 1 are no damage, but a finding: only Apache Kafka reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from kpybroker.storage.files.segment import MAX_RELATIVE_OFFSET
from kpybroker.wire.records.batch import HEADER_BYTES, PREFIX, PREFIX_BYTES, Batch
from kpybroker.wire.records.old_formats import PREFIX as PREFIX_OF_OLD
from kpybroker.wire.records.old_formats import old_format, size_of

MAGIC, MAGIC_AT = 2, 16
ENDLESS = 1 << 63
OLD_MESSAGE = re.compile(rb"(?=[\x00-\x7f].{7}(?!\x00{4})[\x00-\x03].{7}[\x00\x01][\x00-\x0f])", re.DOTALL)
"""Where a message of an old format may begin: an offset, a length below 64 MB, any CRC, the magic and the
attributes."""


class Flaw(NamedTuple):
    """One finding: its position in the file, its offset, and a description."""

    position: int
    offset: int
    text: str
    is_tail: bool = False
    """Whether no valid batch follows."""
    is_old: bool = False
    """Whether these are undamaged messages of an old format."""


class Sound(NamedTuple):
    """A valid batch. `view` contains its bytes, in which header fields may have been repaired."""

    position: int
    batch: Batch
    view: memoryview


class Examined(NamedTuple):
    """The contents of a segment file."""

    batches: list[Sound]
    flaws: list[Flaw]
    next_offset: int
    epoch: int
    """The leader epoch of the last batch."""


def examine(
    data: bytes, base: int, limit: int, epoch: int, known_epoch: Callable[[int], int] = lambda offset: -1
) -> Examined:
    """Examine all batches of a segment with base offset `base`. `limit` is the base offset of the next segment.

    `epoch` is the leader epoch of the previous batch. `known_epoch` returns the leader epoch of an offset according to
    the checkpoint, or -1.
    """
    found, flaws, old_end = _sound_batches(memoryview(data), base)
    batches: list[Sound] = []
    end, sound_to = base, 0
    for number, (position, batch) in enumerate(found):
        following = found[number + 1][1] if number + 1 < len(found) else None
        is_adjacent = position == sound_to
        sound_to = position + batch.size_bytes
        wanted = _offset_of(batch, following, base, end, limit, is_adjacent=is_adjacent)
        if wanted != batch.base_offset:
            what = "removed" if wanted is None else f"it should be {wanted}"
            text = f"a batch from offset {batch.base_offset} where {end} is next: {what}"
            flaws.append(Flaw(position, end, text))
            if wanted is None:
                continue
            batch = _patched(batch, wanted, batch.leader_epoch)
        should = _epoch_of(batch, following, epoch, known_epoch(batch.base_offset))
        if should != batch.leader_epoch:
            text = f"a batch of leader epoch {batch.leader_epoch}: it should be {should}"
            flaws.append(Flaw(position, batch.base_offset, text))
            batch = _patched(batch, batch.base_offset, should)
        batches.append(Sound(position, batch, batch.view))
        end, epoch = batch.next_offset, batch.leader_epoch
    return Examined(batches, sorted(flaws), max(end, old_end), epoch)


def _sound_batches(view: memoryview, base: int) -> tuple[list[tuple[int, Batch]], list[Flaw], int]:
    """The batches with a correct CRC, in the order of the file, the bytes between them, and the offset after the last
    message of an old format."""
    found: list[tuple[int, Batch]] = []
    flaws: list[Flaw] = []
    at, offset, old_end = 0, base, base
    while at < len(view):
        batch = _sound_at(view, at)
        if batch is None and old_format(view[at:]) is not None:
            begin, at, old_end = at, *_old_run(view, at)
            flaws.append(Flaw(begin, offset, _told_of_old(view[begin:at]), is_old=True))
            offset = old_end
            continue
        if batch is None:
            begin, at = at, _next_sound(view, at + 1, base)
            at = _next_old(view, begin + 1, at, base)
            batch = _mended(view[begin:at])
            if batch is None:
                flaws.append(Flaw(begin, offset, _told(view[begin:at], len(view) - begin), at == len(view)))
                continue
            flaws.append(Flaw(begin, offset, "a batch with a wrong length or magic"))
            found.append((begin, batch))
        else:
            found.append((at, batch))
            at += batch.size_bytes
        offset = batch.next_offset
    return found, flaws, old_end


def _old_run(view: memoryview, at: int) -> tuple[int, int]:
    """The position after the messages of old formats that begin at `at`, and the offset after the last one."""
    offset = 0
    while old_format(view[at:]) is not None:
        offset = PREFIX.unpack_from(view, at)[0] + 1
        at += size_of(view[at:])
    return at, offset


def _told_of_old(region: memoryview) -> str:
    return f"{len(region)} bytes of messages of format {old_format(region)}, which only Apache Kafka reads"


def _next_old(view: memoryview, at: int, limit: int, base: int) -> int:
    """The position of the next message of an old format from `at` on; `limit` if there is none below it."""
    data = view.obj
    assert isinstance(data, bytes)
    for match in OLD_MESSAGE.finditer(data, at, limit + PREFIX_OF_OLD.size):
        position = match.start()
        offset = PREFIX.unpack_from(view, position)[0]
        if base <= offset <= base + MAX_RELATIVE_OFFSET and old_format(view[position:]) is not None:
            return position
    return limit


def _told(region: memoryview, left: int) -> str:
    """A description of a damaged region."""
    if len(region) >= HEADER_BYTES:
        batch = Batch(region)
        if batch.magic == MAGIC and batch.size_bytes == len(region):
            return f"a batch of {len(region)} bytes with a wrong CRC"
        if batch.magic == MAGIC and batch.size_bytes >= HEADER_BYTES and len(region) == left < batch.size_bytes:
            return f"a batch of {batch.size_bytes} bytes with {left} left"
    return f"{len(region)} bytes that are not a batch"


def _sound_at(view: memoryview, at: int) -> Batch | None:
    if len(view) - at < HEADER_BYTES or view[at + MAGIC_AT] != MAGIC:
        return None
    size = PREFIX.unpack_from(view, at)[1] + PREFIX_BYTES
    if not HEADER_BYTES <= size <= len(view) - at:
        return None
    batch = Batch(view[at : at + size])
    is_sound = batch.last_offset_delta >= 0 and 0 <= batch.record_count <= size and batch.crc_ok()
    return batch if is_sound else None


def _next_sound(view: memoryview, at: int, base: int) -> int:
    """The position of the next valid batch at or after `at`; the end of the file if there is none."""
    data = view.obj
    assert isinstance(data, bytes)
    while (magic := data.find(b"\x02", at + MAGIC_AT)) >= 0:
        at = magic - MAGIC_AT
        if _sound_at(view, at) is not None:
            return at
        at += 1
    return len(view)


def _mended(region: memoryview) -> Batch | None:
    """The batch that occupies a damaged region, if only its length or magic is damaged."""
    if len(region) < HEADER_BYTES:
        return None
    copy = bytearray(region)
    PREFIX.pack_into(copy, 0, PREFIX.unpack_from(copy)[0], len(copy) - PREFIX_BYTES)
    copy[MAGIC_AT] = MAGIC
    return _sound_at(memoryview(copy), 0)


def _offset_of(
    batch: Batch, following: Batch | None, base: int, end: int, limit: int, *, is_adjacent: bool
) -> int | None:
    """The base offset that a batch should have; None if it is uncertain.

    `is_adjacent` means that no bytes are damaged between this batch and the previous one.
    """
    size = batch.last_offset_delta + 1
    fits = end <= batch.base_offset and batch.base_offset + size <= min(limit, base + MAX_RELATIVE_OFFSET + 1)
    if fits and (batch.base_offset == end or following is None or following.base_offset >= batch.base_offset + size):
        return batch.base_offset
    after = following.base_offset if following is not None else limit
    if end + size == after or (after == ENDLESS and is_adjacent):
        return end
    follows_soundly = following is not None and batch.base_offset + size <= following.base_offset
    return batch.base_offset if fits and follows_soundly else None


def _epoch_of(batch: Batch, following: Batch | None, before: int, known: int) -> int:
    """The leader epoch that a batch should have. Epochs are ascending."""
    epoch = batch.leader_epoch
    after = following.leader_epoch if following is not None else max(known, -1)
    is_last = following is None and known < 0
    if epoch >= before and (epoch == known or epoch <= after or after < before or is_last):
        return epoch
    if known >= before and (known <= after or after < before):
        return known
    return before if before >= 0 else after if after >= 0 else epoch


def _patched(batch: Batch, base_offset: int, leader_epoch: int) -> Batch:
    copy = Batch(memoryview(bytearray(batch.view)))
    copy.patch(base_offset, leader_epoch)
    return copy
