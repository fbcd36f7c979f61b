"""Tests AlterReplicaLogDirs over a socket, at every version. Moves are tested in tests/server/test_log_dirs.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kpybroker.errors import ErrorCode
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import alter_replica_log_dirs as rpc
from tests.asking import make
from tests.serving import dialled, serving

API = api_table.by_name["AlterReplicaLogDirs"]


def test_every_version_starts_a_move_or_refuses_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "file").write_text("no directory")
        paths = [str(tmp_path / name) for name in ("a", "b", "file")]
        async with serving(tmp_path, {"log.dirs": ",".join(paths)}) as node, dialled(node) as peer:
            await make(peer, "t", 2)

            async def ask(version: int, path: str, topic: str, index: int) -> int:
                named = rpc.AlterReplicaLogDirTopic(name=topic, partitions=[index])
                asked = rpc.Request(dirs=[rpc.AlterReplicaLogDir(path=path, topics=[named])])
                told = await peer.ask("AlterReplicaLogDirs", asked, version=version)
                code: int = told.results[0].partitions[0].error_code
                return code

            for version in range(API.min, API.max + 1):
                assert await ask(version, "/nosuch", "t", 0) == ErrorCode.LOG_DIR_NOT_FOUND
                assert await ask(version, paths[2], "t", 0) == ErrorCode.KAFKA_STORAGE_ERROR
                assert await ask(version, paths[0], "nosuch", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                assert await ask(version, paths[0], "t", 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                assert await ask(version, paths[0], "t" * 240, 0) == ErrorCode.INVALID_TOPIC_EXCEPTION
                for path in (paths[1], paths[1], paths[0]):
                    assert await ask(version, path, "t", 0) == 0
                    partition = node.broker.replication.hosting.find("t", 0)
                    assert partition is not None
                    for _ in range(500):
                        directory = node.broker.storage.log_dirs.of(partition.log)
                        if directory is not None and directory.path == path:
                            break
                        await asyncio.sleep(0.01)
                    else:
                        raise AssertionError(f"t-0 is not in {path}")

    asyncio.run(scenario())
