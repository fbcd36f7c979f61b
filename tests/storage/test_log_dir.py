"""A log directory contains the same files as with Kafka, after a clean shutdown and after a crash."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kpybroker.config import LogSettings, parse_config
from kpybroker.errors import Damage
from kpybroker.storage.dirs.directory import Directory
from kpybroker.storage.dirs.garbage import unlink
from kpybroker.storage.dirs.log_dir import LogDirectory
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.storage.log.log import Log
from tests.storage.workshop import SMALL, WORLD, everything, plain

CONFIG = parse_config()
IDS = {"a": b"a" * 16, "b": b"b" * 16, "a-b.c_d": b"c" * 16}


def opened(path: Path) -> LogDirectory:
    return LogDirectory(WORLD, str(path), CONFIG)


def filled(directory: LogDirectory, topic: str, count: int = 12, settings: LogSettings = SMALL) -> Log:
    log = directory.open_log(topic, IDS[topic], 0, settings)
    for number in range(count):
        log.append([plain(size=100 + number)], 0, 1000)
    log.flush()
    log.high_watermark = log.last_stable = log.end
    return log


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await scenario()

    asyncio.run(whole())


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_a_clean_shutdown_is_trusted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        directory = opened(tmp_path)
        assert not directory.clean
        logs = [filled(directory, topic) for topic in IDS]
        logs[0].advance_start(5)
        contents = [everything(log) for log in logs]
        directory.register(13)
        await directory.close()
        assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":13}'
        assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\na 0 5\n"
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            assert (tmp_path / name).read_text() == "0\n3\na 0 12\nb 0 12\na-b.c_d 0 12\n"

        again = opened(tmp_path)
        assert again.clean
        assert again.previous_epoch == 13
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        found = [again.open_log(topic, topic_id, 0, SMALL) for topic, topic_id in IDS.items()]
        assert [(log.start, log.high_watermark, log.end) for log in found] == [(5, 12, 12), (0, 12, 12), (0, 12, 12)]
        assert [everything(log) for log in found] == contents

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert caplog.records == []


def test_files_are_created_with_the_first_record(tmp_path: Path) -> None:
    log = opened(tmp_path).open_log("a", bytes.fromhex("f6ea83001e5146baa3b781e2f3d2b248"), 0, SMALL)
    assert names(tmp_path) == [], "a partition that never had a record has no files"
    log.append([plain()], 0, 1000)
    log.flush()
    expected = ["00000000000000000000.log", "partition.metadata"]
    assert names(tmp_path / "a-0") == expected, "index files are created with their first entry"
    assert (tmp_path / "a-0" / "partition.metadata").read_text() == "version: 0\ntopic_id: 9uqDAB5RRrqjt4Hi89KySA"


def test_deleted_records_stay_deleted_after_a_kill(tmp_path: Path) -> None:
    filled(opened(tmp_path), "a").advance_start(7)
    again = opened(tmp_path)
    assert not again.clean
    log = again.open_log("a", IDS["a"], 0, SMALL)
    assert (log.start, log.end) == (7, 12)


def test_a_checkpoint_moves_the_recovery_point_over_full_segments(tmp_path: Path) -> None:
    async def scenario() -> None:
        directory = opened(tmp_path)
        log = filled(directory, "a", 40)
        assert len(log.segments) > 2
        await directory.checkpoint()
        assert log.synced_end == 40
        rows = (tmp_path / "recovery-point-offset-checkpoint").read_text()
        assert rows == "0\n1\na 0 40\n"

    run(scenario)


def test_a_stop_before_anything_was_opened_does_not_vouch_for_a_crashed_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        filled(opened(tmp_path), "a")  # and the process is killed
        with max((tmp_path / "a-0").glob("*.log")).open("ab") as log:
            log.write(b"torn")
        hasty = opened(tmp_path)
        await hasty.close()
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        again = opened(tmp_path)
        assert again.open_log("a", IDS["a"], 0, SMALL).end == 12
        again.recovered()
        await again.close()
        assert (tmp_path / ".kafka_cleanshutdown").exists()

    run(scenario)


def test_a_stop_without_a_registration_keeps_the_saved_broker_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        directory = opened(tmp_path)
        filled(directory, "a")
        directory.register(13)
        await directory.close()
        await opened(tmp_path).close()
        again = opened(tmp_path)
        assert again.clean
        assert again.previous_epoch == 13

    run(scenario)


def test_a_damaged_partition_is_offline_and_the_rest_serves(tmp_path: Path) -> None:
    async def scenario() -> None:
        directory = opened(tmp_path)
        filled(directory, "a")
        filled(directory, "b")
        await directory.close()
        (tmp_path / "a-0" / "partition.metadata").write_text("version: 9\n" + "x" * 60)
        again = opened(tmp_path)
        with pytest.raises(Damage, match=r"a-0/partition\.metadata"):
            again.open_log("a", IDS["a"], 0, SMALL)
        assert again.open_log("b", IDS["b"], 0, SMALL).end == 12
        assert list(again.damaged) == [("a", 0)]
        await again.close()
        assert not (tmp_path / ".kafka_cleanshutdown").exists(), "if in doubt, the next start recovers the logs"
        assert "a 0 12" in (tmp_path / "recovery-point-offset-checkpoint").read_text()

    run(scenario)


def test_a_deleted_partition_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        directory = opened(tmp_path)
        log = filled(directory, "a")
        directory.delete_log(log)
        assert [name for name in names(tmp_path) if name.startswith("a-0")] != ["a-0"]
        again = directory.open_log("a", b"z" * 16, 0, SMALL)
        assert again.end == 0
        again.append([plain()], 0, 1000)
        unlink(WORLD.disk, directory.garbage.take())
        assert [name for name in names(tmp_path) if name.startswith("a-")] == ["a-0"]

    run(scenario)


def test_leftovers_of_a_deletion_are_removed_by_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        filled(opened(tmp_path), "a")
        (tmp_path / "a-0").rename(tmp_path / f"a-0.{'0' * 32}-delete")
        config = parse_config({"log.dirs": str(tmp_path)})
        log_dirs = LogDirectories(WORLD, config, [Directory(str(tmp_path), bytes(16), "c", 1, 0)], {})
        (directory,) = log_dirs.online
        assert directory.garbage.take() == [], "before the metadata is known"
        log_dirs.keep_only({})
        unlink(WORLD.disk, directory.garbage.take(0))
        assert not [name for name in names(tmp_path) if name.startswith("a-")]

    run(scenario)


def test_a_recreated_topic_does_not_inherit(tmp_path: Path) -> None:
    async def scenario() -> None:
        directory = opened(tmp_path)
        filled(directory, "a")
        await directory.close()
        log = opened(tmp_path).open_log("a", b"z" * 16, 0, SMALL)
        assert (log.end, log.files.topic_id) == (0, b"z" * 16)

    run(scenario)


@pytest.mark.parametrize("when", ["at once", "after a crash", "after two", "during a checkpoint"])
def test_checkpoints_of_a_deleted_topic_do_not_apply_to_a_new_one(tmp_path: Path, when: str) -> None:
    """Covers the log start offset, the recovery point and the high watermark."""

    async def scenario() -> None:
        directory = opened(tmp_path)
        log = filled(directory, "a", 40)
        await log.sync()
        log.advance_start(30)
        await directory.checkpoint()
        checkpoint = asyncio.ensure_future(directory.checkpoint()) if when == "during a checkpoint" else None
        await asyncio.sleep(0)
        directory.delete_log(log)
        if when.startswith("after"):
            directory = opened(tmp_path)
        if when == "after two":
            directory.open_log("b", IDS["b"], 0, SMALL)
            directory = opened(tmp_path)
        new = directory.open_log("a", b"n" * 16, 0, SMALL)
        for _ in range(35):
            new.append([plain()], 0, 1000)
        new.flush()
        wanted = everything(new)
        if checkpoint is not None:
            await checkpoint
        found = opened(tmp_path).open_log("a", b"n" * 16, 0, SMALL)
        assert (found.start, found.end, everything(found)) == (0, 35, wanted)
        assert found.synced_end <= new.synced_end
        assert found.high_watermark <= new.high_watermark

    run(scenario)


def test_partitions_that_the_metadata_does_not_place_here_are_set_aside(tmp_path: Path) -> None:
    """Covers partitions of a deleted topic and of a recreated topic, and a replica that was reassigned."""
    first = opened(tmp_path)
    for topic in IDS:
        filled(first, topic)
    first.open_log("a", IDS["a"], 1, SMALL).append([plain()], 0, 1000)
    first.logs["a", 1].flush()
    (tmp_path / "__cluster_metadata-0").mkdir()
    again = opened(tmp_path)
    strays = again.keep_only({("a", 0): IDS["a"], ("a-b.c_d", 0): bytes(16)})
    assert strays == {("a", 1), ("a-b.c_d", 0), ("b", 0)}
    kept = [name for name in names(tmp_path) if not name.endswith("checkpoint")]
    assert kept[:2] == ["__cluster_metadata-0", "a-0"]
    assert [name.partition(".")[0] for name in kept[2:]] == ["a-1", "a-b", "b-0"]
    assert all(name.endswith("-stray") for name in kept[2:])
    assert again.open_log("a", IDS["a"], 0, SMALL).end == 12
    assert again.open_log("a-b.c_d", bytes(16), 0, SMALL).end == 0


def test_a_partition_whose_id_was_never_written_is_kept(tmp_path: Path) -> None:
    filled(opened(tmp_path), "a")
    (tmp_path / "a-0" / "partition.metadata").write_bytes(b"")
    assert opened(tmp_path).keep_only({("a", 0): IDS["a"]}) == set()


def test_files_stay_within_the_limit(tmp_path: Path) -> None:
    directory = LogDirectory(WORLD, str(tmp_path), parse_config({"kpybroker.max.open.files": "16"}))
    logs = [directory.open_log("a", IDS["a"], number, SMALL) for number in range(60)]
    for _ in range(3):
        for log in logs:
            for _ in range(3):
                log.append([plain(size=90)], 0, 1000)
            log.flush()
            assert len(directory.pool) <= 16
    for log in logs:
        assert len(everything(log)) == log.size_bytes
        assert len(directory.pool) <= 16


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "replication-offset-checkpoint"])
def test_a_torn_checkpoint_means_recovery(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        directory = opened(tmp_path)
        filled(directory, "a")
        await directory.close()
        (tmp_path / name).write_text("0\n3\na 0 1")
        again = opened(tmp_path)
        assert not again.clean
        assert again.open_log("a", IDS["a"], 0, SMALL).end == 12

    run(scenario)
