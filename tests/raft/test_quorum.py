"""The metadata log of a sole voter: committed records survive any crash, and a restart gives the same Image."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from kpybroker.config import parse_config
from kpybroker.errors import ConfigError, Damage, ErrorCode, KafkaError
from kpybroker.machine.contract import Stored
from kpybroker.metadata.image import Image
from kpybroker.raft.core.divergence import Diverges
from kpybroker.raft.core.state import Tail
from kpybroker.raft.log.metadata_log import BATCH_LIMIT_BYTES, PIECE_BYTES
from kpybroker.raft.log.snapshots import Snapshot
from kpybroker.raft.quorum import Quorum
from kpybroker.storage.dirs.directory import METADATA_DIRECTORY, Format, open_directories
from kpybroker.wire.records.batch import encode_batch, read_records, split
from kpybroker.wire.records.snapshot import KRAFT_VERSION, KRAFT_VOTERS, LEADER_CHANGE, decode_snapshot, read_control
from kpybroker.wire.stored import metadata
from kpybroker.world import Buffer
from kpybroker.world.real import RealDisk, RealWorld

SMALL_SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "500", "metadata.max.retention.bytes": "3000"}


class FullDisk(RealDisk):
    """A disk that can be read but not written to."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


class Node:
    """A directory, and the quorum on it during a run."""

    def __init__(self, root: Path, settings: dict[str, str] | None = None) -> None:
        self.root = root
        self.path = root / METADATA_DIRECTORY
        self.config = parse_config({"log.dirs": str(root), "node.id": "1", **(settings or {})})
        self.disk = RealDisk
        self.world: RealWorld
        """The World of the current run."""
        self.wanted = Format({"metadata.version": 30}, ("CONTROLLER", "127.0.0.1", 9093))

    async def run(self, play: Callable[[Quorum], Awaitable[None]]) -> None:
        world = self.world = RealWorld(seed=1)
        world.disk = self.disk()
        directory = open_directories(world, [str(self.root)], 1, self.wanted)[0]
        quorum = Quorum(world, self.config, directory)
        try:
            await quorum.start()
            await play(quorum)
            await quorum.close()
        finally:
            world.disk.close(directory.lock)
            world.close()

    def __call__(self, play: Callable[[Quorum], Awaitable[None]]) -> None:
        asyncio.run(self.run(play))

    def image(self) -> Image:
        """The Image after a restart."""
        shown: list[Image] = []

        async def look(quorum: Quorum) -> None:
            shown.append(quorum.image)

        self(look)
        return shown[0]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "data")


def topic(name: str, partitions: int = 1) -> list[Stored]:
    topic_id = name.encode().rjust(16, b"\x01")
    rows: list[metadata.TopicRecord | metadata.PartitionRecord] = [metadata.TopicRecord(name=name, topic_id=topic_id)]
    rows += [
        metadata.PartitionRecord(topic_id=topic_id, partition_id=index, replicas=[1], isr=[1], leader=1)
        for index in range(partitions)
    ]
    return [Stored(None, None, message=row) for row in rows]


def batches_of(path: Path) -> list[list[str]]:
    """The names of the records in each batch of a log file."""
    found = []
    for batch in split(path.read_bytes()):
        if batch.is_control:
            kinds = {LEADER_CHANGE: "leader", KRAFT_VERSION: "kraft", KRAFT_VOTERS: "voters"}
            found.append([kinds[read_control(record)[0]] for record in read_records(batch)])
        else:
            messages = [metadata.unframe_record(record.value or b"") for record in read_records(batch)]
            found.append([type(message).__name__.removesuffix("Record") for message in messages])
    return found


def test_a_new_log_has_the_first_records_of_kafka(node: Node) -> None:
    async def play(quorum: Quorum) -> None:
        assert quorum.committed == quorum.end == 6
        assert quorum.epoch == 1
        assert dict(quorum.image.features) == {"metadata.version": 30}

    node(play)
    assert batches_of(node.path / "00000000000000000000.log") == [
        ["leader", "kraft", "voters"],
        ["BeginTransaction", "FeatureLevel", "EndTransaction"],
    ]
    assert json.loads((node.path / "quorum-state").read_text()) == {
        "leaderId": 1,
        "leaderEpoch": 1,
        "votedId": -1,
        "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA",
        "data_version": 1,
    }
    assert (node.path / "partition.metadata").read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"


