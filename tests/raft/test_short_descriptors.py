"""A voter without a free file descriptor loses one request or one election, but stays in the quorum."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kpybroker.errors import ConfigError, KafkaError
from kpybroker.raft.core import state as raft
from kpybroker.raft.core.state import Role, Tail
from kpybroker.raft.log.quorum_state import read_quorum_state
from kpybroker.raft.quorum import Quorum
from kpybroker.storage.dirs.directory import Format
from kpybroker.wire.records.batch import encode_batch, split
from kpybroker.wire.stored.metadata import TopicRecord, frame_record
from kpybroker.world.real import RealDisk
from tests.raft.test_quorum import Node

VOTERS = {
    "process.roles": "controller",
    "listeners": "CONTROLLER://127.0.0.1:1",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3",
}
ELECTION_MAX = 40
"""A number above the number of files that an election opens."""


class ShortDisk(RealDisk):
    """A disk on which the calls with the given numbers fail because there is no free file descriptor."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.failing = range(0)

    def fail(self, numbers: range) -> None:
        self.count, self.failing = 0, numbers

    def _next(self) -> bool:
        self.count += 1
        return self.count - 1 in self.failing

    def open(self, path: str, *, create: bool = False) -> int:
        if self._next():
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open(path, create=create)

    def sync_directory_blocking(self, path: str) -> None:
        if self._next():
            raise OSError(errno.EMFILE, "Too many open files", path)
        super().sync_directory_blocking(path)

    def has_handles(self, count: int) -> bool:
        return not self._next() and super().has_handles(count)


def voter(path: Path) -> Node:
    node = Node(path, VOTERS)
    node.wanted = Format({"metadata.version": 30}, None)
    node.disk = ShortDisk
    return node


def disk_of(node: Node) -> ShortDisk:
    disk = node.world.disk
    assert isinstance(disk, ShortDisk)
    return disk


def events(quorum: Quorum) -> list[raft.Event]:
    """Events that make a node without a leader write its vote or epoch."""
    epoch = quorum.epoch
    return [
        raft.VoteAsked(2, epoch + 1, Tail(epoch, 100), False),
        raft.VoteAsked(3, epoch + 7, Tail(epoch, 100), True),
        raft.BeginAsked(2, epoch + 1),
        raft.EndAsked(3, epoch + 2, (1,)),
        raft.LeaderTold(epoch + 1, 3),
        raft.VoteTold(2, epoch + 3, 2, False, True),
    ]


@pytest.mark.parametrize("number", range(6))
def test_an_event_whose_state_cannot_be_written_changes_nothing(tmp_path: Path, number: int) -> None:
    node, damage = voter(tmp_path / "data"), list[str]()

    async def play(quorum: Quorum) -> None:
        quorum.on_damage(damage.append)
        event = events(quorum)[number]
        at, done = 0, False
        while not done:
            before = quorum.state
            disk_of(node).fail(range(at, at + 1))
            try:
                quorum.driver.step(event)
                done = True
            except KafkaError:
                assert quorum.state == before
            at += 1
        disk_of(node).fail(range(0))
        assert at > 1, "there was something to write"
        assert read_quorum_state(node.world, quorum.driver.path)[0] == quorum.state.voted

    node(play)
    assert damage == []


def stands_and_wins(quorum: Quorum) -> list[Callable[[], raft.Event]]:
    """The events by which a node wins an election, in order."""
    return [
        lambda: raft.VoteTold(2, quorum.epoch, raft.NOBODY, True, True),
        lambda: raft.VoteTold(2, quorum.epoch, raft.NOBODY, True, False),
    ]


def elect(quorum: Quorum) -> None:
    """Hold a whole election. A lack of file descriptors may end it at any event."""
    quorum.driver.begin(quorum.state._replace(role=Role.UNATTACHED, deadline_ms=0, synced=None))
    for event in [raft.TimerTick, *stands_and_wins(quorum)]:
        try:
            quorum.driver.step(event())
        except KafkaError:
            return


@pytest.mark.parametrize("length", [1, 5])
def test_an_election_without_descriptors_is_lost_and_the_next_one_is_won(tmp_path: Path, length: int) -> None:
    node, damage = voter(tmp_path / "data"), list[str]()
    lost = 0

    async def play(quorum: Quorum) -> None:
        nonlocal lost
        quorum.on_damage(damage.append)
        for at in range(ELECTION_MAX):
            disk_of(node).fail(range(at, at + length))
            elect(quorum)
            opened = disk_of(node).count
            lost += not quorum.is_leader
            disk_of(node).fail(range(0))
            if not quorum.is_leader:
                elect(quorum)
            assert quorum.is_leader
            assert read_quorum_state(node.world, quorum.driver.path)[0] == quorum.state.voted
            if opened <= at:
                return
        pytest.fail("every election ran out of file descriptors")

    node(play)
    assert damage == []
    assert lost > 2


def test_a_sole_voter_without_descriptors_reports_the_remedy(tmp_path: Path) -> None:
    node = Node(tmp_path / "data")
    node.image()

    class Short(ShortDisk):
        def sync_directory_blocking(self, path: str) -> None:
            raise OSError(errno.EMFILE, "Too many open files", path)

    node.disk = Short
    with pytest.raises(ConfigError, match="acknowledged records are kept"):
        node.image()
    node.disk = RealDisk
    node.image()


def test_a_log_that_cannot_be_read_back_now_is_read_back_later(tmp_path: Path) -> None:
    """Tests records from before the start, which a leader then reports as committed."""
    node = voter(tmp_path / "data")
    row = (None, frame_record(TopicRecord(name="a", topic_id=b"a" * 16)))
    damage: list[str] = []

    async def fill(quorum: Quorum) -> None:
        quorum.driver.metadata.append_fetched(split(encode_batch([row], timestamp_ms=1, leader_epoch=1)))

    async def play(quorum: Quorum) -> None:
        quorum.on_damage(damage.append)
        end = quorum.log.end
        quorum.driver.step(raft.BeginAsked(2, quorum.epoch + 1))
        quorum.log.segments.active.drop_files()
        disk_of(node).fail(range(3))
        quorum.driver.step(raft.Followed(2, quorum.epoch, end))
        while quorum.driver.metadata.is_reading:
            await asyncio.sleep(0)
        assert set(quorum.image.topics) == {"a"}

    node(fill)
    node(play)
    assert damage == []
