"""The replicas that this broker hosts: their logs, and whether it leads or follows, as the metadata says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kpybroker.config import LogSettings
from kpybroker.errors import Damage
from kpybroker.metadata.image import PartitionImage, TopicImage
from kpybroker.metadata.whereabouts import epoch_of, has_partition, is_replicated, may_be_in_sync
from kpybroker.replication.fetcher import Context, Fetchers
from kpybroker.replication.hosting import Hosting
from kpybroker.replication.in_sync import Proposals
from kpybroker.replication.partition import Partition
from kpybroker.storage.log_dir import LogDirectory

log = logging.getLogger(__name__)


class Replicas:
    """`host` follows the metadata of a topic. on_reign: a partition's reign here began (True) or ended (False).

    on_lost: the disk has failed under a partition that other brokers have too; this one is to end, so that they lead.
    """

    def __init__(
        self,
        hosting: Hosting,
        log_dir: LogDirectory,
        context: Context,
        proposals: Proposals,
        on_reign: Callable[[Partition, bool], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._hosting = hosting
        self._log_dir = log_dir
        self._fetchers = Fetchers(context)
        self._proposals = proposals
        self._on_reign = on_reign
        self._on_lost = on_lost
        self._image = context.image
        log_dir.on_io_error = self._disk_failed
        self.is_registered = False
        """The metadata shows this incarnation of the broker.

        Until then it may show what the one before led. To lead that in the same epoch, with a log that a crash may have
        cut, would let followers cut theirs: so only what nobody else has is led before.
        """
        hosting.propose = proposals.propose
        hosting.is_rack_aware = context.config().is_rack_aware
        hosting.lag_max_ms = context.config().replica_lag_time_max_ms
        hosting.may_join = lambda *who: may_be_in_sync(context.image(), *who)
        hosting.epoch_of = lambda node_id: epoch_of(context.image(), node_id)
        hosting.exists = lambda *place: has_partition(context.image(), *place)

    def host(self, topic: TopicImage, settings: LogSettings) -> None:
        """Host what this broker has of a topic, and let go what it has no more."""
        for index, image in enumerate(topic.partitions):
            partition = self._hosting.find(topic.name, index)
            if partition is not None and (
                partition.topic_id != topic.id or self._hosting.node_id not in image.replicas
            ):
                self._forget(partition)
                partition = None
            if self._hosting.node_id not in image.replicas:
                continue
            if partition is None:
                partition = self._open(topic, index, settings)
            else:
                partition.log.settings = settings
            if partition is not None:
                self._follow_metadata(partition, image)

    def _open(self, topic: TopicImage, index: int, settings: LogSettings) -> Partition | None:
        try:
            storage = self._log_dir.open_log(topic.name, topic.id, index, settings)
        except Damage as damage:
            log.error("partition %s-%d is offline: %s", topic.name, index, damage)
            self._hosting.offline[topic.name, index] = str(damage)
            return None
        return self._hosting.host(topic.name, topic.id, index, storage)

    def _disk_failed(self, topic: str, index: int, why: str) -> None:
        if is_replicated(self._image(), topic, index):
            self._on_lost(f"{why}; the broker ends, so that other replicas of {topic}-{index} lead")

    def _follow_metadata(self, partition: Partition, image: PartitionImage) -> None:
        if not self.is_registered and len(image.replicas) > 1:
            return
        had_epoch = partition.leader_epoch
        reign = partition.become(image)
        if image.leader_epoch != had_epoch:
            self._fetchers.follow(partition)
        if reign:
            self._on_reign(partition, partition.leads)

    def let_go(self, topic: TopicImage) -> None:
        """The topic is deleted."""
        for index in range(len(topic.partitions)):
            partition = self._hosting.find(topic.name, index)
            if partition is None:
                self._hosting.offline.pop((topic.name, index), None)
            elif partition.topic_id == topic.id:
                self._forget(partition)

    def _forget(self, partition: Partition) -> None:
        """This replica is not to be here any more: its log is deleted."""
        if partition.leads:
            self._on_reign(partition, False)
        self._hosting.retire(partition.topic, partition.index)
        self._fetchers.leave(partition)
        self._log_dir.delete_log(partition.log)

    def wake(self) -> None:
        """This broker has an epoch: its followers may fetch."""
        self._fetchers.wake()

    async def watch_followers(self) -> None:
        """Look, twice within replica.lag.time.max.ms, who has fallen behind. Until cancelled."""
        while True:
            await asyncio.sleep(max(self._hosting.lag_max_ms / 2000, 0.001))
            for partition in self._hosting:
                if partition.followers is not None:
                    partition.drop_lagging()
            self._hosting.flush()

    async def close(self) -> None:
        """Neither fetch nor propose any more."""
        self._proposals.close()
        await self._fetchers.close()