def test_static_voters_are_not_in_the_log(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", {"controller.quorum.voters": "1@127.0.0.1:9093"})
    node.wanted = Format({"metadata.version": 30}, None)

    async def play(quorum: Quorum) -> None:
        assert quorum.committed == quorum.end == 4

    node(play)
    assert batches_of(node.path / "00000000000000000000.log")[0] == ["leader"]
    assert json.loads((node.path / "quorum-state").read_text())["data_version"] == 0
    node.image()
    assert json.loads((node.path / "quorum-state").read_text())["leaderEpoch"] == 2


def test_records_commit_after_the_sync_and_images_come_before_answers(node: Node) -> None:
    async def play(quorum: Quorum) -> None:
        told: list[tuple[str, int, int]] = []
        quorum.on_image(lambda old, new: told.append(("image", old.offset + 1, new.offset + 1)))
        quorum.on_committed(lambda: told.append(("committed", quorum.committed, quorum.log.synced_end)))
        before = quorum.committed
        ends = [quorum.append(topic(name)) for name in ("a", "b", "c")]
        assert ends == [before + 2, before + 4, before + 6]
        assert quorum.committed == before
        assert "a" not in quorum.image.topics
        await quorum.settle()
        assert quorum.committed == ends[-1]
        assert list(quorum.image.topics) == ["a", "b", "c"]
        assert told[0][0] == "image"
        assert all(committed <= synced for kind, committed, synced in told if kind == "committed")
        published = [(old, new) for kind, old, new in told if kind == "image"]
        assert published[0][0] == before
        assert published[-1][1] == ends[-1]
        assert len(published) < 3, "one sync covers all records that wait for the disk"

    node(play)


def test_a_restart_shows_the_same_image_in_a_new_epoch(node: Node) -> None:
    async def play(quorum: Quorum) -> None:
        quorum.append(topic("a", 3))
        quorum.append([Stored(None, None, message=metadata.RemoveTopicRecord(topic_id=b"a".rjust(16, b"\x01")))])
        quorum.append(topic("b", 2))

    node(play)

    async def again(quorum: Quorum) -> None:
        assert quorum.epoch == 2
        assert list(quorum.image.topics) == ["b"]
        replayed = [record.message async for records in quorum.replay() for record in records]
        assert Image().apply(replayed, quorum.image.offset, 2) == quorum.image

    node(again)
    assert batches_of(node.path / "00000000000000000000.log")[-1] == ["leader"]


@pytest.mark.parametrize("seed", range(6))
def test_committed_records_survive_a_crash_and_a_batch_is_complete_or_gone(tmp_path: Path, seed: int) -> None:
    """A crash keeps all synced bytes, and any number of the bytes that were written but not synced."""
    chance = Random(seed)
    node = Node(tmp_path / "data", SMALL_SNAPSHOTS if seed % 2 else None)
    after = Node(tmp_path / "after", SMALL_SNAPSHOTS if seed % 2 else None)
    names = [f"t{number}" for number in range(12)]
    committed: list[str] = []

    async def play(quorum: Quorum) -> None:
        for name in names[:6]:
            quorum.append(topic(name, chance.randrange(1, 4)))
            if chance.random() < 0.5:
                await quorum.settle()
        await quorum.settle()
        synced = quorum.log.size_bytes
        committed.extend(quorum.image.topics)
        for name in names[6:]:
            quorum.append(topic(name, chance.randrange(1, 4)))
        shutil.copytree(node.root, after.root)
        torn = after.path / f"{quorum.log.segments.active.base_offset:020d}.log"
        keep = torn.stat().st_size - chance.randrange(0, quorum.log.size_bytes - synced + 1)
        with torn.open("r+b") as file:
            file.truncate(keep)

    node(play)
    image = after.image()
    assert committed == names[:6]
    found = list(image.topics)
    assert found == names[: len(found)]
    assert len(found) >= 6
    assert after.image() == image


def test_a_snapshot_is_written_and_the_log_before_it_deleted(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", SMALL_SNAPSHOTS)

    async def play(quorum: Quorum) -> None:
        for number in range(30):
            quorum.append(topic(f"t{number}"))
            await quorum.settle()
            while quorum.is_writing_snapshot:
                await asyncio.sleep(0)
        quorum.append([Stored(None, None, message=metadata.RemoveTopicRecord(topic_id=b"t7".rjust(16, b"\x01")))])

    node(play)
    names = sorted(path.name for path in node.path.glob("*.checkpoint"))
    assert names[0] != "00000000000000000000-0000000000.checkpoint", "the first snapshot is no longer needed"
    assert not list(node.path.glob("*.part"))
    assert not list(node.path.glob("*.deleted"))
    assert min(int(path.stem) for path in node.path.glob("*.log")) == int(names[0][:20]), (
        "the log before it was deleted too"
    )
    assert 1 < len(names) < 4
    records, control = decode_snapshot((node.path / names[-1]).read_bytes(), names[-1])
    end, epoch = int(names[-1][:20]), int(names[-1][21:31])
    assert [kind for kind, _ in control][1:3] == [KRAFT_VERSION, KRAFT_VOTERS]
    snapshot = Image().apply(records, end - 1, epoch)
    image = node.image()
    assert set(image.topics) == {f"t{number}" for number in range(30)} - {"t7"}
    assert set(snapshot.topics) > set(image.topics) - {"t28", "t29"}
    (node.path / names[-1]).write_bytes((node.path / names[-1]).read_bytes()[:-9])
    assert node.image() == image, "instead of an unreadable snapshot, the one before it is used"


def test_a_snapshot_without_its_log_is_enough(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", SMALL_SNAPSHOTS)

    async def play(quorum: Quorum) -> None:
        for number in range(12):
            quorum.append(topic(f"t{number}"))
            await quorum.settle()

    node(play)
    newest = max(path.name for path in node.path.glob("*.checkpoint"))
    for path in [*node.path.glob("*.log"), *node.path.glob("*index"), node.path / "leader-epoch-checkpoint"]:
        path.unlink()
    records, _ = decode_snapshot((node.path / newest).read_bytes(), newest)
    assert node.image() == Image().apply(records, 0, 0)
    assert node.image().offset > int(newest[:20])


def test_a_batch_has_a_limit(node: Node) -> None:
    async def play(quorum: Quorum) -> None:
        end = quorum.end
        rows = [
            metadata.ConfigRecord(resource_type=4, resource_name="", name=str(number), value="v" * 32000)
            for number in range(BATCH_LIMIT_BYTES // 32000 + 1)
        ]
        with pytest.raises(KafkaError) as refusal:
            quorum.append([Stored(None, None, message=row) for row in rows])
        assert refusal.value.code is ErrorCode.POLICY_VIOLATION
        with pytest.raises(KafkaError, match=r"INVALID_REQUEST: TopicRecord v0\.name"):
            quorum.append(topic("n" * 40000))
        assert quorum.end == end
        assert quorum.append(topic("a")) == end + 2

    node(play)


def test_a_transaction_uses_as_many_batches_as_it_needs(node: Node) -> None:
    names = [str(number) for number in range(BATCH_LIMIT_BYTES // 32000 + 1)]
    configs = [metadata.ConfigRecord(resource_type=4, resource_name="", name=name, value="v" * 32000) for name in names]

    async def play(quorum: Quorum) -> None:
        before = quorum.end
        rows = [metadata.BeginTransactionRecord(name="large"), *configs, metadata.EndTransactionRecord()]
        assert quorum.append([Stored(None, None, message=row) for row in rows]) == before + len(rows)

    node(play)
    of_the_transaction = [each for each in batches_of(node.path / "00000000000000000000.log") if "Config" in each]
    assert len(of_the_transaction) >= BATCH_LIMIT_BYTES // PIECE_BYTES
    image = node.image()
    assert not image.in_transaction
    assert sorted(image.config(4, "")) == sorted(names)


def test_an_unfinished_transaction_of_a_dead_leader_is_aborted(node: Node) -> None:
    async def play(quorum: Quorum) -> None:
        quorum.append([Stored(None, None, message=metadata.BeginTransactionRecord(name="big"))])
        quorum.append(topic("half"))

    node(play)
    assert "half" not in node.image().topics
    assert ["AbortTransaction"] in batches_of(node.path / "00000000000000000000.log")

    async def more(quorum: Quorum) -> None:
        assert not quorum.image.in_transaction
        quorum.append(topic("whole"))

    node(more)
    assert list(node.image().topics) == ["whole"]


def test_the_epoch_never_goes_back_even_without_quorum_state(node: Node) -> None:
    node.image()
    node.image()
    (node.path / "quorum-state").unlink()

    async def play(quorum: Quorum) -> None:
        assert quorum.epoch == 3

    node(play)


def test_an_epoch_without_a_batch_in_the_log_is_ignored(node: Node) -> None:
    """After a power loss, leader-epoch-checkpoint may be newer than the log."""
    node.image()
    (node.path / "leader-epoch-checkpoint").write_text("0\n2\n1 0\n9 4\n")

    async def play(quorum: Quorum) -> None:
        assert quorum.epoch == 2
        assert [epoch for epoch, _ in quorum.log.epochs.entries] == [1, 2]

    node(play)


def test_a_failing_disk_stops_the_quorum(node: Node) -> None:
    async def play(quorum: Quorum) -> None:
        told: list[str] = []
        quorum.on_damage(told.append)
        quorum.log.fail(OSError(28, "No space left on device"))
        with pytest.raises(KafkaError, match="NOT_CONTROLLER"):
            quorum.append(topic("a"))
        with pytest.raises(Damage, match="No space left"):
            await quorum.settle()

    node(play)
    assert node.image().topics == {}


def test_a_start_on_a_full_disk_does_not_advise_to_start_over(node: Node) -> None:
    async def play(quorum: Quorum) -> None:
        quorum.append(topic("a"))

    node(play)
    node.disk = FullDisk
    with pytest.raises(ConfigError, match="No space left on device") as refusal:
        node.image()
    assert "acknowledged records are kept" in str(refusal.value)
    assert "begin anew" not in str(refusal.value)
    node.disk = RealDisk
    assert set(node.image().topics) == {"a"}


def rewrite(name: str, old: str, new: str) -> Callable[[Node], None]:
    def change(node: Node) -> None:
        path = node.root / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


def other_identity(node: Node) -> None:
    meta = node.root / "meta.properties"
    lines = [line for line in meta.read_text().splitlines() if not line.startswith("directory.id")]
    meta.write_text("\n".join([*lines, "directory.id=_SxAiFjWQ3qCp-YBk6xYKQ", ""]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rewrite(f"{METADATA_DIRECTORY}/quorum-state", "{", "["), ["quorum-state", "cannot be read", "restore"]),
        (
            rewrite(f"{METADATA_DIRECTORY}/quorum-state", '"data_version":1', '"data_version":7'),
            ["quorum-state", "data_version 7"],
        ),
        (lambda node: shutil.rmtree(node.path), ["neither a log", "nor the snapshot", "restore"]),
        (other_identity, ["1-_SxAiFjWQ3qCp-YBk6xYKQ", "no node could ever lead"]),
    ],
    ids=["garbled", "newer", "gone", "another voter"],
)
def test_a_log_that_cannot_be_used_is_refused_by_name(
    node: Node, change: Callable[[Node], None], words: list[str]
) -> None:
    node.image()
    change(node)
    with pytest.raises(ConfigError) as refusal:
        node.image()
    assert all(word in str(refusal.value) for word in [*words, str(node.path)]), refusal.value


def test_a_newer_metadata_version_is_refused(node: Node) -> None:
    async def play(quorum: Quorum) -> None:
        newer = metadata.FeatureLevelRecord(name="metadata.version", feature_level=31)
        quorum.append([Stored(None, None, message=newer)])

    node(play)
    with pytest.raises(
        ConfigError, match=r"metadata\.version 31, but this version of kpybroker supports versions up to 30"
    ):
        node.image()


def test_a_log_truncated_to_its_snapshot_has_the_epoch_of_the_snapshot(tmp_path: Path) -> None:
    """Otherwise, the leader would send the same snapshot again and again."""
    voters = "1@127.0.0.1:9093,2@127.0.0.1:9094,3@127.0.0.1:9095"
    listeners = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093"
    node = Node(tmp_path, {"controller.quorum.voters": voters, "listeners": listeners})
    node.wanted = Format({"metadata.version": 30}, None)
    row = (None, metadata.frame_record(metadata.TopicRecord(name="t", topic_id=b"t" * 16)))

    async def play(quorum: Quorum) -> None:
        log = quorum.driver.metadata
        log.install(Snapshot(33, 1, [], []))
        assert log.tail == Tail(1, 33)
        log.append_fetched(split(encode_batch([row], base_offset=33, timestamp_ms=1, leader_epoch=1)))
        assert log.tail == Tail(1, 34)
        log.truncate(Diverges(1, 33))
        assert log.tail == Tail(1, 33)

    node(play)
