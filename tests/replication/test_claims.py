"""No follower claims records that its files do not have, regardless of which call fails. Without a free file
descriptor, it fetches again later."""

from __future__ import annotations

import errno

import pytest

from kpybroker.config import LogSettings
from kpybroker.errors import Damage, KafkaError
from kpybroker.metadata.image import PartitionImage
from kpybroker.replication.follower.follower_log import FetchPosition, position_of, take
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.sim.checks.claims import Files
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.files.file_pool import FilePool
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import Record, encode_batch, split
from kpybroker.wire.records.markers import Marker, encode_marker
from kpybroker.wire.rpc.fetch import PartitionData
from tests.replication.failing import CHANGES, FailingWorld
from tests.replication.leading import Host
from tests.storage.compacting import VirtualWorld

DIRECTORY = "/data/t-0"
TOPIC_ID = bytes(15) + b"\1"
LEADER, FOLLOWER = 1, 2
EPOCH = 3
ROWS, A_ROW = 12, 3
EVER = 1 << 60
SETTINGS = LogSettings(segment_bytes=1500, segment_index_bytes=240, index_interval_bytes=1)
"""Every batch gets an index entry, and a tenth of the index is saved at a time."""


def follower(world: VirtualWorld, settings: LogSettings) -> Partition:
    world.disk.mkdir("/data")
    storage = Log.open(world, DIRECTORY, "t", 0, settings, clean=True, lazy=True, pool=FilePool(2), topic_id=TOPIC_ID)
    partition = Host(ReplicaRules(FOLLOWER)).host("t", TOPIC_ID, 0, storage)
    replicas = (LEADER, FOLLOWER)
    partition.become(
        PartitionImage(replicas=replicas, isr=replicas, leader=LEADER, leader_epoch=EPOCH, partition_epoch=0)
    )
    return partition


def row_at(offset: int, count: int) -> PartitionData:
    """The leader's response to a Fetch from `offset`: batches of one record each, and markers that end transactions."""
    found = bytearray()
    for number in range(offset, offset + count):
        made = encode_batch(
            [Record(0, 1000 + number, b"k", b"v" * 40)], producer_id=7, producer_epoch=0, base_sequence=0
        )
        if number % 4 == 3:
            made = encode_marker(Marker(7, 0, 0, commits=True), 1000 + number)
        batch = split(made)[0]
        batch.patch(number, EPOCH)
        found += batch.view
    return PartitionData(partition_index=0, high_watermark=offset, records=memoryview(found))


def claim_of(partition: Partition) -> FetchPosition | None:
    """The position of the next Fetch, as in `FetchPlan`; None if the partition cannot be fetched."""
    if partition.offline is not None:
        return None
    try:
        return position_of(partition)
    except KafkaError:
        return None
    except Damage as damage:
        partition.fail(str(damage))
        return None


def followed(partition: Partition, end: int, storage: Storage, tries: int = 60) -> None:
    """Fetch up to `end`, as `Fetcher` does. At every step, the files must contain all records below the position."""
    files = Files()
    for _ in range(tries):
        place = claim_of(partition)
        if place is None:
            continue
        written = files.end(storage, DIRECTORY, synced=False)
        assert place.offset <= max(written, 0), (
            f"claims all records below {place.offset}, but has only those below {written}"
        )
        if place.offset >= end:
            return
        try:
            take(partition, place, row_at(place.offset, min(A_ROW, end - place.offset)))
        except KafkaError:
            continue
        except Damage as damage:
            partition.fail(str(damage))
        if place.offset % 2:
            partition.log.segments.active.close_files()  # as the pool does when other logs need files


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_no_failure_makes_a_follower_claim_unwritten_records(code: int, lasts: bool) -> None:
    at, ended = 0, False
    while not ended:
        storage = Storage()
        world = FailingWorld(storage)
        partition = follower(world, SETTINGS)
        world.failing.fail(CHANGES, code, range(at, EVER if lasts else at + 1))
        followed(partition, ROWS * A_ROW, storage)
        ended = world.failing.count <= at
        assert ended or partition.log.offline is not None or not lasts, "a permanent failure is detected"
        at += 1
    assert at > 60, "enough calls were made to fail"
    assert partition.log.written_end == ROWS * A_ROW


@pytest.mark.parametrize("spare", range(10))
def test_a_follower_without_descriptors_claims_what_it_has_and_fetches_again(spare: int) -> None:
    """This holds at any point. The partition never goes offline, and in the end it has all records."""
    for turn in range(ROWS):
        storage = Storage()
        world = VirtualWorld(storage)
        partition = follower(world, SETTINGS)
        followed(partition, turn * A_ROW, storage)
        world.disk.handles_max = world.disk.handles + spare
        followed(partition, ROWS * A_ROW, storage, tries=ROWS)
        world.disk.handles_max = -1
        assert (partition.offline, partition.log.offline) == (None, None)
        followed(partition, ROWS * A_ROW, storage)
        assert claim_of(partition) == FetchPosition(EPOCH, ROWS * A_ROW, EPOCH)


def test_an_index_that_cannot_be_saved_takes_the_log_offline() -> None:
    """On a disk that fills up, the first write that fails may be one of an index."""
    storage = Storage()
    world = VirtualWorld(storage)
    settings = LogSettings(index_interval_bytes=1, segment_index_bytes=1 << 20)
    partition = follower(world, settings)
    storage.bad_files = (f"{DIRECTORY}/", ".index", errno.ENOSPC)
    files, offset = Files(), 0
    while partition.offline is None:
        place = claim_of(partition)
        assert place is not None
        assert place.offset <= max(files.end(storage, DIRECTORY, synced=False), 0)
        try:
            take(partition, place, row_at(place.offset, 400))
        except Damage as damage:
            partition.fail(str(damage))
        offset += 400
        assert offset < 8000, "an index of so many entries is saved"
    assert partition.log.offline is not None
