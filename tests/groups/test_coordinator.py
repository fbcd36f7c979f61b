"""Tests that the coordinator finds, loads and drops machines, and that responses are sent when their records have
committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest

from kpybroker.config import parse_config
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.groups.coordinator import GroupCoordinator
from kpybroker.groups.ground.commands import CommitOffsets, FetchOffsets, ListGroups, PartitionCommit
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.offsets.committed import Committed
from kpybroker.groups.offsets.records import commit_record
from kpybroker.machine import coordinators
from kpybroker.machine.contract import Stored
from kpybroker.machine.coordinators import LOGGED_LIMIT
from kpybroker.wire.rpc import join_group
from kpybroker.world.expiry_clock import ExpiryClock
from tests.groups.stage import join

TIMEOUT_MS = 1_000
PARTITIONS = 3
GROUP_OF = {0: "c", 1: "a", 2: "b"}
"""A group for each partition: the hash of one letter is its code."""


class MemoryLog:
    """A StateLog in memory that commits on request of the test, or at once."""

    def __init__(
        self,
        *,
        commits: bool = True,
        refuses: KafkaError | Damage | None = None,
        unreadable: bool = False,
        refuses_replays: int = 0,
    ) -> None:
        self.refuses_replays = refuses_replays
        self.records: list[Stored] = []
        self.commits = commits
        self.committed = 0
        self.refuses = refuses
        self.unreadable = unreadable
        self.may_load = asyncio.Event()
        self.may_load.set()
        self._callback: Callable[[], None] = lambda: None

    @property
    def end(self) -> int:
        return len(self.records)

    def append(self, records: Sequence[Stored]) -> int:
        if self.refuses is not None:
            raise self.refuses
        self.records += records
        if self.commits:
            self.committed = self.end
        return self.end

    def commit(self) -> None:
        self.committed = self.end
        self._callback()

    def on_committed(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    async def replay(self) -> AsyncIterator[list[Stored]]:
        await self.may_load.wait()
        if self.refuses_replays:
            self.refuses_replays -= 1
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "too many open files")
        if self.unreadable:
            raise Damage("a sector went bad")
        yield [Stored(record.key, record.value, record.timestamp_ms, record.offset) for record in self.records]


class CountedLog(MemoryLog):
    """Yields one record in each turn of the loop, and counts it in the last number in `told`."""

    def __init__(self, told: list[int]) -> None:
        super().__init__()
        self._told = told

    async def replay(self) -> AsyncIterator[list[Stored]]:
        for record in self.records:
            self._told[-1] += 1
            yield [record]
            await asyncio.sleep(0)


class Clock:
    """The part of a World that a coordinator uses."""

    network: Any = None
    disk: Any = None

    def __init__(self) -> None:
        self.random = Random(7)
        self.expiry = ExpiryClock(self.steady_ms)

    def wall_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def steady_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)


def coordinator() -> GroupCoordinator:
    return GroupCoordinator(Clock(), GroupSettings(), lambda: PARTITIONS)


def run(play: Callable[[GroupCoordinator], Awaitable[None]]) -> None:
    async def whole() -> None:
        groups = coordinator()
        await play(groups)
        groups.close()

    asyncio.run(asyncio.wait_for(whole(), 10))


def commit(group: str, offset: int = 1, topic_id: bytes = bytes(16)) -> CommitOffsets:
    return CommitOffsets(group, "", None, -1, -1, [("t", topic_id, [PartitionCommit(0, offset, -1, "")])], True)


def stored_commit(group: str, topic_id: bytes, topic: str = "t") -> Stored:
    record = commit_record(group, (topic, 0), Committed(1, -1, "", 0, -1, topic_id))
    record.timestamp_ms, record.offset = 0, 0
    return record


def refusal(groups: GroupCoordinator, group: str) -> ErrorCode | None:
    try:
        groups.runner(group)
    except KafkaError as refused:
        return refused.code
    return None


def test_groups_are_found_by_their_hash() -> None:
    groups = coordinator()
    assert {groups.partition_for(group): group for group in "abc"} == GROUP_OF


def test_a_group_needs_an_id_but_offsets_do_not() -> None:
    async def play(groups: GroupCoordinator) -> None:
        groups.become_leader(0, MemoryLog(), 0)
        await groups.loaded()
        assert refusal(groups, "") is ErrorCode.INVALID_GROUP_ID
        assert groups.runner("", may_be_empty=True)

    run(play)


def test_it_answers_only_while_it_leads_and_has_loaded() -> None:
    async def play(groups: GroupCoordinator) -> None:
        assert refusal(groups, "a") is ErrorCode.NOT_COORDINATOR
        log = MemoryLog()
        log.may_load.clear()
        groups.become_leader(1, log, 5)
        await asyncio.sleep(0)
        assert refusal(groups, "a") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert refusal(groups, "b") is ErrorCode.NOT_COORDINATOR
        with pytest.raises(KafkaError, match="LOAD_IN_PROGRESS"):
            await groups.list(ListGroups(), TIMEOUT_MS)
        log.may_load.set()
        await groups.loaded()
        assert refusal(groups, "a") is None
        groups.become_leader(1, MemoryLog(unreadable=True), 5)  # nothing new
        assert refusal(groups, "a") is None
        groups.resign(1)
        groups.resign(1)
        assert refusal(groups, "a") is ErrorCode.NOT_COORDINATOR

    run(play)


def test_damage_takes_one_partition_out() -> None:
    async def play(groups: GroupCoordinator) -> None:
        for partition, log in enumerate([MemoryLog(unreadable=True), MemoryLog()]):
            groups.become_leader(partition, log, 0)
        await groups.loaded()
        assert refusal(groups, GROUP_OF[0]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert refusal(groups, GROUP_OF[1]) is None
        assert await groups.list(ListGroups(), TIMEOUT_MS) == []

    run(play)


UNREADABLE = [
    (b"\x00\x01\x00\x05ab", b"\x00\x03"),
    (b"\x00\x02\x00\x02\xff\xfe", None),
    (b"\x00\x02\x00\x01a", b"\x00\x03\xff\xff\xff\xff\xff"),
    (b"\x00\x03\x00\x01a", b"\x00\x00\xff\xff\xff"),
    (commit_record("a", ("t", 0), None).key, b"\xff\xfejunk"),
]


@pytest.mark.parametrize(("key", "value"), UNREADABLE)
def test_an_unreadable_record_loses_only_itself(
    key: bytes, value: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The partition still has a coordinator, and the earlier state of the group remains."""

    async def play(groups: GroupCoordinator) -> None:
        log = MemoryLog()
        log.records += [stored_commit("a", bytes(16)), Stored(key, value, 0, 1), stored_commit("a", bytes(16), "u")]
        groups.become_leader(1, log, 0)
        await groups.loaded()
        assert refusal(groups, "a") is None
        (found,) = groups.led
        assert set(found.machine.offsets.of("a")) == {("t", 0), ("u", 0)}
        await groups.runner("a").ask(commit("a", 7), TIMEOUT_MS)
        assert found.machine.offsets.of("a")["t", 0].offset == 7

    run(play)
    (told,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "__consumer_offsets-1: skipped the unreadable record at offset 1," in told


def test_only_a_few_of_many_unreadable_records_are_named(caplog: pytest.LogCaptureFixture) -> None:
    async def play(groups: GroupCoordinator) -> None:
        log = MemoryLog()
        log.records += [Stored(b"\x00\x01\x00", b"", 0, offset) for offset in range(LOGGED_LIMIT + 5)]
        groups.become_leader(1, log, 0)
        await groups.loaded()
        assert refusal(groups, "a") is None

    run(play)
    told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(told) == LOGGED_LIMIT + 1
    assert f"{LOGGED_LIMIT + 5} unreadable records" in told[-1]


def test_a_log_that_cannot_be_read_now_is_replayed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, after a temporary shortage of descriptors, the partition must not be without a coordinator until the
    leader changes."""

    async def play(groups: GroupCoordinator) -> None:
        monkeypatch.setattr(coordinators, "AGAIN_S", 0.001)
        log = MemoryLog(refuses_replays=3)
        groups.become_leader(1, log, 0)
        await groups.loaded()
        assert refusal(groups, "a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        while refusal(groups, "a") is not None:
            await asyncio.sleep(0)
        assert log.refuses_replays == 0
        await groups.runner("a").ask(commit("a", 7), TIMEOUT_MS)

    run(play)


def test_a_bug_takes_its_partition_out_until_it_is_replayed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the bug occurs in every replay, the replays are repeated at growing intervals; the other partitions are
    served."""

    async def play(groups: GroupCoordinator) -> None:
        monkeypatch.setattr(coordinators, "AGAIN_S", 0.001)
        log = MemoryLog()
        groups.become_leader(1, log, 0)
        groups.become_leader(2, MemoryLog(), 0)
        await groups.loaded()
        await groups.runner("a").ask(commit("a", 7), TIMEOUT_MS)
        nonsense: Any = object()
        with pytest.raises(KeyError):
            groups.runner("a").tell(nonsense)
        assert refusal(groups, "a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert refusal(groups, GROUP_OF[2]) is None
        while refusal(groups, "a") is not None:
            await asyncio.sleep(0)
        [(_, [(_, committed)])] = await groups.runner("a").ask(FetchOffsets("a", None), TIMEOUT_MS)
        assert committed.offset == 7
        with pytest.raises(KeyError):
            groups.runner("a").tell(nonsense)
        [reign] = [each for partition, each in groups.led.items() if partition == 1]
        assert reign.again_s == 0.004
        groups.resign(1)
        assert reign.timer is not None
        assert reign.timer.cancelled()

    run(play)


def test_committed_offsets_are_there_for_the_next_leader() -> None:
    async def play(groups: GroupCoordinator) -> None:
        log = MemoryLog()
        groups.become_leader(1, log, 0)
        await groups.loaded()
        assert await groups.runner("a").ask(commit("a", 7), TIMEOUT_MS) == [ErrorCode.NONE]
        groups.become_leader(1, log, 1)
        await groups.loaded()
        [(topic, [(partition, committed)])] = await groups.runner("a").ask(FetchOffsets("a", None), TIMEOUT_MS)
        assert (topic, partition, committed.offset) == ("t", 0, 7)
        assert [each.group_id for each in await groups.list(ListGroups(), TIMEOUT_MS)] == ["a"]

    run(play)


def test_an_answer_and_those_who_read_it_wait_for_the_commit() -> None:
    async def play(groups: GroupCoordinator) -> None:
        log = MemoryLog(commits=False)
        groups.become_leader(1, log, 0)
        await groups.loaded()
        runner = groups.runner("a")
        written = asyncio.create_task(runner.ask(commit("a"), TIMEOUT_MS))
        read = asyncio.create_task(runner.ask(FetchOffsets("a", None), TIMEOUT_MS))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not written.done()
        assert not read.done()
        log.commit()
        assert await written == [ErrorCode.NONE]
        assert len(await read) == 1
        with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
            await runner.ask(commit("a", 2), 1)

    run(play)


def test_waiting_requests_are_told_that_another_broker_leads() -> None:
    async def play(groups: GroupCoordinator) -> None:
        groups.become_leader(1, MemoryLog(), 0)
        await groups.loaded()
        runner = groups.runner("a")
        first = await runner.ask(join(group="a", version=3), TIMEOUT_MS)
        assert isinstance(first, join_group.Response)
        assert (first.error_code, first.generation_id) == (0, 1)  # after the pause in which other members may join
        parked = asyncio.create_task(runner.ask(join(group="a", version=3), TIMEOUT_MS))
        await asyncio.sleep(0)
        groups.resign(1)
        with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
            await parked

    run(play)


@pytest.mark.parametrize(
    ("refuses", "code"),
    [
        (KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS), "COORDINATOR_NOT_AVAILABLE"),
        (KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), "NOT_COORDINATOR"),
        (KafkaError(ErrorCode.MESSAGE_TOO_LARGE), "UNKNOWN_SERVER_ERROR"),
        (KafkaError(ErrorCode.NOT_COORDINATOR), "NOT_COORDINATOR"),
        (Damage("disk full"), "COORDINATOR_NOT_AVAILABLE: disk full"),
    ],
)
def test_a_refusal_of_the_log_is_returned_and_the_step_is_undone(refuses: KafkaError | Damage, code: str) -> None:
    async def play(groups: GroupCoordinator) -> None:
        log = MemoryLog(refuses=refuses)
        groups.become_leader(1, log, 0)
        await groups.loaded()
        with pytest.raises(KafkaError, match=f"^{code}$"):
            await groups.runner("a").ask(commit("a"), TIMEOUT_MS)
        log.refuses = None
        assert await groups.runner("a").ask(FetchOffsets("a", None), TIMEOUT_MS) == []
        assert await groups.list(ListGroups(), TIMEOUT_MS) == []
        assert await groups.runner("a").ask(commit("a"), TIMEOUT_MS) == [ErrorCode.NONE]

    run(play)


