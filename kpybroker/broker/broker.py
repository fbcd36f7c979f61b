"""One broker: the rooms meet here. `publish(old, new)` is the only way the rest learns that metadata changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kpybroker.broker.topic_creation import CONTROLLER_TIMEOUT_MS, TopicCreation
from kpybroker.call import Answers
from kpybroker.config import BrokerConfig, Endpoint, LogSettings
from kpybroker.controller import commands
from kpybroker.controller.controller import Controller
from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.controller.names import invalid_topic_name
from kpybroker.controller.presence import Presence
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.coordinator import GroupCoordinator, settings_of
from kpybroker.long_work import LongWork
from kpybroker.metadata import chronicle, whereabouts
from kpybroker.metadata.dynamic_configs import DynamicConfigs
from kpybroker.metadata.image import TOPIC_RESOURCE, TRANSACTION_FEATURE, Image, TopicImage
from kpybroker.metadata.whereabouts import Leader
from kpybroker.metrics import Metrics
from kpybroker.quotas.clients import ClientQuotas
from kpybroker.raft.duties.bootstrap import checked_format
from kpybroker.raft.log.feature_check import check_served
from kpybroker.raft.quorum import Quorum
from kpybroker.replication.node.chores import retain_and_checkpoint
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.replication.node.lifecycle import Lifecycle
from kpybroker.replication.node.producer_ids import ProducerIds
from kpybroker.replication.node.replicas import ReplicaCallbacks
from kpybroker.replication.node.replication import Replication
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.state_log import PartitionLog
from kpybroker.replication.partition.txn_markers import TxnMarkers
from kpybroker.storage.dirs.cleaner import Cleaner
from kpybroker.storage.dirs.directory import Directory, random_id
from kpybroker.storage.dirs.disk_watch import DiskWatch
from kpybroker.storage.dirs.log_dirs import LogDirectories, open_log_dirs
from kpybroker.tasks import begin
from kpybroker.topics import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTION_TOPIC
from kpybroker.transactions.client import TransactionsClient
from kpybroker.transactions.connections import BrokerConnections
from kpybroker.transactions.coordinator import TransactionCoordinator
from kpybroker.transactions.coordinator import settings_of as transaction_settings
from kpybroker.transactions.markers import Markers
from kpybroker.wire.rpc import allocate_producer_ids, broker_registration
from kpybroker.world import World

log = logging.getLogger(__name__)


class Broker:
    """The parts of one node. `open`, `join`, then serve; `close` ends it."""

    def __init__(
        self, world: World, config: BrokerConfig, directories: list[Directory], log_dirs: LogDirectories
    ) -> None:
        self.world = world
        self.config, self.node_id = config, config.node_id
        self.dynamic = DynamicConfigs(config, config.node_id)
        self.cluster_id = directories[0].cluster_id
        self.directories, self.log_dirs = directories, log_dirs
        self.metrics = Metrics()
        self.image = Image()
        self.answers = Answers()
        self.long_work = LongWork()
        self._departed = whereabouts.Departed()
        self.supported_features = SUPPORTED_FEATURES
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.quorum = Quorum(world, config, directories[0])
        self.controller = Controller(
            world, config, self.quorum, lambda bug: self.fail(f"bug in the controller: {bug!r}"), self._applied
        )
        self.disk_watch = self._watch_disks()
        self.presence = Presence(world, self.controller, config.node_id)
        self.channel = ControllerChannel(world.network, self.quorum, f"broker-{config.node_id}")
        """Asks the active controller whatever handlers and replication want of it."""
        self.epoch = -1
        now = (lambda: self.config, lambda: self.epoch, lambda: self.image)
        callbacks = ReplicaCallbacks(self._reign_changed, self.fail, self._tell_controller)
        replication = Replication(world, log_dirs, self.channel, *now, callbacks)
        self.flush_queue, self.hosting = replication.flush_queue, replication.hosting
        self.replicas, self.sessions = replication.replicas, replication.sessions
        self.quotas = ClientQuotas(config, replication.rules.now_ms)
        self._heartbeats = ControllerChannel(world.network, self.quorum, f"broker-{config.node_id}-heartbeat")
        self.lifecycle: Lifecycle | None = None
        self.groups = GroupCoordinator(
            world,
            settings_of(config),
            lambda: self._partitions_of(OFFSETS_TOPIC, self.config.offsets_topic_num_partitions),
            image=lambda: self.image,
        )
        self.write_markers = TxnMarkers(
            self.hosting, self.flush_queue, world, config.request_timeout_ms, self.groups.end_transaction
        ).write
        self._producer_ids = ProducerIds(self._allocate_producer_ids)
        self._creation = TopicCreation(self.channel.ask, now[0], now[2])
        self._connections = BrokerConnections(world.network, f"broker-{config.node_id}-transactions", self._address_of)
        self.transactions = TransactionCoordinator(
            world,
            transaction_settings(config),
            lambda: self._partitions_of(TRANSACTION_TOPIC, self.config.transaction_state_log_num_partitions),
            lambda: self.image.features.get(TRANSACTION_FEATURE, 0),
            self.next_producer_id,
            Markers(config.node_id, now[2], self._connections, self.write_markers),
        )
        self.transactions_client = TransactionsClient(
            config.node_id, now[0], now[2], self.transactions, self._connections
        )
        self._coordinators: dict[str, GroupCoordinator | TransactionCoordinator] = {
            OFFSETS_TOPIC: self.groups,
            TRANSACTION_TOPIC: self.transactions,
        }
        self._chores: list[asyncio.Task[None]] = []

    def _watch_disks(self) -> DiskWatch:
        paths, out = [each.path for each in self.directories], self.log_dirs.offline
        return DiskWatch(self.world, paths, self.config.broker_session_timeout_ms, self._tell_controller, out=out)

    # ---- start and stop

    @classmethod
    async def open(cls, world: World, config: BrokerConfig) -> Broker:
        """Lock, format or check the directories, recover the logs, lead the quorum. Raises ConfigError."""
        opened = open_log_dirs(
            world, config, await checked_format(world, config), lambda: check_served(world, config, SUPPORTED_FEATURES)
        )
        broker = cls(world, config, *opened)
        broker.quorum.on_damage(broker.fail)
        await broker.quorum.start()
        if broker.quorum.is_active:
            broker._follow_metadata()
        await broker.controller.load()
        return broker

    async def enter_quorum(self) -> None:
        """Take part in the quorum: other nodes can reach this one. A broker returns when it knows the metadata.

        Raises ConfigError: nobody leads, or the node cannot go on.
        """
        if not self.quorum.is_active:
            self.quorum.when_current(self._follow_metadata)
        self.quorum.run()
        self.failed.add_done_callback(lambda failed: self.quorum.never_current(failed.result()))
        if "broker" in self.config.process_roles:
            await self.quorum.until_current(self.config.initial_broker_registration_timeout_ms)

    def _follow_metadata(self) -> None:
        """Take over the metadata whole, and then every change. Not before it is current: what an older Image does not
        have yet would be taken for what is left over."""
        self.publish(Image(), self.quorum.image)
        self.quorum.on_image(self.publish)

    def answer_here(self, answer: Callable[[str, Any], Awaitable[Any]]) -> None:
        """How requests to the active controller are answered while that is this node."""
        self.channel.answer_here(answer)
        self._heartbeats.answer_here(answer)

    async def join(self, advertised: tuple[Endpoint, ...]) -> None:
        """Register with the controller and be unfenced: from then on clients are sent here. Raises ConfigError."""
        registration = broker_registration.Request(
            broker_id=self.node_id,
            cluster_id=self.cluster_id,
            incarnation_id=random_id(self.world.random),
            listeners=[broker_registration.Listener(name=e.name, host=e.host, port=e.port) for e in advertised],
            features=[
                broker_registration.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in self.supported_features.items()
            ],
            rack=self.config.broker_rack,
            log_dirs=[directory.id for directory in self.log_dirs.online],
            previous_broker_epoch=self.log_dirs.previous_epoch,
        )
        self.lifecycle = Lifecycle(
            self._heartbeats,
            self.config,
            registration,
            metadata_offset=lambda: self.image.offset,
            on_epoch=self._begin_epoch,
            on_failure=self.fail,
            offline_log_dirs=lambda: list(self.log_dirs.offline_ids),
            wants_fence=lambda: bool(self.disk_watch.hung) and whereabouts.others_live(self.image, self.node_id),
        )
        self.disk_watch.start()
        await self.lifecycle.join()
        retention = retain_and_checkpoint(self.world, self.config, self.hosting, self.log_dirs)
        chores = [
            ("retention and checkpoints", retention),
            ("the watch over followers", self.replicas.watch_followers()),
            ("the moves between log directories", self.replicas.moves.run()),
            ("the log cleaner", Cleaner(self.world, self.log_dirs, lambda: self.config).run()),
            *(("the deletion of files", each.garbage.unlink_when_due()) for each in self.log_dirs.online),
        ]
        self._chores = [begin(chore, what, self.fail) for what, chore in chores]

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.log_dirs.register(epoch)
        self._settle_in()
        self.flush_queue.flush()
        self.replicas.wake()

    def _tell_controller(self) -> None:
        """There is news for it: a log directory has failed, or a disk does not answer."""
        if self.lifecycle is not None:
            self.lifecycle.tell()

    async def leave(self, *, also_last: bool = False) -> None:
        """Hand over what this broker leads, while it still serves; the last one need not, unless others still vote."""
        others = also_last or whereabouts.others_live(self.image, self.node_id)
        if self.lifecycle is not None and others and self.config.controlled_shutdown_enable:
            await self.lifecycle.leave()

    async def close(self) -> None:
        """Stop the coordinators, write everything, leave the mark of a clean stop."""
        if self.lifecycle is not None:
            self.lifecycle.stop()
        self.disk_watch.stop()
        self._heartbeats.close()
        self.channel.close()
        self.presence.stop()
        for chore in self._chores:
            chore.cancel()
        await self.replicas.close()
        self.flush_queue.flush()
        self.groups.close()
        self.transactions.close()
        self.transactions_client.close()
        self._connections.close()
        self.controller.stop(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker stops"))
        await self.quorum.close()
        await self.log_dirs.close()
        for directory in self.directories:
            self.world.disk.close(directory.lock)

    def fail(self, why: str) -> None:
        """This node cannot go on; its owner stops it."""
        log.critical("%s", why)
        if not self.failed.done():
            self.failed.set_result(why)

    # ---- metadata

    def publish(self, old: Image, new: Image) -> None:
        """Follow the metadata: host what is new, let go what is gone, take over leaders and settings."""
        self.image = new
        self.answers.clear()
        self._departed.follow(old, new, asyncio.get_running_loop().time())
        changes = new.changes
        chronicle.tell(old, new, self.node_id)
        removed, topics, configs = changes.removed, changes.topics, changes.configs
        if old.offset < 0:
            removed, topics, configs = (), tuple(new.topics), tuple(new.configs)
            self.log_dirs.keep_only(whereabouts.hosted_by(new, self.node_id))
        if self.dynamic.follow(old, new, configs):
            self._apply_broker_settings()
        self.quotas.follow(self.dynamic.quotas)
        for topic in removed:
            self._retire(topic)
        for name in topics:
            self.replicas.host(new.topics[name], self._log_settings(name))
        if old.offset < 0:
            self.log_dirs.recovered()
        changed = set(topics)
        for kind, name in configs:
            if kind == TOPIC_RESOURCE and name not in changed and name in new.topics:
                self._apply_topic_settings(name)
        self._settle_in()
        self.flush_queue.flush()
        self.quorum.nodes_changed()
        self.replicas.moves.wake()
        if self.lifecycle is not None:
            self.lifecycle.wake()

    def _settle_in(self) -> None:
        """Take part in replication once the metadata shows this incarnation; see `Replicas.is_registered`."""
        me = self.image.brokers.get(self.node_id)
        if self.replicas.is_registered or self.epoch < 0 or me is None or me.epoch != self.epoch:
            return
        self.replicas.register()
        for name, topic in self.image.topics.items():
            self.replicas.host(topic, self._log_settings(name))

    def _apply_broker_settings(self) -> None:
        self.config = self.dynamic.config
        self.hosting.limit_replication(self.config)
        self.groups.configure(settings_of(self.config))
        for name in self.image.topics:
            self._apply_topic_settings(name)

    def _log_settings(self, name: str) -> LogSettings:
        return self.dynamic.log_settings(self.image, name, replayed=name in INTERNAL_TOPICS)

    def _apply_topic_settings(self, name: str) -> None:
        settings = self._log_settings(name)
        self.replicas.configure(name, settings)
        for index in range(len(self.image.topics[name].partitions)):
            partition = self.hosting.find(name, index)
            if partition is not None:
                partition.configure(settings)

    def _retire(self, topic: TopicImage) -> None:
        self.replicas.let_go(topic)
        self.groups.on_topics_deleted({topic.name: topic.id})

    def _reign_changed(self, partition: Partition, leads: bool) -> None:
        """Coordinators come and go with the leadership of their partition."""
        coordinator = self._coordinators.get(partition.topic)
        if coordinator is None:
            return
        if leads:
            coordinator.become_leader(partition.index, PartitionLog(partition, self.world), partition.leader_epoch)
        else:
            coordinator.resign(partition.index)

    def _address_of(self, node_id: int) -> tuple[str, int] | None:
        return whereabouts.address_for_brokers(self.image, node_id, self.config.inter_broker_listener_name)

    def _applied(self, node_id: int) -> int:
        """The last metadata offset that a node has applied, as far as this one knows."""
        return self.image.offset if node_id == self.node_id else self.quorum.applied_by(node_id)

    # ---- what handlers ask

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a topic by its id; None for one that is not there."""
        topic = self.image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def leader_of(self, name: str, index: int, listener: str) -> Leader | None:
        """The leader of a partition, as far as this broker knows."""
        return whereabouts.leader_of(self.image, name, index, listener)

    def check_topic_name(self, name: str) -> None:
        """Raises INVALID_TOPIC_EXCEPTION."""
        why = invalid_topic_name(name)
        if why is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)

    def departed(self) -> tuple[int, ...]:
        """Brokers that were fenced a moment ago."""
        return self._departed.at(asyncio.get_running_loop().time(), self.image)

    def endpoints(
        self, listener: str | None = None, departed: tuple[int, ...] = ()
    ) -> list[tuple[int, str, int, str | None]]:
        """Node id, host, port and rack of every live broker, and of these, for clients of a listener."""
        return whereabouts.endpoints(self.image, listener, departed)

    def any_live_broker(self) -> int:
        """The id that Metadata gives as the controller's: any broker forwards."""
        live = [broker.id for broker in self.image.brokers.values() if not broker.fenced]
        return self.node_id if self.node_id in live or not live else live[0]

    async def next_producer_id(self) -> int:
        """An id that no producer has had. Raises KafkaError."""
        return await self._producer_ids.next()

    async def _allocate_producer_ids(self) -> commands.ProducerIdBlock:
        asked = allocate_producer_ids.Request(broker_id=self.node_id, broker_epoch=self.epoch)
        told = await self.channel.ask("AllocateProducerIds", asked, CONTROLLER_TIMEOUT_MS)
        if told.error_code:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode(told.error_code).name)
        return commands.ProducerIdBlock(told.producer_id_start, told.producer_id_len)

    def _partitions_of(self, internal: str, when_made: int) -> int:
        """How many partitions keep what a coordinator knows, or will once the topic is made."""
        topic = self.image.topic(internal)
        return when_made if topic is None else len(topic.partitions)

    async def auto_create(self, names: list[str]) -> None:
        """Create topics that a client asked for without creating them; a name that may not be is passed over."""
        await self._creation.wanted(names)

    async def create_internal_topic(self, name: str) -> None:
        """Create an internal topic unless it is there; callers at the same time share one creation."""
        await self._creation.internal(name)
