"""Applies the metadata to the replicas of this broker: opens and deletes logs, and makes replicas lead or follow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from kpybroker.config import LogSettings
from kpybroker.errors import Damage, KafkaError
from kpybroker.metadata.image import PartitionImage, TopicImage
from kpybroker.metadata.whereabouts import directory_in, is_replicated
from kpybroker.replication.follower.context import FetcherContext
from kpybroker.replication.follower.fetcher import Fetchers
from kpybroker.replication.node.directory_reports import DirectoryReports
from kpybroker.replication.node.isr_proposals import IsrProposals
from kpybroker.replication.node.replica_moves import ReplicaMoves
from kpybroker.replication.partition.flush_queue import FlushQueue
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.replication.partition.partition import Partition
from kpybroker.storage.dirs.log_dir import LogDirectory
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.wire.directory_ids import LOST, MIGRATING, UNASSIGNED

log = logging.getLogger(__name__)

HOSTED_AT_ONCE = 200
"""The most logs that are opened in one turn of the event loop, in about 10 ms. When the broker starts, it opens all
logs before it serves requests."""
OPEN_RETRY_S = 0.5
"""The delay after which a log is opened again that could not be opened because there was no file descriptor left."""


class ReplicaCallbacks(NamedTuple):
    """The broker's reactions to changes of its replicas.

    - on_leadership: called when this broker has begun (True) or ceased (False) to lead a partition.
    - on_lost: called when the disk of partitions that other brokers also have, or of all partitions, has failed. This
      broker must stop, so that other brokers lead.
    - on_offline: called when one of several log directories has failed, which must be reported to the controller.
    """

    on_leadership: Callable[[Partition, bool], None]
    on_lost: Callable[[str], None]
    on_offline: Callable[[], None]


class Replicas:
    """The replicas of this broker. `host` applies the metadata of a topic, and `let_go` applies its deletion."""

    def __init__(
        self,
        hosting: Hosting,
        queue: FlushQueue,
        log_dirs: LogDirectories,
        context: FetcherContext,
        proposals: IsrProposals,
        reports: DirectoryReports,
        callbacks: ReplicaCallbacks,
        moves: ReplicaMoves,
    ) -> None:
        self._hosting = hosting
        self._queue = queue
        self._log_dirs = log_dirs
        self._fetchers = Fetchers(context)
        self._proposals = proposals
        self._reports = reports
        self.moves = moves
        self._on_leadership, self._on_lost, self._on_offline = callbacks
        self._image = context.image
        log_dirs.listen(self._disk_failed, self._directory_failed, self._on_lost)
        self._created_anew: set[tuple[bytes, int]] = set()
        """Replicas that were recreated, because the directory in the metadata no longer exists."""
        self._unopened: dict[str, LogSettings] = {}
        """Topics with logs that could not be opened because there was no file descriptor left, and the settings at that
        time."""
        self._room = HOSTED_AT_ONCE
        """The number of logs that may be opened in this turn of the event loop."""
        self._rest: dict[str, tuple[int, LogSettings]] = {}
        """Topics with partitions that are opened in later turns: the index of the first one, and the topic's
        settings."""
        self._hosted: asyncio.Future[None] | None = None
        """A future that completes when `_rest` is empty."""
        self.is_registered = False
        """Whether the metadata contains this incarnation of the broker.

        Before that, the metadata may contain leaderships of the previous incarnation. A crash may have truncated a log,
        and if this broker led in the same epoch again, the followers would truncate theirs too. So until then, this
        broker leads only partitions without other replicas.
        """
        hosting.events.on_written(self._fetchers.written)

    def register(self) -> None:
        """Let the replicas lead and follow from now on, because the metadata contains this incarnation of the
        broker."""
        self.is_registered = True

    def host(self, topic: TopicImage, settings: LogSettings, begin: int = 0) -> None:
        """Open this broker's replicas of a topic, and delete those it no longer has, from partition index `begin` on.

        While the broker serves requests, this opens HOSTED_AT_ONCE logs in one turn of the event loop. The broker leads
        a partition only when its log is open.
        """
        self._rest.pop(topic.name, None)
        for index, image in enumerate(topic.partitions[begin:], begin):
            partition = self._hosting.find(topic.name, index)
            if partition is not None and (
                partition.topic_id != topic.id or self._hosting.node_id not in image.replicas
            ):
                self._forget(partition)
                partition = None
            if self._hosting.node_id not in image.replicas:
                self._forget_unopened(topic.name, index)
                continue
            if partition is None:
                if not self._has_room():
                    self._rest[topic.name] = index, settings
                    return
                partition = self._open(topic, index, image, settings)
                if partition is not None:
                    self.moves.resume(partition)
            else:
                partition.configure(settings)
            if partition is not None:
                self._follow_metadata(partition, image)
                self._report_directory(partition, image)

    def _has_room(self) -> bool:
        """Whether one more log may be opened in this turn of the event loop. If so, the log is counted."""
        if self.is_registered:
            if self._room == HOSTED_AT_ONCE:
                asyncio.get_running_loop().call_soon(self._host_on)
            if not self._room:
                return False
            self._room -= 1
        return True

    def _host_on(self) -> None:
        """Open more of the remaining partitions in another turn of the event loop."""
        self._room = HOSTED_AT_ONCE
        rest = list(self._rest.items())
        for name, (begin, settings) in rest:
            topic = self._image().topics.get(name)
            if topic is None:
                del self._rest[name]
            elif self._room:
                self.host(topic, settings, begin)
        if rest:
            self._queue.flush()
        if not self._rest and self._hosted is not None:
            self._hosted.set_result(None)
            self._hosted = None

    async def until_hosted(self, ends_s: float) -> None:
        """Wait until all logs are open, including those of later metadata, or until `ends_s` on the event loop's
        clock."""
        if self._rest:
            loop = asyncio.get_running_loop()
            if self._hosted is None:
                self._hosted = loop.create_future()
            await asyncio.wait([self._hosted], timeout=max(ends_s - loop.time(), 0))

    def configure(self, topic: str, settings: LogSettings) -> None:
        """Change the settings for the partitions of a topic that are not open yet."""
        if topic in self._rest:
            self._rest[topic] = self._rest[topic][0], settings

    def _open(self, topic: TopicImage, index: int, image: PartitionImage, settings: LogSettings) -> Partition | None:
        assigned = directory_in(image, self._hosting.node_id)
        is_lost = assigned not in (MIGRATING, UNASSIGNED) and self._log_dirs.is_lost(topic.name, index, assigned)
        try:
            storage = self._log_dirs.open_log(topic.name, topic.id, index, settings, assigned)
        except Damage as damage:
            log.error("partition %s-%d is offline: %s", topic.name, index, damage)
            self._hosting.offline[topic.name, index] = str(damage)
            return None
        except KafkaError as refusal:
            log.error("partition %s-%d is not opened yet: %s", topic.name, index, refusal)
            self._hosting.offline[topic.name, index] = str(refusal)
            self._open_later(topic.name, settings)
            return None
        if is_lost:
            self._created_anew.add((topic.id, index))
        return self._hosting.host(topic.name, topic.id, index, storage)

    def _open_later(self, topic: str, settings: LogSettings) -> None:
        """Try to open a topic's logs again after a delay, because there was no file descriptor left."""
        if not self._unopened:
            asyncio.get_running_loop().call_later(OPEN_RETRY_S, self._open_again)
        self._unopened[topic] = settings

    def _open_again(self) -> None:
        unopened, self._unopened = self._unopened, {}
        for name, settings in unopened.items():
            topic = self._image().topics.get(name)
            if topic is not None:
                self.host(topic, settings)
        self._queue.flush()

    def _report_directory(self, partition: Partition, image: PartitionImage) -> None:
        """Report a replica's directory to the controller, if the metadata contains a different one.

        For a recreated replica, the old directory is first reported as lost, because the new replica lacks its records.
        """
        directory = self._log_dirs.of(partition.log)
        if directory is None or not self.is_registered or partition in self.moves:
            return
        key, said = (partition.topic_id, partition.index), directory_in(image, self._hosting.node_id)
        if said == directory.id:
            self._created_anew.discard(key)
            self._reports.settled(*key)
        else:
            is_lost = key in self._created_anew and said not in (LOST, MIGRATING, UNASSIGNED)
            self._reports.assign(*key, LOST if is_lost else directory.id)

    def _directory_failed(self, directory: LogDirectory, why: str) -> None:
        """Take the partitions of a failed directory offline. Other brokers lead them when the controller knows of the
        failure."""
        for (topic, index), one in list(directory.logs.items()):
            partition = self._hosting.find(topic, index)
            if partition is not None and partition.log is one:
                partition.fail(why)
                self._fetchers.leave(partition)
                self._reports.settled(partition.topic_id, index)
        self.moves.lose(directory)
        asyncio.get_running_loop().call_soon(self._queue.flush)
        self._on_offline()

    def _disk_failed(self, topic: str, index: int, why: str) -> None:
        if is_replicated(self._image(), topic, index):
            self._on_lost(f"{why}; the broker stops, so that another replica of {topic}-{index} can lead")

    def _follow_metadata(self, partition: Partition, image: PartitionImage) -> None:
        if not self.is_registered and len(image.replicas) > 1:
            return
        had_epoch = partition.leader_epoch
        has_changed = partition.become(image)
        if image.leader_epoch != had_epoch and partition.log.offline is None:
            self._fetchers.follow(partition)
        if has_changed:
            self._on_leadership(partition, partition.leads)

    def let_go(self, topic: TopicImage) -> None:
        """Delete the replicas of a deleted topic."""
        self._rest.pop(topic.name, None)
        for index in range(len(topic.partitions)):
            partition = self._hosting.find(topic.name, index)
            if partition is None:
                self._forget_unopened(topic.name, index)
            elif partition.topic_id == topic.id:
                self._forget(partition)

    def _forget_unopened(self, topic: str, index: int) -> None:
        """Forget a replica that could not be opened. This broker no longer has it, so it no longer counts as
        offline."""
        if self._hosting.offline.pop((topic, index), None) is not None:
            self._log_dirs.forget_unopened(topic, index)

    def _forget(self, partition: Partition) -> None:
        """Stop hosting a replica, and delete its log."""
        if partition.leads:
            self._on_leadership(partition, False)
        self._hosting.retire(partition.topic, partition.index)
        self._fetchers.leave(partition)
        self.moves.cancel(partition)
        self._reports.settled(partition.topic_id, partition.index)
        self._created_anew.discard((partition.topic_id, partition.index))
        self._log_dirs.delete_log(partition.log)

    def wake(self) -> None:
        """Start fetching, because this broker has its epoch."""
        self._fetchers.wake()

    async def watch_followers(self) -> None:
        """Remove lagging followers from ISRs, twice in every replica.lag.time.max.ms. Runs until cancelled."""
        while True:
            await asyncio.sleep(max(self._hosting.rules.lag_max_ms / 2000, 0.001))
            for partition in self._hosting:
                if partition.followers is not None:
                    partition.drop_lagging()
            self._queue.flush()

    async def close(self) -> None:
        """Stop fetching, and send no proposals or reports."""
        self._rest.clear()
        self._unopened.clear()
        self._proposals.close()
        self._reports.close()
        await self._fetchers.close()
