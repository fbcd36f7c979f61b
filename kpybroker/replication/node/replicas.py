"""The replicas that this broker hosts: their logs, and whether it leads or follows, as the metadata says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from kpybroker.config import LogSettings
from kpybroker.errors import Damage, KafkaError
from kpybroker.metadata.image import PartitionImage, TopicImage
from kpybroker.metadata.whereabouts import directory_in, epoch_of, has_partition, is_replicated, may_be_in_sync
from kpybroker.replication.follower.fetcher import Context, Fetchers
from kpybroker.replication.node.directory_reports import Assignments
from kpybroker.replication.node.isr_proposals import Proposals
from kpybroker.replication.node.moving import Moves
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.replication.partition.partition import Partition
from kpybroker.storage.dirs.log_dir import LogDirectory
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.wire.directory_ids import LOST, MIGRATING, UNASSIGNED

log = logging.getLogger(__name__)

HOSTED_AT_ONCE = 200
"""So many logs are opened before others have their turn: some 10 ms. Only a start opens all, before it serves."""
OPEN_RETRY_S = 0.5
"""When to open again what found no descriptor."""


class Wishes(NamedTuple):
    """What others do for the replicas.

    reign: a partition's reign here began (True) or ended (False). end: the disk has failed under what other brokers
    have too, or under all; this one is to end, so that they lead. tell: one of several log directories has failed, and
    the controller is to know.
    """

    reign: Callable[[Partition, bool], None]
    end: Callable[[str], None]
    tell: Callable[[], None]


class Replicas:
    """`host` follows the metadata of a topic."""

    def __init__(
        self,
        hosting: Hosting,
        log_dirs: LogDirectories,
        context: Context,
        proposals: Proposals,
        assignments: Assignments,
        wishes: Wishes,
        moves: Moves,
    ) -> None:
        self._hosting = hosting
        self._log_dirs = log_dirs
        self._fetchers = Fetchers(context)
        self._proposals = proposals
        self._assignments = assignments
        self.moves = moves
        self._on_reign, self._on_lost, self._on_offline = wishes
        self._image = context.image
        log_dirs.listen(self._disk_failed, self._directory_failed, self._on_lost)
        self._made_anew: set[tuple[bytes, int]] = set()
        """Replicas whose directory, as the metadata has it, is not there any more."""
        self._unopened: dict[str, LogSettings] = {}
        """Topics of which not all could be opened for want of descriptors, and their settings then."""
        self._room = HOSTED_AT_ONCE
        """So many more logs may be opened in this turn of the loop."""
        self._rest: dict[str, tuple[int, LogSettings]] = {}
        """Topics of which the partitions from an index on are opened in later turns."""
        self._hosted: asyncio.Future[None] | None = None
        """Those who wait until there are none."""
        self.is_registered = False
        """The metadata shows this incarnation of the broker.

        Until then it may show what the one before led. To lead that in the same epoch, with a log that a crash may have
        cut, would let followers cut theirs: so only what nobody else has is led before.
        """
        hosting.tell(self._fetchers.written)
        hosting.propose = proposals.propose
        hosting.is_rack_aware = context.config().is_rack_aware
        hosting.lag_max_ms = context.config().replica_lag_time_max_ms
        hosting.may_join = lambda *who: may_be_in_sync(context.image(), *who)
        hosting.epoch_of = lambda node_id: epoch_of(context.image(), node_id)
        hosting.exists = lambda *place: has_partition(context.image(), *place)

    def host(self, topic: TopicImage, settings: LogSettings, begin: int = 0) -> None:
        """Host what this broker has of a topic, and let go what it has no more: of all partitions from `begin` on.

        Once the broker serves, new ones are opened HOSTED_AT_ONCE in a turn; until then this broker does not lead them.
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
                self._tell_place(partition, image)

    def _has_room(self) -> bool:
        """Take one of the logs that may be opened in this turn, if there is one left."""
        if self.is_registered:
            if self._room == HOSTED_AT_ONCE:
                asyncio.get_running_loop().call_soon(self._host_on)
            if not self._room:
                return False
            self._room -= 1
        return True

    def _host_on(self) -> None:
        """Another turn: open more of what is left."""
        self._room = HOSTED_AT_ONCE
        rest = list(self._rest.items())
        for name, (begin, settings) in rest:
            topic = self._image().topics.get(name)
            if topic is None:
                del self._rest[name]
            elif self._room:
                self.host(topic, settings, begin)
        if rest:
            self._hosting.flush()
        if not self._rest and self._hosted is not None:
            self._hosted.set_result(None)
            self._hosted = None

    async def until_hosted(self, ends_s: float) -> None:
        """Until all logs are opened that the metadata asks for, which may be more and more.

        No longer than until `ends_s` by the loop's clock.
        """
        if self._rest:
            loop = asyncio.get_running_loop()
            if self._hosted is None:
                self._hosted = loop.create_future()
            await asyncio.wait([self._hosted], timeout=max(ends_s - loop.time(), 0))

    def configure(self, topic: str, settings: LogSettings) -> None:
        """Partitions that are still to be opened have these settings."""
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
            self._made_anew.add((topic.id, index))
        return self._hosting.host(topic.name, topic.id, index, storage)

    def _open_later(self, topic: str, settings: LogSettings) -> None:
        """Descriptors are short: look again, for as long as they are."""
        if not self._unopened:
            asyncio.get_running_loop().call_later(OPEN_RETRY_S, self._open_again)
        self._unopened[topic] = settings

    def _open_again(self) -> None:
        unopened, self._unopened = self._unopened, {}
        for name, settings in unopened.items():
            topic = self._image().topics.get(name)
            if topic is not None:
                self.host(topic, settings)
        self._hosting.flush()

    def _tell_place(self, partition: Partition, image: PartitionImage) -> None:
        """Let the controller know in which directory a replica is, where the metadata says otherwise.

        Of one that was made anew it is told before that the other is lost: it had what this one has not.
        """
        directory = self._log_dirs.of(partition.log)
        if directory is None or not self.is_registered or partition in self.moves:
            return
        key, said = (partition.topic_id, partition.index), directory_in(image, self._hosting.node_id)
        if said == directory.id:
            self._made_anew.discard(key)
            self._assignments.settled(*key)
        else:
            is_lost = key in self._made_anew and said not in (LOST, MIGRATING, UNASSIGNED)
            self._assignments.assign(*key, LOST if is_lost else directory.id)

    def _directory_failed(self, directory: LogDirectory, why: str) -> None:
        """What is in a directory is offline by now: others lead it once the controller knows."""
        for (topic, index), one in list(directory.logs.items()):
            partition = self._hosting.find(topic, index)
            if partition is not None and partition.log is one:
                partition.fail(why)
                self._fetchers.leave(partition)
                self._assignments.settled(partition.topic_id, index)
        self.moves.lose(directory)
        asyncio.get_running_loop().call_soon(self._hosting.flush)
        self._on_offline()

    def _disk_failed(self, topic: str, index: int, why: str) -> None:
        if is_replicated(self._image(), topic, index):
            self._on_lost(f"{why}; the broker ends, so that other replicas of {topic}-{index} lead")

    def _follow_metadata(self, partition: Partition, image: PartitionImage) -> None:
        if not self.is_registered and len(image.replicas) > 1:
            return
        had_epoch = partition.leader_epoch
        reign = partition.become(image)
        if image.leader_epoch != had_epoch and partition.log.offline is None:
            self._fetchers.follow(partition)
        if reign:
            self._on_reign(partition, partition.leads)

    def let_go(self, topic: TopicImage) -> None:
        """The topic is deleted."""
        self._rest.pop(topic.name, None)
        for index in range(len(topic.partitions)):
            partition = self._hosting.find(topic.name, index)
            if partition is None:
                self._forget_unopened(topic.name, index)
            elif partition.topic_id == topic.id:
                self._forget(partition)

    def _forget_unopened(self, topic: str, index: int) -> None:
        """A replica that could not be opened, if there is one, is not to be here any more: it is not offline here."""
        if self._hosting.offline.pop((topic, index), None) is not None:
            self._log_dirs.forget_unopened(topic, index)

    def _forget(self, partition: Partition) -> None:
        """This replica is not to be here any more: its log is deleted."""
        if partition.leads:
            self._on_reign(partition, False)
        self._hosting.retire(partition.topic, partition.index)
        self._fetchers.leave(partition)
        self.moves.call_off(partition)
        self._assignments.settled(partition.topic_id, partition.index)
        self._made_anew.discard((partition.topic_id, partition.index))
        self._log_dirs.delete_log(partition.log)

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
        self._rest.clear()
        self._unopened.clear()
        self._proposals.close()
        self._assignments.close()
        await self._fetchers.close()