def test_offsets_of_deleted_topics_are_deleted_even_if_a_partition_was_loading() -> None:
    async def play(groups: GroupCoordinator) -> None:
        loading, loaded = MemoryLog(), MemoryLog()
        kept = stored_commit("a", b"\x01" * 16)
        gone = stored_commit("a", b"\x02" * 16, "u")
        loading.append([kept, gone])
        loading.may_load.clear()
        groups.become_leader(2, loaded, 0)
        await groups.loaded()
        groups.become_leader(1, loading, 0)
        await asyncio.sleep(0)
        await groups.runner("b").ask(commit("b", topic_id=b"\x02" * 16), TIMEOUT_MS)
        groups.on_topics_deleted({"t": b"\x02" * 16, "u": b"\x02" * 16})
        loading.may_load.set()
        await groups.loaded()
        while len(loaded.records) < 2:
            await asyncio.sleep(0)
        assert loaded.records[-1].value is None
        [(topic, _)] = await groups.runner("a").ask(FetchOffsets("a", None), TIMEOUT_MS)
        assert topic == "t"  # recreated with another id since

    run(play)


def test_only_one_of_many_loading_partitions_runs_in_a_turn_of_the_loop() -> None:
    async def play(groups: GroupCoordinator) -> None:
        told = [0]
        for partition in range(PARTITIONS):
            log = CountedLog(told)
            log.append([stored_commit(GROUP_OF[partition], bytes(16), str(number)) for number in range(10)])
            groups.become_leader(partition, log, 0)
        groups.resign(1)
        loading = asyncio.ensure_future(groups.loaded())
        while not loading.done():
            told.append(0)
            await asyncio.sleep(0)
        assert sum(told) == 20
        assert max(told) == 1
        assert [refusal(groups, GROUP_OF[partition]) for partition in (0, 2)] == [None, None]

    run(play)


def test_settings_come_from_the_configuration() -> None:
    config = parse_config(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": "somewhere",
            "group.initial.rebalance.delay.ms": "11",
            "group.min.session.timeout.ms": "12",
            "group.max.session.timeout.ms": "13",
            "group.max.size": "14",
            "offset.metadata.max.bytes": "15",
            "offsets.retention.minutes": "16",
            "offsets.retention.check.interval.ms": "17",
            "message.max.bytes": "1000",
        }
    )
    settings = GroupSettings.of(config)
    assert settings == GroupSettings(11, 12, 13, 14, 15, 16 * 60_000, 17, 939)
