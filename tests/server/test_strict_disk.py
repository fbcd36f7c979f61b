"""A whole broker works on a disk that refuses to rename or delete open files, as Windows does."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from kpybroker.storage.dirs.cleaner import Cleaner
from kpybroker.wire.records.batch import encode_batch, read_records, split
from kpybroker.wire.rpc import delete_topics
from tests.asking import get, make, put
from tests.serving import dialled, serving
from tests.storage.strict_disk import StrictWorld

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "internal.segment.bytes": "1000"}
RETAINED = {"retention.bytes": "2000", "internal.segment.bytes": "1000"}
DELETED_AT_ONCE = {"file.delete.delay.ms": "0"}
NOT_ALONE = {"log.cleaner.enable": "false", "log.retention.check.interval.ms": "3600000"}


def keyed(number: int, now_ms: int) -> bytes:
    return bytes(encode_batch([(b"k%d" % (number % 3), b"%d" % number * 30)], timestamp_ms=now_ms))


async def values(peer: Peer, topic: str, offset: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while True:
        row = await get(peer, topic, offset)
        assert row.error_code == 0
        if not row.records:
            return found
        batches = split(bytes(row.records))
        found += [record.value or b"" for batch in batches for record in read_records(batch)]
        offset = batches[-1].next_offset


def files(directory: Path, topic: str) -> list[str]:
    return sorted(path.name for path in (directory / f"{topic}-0").iterdir())


async def work(node: Node, peer: Peer, directory: Path) -> None:
    """Append until segments roll, read them, and have them compacted and deleted while they are open."""
    broker = node.broker
    now_ms = broker.world.wall_ms()
    for topic in ("compacted", "retained"):
        for number in range(60):
            assert (await put(peer, topic, records=keyed(number, now_ms))).error_code == 0
        assert len(await values(peer, topic)) == 60
    assert len([name for name in files(directory, "compacted") if name.endswith(".log")]) > 5
    cleaner = Cleaner(broker.world, broker.storage.log_dirs, lambda: broker.config)
    while await cleaner.clean_dirtiest():
        pass
    assert len(await values(peer, "compacted")) < 40
    log = broker.replication.hosting.leads("retained", 0).log
    reader = log.segments.first.hold()  # a thread reads it during the deletion
    log.apply_retention(now_ms)
    assert broker.world.disk.pread(reader, 1, 0)
    assert log.start > 0
    await broker.storage.log_dirs.checkpoint()


def test_segments_are_compacted_and_deleted_and_topics_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, NOT_ALONE, world=StrictWorld(7)) as node, dialled(node) as peer:
            await make(peer, "compacted", configs=COMPACTED | DELETED_AT_ONCE)
            await make(peer, "retained", configs=RETAINED)
            await make(peer, "gone", configs=DELETED_AT_ONCE)
            await put(peer, "gone", b"1")
            await work(node, peer, tmp_path)
            held = node.broker.replication.hosting.leads("gone", 0).log.segments.active
            held.hold()  # a thread reads it while its directory is renamed
            topics = [delete_topics.DeleteTopicState(name="gone")]
            told = await peer.ask("DeleteTopics", delete_topics.Request(topics=topics, timeout_ms=5000))
            assert told.responses[0].error_code == 0
            held.let_go()
            kept = {topic: await values(peer, topic, start(node, topic)) for topic in ("compacted", "retained")}
        async with serving(tmp_path, NOT_ALONE, world=StrictWorld(7)) as node, dialled(node) as peer:
            assert {topic: await values(peer, topic, start(node, topic)) for topic in kept} == kept
            assert not list(tmp_path.glob("gone-0*"))
            await make(peer, "gone")
            assert await values(peer, "gone") == []

    asyncio.run(asyncio.wait_for(scenario(), 60))


def start(node: Node, topic: str) -> int:
    return node.broker.replication.hosting.leads(topic, 0).log.start
