"""PartitionLog: what a coordinator wrote is what it replays, here and after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine import Stored
from kpybroker.replication.partition import Partition
from kpybroker.replication.state_log import RECORDS_A_TURN, WRITE_LIMIT_BYTES, PartitionLog
from kpybroker.wire.batch import encode_batch, split
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
def test_others_have_turns_while_a_log_is_replayed(tmp_path: Path, together: int) -> None:
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


def test_what_was_deleted_is_not_replayed(tmp_path: Path) -> None:
    partition = leading(WORLD, tmp_path)
    log = PartitionLog(partition, WORLD)
    log.append([Stored(b"k", b"%d" % n, NOW_MS) for n in range(5)])
    partition.log.advance_start(3)
    assert [offset for offset, *_ in asyncio.run(replayed(partition))] == [3, 4]


def test_what_a_follower_could_not_fetch_is_refused(tmp_path: Path) -> None:
    log = PartitionLog(leading(WORLD, tmp_path), WORLD)
    some = [Stored(b"k", bytes(WRITE_LIMIT_BYTES // 4), NOW_MS) for _ in range(4)]
    with pytest.raises(KafkaError) as refused:
        log.append(some)
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert log.end == 0

    async def play() -> None:  # threads write so much, and tell the loop
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
