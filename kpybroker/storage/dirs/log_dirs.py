"""The log directories of a broker (`log.dirs`, KIP-112). Each directory is opened, recovered and checkpointed
separately, and can fail separately.

A partition is opened in the directory that contains it. A new partition is created in the directory that is assigned in
the metadata, otherwise in the directory with the fewest partitions that is not cordoned (KIP-1066). If two directories
contain the same partition of the same topic, the broker does not start, because it cannot determine which copy is
complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kpybroker.config import BrokerConfig, LogSettings
from kpybroker.errors import ConfigError, Damage, KafkaError
from kpybroker.storage.dirs.directory import Directory, Format, folds_case, open_directories
from kpybroker.storage.dirs.directory_names import DELETED, FUTURE, key_of_deleted, partitions_in
from kpybroker.storage.dirs.futures import (
    discard_future,
    finish_replacements,
    refuse_lone_copy,
    set_copy_aside,
    set_half_aside,
    topic_id_in,
)
from kpybroker.storage.dirs.log_dir import LogDirectory
from kpybroker.storage.files.file_pool import FilePool
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.slices import SlicedWork, Work
from kpybroker.topics import TopicPartition
from kpybroker.wire.directory_ids import MIGRATING, UNASSIGNED
from kpybroker.world import World

log = logging.getLogger(__name__)


def open_log_dirs(
    world: World, config: BrokerConfig, wanted: Format, check: Callable[[], None]
) -> tuple[list[Directory], LogDirectories]:
    """Lock all directories, and check or format them, beginning with the directory of the metadata log. Then call
    `check` and open log.dirs.

    Raises ConfigError.
    """
    failed: dict[str, str] = {}
    paths = tuple(dict.fromkeys((config.metadata_log_dir, *config.log_dirs)))
    for path in paths:
        world.disk.separate(path)
    directories = open_directories(world, paths, config.node_id, wanted, failed)
    try:
        check()
        return directories, LogDirectories(world, config, directories, failed)
    except ConfigError:
        for directory in directories:
            world.disk.close(directory.lock)
        raise


class LogDirectories:
    """Opens, creates and deletes the logs of partitions in several directories."""

    def __init__(
        self, world: World, config: BrokerConfig, directories: Sequence[Directory], failed: Mapping[str, str]
    ) -> None:
        """`failed` contains the reasons why directories could not be opened, by path.

        Raises ConfigError if a partition is in two directories, or no directory is left."""
        self._world = world
        self.pool = FilePool(config.max_open_files)
        self.sliced_work = SlicedWork(world.disk)
        """Decompresses batches and looks up timestamps, for requests to all logs."""
        self.cordoned = config.cordoned_log_dirs
        """The paths in which no new partition is created, unless all directories are cordoned."""
        self._metadata_path = config.metadata_log_dir
        self.paths = config.log_dirs
        self.offline: dict[str, str] = {path: why for path, why in failed.items() if path in config.log_dirs}
        """Directories that have failed, with the reasons."""
        self.offline_ids: list[bytes] = []
        """The ids of directories that have failed since the start."""
        self._on_io_error: Callable[[str, int, str], None] = lambda topic, index, why: None
        self._on_failure: Callable[[LogDirectory, str], None] = lambda directory, why: None
        self._on_end: Callable[[str], None] = lambda why: None
        self._online: dict[str, LogDirectory] = {}
        self._place: dict[TopicPartition, LogDirectory] = {}
        """The directories of all partitions that have files or were opened."""
        self._doubles: dict[TopicPartition, dict[str, bytes | None]] = {}
        """Partitions in several directories, with the topic id of each copy by path. The topic was recreated while a
        directory was offline, or a power failure undid its deletion. The metadata shows which copy is valid."""
        self._counts: dict[str, int] = {}
        self._folds_case = any(folds_case(world, directory.path) for directory in directories)
        self._halves: dict[TopicPartition, str] = {}
        """`-delete` directories of partitions that should have a replica on this broker, but are in no directory."""
        self._recovered: dict[TopicPartition, tuple[bytes, Log | Damage | KafkaError]] = {}
        """Logs that `recovering` has opened, or the errors, with the topic ids, until `open_log` returns or raises
        them."""
        self.preferred: dict[TopicPartition, str] = {}
        """The paths that AlterReplicaLogDirs has set for partitions that do not exist yet."""
        ids = {directory.path: directory.directory_id for directory in directories if directory.path in self.paths}
        found = self._look(tuple(path for path in self.paths if path in ids))
        for path, keys in found.items():
            self._take(path, ids[path], keys, config)
        for path, why in self.offline.items():
            log.error("log directory %s is offline: %s", path, why)
        if not self._online:
            raise ConfigError(f"none of log.dirs can be used: {'; '.join(self.offline.values())}")

    def listen(
        self,
        on_io_error: Callable[[str, int, str], None],
        on_failure: Callable[[LogDirectory, str], None],
        on_end: Callable[[str], None],
    ) -> None:
        """Set callbacks. `on_io_error(topic, partition, why)` is called when the disk of the only directory fails
        during work on a log; `on_failure(directory, why)` when one of several directories fails; and `on_end(why)` when
        the broker cannot continue."""
        self._on_io_error, self._on_failure, self._on_end = on_io_error, on_failure, on_end

    def _look(self, paths: tuple[str, ...]) -> dict[str, list[TopicPartition]]:
        """The partitions in each directory. Raises ConfigError, before any change, if two directories contain the same
        partition."""
        self._finish_replacements(paths)
        found: dict[str, list[TopicPartition]] = {}
        places: dict[TopicPartition, list[str]] = {}
        for path in [path for path in paths if path not in self.offline]:
            try:
                found[path] = partitions_in(self._world.disk, path)
            except OSError as error:
                self.offline[path] = f"cannot read {path}: {error.strerror or error}"
                continue
            for key in found[path]:
                places.setdefault(key, []).append(path)
        for (topic, index), twice in places.items():
            if len(twice) < 2:
                continue
            ids = {path: topic_id_in(self._world.disk, f"{path}/{topic}-{index}") for path in twice}
            if len(set(ids.values())) < len(twice):
                raise ConfigError(
                    f"{topic}-{index} is in both {twice[0]} and {twice[1]}; remove the incomplete copy (usually that "
                    "in a directory that has failed recently); nothing was changed"
                )
            self._doubles[topic, index] = ids
        return found

    def _finish_replacements(self, paths: tuple[str, ...]) -> None:
        """Finish interrupted moves. If that fails in a directory, the directory goes offline. Raises ConfigError if it
        also contains the metadata log."""
        names: dict[str, list[str]] = {}
        for path in paths:
            try:
                names[path] = self._world.disk.list(path)
            except OSError as error:
                self.offline[path] = f"cannot read {path}: {error.strerror or error}"
        failed = finish_replacements(self._world.disk, names)
        if self._metadata_path in failed:
            raise ConfigError(
                f"{failed[self._metadata_path]}: the broker cannot start without this directory, because it contains "
                "the metadata log; free space or repair the disk, and start it again; nothing was deleted"
            )
        self.offline.update(failed)

    def _take(self, path: str, directory_id: bytes, keys: list[TopicPartition], config: BrokerConfig) -> None:
        try:
            on_io_error = partial(self._disk_failed, path)
            directory = LogDirectory(self._world, path, config, directory_id, self.pool, on_io_error)
        except OSError as error:
            self.offline[path] = f"cannot read {path}: {error.strerror or error}"
            return
        self._online[path] = directory
        self._counts[path] = len(keys)
        self._place.update(dict.fromkeys(keys, directory))

    @property
    def online(self) -> list[LogDirectory]:
        """The online directories, in the order of log.dirs."""
        return list(self._online.values())

    @property
    def clean(self) -> bool:
        """Whether the last shutdown of every directory was clean."""
        return all(directory.clean for directory in self.online)

    @property
    def previous_epoch(self) -> int:
        """The broker epoch at the last clean shutdown; -1 if the directories differ or one of them is offline."""
        epochs = {directory.previous_epoch for directory in self.online}
        return epochs.pop() if len(epochs) == 1 and not self.offline else -1

    @property
    def logs(self) -> dict[TopicPartition, Log]:
        """All open logs, except logs that are moving between directories, which are not cleaned."""
        moving = {key for directory in self.online for key in directory.futures}
        return {key: one for each in self.online for key, one in each.logs.items() if key not in moving}

    def of(self, one: Log) -> LogDirectory | None:
        """The directory of a log; None if the directory is offline."""
        return self._online.get(one.directory.rpartition("/")[0])

    # partitions

    def open_log(self, topic: str, topic_id: bytes, partition: int, settings: LogSettings, assigned: bytes) -> Log:
        """Open a partition's log with `LogDirectory.open_log`, unless it was recovered before. `assigned` is the id of
        its directory in the metadata.

        Raises Damage, or KAFKA_STORAGE_ERROR if there are too few file descriptors.
        """
        key = topic, partition
        if key in self._recovered and (recovered := self._take_recovered(key, topic_id, settings)) is not None:
            return recovered
        directory = self._place.get(key)
        if directory is None:
            if self._folds_case:
                self._check_case(topic, partition)
            directory = self._place[key] = self._for_new(key, topic_id, assigned)
            self._counts[directory.path] += 1
        return directory.open_log(topic, topic_id, partition, settings)

    def unrecovered(self, key: TopicPartition) -> str | None:
        """The path of the directory in which a partition has files that have to be recovered; None if there are
        none."""
        directory = self._place.get(key)
        return directory.path if directory is not None and directory.needs_recovery(key) else None

    def recovering(self, key: TopicPartition, topic_id: bytes, settings: LogSettings) -> Work[None]:
        """Open a log that needs recovery, in slices, and keep it or the error for `open_log`."""
        directory = self._place.get(key)
        if directory is None:
            return  # it has failed in the meantime
        found: Log | Damage | KafkaError
        try:
            found = yield from directory.opening(key[0], topic_id, key[1], settings)
        except (Damage, KafkaError) as error:
            found = error
        self._recovered[key] = topic_id, found

    def _take_recovered(self, key: TopicPartition, topic_id: bytes, settings: LogSettings) -> Log | None:
        """The recovered log; None if its directory has failed, or if it belongs to a deleted topic of the same name and
        is deleted. Raises the same errors as `open_log`."""
        of, found = self._recovered.pop(key)
        if key not in self._place:
            return None
        if of != topic_id:
            if isinstance(found, Log):
                self.delete_log(found)
            return None
        if not isinstance(found, Log):
            raise found
        found.configure(settings)
        return found

    def _check_case(self, topic: str, partition: int) -> None:
        """Raise Damage if the directory name would collide with that of another topic's partition."""
        for other, index in self._place:
            if index == partition and other != topic and other.lower() == topic.lower():
                raise Damage(
                    f"{topic}-{partition} would be in the directory of {other}-{index}, because the file system of "
                    "log.dirs ignores case; use a case-sensitive file system, or delete one of the topics"
                )

    def is_lost(self, topic: str, partition: int, assigned: bytes) -> bool:
        """Whether the partition would be created again, because its assigned directory no longer exists."""
        return (topic, partition) not in self._place and all(each.id != assigned for each in self.online)

    def _for_new(self, key: TopicPartition, topic_id: bytes, assigned: bytes) -> LogDirectory:
        """The directory for a new log. Raises Damage if another directory may have records of the partition."""
        if self._metadata_path in self.offline:
            raise Damage(f"{key[0]}-{key[1]} is not created, as the broker stops: {self.offline[self._metadata_path]}")
        named = next((each for each in self.online if each.id == assigned), None)
        wished = self._online.get(self.preferred.pop(key, ""))
        copies = [each for each in self.online if key in each.futures]
        for each in copies if named is not None else ():
            refuse_lone_copy(self._world.disk, each, key, topic_id)
        chosen, is_new = named if wished is None else wished, assigned in (MIGRATING, UNASSIGNED)
        is_in_doubt = self.offline and not is_new and (chosen is None or key in self._halves)
        if not self._online or is_in_doubt:
            raise Damage(f"{key[0]}-{key[1]} may be in a log directory that is offline: {', '.join(self.offline)}")
        if not is_new and key in self._halves:
            set_half_aside(self._world.disk, self._halves[key])
            del self._halves[key]
        if chosen is None:
            chosen = self._online[min(self._online, key=lambda path: (path in self.cordoned, self._counts[path]))]
        for each in copies:
            if named is None or each is chosen:
                set_copy_aside(self._world, each, key, topic_id)
        return chosen

    def delete_log(self, deleted: Log) -> None:
        """Delete a partition with `LogDirectory.delete_log`."""
        key = deleted.topic, deleted.partition
        directory = self._place.pop(key, None)
        if directory is not None and directory.path in self._online:
            self._counts[directory.path] -= 1
            directory.delete_log(deleted)

    def forget_unopened(self, topic: str, partition: int) -> None:
        """Called when a partition that could not be opened is reassigned or deleted.

        If it has files, it is not removed here: the next start sets the files aside (`keep_only`), and the shutdown
        before that is not clean.
        """
        key = topic, partition
        directory = self._place.get(key)
        if directory is not None and not self._world.disk.exists(f"{directory.path}/{topic}-{partition}"):
            del self._place[key]
            self._counts[directory.path] -= 1
            directory.damaged.pop(key, None)

    def cordon(self, paths: frozenset[str]) -> bool:
        """Change the cordoned directories. Returns whether they have changed."""
        before, self.cordoned = self.cordoned, paths
        return paths != before

    @property
    def cordoned_ids(self) -> list[bytes]:
        """The ids of the online directories that are cordoned."""
        return [directory.id for directory in self.online if directory.path in self.cordoned]

    def by_path(self, path: str) -> LogDirectory | None:
        """The directory with this path, if it is online."""
        return self._online.get(path)

    def future_of(self, key: TopicPartition) -> LogDirectory | None:
        """The directory that contains a future replica of a partition."""
        return next((directory for directory in self.online if key in directory.futures), None)

    def moved(self, key: TopicPartition, target: LogDirectory) -> None:
        """Called when a partition has moved to another directory, which may have failed at that moment."""
        source = self._place.pop(key)
        self._counts[source.path] -= 1
        self._counts[target.path] += 1
        if target.path in self._online:
            self._place[key] = target

    def keep_only(self, hosted: Mapping[TopicPartition, bytes]) -> None:
        """Call `LogDirectory.keep_only` for all directories. Delete future replicas of other partitions, and `-delete`
        directories of the previous process."""
        named = {key for key, ids in self._doubles.items() if hosted.get(key) in ids.values()}
        for directory in self.online:
            try:
                self._keep_only(directory, hosted, named)
            except OSError as error:
                why = f"cannot set aside stray partitions in {directory.path}: {error.strerror or error}"
                if len(self.paths) == 1:
                    self._on_end(f"{why}: the broker stops")
                else:
                    self.fail(directory, why)
        for key, left in self._doubles.items():
            self._place.pop(key, None)
            for directory in (self._online[path] for path in left if path in self._online):
                self._place[key] = directory
        self._doubles.clear()
        self._unlink_deleted(hosted)

    def _keep_only(
        self, directory: LogDirectory, hosted: Mapping[TopicPartition, bytes], named: set[TopicPartition]
    ) -> None:
        """The same for one directory. Raises OSError."""
        for key in directory.keep_only(hosted, named):
            self._counts[directory.path] -= 1
            if key in self._doubles:
                del self._doubles[key][directory.path]
            else:
                del self._place[key]
        for key in [key for key in directory.futures if key not in hosted]:
            discard_future(self._world, directory, key, 0)

    def _unlink_deleted(self, hosted: Mapping[TopicPartition, bytes]) -> None:
        """Unlink the `-delete` directories of the previous process, except those of interrupted moves.

        A directory is kept if a future replica with the same number exists, or may exist in an offline directory. It is
        also kept if its partition has a replica on this broker according to the metadata, but no directory contains it.
        """
        futures = {name for directory in self.online for name in directory.futures.values()}
        for directory in self.online:
            for name in directory.deleted:
                path, key = f"{directory.path}/{name}", key_of_deleted(name)
                is_kept = bool(self.offline) or f"{name.removesuffix(DELETED)}{FUTURE}" in futures
                wanted = None if key is None or key in self._place else hosted.get(key)
                if key is not None and wanted is not None and topic_id_in(self._world.disk, path) == wanted:
                    self._halves[key] = path
                    is_kept = True
                if not is_kept:
                    directory.garbage.add(0, path)
            directory.deleted.clear()

    def recovered(self) -> None:
        """Store that all partitions have been opened. Delete those that were recovered and have no replica on this
        broker any more."""
        for _, found in self._recovered.values():
            if isinstance(found, Log):
                self.delete_log(found)
        self._recovered.clear()
        for directory in self.online:
            directory.recovered()

    def register(self, broker_epoch: int) -> None:
        """Set the broker epoch that a clean shutdown saves."""
        for directory in self.online:
            directory.register(broker_epoch)

    def collect(self, one: Log) -> None:
        """Take over the files that a log has renamed."""
        directory = self.of(one)
        if directory is not None:
            directory.collect(one)

    async def start_written(self, one: Log) -> None:
        """Return when the start offset of a log, which has just moved, is in its file. Raises KafkaError."""
        directory = self.of(one)
        if directory is not None:
            try:
                await directory.start_offsets.written((one.topic, one.partition), one.start)
            except OSError as error:
                raise one.files.refusal(error) from error

    # chores

    async def save_cleaned(self) -> None:
        """Write the cleaner offsets."""
        for directory in self.online:
            await directory.save_cleaned()

    async def checkpoint(self) -> None:
        """Call `LogDirectory.checkpoint` for one directory after the other."""
        for directory in self.online:
            if directory.path in self._online:
                await directory.checkpoint()

    async def close(self) -> None:
        """Call `LogDirectory.close` for all directories concurrently."""
        await asyncio.gather(*(directory.close() for directory in self.online))

    # failures

    def _disk_failed(self, path: str, topic: str, index: int, why: str) -> None:
        if len(self.paths) == 1:
            self._on_io_error(topic, index, why)
        elif path in self._online:
            self.fail(self._online[path], why)

    def fail(self, directory: LogDirectory, why: str) -> None:
        """Take a directory and its logs offline until the next start, because its device has failed."""
        if self._online.pop(directory.path, None) is None:
            return
        self.offline[directory.path] = why
        self.offline_ids.append(directory.id)
        log.error("log directory %s is offline: %s", directory.path, why)
        for key in [key for key, place in self._place.items() if place is directory]:
            del self._place[key]
        for one in directory.logs.values():
            one.files.go_offline(f"{one.topic}-{one.partition} is in {directory.path}, which is offline: {why}")
        if directory.path == self._metadata_path:
            self._on_end(f"{why}; the metadata log is in {directory.path}: the broker stops")
        elif not self._online:
            self._on_end(f"{why}; none of log.dirs is left: the broker stops")
        self._on_failure(directory, why)
