"""No follower claims records that its files do not have, regardless of which call fails, or that cannot be its
leader's. Without a free file descriptor, it fetches again later."""

from __future__ import annotations

import errno

import pytest

from kpybroker.config import LogSettings
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.metadata.image import PartitionImage
from kpybroker.replication.follower.follower_log import FetchPosition, position_of, take
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.sim.checks.claims import Files
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.files.file_pool import FilePool
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import HEADER_BYTES, Record, encode_batch, sealed, split
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


def records_at(*offsets: int, epoch: int = EPOCH) -> bytes:
    """Batches of one record each, and markers that end transactions."""
    found = bytearray()
    for number in offsets:
        made = encode_batch(
            [Record(0, 1000 + number, b"k", b"v" * 40)], producer_id=7, producer_epoch=0, base_sequence=0
        )
        if number % 4 == 3:
            made = encode_marker(Marker(7, 0, 0, commits=True), 1000 + number)
        batch = split(made)[0]
        batch.patch(number, epoch)
        found += batch.view
    return bytes(found)


def row_of(records: bytes, high_watermark: int) -> PartitionData:
    return PartitionData(partition_index=0, high_watermark=high_watermark, records=memoryview(bytearray(records)))


def row_at(offset: int, count: int) -> PartitionData:
    """The leader's response to a Fetch from `offset`."""
    return row_of(records_at(*range(offset, offset + count)), offset)


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


def backwards(offset: int, last_offset_delta: int) -> bytes:
    """A batch with a valid CRC that ends before the one record that it has."""
    (batch,) = split(records_at(offset))
    producer = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
    header = (
        batch.attributes,
        last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        *producer,
        batch.record_count,
    )
    return bytes(sealed(offset, EPOCH, header, batch.view[HEADER_BYTES:]))


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(records_at(3, epoch=EPOCH + 1), id="of a later leader epoch"),
        pytest.param(records_at(3) + records_at(4, epoch=EPOCH + 1), id="the last one of a later leader epoch"),
        pytest.param(records_at(1, 2), id="not fetched"),
        pytest.param(records_at(2, 3), id="the first one not fetched"),
        pytest.param(records_at(4, 3), id="out of order"),
        pytest.param(records_at(3, 3), id="the same offset twice"),
        pytest.param(backwards(3, -2), id="ends before it begins"),
        pytest.param(backwards(100, -51), id="ends before it begins, but after the position"),
        pytest.param(records_at(3, 4)[:-1] + b"?", id="wrong CRC"),
        pytest.param(records_at(3)[:-1], id="no complete batch"),
    ],
)
def test_a_follower_takes_all_records_of_a_response_or_none(records: bytes) -> None:
    """It takes none if any of them cannot be its leader's, which has only batches of its own and of earlier epochs."""
    partition = follower(VirtualWorld(Storage()), SETTINGS)
    assert take(partition, position_of(partition), row_of(records_at(0, 1, 2, epoch=EPOCH - 1), 0))
    place = position_of(partition)
    assert place == FetchPosition(EPOCH, 3, EPOCH - 1)
    with pytest.raises(KafkaError) as refused:
        take(partition, place, row_of(records, 3))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert position_of(partition) == place
    assert (partition.log.high_watermark, partition.log.offline) == (0, None)
    assert take(partition, place, row_at(3, 2))
    assert position_of(partition) == FetchPosition(EPOCH, 5, EPOCH)
