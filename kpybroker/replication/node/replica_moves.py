"""Moves replicas between the log directories of this broker (AlterReplicaLogDirs, KIP-113, KIP-858).

A future replica copies the records of the current one. When it has caught up, the new directory is reported to the
controller. When the metadata contains the new directory, the future replica replaces the current one in one step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.metadata.whereabouts import directory_of
from kpybroker.replication.node.directory_reports import DirectoryReports
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.replication.partition.partition import Partition
from kpybroker.storage.dirs.directory_names import is_too_long
from kpybroker.storage.dirs.futures import discard_future, open_future, replace
from kpybroker.storage.dirs.log_dir import LogDirectory
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.storage.log.log import Log
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import split
from kpybroker.world import Buffer, World

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
TAIL_BYTES = 1 << 20
"""The most bytes that may be copied in the last step, which also replaces the replica."""
LOOK_AGAIN_S = 0.05


@dataclass(slots=True, eq=False)
class ReplicaMove:
    """The move of one replica, which `future` will replace."""

    partition: Partition
    future: Log
    target: LogDirectory
    generation: int = -1
    """The current log's `generation`, which counts truncations, when the two logs were last compared."""
    is_reported: bool = False
    """Whether the new directory was reported to the controller."""


class ReplicaMoves:
    """All moves. `alter` and `resume` begin a move, and `run` executes the moves."""

    def __init__(
        self,
        world: World,
        hosting: Hosting,
        log_dirs: LogDirectories,
        reports: DirectoryReports,
        image: Callable[[], Image],
    ) -> None:
        self._world = world
        self._hosting = hosting
        self._log_dirs = log_dirs
        self._reports = reports
        self._image = image
        self._moves: dict[TopicPartition, ReplicaMove] = {}
        self._news = asyncio.Event()

    def __iter__(self) -> Iterator[ReplicaMove]:
        return iter(list(self._moves.values()))

    def __contains__(self, partition: Partition) -> bool:
        return (partition.topic, partition.index) in self._moves

    def alter(self, topic: str, index: int, path: str) -> None:
        """Move a replica to this directory. If it is in this directory already, cancel its move to another one.

        Raises INVALID_TOPIC_EXCEPTION, LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION,
        INVALID_REPLICA_ASSIGNMENT if the directory is cordoned, and REPLICA_NOT_AVAILABLE if this broker does not have
        the replica. In the last case, this directory is remembered, and the replica is created in it if it is assigned
        to this broker later.
        """
        key = topic, index
        if is_too_long(topic, index):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the name is too long for a future replica")
        if path not in self._log_dirs.paths:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not in log.dirs")
        target = self._log_dirs.by_path(path)
        if target is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is offline")
        if path in self._log_dirs.cordoned:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{path} is cordoned")
        partition = self._hosting.find(topic, index)
        if partition is None:
            if key in self._hosting.offline:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._hosting.offline[key])
            if not self._hosting.rules.exists(topic, index):
                shown = self._hosting.rules.read_only(topic)
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if shown is None else shown.refusal()
            self._log_dirs.preferred[key] = path
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE)
        partition.require_online()
        partition.log.require_online()
        under_way = self._moves.get(key)
        if under_way is not None and under_way.target is not target:
            self.cancel(partition)
        if self._log_dirs.of(partition.log) is not target and key not in self._moves:
            self._begin(partition, target)

    def _begin(self, partition: Partition, target: LogDirectory) -> None:
        target.pool.require_room(self._world.disk)
        try:
            future = open_future(self._world, target, partition.log, partition.log.settings)
        except (Damage, KafkaError) as failed:
            self._discard((partition.topic, partition.index), target)
            if isinstance(failed, KafkaError):
                raise
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failed)) from failed
        self._moves[partition.topic, partition.index] = ReplicaMove(partition, future, target)
        log.info("%r moves to %s", partition, target.path)
        self._news.set()

    def resume(self, partition: Partition) -> None:
        """Continue a move that was interrupted when the broker stopped."""
        key = partition.topic, partition.index
        target = self._log_dirs.future_of(key)
        if target is None or key in self._moves or target is self._log_dirs.of(partition.log):
            return
        try:
            self._begin(partition, target)
        except KafkaError as refusal:
            log.error("the future replica of %r cannot be opened and is abandoned: %s", partition, refusal)

    def cancel(self, partition: Partition) -> None:
        """Cancel a move: the replica stays where it is."""
        key = partition.topic, partition.index
        move = self._moves.pop(key, None)
        if move is None:
            return
        self._discard(key, move.target)
        source = self._log_dirs.of(partition.log)
        if move.is_reported and source is not None:
            self._reports.assign(partition.topic_id, partition.index, source.id)

    def _discard(self, key: TopicPartition, target: LogDirectory) -> None:
        try:
            discard_future(self._world, target, key, 0)
        except OSError as error:
            log.error("the future replica of %s-%d cannot be deleted: %s", *key, error)

    def lose(self, directory: LogDirectory) -> None:
        """End the moves into and out of a failed directory. A replica that was moving out of it is offline."""
        for key, move in list(self._moves.items()):
            partition = move.partition
            if move.target is directory:
                del self._moves[key]
                source = self._log_dirs.of(partition.log)
                if move.is_reported and source is not None:
                    self._reports.assign(partition.topic_id, partition.index, source.id)
            elif directory.logs.get(key) is partition.log:
                del self._moves[key]
                # when the controller knows that the replica is still in this directory, other brokers lead it
                if move.is_reported:
                    self._reports.assign(partition.topic_id, partition.index, directory.id)

    def wake(self) -> None:
        """Check the moves again, because the metadata has changed and may contain the new directory of a replica."""
        self._news.set()

    async def run(self) -> None:
        """Execute all moves, until cancelled."""
        while True:
            self._news.clear()
            throttle, is_on = self._hosting.moving_throttle, False
            for key, move in list(self._moves.items()):
                if throttle.must_wait:
                    break
                if self._moves.get(key) is move:
                    is_on |= await self._try(move)
                await asyncio.sleep(0)
            if is_on and not throttle.must_wait:
                continue
            wait_s = min(throttle.wait_ms / 1000, 1.0) if throttle.must_wait else LOOK_AGAIN_S
            try:
                async with asyncio.timeout(wait_s if self._moves else None):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _try(self, move: ReplicaMove) -> bool:
        partition = move.partition
        try:
            return await self._step(move)
        except (Damage, KafkaError) as error:
            if move.future.offline is None and partition.log.offline is None and isinstance(error, KafkaError):
                return False  # the bytes to copy were truncated, or are being written: try again
            log.error("the move of %r is cancelled: %s", partition, error)
            self.cancel(partition)
            return False

    async def _step(self, move: ReplicaMove) -> bool:
        """Take the next step of a move. Returns False if the move has to wait."""
        current, future = move.partition.log, move.future
        await future.until_written()
        await current.until_written()
        if self._is_over(move):
            return True
        current.require_online()
        future.flush(wait=False)
        await future.until_written()
        if self._is_over(move):
            return True
        if move.generation != current.files.generation:
            truncate_like(future, current)
            move.generation = current.files.generation
        if future.end < current.start:
            _empty(future, current.start)
        if future.end < current.written_end:
            found = current.read(future.end, CHUNK_BYTES, upper=current.written_end, min_one=True)
            if found is None:
                at, found = (
                    future.end,
                    await current.read_cold(future.end, CHUNK_BYTES, upper=current.written_end, min_one=True),
                )
                if self._is_over(move) or move.generation != current.files.generation or at != future.end:
                    return True
            self._append(current, future, found)
            return True
        directory = directory_of(self._image(), move.partition.topic, move.partition.index, self._hosting.node_id)
        if directory != move.target.id:
            move.is_reported = True
            self._reports.assign(move.partition.topic_id, move.partition.index, move.target.id)
            return False
        move.is_reported = True
        await future.sync(is_chore=True)
        return self._end(move)

    def _is_over(self, move: ReplicaMove) -> bool:
        return self._moves.get((move.partition.topic, move.partition.index)) is not move

    def _append(self, current: Log, future: Log, found: Buffer) -> None:
        size = len(found)
        batches = split(memoryview(bytearray(found)))
        self._world.disk.give_back(found)
        if batches[0].base_offset < future.end and future.start == future.end:
            _empty(future, batches[0].base_offset)
        try:
            future.append_replicated(batches)
        finally:
            future.flush(wait=False)
        future.advance(max(future.start, min(current.high_watermark, future.end)))
        self._hosting.moving_throttle.count(size)

    def _end(self, move: ReplicaMove) -> bool:
        """Copy the missing bytes and replace the replica, in one step. If too many bytes are missing, continue to copy
        instead."""
        partition, future = move.partition, move.future
        current = partition.log
        if self._is_over(move) or move.generation != current.files.generation or current.start > future.end:
            return True
        current.require_online()
        current.flush()
        copied = 0
        while future.end < current.end:
            found = current.read(future.end, CHUNK_BYTES, upper=current.end, min_one=True)
            if found is None or copied + len(found) > TAIL_BYTES:
                return True
            copied += len(found)
            self._append(current, future, found)
        future.flush()
        source = self._log_dirs.of(current)
        if source is None or future.is_syncing:
            return True
        move.target.pool.require_room(self._world.disk)
        self._log_dirs.collect(current)
        key = partition.topic, partition.index
        try:
            replace(self._world, current, future, source, move.target)
        finally:
            self._moves.pop(key, None)  # also after a failure, since the next start completes the replacement
            if move.target.logs.get(key) is current:
                self._log_dirs.moved(key, move.target)
        log.info("%r is in %s now", partition, move.target.path)
        return True


def _empty(future: Log, offset: int) -> None:
    try:
        if not future.files.made:
            future.files.make()
        future.begin_anew(offset)
    except OSError as error:
        raise future.fail(error) from error


def truncate_like(future: Log, current: Log) -> None:
    """Truncate the future log to the offset at which it diverges from the current log, by leader epochs (KIP-101)."""
    while future.end > future.start:
        epoch = future.epoch_at(future.end - 1)
        known, ends = current.end_of_epoch(epoch)
        if known == epoch:
            cut = min(ends, current.end, future.end)
        else:
            cut = max(next((start for each, start in future.epochs.entries if each == epoch), 0), future.start)
        if cut < future.end:
            before = future.end
            future.truncate_to(max(cut, future.start))
            if future.end == before:
                return
        if known == epoch:
            return
