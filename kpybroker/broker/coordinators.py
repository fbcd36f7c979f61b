"""The coordinators of one broker (of groups, transactions and share partitions), and their connections to other
brokers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kpybroker.broker.letter_sources import read_sources
from kpybroker.broker.membership import Membership
from kpybroker.broker.metadata_view import MetadataView
from kpybroker.broker.streams_topics import StreamsTopics
from kpybroker.broker.topic_creation import CONTROLLER_TIMEOUT_MS, TopicCreation
from kpybroker.client.broker_connections import BrokerConnections
from kpybroker.client.dialer import broker_dialer
from kpybroker.config.component import read_settings
from kpybroker.controller import commands
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.coordinator import GroupCoordinator
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.metadata.image import TRANSACTION_FEATURE, TopicImage
from kpybroker.replication.node.producer_ids import ProducerIds
from kpybroker.replication.node.replication import Replication
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.state_log import PartitionLog
from kpybroker.replication.partition.txn_markers import TxnMarkers
from kpybroker.scheduled.delivery_logs import CLIENT_ID, DeliveryLogs
from kpybroker.shares.coordinator import ShareCoordinator
from kpybroker.shares.dead_letters import DeadLetters
from kpybroker.shares.leader import ShareLeader
from kpybroker.shares.machine import ShareSettings
from kpybroker.shares.persister import Persister
from kpybroker.shares.settings import LeaderSettings, RememberedRules
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_TOPIC
from kpybroker.transactions.client import TransactionsClient
from kpybroker.transactions.coordinator import TransactionCoordinator
from kpybroker.transactions.machine import TransactionSettings
from kpybroker.transactions.markers import Markers
from kpybroker.wire.rpc import allocate_producer_ids
from kpybroker.world import World


class Coordinators:
    """The coordinators of a broker. Each one serves the partitions of its internal topic that this broker leads."""

    def __init__(
        self,
        world: World,
        metadata: MetadataView,
        replication: Replication,
        membership: Membership,
        log_dirs: LogDirectories,
        topic_creation: TopicCreation,
        node_id: int,
        fail: Callable[[str], None],
    ) -> None:
        self._fail = fail
        self._world = world
        self._metadata = metadata
        self._membership = membership
        self._node_id = node_id
        config = metadata.config
        self.connections = _connections(world, metadata, f"broker-{node_id}-coordinators")
        self.shares = _share_coordinator(world, metadata, replication.hosting, log_dirs)
        self.persister = Persister(
            node_id,
            lambda: metadata.image,
            self.shares,
            self.connections,
            lambda: topic_creation.internal(SHARE_STATE_TOPIC),
            lambda: metadata.config.share_coordinator_write_timeout_ms,
        )
        """Calls share coordinators, for the group coordinator and for the leaders of share partitions."""
        self.groups = GroupCoordinator(
            world,
            GroupSettings.of(config),
            lambda: metadata.partition_count(OFFSETS_TOPIC, metadata.config.offsets_topic_num_partitions),
            image=lambda: metadata.image,
            keeper=self.persister,
        )
        self.streams_topics = StreamsTopics(membership.channel, world.steady_ms)
        """Creates the internal topics of streams applications."""
        self.txn_markers = TxnMarkers(
            replication.hosting,
            replication.flush_queue,
            world,
            config.request_timeout_ms,
            self.groups.end_transaction,
        )
        """Writes the markers that transaction coordinators send to this broker."""
        self.producer_ids = ProducerIds(self._allocate_producer_ids)
        markers = Markers(node_id, lambda: metadata.image, self.connections, self.txn_markers.write)
        self.transactions = _transaction_coordinator(world, metadata, self.producer_ids, markers)
        self.transactions_client = TransactionsClient(
            node_id, lambda: metadata.config, lambda: metadata.image, self.transactions, self.connections
        )
        self.delivery_logs = self._delivery_logs()
        """The delivery logs that this broker leads."""
        self.share_leader = self._share_leader(topic_creation, replication.hosting)
        """The part of share groups that this broker serves as the leader of partitions."""
        self.by_topic: dict[str, GroupCoordinator | TransactionCoordinator | ShareCoordinator] = {
            OFFSETS_TOPIC: self.groups,
            SHARE_STATE_TOPIC: self.shares,
            TRANSACTION_TOPIC: self.transactions,
        }

    def _delivery_logs(self) -> DeliveryLogs:
        world, metadata = self._world, self._metadata
        return DeliveryLogs(
            world,
            lambda: metadata.image,
            (_connections(world, metadata, CLIENT_ID), _connections(world, metadata, CLIENT_ID)),
            lambda topic: (
                metadata.log_settings(topic).delivery_max_pending,
                metadata.config.delivery_broker_max_pending,
            ),
            lambda: metadata.config.request_timeout_ms,
            self._fail,
        )

    def _share_leader(self, topic_creation: TopicCreation, hosting: Hosting) -> ShareLeader:
        world, metadata = self._world, self._metadata
        rules = RememberedRules(lambda: metadata.image, read_settings(LeaderSettings, metadata.config))
        letters = DeadLetters(
            lambda: metadata.config,
            lambda: metadata.image,
            rules,
            partial(read_sources, world, hosting),
            topic_creation.dead_letters,
            self.connections,
            world.wall_ms,
        )
        return ShareLeader(self.persister, rules, world.expiry, letters.write)

    def configure(self) -> None:
        """Apply changed broker settings."""
        self.groups.configure(GroupSettings.of(self._metadata.config))

    def on_topic_deleted(self, topic: TopicImage) -> None:
        """Delete, in the background, the state that the coordinators keep for a deleted topic."""
        self.groups.on_topics_deleted({topic.name: topic.id})
        self.shares.on_topics_deleted({topic.id})
        self.share_leader.forget(topic.id)

    def leadership_changed(self, partition: Partition, leads: bool) -> None:
        """Load or unload a coordinator when this broker has started or stopped leading a partition."""
        if not leads:
            self.share_leader.forget(partition.topic_id, partition.index)
        self.delivery_logs.leadership_changed(partition, leads)
        coordinator = self.by_topic.get(partition.topic)
        if coordinator is None:
            return
        if leads:
            coordinator.become_leader(partition.index, PartitionLog(partition, self._world), partition.leader_epoch)
        else:
            coordinator.resign(partition.index)

    async def _allocate_producer_ids(self) -> commands.ProducerIdBlock:
        request = allocate_producer_ids.Request(broker_id=self._node_id, broker_epoch=self._membership.epoch)
        response = await self._membership.channel.ask("AllocateProducerIds", request, CONTROLLER_TIMEOUT_MS)
        if response.error_code:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode(response.error_code).name)
        return commands.ProducerIdBlock(response.producer_id_start, response.producer_id_len)

    def close(self) -> None:
        """Stop the coordinators, and close the connections to other brokers."""
        self.share_leader.close()
        self.delivery_logs.close()
        self.groups.close()
        self.streams_topics.close()
        self.shares.close()
        self.transactions.close()
        self.transactions_client.close()
        self.persister.close()
        self.connections.close()


def _connections(world: World, metadata: MetadataView, client_id: str) -> BrokerConnections:
    return BrokerConnections(
        broker_dialer(world, lambda: metadata.config),
        client_id,
        metadata.address_for_brokers,
    )


def _transaction_coordinator(
    world: World, metadata: MetadataView, producer_ids: ProducerIds, markers: Markers
) -> TransactionCoordinator:
    return TransactionCoordinator(
        world,
        read_settings(TransactionSettings, metadata.config),
        lambda: metadata.partition_count(TRANSACTION_TOPIC, metadata.config.transaction_state_log_num_partitions),
        lambda: metadata.image.features.get(TRANSACTION_FEATURE, 0),
        producer_ids.next,
        markers,
    )


def _share_coordinator(
    world: World, metadata: MetadataView, hosting: Hosting, log_dirs: LogDirectories
) -> ShareCoordinator:
    config = metadata.config
    return ShareCoordinator(
        world,
        read_settings(ShareSettings, config),
        lambda: metadata.partition_count(
            SHARE_STATE_TOPIC, metadata.config.share_coordinator_state_topic_num_partitions
        ),
        lambda: metadata.image,
        partial(_delete_below, hosting, log_dirs),
        config.share_coordinator_state_topic_prune_interval_ms,
    )


async def _delete_below(hosting: Hosting, log_dirs: LogDirectories, index: int, offset: int) -> None:
    """Delete the records of `__share_group_state` below an offset. Raises KafkaError."""
    storage = hosting.leads(SHARE_STATE_TOPIC, index).log
    if storage.start < offset <= storage.high_watermark:
        storage.advance_start(offset)
        await log_dirs.start_written(storage)
