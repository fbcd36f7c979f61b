"""If a log was truncated and continued with other records, it contains no truncated records after a power failure."""

from __future__ import annotations

from random import Random

import pytest

from kpybroker.config import LogSettings, parse_config
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.dirs.log_dir import LogDirectory
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import Batch, Record, encode_batch, read_records, split
from tests.storage.compacting import VirtualWorld, batches_of

CONFIG = parse_config()
SEGMENTS_OF_BYTES = [1500, 1 << 20]
OLD, NEW = (0, "old"), (2, "new")
CUT_AT = 45
SEEDS = 60


def batch(offset: int, history: tuple[int, str]) -> Batch:
    """A batch of one of the two histories. All batches have the same size, so that the positions in the file are
    equal."""
    epoch, word = history
    value = f"{word} {offset:3}".encode() + b"-" * 60
    (made,) = split(bytearray(encode_batch([Record(0, 1000, b"k", value)])))
    made.patch(offset, epoch)
    return made


def opened(storage: Storage, segment_bytes: int) -> tuple[VirtualWorld, LogDirectory, Log]:
    world = VirtualWorld(storage)
    directory = LogDirectory(world, "/data", CONFIG)
    settings = LogSettings(segment_bytes=segment_bytes, index_interval_bytes=150)
    return world, directory, directory.open_log("a", b"a" * 16, 0, settings)


def with_two_histories(segment_bytes: int, *, synced: bool) -> tuple[Storage, VirtualWorld]:
    """A log that was synced, checkpointed and truncated, and to which other batches were written. If `synced`, they
    were synced as well."""
    storage = Storage()
    VirtualWorld(storage).disk.mkdir("/data")
    VirtualWorld(storage).disk.sync_directory_blocking("")
    world, directory, log = opened(storage, segment_bytes)
    run = world.loop.run_until_complete
    for offset in range(100):
        log.append_replicated([batch(offset, OLD)])
        log.flush()
    log.advance(40)
    run(log.sync())
    run(directory.checkpoint())
    world.disk.sync_directory_blocking("/data")
    log.truncate_to(CUT_AT)
    for offset in range(CUT_AT, 105):
        log.append_replicated([batch(offset, NEW)])
        log.flush()
    if synced:
        run(log.sync())
    else:
        log.files.save_epochs(log.start)  # the first part of a sync
    return storage, world


@pytest.mark.parametrize("synced", [False, True], ids=["unsynced", "synced"])
@pytest.mark.parametrize("segment_bytes", SEGMENTS_OF_BYTES)
def test_a_power_loss_after_a_truncation_mixes_no_histories(segment_bytes: int, synced: bool) -> None:
    ends = set()
    for seed in range(SEEDS):
        storage, world = with_two_histories(segment_bytes, synced=synced)
        world.owner.alive = False
        storage.lose_power(Random(seed))
        _, _, log = opened(storage, segment_bytes)
        found = [(each.base_offset, next(iter(read_records(each))).value) for each in batches_of(log)]
        epochs = [(offset, log.epochs.epoch_at(offset)) for offset, _ in found]
        wanted = [(offset, NEW if offset >= CUT_AT else OLD) for offset in range(log.end)]
        assert [(offset, (value or b"")[:3].decode()) for offset, value in found] == [(o, w) for o, (_, w) in wanted]
        assert epochs == [(offset, epoch) for offset, (epoch, _) in wanted]
        ends.add(log.end)
    assert min(ends) >= CUT_AT, "all synced records are there"
    assert ends == {105} if synced else len(ends) > 1


def test_a_log_is_not_truncated_while_its_recovery_point_is_being_written() -> None:
    storage = Storage()
    VirtualWorld(storage).disk.mkdir("/data")
    world, directory, log = opened(storage, 1500)
    for offset in range(100):
        log.append_replicated([batch(offset, OLD)])
    log.flush()
    world.loop.run_until_complete(log.sync())
    checkpoint = world.loop.create_task(directory.checkpoint())
    world.loop.run_until_complete(world.loop.create_task(_a_turn()))
    with pytest.raises(KafkaError) as refused:
        log.truncate_to(CUT_AT)
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert log.end == 100
    world.loop.run_until_complete(checkpoint)
    log.truncate_to(CUT_AT)
    assert log.end == CUT_AT


async def _a_turn() -> None:
    """Wait one turn, after which the checkpoint is running on the disk's thread."""
