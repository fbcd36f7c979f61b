"""One broker, built from its parts. All metadata changes reach the parts through `publish`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kpybroker.broker.background import BackgroundTasks
from kpybroker.broker.coordinators import Coordinators
from kpybroker.broker.empty_partitions import EmptyPartitions
from kpybroker.broker.membership import Membership
from kpybroker.broker.metadata_view import MetadataView
from kpybroker.broker.node_storage import NodeStorage
from kpybroker.broker.served_versions import ServedVersions
from kpybroker.broker.topic_creation import TopicCreation
from kpybroker.config import BrokerConfig, Endpoint
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.controller import Controller
from kpybroker.controller.features import supported_features
from kpybroker.errors import ConfigError, ErrorCode, KafkaError
from kpybroker.long_work import LongWork
from kpybroker.metadata import chronicle, whereabouts
from kpybroker.metadata.difference import removed_views
from kpybroker.metadata.image import Image, TopicImage
from kpybroker.quotas.clients import ClientQuotas
from kpybroker.raft.duties.bootstrap import checked_format
from kpybroker.raft.log.feature_check import check_joined, check_served
from kpybroker.raft.quorum import Quorum
from kpybroker.replication.node.chores import retain_and_checkpoint
from kpybroker.replication.node.replicas import ReplicaCallbacks
from kpybroker.replication.node.replication import Replication
from kpybroker.stalls import METADATA, Stalls
from kpybroker.storage.dirs.directory import Directory
from kpybroker.storage.dirs.log_dirs import LogDirectories, open_log_dirs
from kpybroker.world import World


class Broker:
    """The parts of one node. To start it, call `open`, `enter_quorum` and `join`; to stop it, `leave` and `close`."""

    def __init__(
        self, world: World, config: BrokerConfig, directories: Sequence[Directory], log_dirs: LogDirectories
    ) -> None:
        self.world = world
        self.background = background = BackgroundTasks()
        self.long_work = LongWork()
        self.metadata = metadata = MetadataView(config, world.wall_ms)
        self.quorum = Quorum(world, config, directories[0])
        self.controller = Controller(
            world, config, self.quorum, lambda bug: background.fail(f"bug in the controller: {bug!r}"), self._applied
        )
        self.membership = membership = Membership(world, config, self.quorum)
        self.storage = NodeStorage(world, lambda: metadata.config, directories, log_dirs, membership.tell)
        self.replication = Replication(
            world,
            log_dirs,
            membership.channel,
            lambda: metadata.config,
            lambda: membership.epoch,
            lambda: metadata.image,
            ReplicaCallbacks(
                lambda partition, leads: self.coordinators.leadership_changed(partition, leads),
                background.fail,
                membership.tell,
            ),
        )
        self.quotas = ClientQuotas(config, self.replication.rules.now_ms)
        self.topic_creation = TopicCreation(
            membership.channel.ask,
            lambda: metadata.config,
            lambda: metadata.image,
            lambda: self.quorum.voters.ids,
        )
        self.coordinators = Coordinators(
            world,
            metadata,
            self.replication,
            membership,
            log_dirs,
            self.topic_creation,
            config.node_id,
            background.fail,
        )

    @property
    def config(self) -> BrokerConfig:
        """The effective settings."""
        return self.metadata.dynamic.config

    @property
    def node_id(self) -> int:
        """node.id, or broker.id."""
        return self.config.node_id

    # ---- start and stop

    @classmethod
    async def open(cls, world: World, config: BrokerConfig) -> Broker:
        """Lock, format or check the directories, recover the logs and start the quorum. Raises ConfigError."""
        ServedVersions.of(config.api_versions)  # refused before a directory is formatted
        supported = supported_features(config)
        opened = open_log_dirs(
            world,
            config,
            await checked_format(world, config, supported),
            lambda: check_served(world, config, supported),
        )
        broker = cls(world, config, *opened)
        is_open = False
        try:
            broker.quorum.on_damage(broker.background.fail)
            await broker.quorum.start()
            if broker.quorum.is_active:
                broker.follow_metadata()
            await broker.controller.load()
            is_open = True
        finally:
            if not is_open:  # the start is cancelled, or the log is damaged
                await broker.storage.recovery.close()
                for directory in opened[0]:
                    world.disk.close(directory.lock)
        return broker

    async def enter_quorum(self) -> None:
        """Join the quorum, so that other nodes can reach this one. On a broker, return when its metadata is current and
        its logs are recovered.

        Raises ConfigError if no leader was found in time, or if the node cannot continue.
        """
        quorum = self.quorum
        if not quorum.is_active:
            quorum.when_current(self.follow_metadata)
        quorum.run()
        self.background.failed.add_done_callback(lambda failed: quorum.never_current(failed.result()))
        if "broker" in self.config.process_roles:
            await quorum.until_current(self.config.initial_broker_registration_timeout_ms)
            failed, recovery = self.background.failed, self.storage.recovery
            await recovery.wait(failed)
            if recovery.is_running:
                raise ConfigError(failed.result())

    def follow_metadata(self) -> None:
        """Apply the current metadata as a whole, and then every change. Call this only when the metadata is current: a
        partition that is missing from an older Image would be deleted as a leftover."""
        self.publish(Image(), self.quorum.image)
        self.quorum.on_image(self.publish)
        if self.membership.controller is not None:
            self.background.begin("the registration of this controller", self.membership.controller.run())

    def count_stalls(self, stalls: Stalls) -> None:
        """Measure flushes and changes of the metadata from now on."""
        self.replication.flush_queue.count_stalls(stalls)

    def answer_here(self, answer: Callable[[str, Any], Awaitable[Any]]) -> None:
        """Pass requests for the active controller to `answer` while this node is the active controller."""
        self.membership.answer_here(answer)

    async def join(self, advertised: Sequence[Endpoint]) -> None:
        """Register with the controller and wait until it unfences this broker, so that clients can use it.
        Raises ConfigError."""
        storage, metadata = self.storage, self.metadata
        log_dirs, disk_watch = storage.log_dirs, storage.disk_watch
        check_joined(metadata.image.features, self.membership.supported_features)
        disk_watch.start()
        await self.membership.join(
            storage.cluster_id,
            advertised,
            [directory.id for directory in log_dirs.online],
            log_dirs.previous_epoch,
            metadata_offset=lambda: metadata.image.offset,
            on_epoch=self._begin_epoch,
            on_failure=self.background.fail,
            log_dirs_now=lambda: (list(log_dirs.offline_ids), log_dirs.cordoned_ids),
            wants_fence=lambda: bool(disk_watch.hung) and metadata.others_live(),
        )
        begin, replication = self.background.begin, self.replication
        begin(
            "retention and checkpoints",
            retain_and_checkpoint(self.world, self.config, replication.hosting, log_dirs),
        )
        empty = EmptyPartitions(self.metadata, replication.hosting, self.membership.channel.ask)
        begin("the report of empty partitions", empty.run(self.config.log_retention_check_interval_ms / 1000))
        begin("the check for lagging followers", replication.replicas.watch_followers())
        begin("the moves between log directories", replication.replicas.moves.run())
        begin("the log cleaner", storage.cleaner.run())
        for directory in log_dirs.online:
            begin("the deletion of files", directory.garbage.unlink_when_due())

    def _begin_epoch(self) -> None:
        self.storage.log_dirs.register(self.membership.epoch)
        self._settle_in()
        self.replication.flush_queue.flush()
        self.replication.replicas.wake()

    async def leave(self, *, also_last: bool = False) -> None:
        """Transfer the leaderships to other brokers while this broker still serves. The last live broker does this only
        if `also_last` is set."""
        if also_last or self.metadata.others_live():
            await self.membership.leave()

    async def close(self) -> None:
        """Stop the coordinators, write everything, and leave the marker of a clean shutdown."""
        self.storage.disk_watch.stop()
        self.membership.close()
        self.background.cancel()
        await self.storage.recovery.close()
        await self.replication.replicas.close()
        self.replication.flush_queue.flush()
        self.coordinators.close()
        self.controller.stop(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker stops"))
        await self.quorum.close()
        await self.storage.close()

    # ---- metadata

    def publish(self, old: Image, new: Image) -> None:
        """Apply a metadata change: host new partitions, delete removed ones, and apply new leaders and settings.

        If logs have to be recovered first, the first Image and later changes are applied to the partitions at the end
        of the recovery.
        """
        stalls = self.replication.flush_queue.stalls
        if stalls is None:
            self._publish(old, new)
        else:
            with stalls.measured(METADATA):
                self._publish(old, new)

    def _publish(self, old: Image, new: Image) -> None:
        is_first = old.offset < 0
        self.metadata.follow(old, new)
        chronicle.tell(old, new, self.node_id)
        if is_first:
            self.storage.log_dirs.keep_only(whereabouts.hosted_by(new, self.node_id))
        if self.metadata.dynamic.follow(old, new, tuple(new.configs) if is_first else new.changes.configs):
            self._apply_broker_settings()
        self.quotas.follow(self.metadata.dynamic.quotas)
        if is_first:
            self._recover_logs()
        if not self.storage.recovery.is_running:
            self._change_partitions(old, new)
        self.quorum.nodes_changed()
        self.replication.replicas.moves.wake()
        self.membership.metadata_applied()

    def _recover_logs(self) -> None:
        """Recover the logs of the first Image, which are hosted according to the newest one."""
        log_dirs, metadata = self.storage.log_dirs, self.metadata
        works = []
        for key, topic_id in whereabouts.hosted_by(metadata.image, self.node_id).items():
            if (path := log_dirs.unrecovered(key)) is not None:
                works.append((path, log_dirs.recovering(key, topic_id, metadata.log_settings(key[0]))))
        self.storage.recovery.begin(works, self._logs_recovered, self.background.fail)

    def _logs_recovered(self) -> None:
        self._change_partitions(Image(), self.metadata.image)
        self.replication.replicas.moves.wake()

    def _change_partitions(self, old: Image, new: Image) -> None:
        replicas, is_first = self.replication.replicas, old.offset < 0
        changes = new.changes
        removed, topics, configs = changes.removed, changes.topics, changes.configs
        if is_first:
            removed, topics, configs = (), tuple(new.topics), ()
        for topic in removed:
            self._remove(topic)
        if old.views:
            for view in removed_views(old, new):
                self.coordinators.on_topic_deleted(view)
        for name in topics:
            replicas.host(new.topics[name], self.metadata.log_settings(name))
        if is_first:
            self.storage.log_dirs.recovered()
        changed = set(topics)
        for kind, name in configs:
            if kind == ResourceType.TOPIC and name not in changed and name in new.topics:
                self._apply_topic_settings(name)
        self._settle_in()
        self.replication.flush_queue.flush()

    def _settle_in(self) -> None:
        """Start replication once the metadata contains this incarnation of the broker; see `Replicas.is_registered`."""
        replicas, image, epoch = self.replication.replicas, self.metadata.image, self.membership.epoch
        me = image.brokers.get(self.node_id)
        if replicas.is_registered or epoch < 0 or me is None or me.epoch != epoch:
            return
        replicas.register()
        for name, topic in image.topics.items():
            replicas.host(topic, self.metadata.log_settings(name))

    def _apply_broker_settings(self) -> None:
        self.replication.hosting.limit_replication(self.config)
        self.coordinators.configure()
        if self.storage.log_dirs.cordon(self.config.cordoned_log_dirs):
            self.membership.tell()
        for name in self.metadata.image.topics:
            self._apply_topic_settings(name)

    def _apply_topic_settings(self, name: str) -> None:
        settings = self.metadata.log_settings(name)
        self.replication.replicas.configure(name, settings)
        for index in range(len(self.metadata.image.topics[name].partitions)):
            partition = self.replication.hosting.find(name, index)
            if partition is not None:
                partition.configure(settings)

    def _remove(self, topic: TopicImage) -> None:
        self.replication.replicas.let_go(topic)
        self.coordinators.on_topic_deleted(topic)

    def _applied(self, node_id: int) -> int:
        """The last metadata offset that a node is known to have applied."""
        return self.metadata.image.offset if node_id == self.node_id else self.quorum.applied_by(node_id)
