"""PartitionLog: a coordinator replays the records that it wrote, also after a restart."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import Stored
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.state_log import LOGGED_LIMIT, RECORDS_A_TURN, WRITE_LIMIT_BYTES, PartitionLog
from kpybroker.wire.records.batch import encode_batch, split, with_body
from kpybroker.wire.records.compression import Codec
from kpybroker.world.real import RealWorld
from tests.replication.leading import NODE, NOW_MS, leading

WORLD = RealWorld(3)
RECORDS = st.tuples(st.binary(max_size=20) | st.none(), st.binary(max_size=20) | st.none(), st.integers(0, 10**6))


async def replayed(partition: Partition) -> list[tuple[int, bytes | None, bytes | None, int]]:
    log = PartitionLog(partition, WORLD)
    return [(one.offset, one.key, one.value, one.timestamp_ms) async for run in log.replay() for one in run]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(writes=st.lists(st.lists(RECORDS, min_size=1, max_size=5), max_size=8), data=st.data())
def test_replay_gives_what_was_appended(
    writes: list[list[tuple[bytes | None, bytes | None, int]]],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("log")
    partition = leading(WORLD, directory)
    log = PartitionLog(partition, WORLD)
    told: list[int] = []
    log.on_committed(lambda: told.append(log.committed))
    wanted = []
    for records in writes:
        first = log.end
        end = log.append([Stored(key, value, NOW_MS + later) for key, value, later in records])
        assert end == log.end == log.committed == first + len(records), "committed when append returns"
        wanted += [(first + n, key, value, NOW_MS + later) for n, (key, value, later) in enumerate(records)]
        if data.draw(st.booleans()):
            marker = split(encode_batch([(b"\0\0\0\1", b"")], timestamp_ms=NOW_MS, control=True, transactional=True))
            partition.append(marker, NOW_MS, client=False)
            partition.flush()
    assert told == sorted(told)
    assert asyncio.run(replayed(partition)) == wanted, "without the control batches"
    partition.log.drop_files()
    assert asyncio.run(replayed(leading(WORLD, directory, epoch=1))) == wanted


@pytest.mark.parametrize("together", [1, 3, 10 * RECORDS_A_TURN])
def test_a_replay_yields_to_the_loop(tmp_path: Path, together: int) -> None:
    partition = leading(WORLD, tmp_path)
    log = PartitionLog(partition, WORLD)
    count = 0
    while count < 20 * RECORDS_A_TURN:
        log.append([Stored(b"k%d" % n, b"v", NOW_MS) for n in range(count, count + together)])
        count += together
    told = [0]

    async def tell() -> None:
        async for run in log.replay():
            told[-1] += len(run)

    async def watch() -> None:
        telling = asyncio.ensure_future(tell())
        while not telling.done():
            told.append(0)
            await asyncio.sleep(0)

    asyncio.run(watch())
    assert sum(told) == count
    assert max(told) <= RECORDS_A_TURN


@pytest.mark.parametrize("codec", Codec)
def test_a_compressed_batch_is_decompressed_off_the_loop(tmp_path: Path, codec: Codec) -> None:
    """Clients and other brokers may write such batches. A few bytes may decompress to a hundred megabytes."""
    partition = leading(WORLD, tmp_path)
    rows = [(b"k", bytes(1 << 20)), (b"l", b"v")]
    for _ in range(3):
        partition.append(split(encode_batch(rows, timestamp_ms=NOW_MS, codec=codec)), NOW_MS, client=False)
        partition.flush()
    on_loop: list[str] = []

    def note(_frame: FrameType, event: str, argument: Any) -> None:
        names = ("read", "decompress", "decompress_into", "decompress_raw")
        # a compiled method is a C function, too; Log.read reads only from the page cache
        if event == "c_call" and argument.__name__ in names and argument.__qualname__ != "Log.read":
            on_loop.append(argument.__name__)

    async def told() -> list[tuple[int, bytes | None, bytes | None, int]]:
        sys.setprofile(note)
        try:
            return await replayed(partition)
        finally:
            sys.setprofile(None)

    assert asyncio.run(told()) == [(2 * n + at, *rows[at], NOW_MS) for n in range(3) for at in range(2)]
    assert on_loop == []


def test_unreadable_batches_are_skipped_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Their CRC is correct, so they were written in this form. The other batches are still replayed."""
    partition = leading(WORLD, tmp_path)
    log = PartitionLog(partition, WORLD)
    for number in range(LOGGED_LIMIT + 2):
        log.append([Stored(b"k", b"%d" % number, NOW_MS)])
        good = split(encode_batch([(b"k", b"v")], timestamp_ms=NOW_MS))[0]
        partition.append([with_body(good, number % 5, b"no records", NOW_MS)], NOW_MS, client=False)
        partition.flush()
    found = asyncio.run(replayed(partition))
    assert [value for _, _, value, _ in found] == [b"%d" % number for number in range(LOGGED_LIMIT + 2)]
    told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(told) == LOGGED_LIMIT
    assert "t-0: the batch at offset 1 " in told[0]


def test_deleted_records_are_not_replayed(tmp_path: Path) -> None:
    partition = leading(WORLD, tmp_path)
    log = PartitionLog(partition, WORLD)
    log.append([Stored(b"k", b"%d" % n, NOW_MS) for n in range(5)])
    partition.log.advance_start(3)
    assert [offset for offset, *_ in asyncio.run(replayed(partition))] == [3, 4]


def test_a_batch_that_a_follower_could_not_fetch_is_refused(tmp_path: Path) -> None:
    log = PartitionLog(leading(WORLD, tmp_path), WORLD)
    some = [Stored(b"k", bytes(WRITE_LIMIT_BYTES // 4), NOW_MS) for _ in range(4)]
    with pytest.raises(KafkaError) as refused:
        log.append(some)
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert log.end == 0

    async def play() -> None:  # so many bytes are written on a thread, which then calls back on the event loop
        assert log.append(some[1:]) == 3

    asyncio.run(play())


def test_only_a_leader_writes(tmp_path: Path) -> None:
    partition = leading(WORLD, tmp_path)
    log = PartitionLog(partition, WORLD)
    partition.leader_id = NODE + 1
    with pytest.raises(KafkaError) as refused:
        log.append([Stored(b"k", b"v", NOW_MS)])
    assert refused.value.code == ErrorCode.NOT_COORDINATOR
    assert partition.log.end == 0


def test_no_turn_of_the_loop_reads_more_than_its_share_of_a_batch(tmp_path: Path) -> None:
    """A batch is yielded as a whole, but other tasks run while it is read."""
    log = PartitionLog(leading(WORLD, tmp_path), WORLD)
    count = 100 * RECORDS_A_TURN
    log.append([Stored(b"k%d" % n, b"v", NOW_MS) for n in range(count)])

    async def turns_before_the_first_run() -> int:
        turns, replay = 0, log.replay()
        first = asyncio.ensure_future(anext(replay))
        while not first.done():
            turns += 1
            await asyncio.sleep(0)
        await replay.aclose()
        return turns

    assert asyncio.run(turns_before_the_first_run()) >= count // RECORDS_A_TURN
