"""The coordinators of one broker (of groups, transactions and share partitions), and their connections to other
brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias

from kpybroker.broker.membership import Membership
from kpybroker.broker.metadata_view import MetadataView
from kpybroker.broker.topic_creation import CONTROLLER_TIMEOUT_MS, TopicCreation
from kpybroker.client.broker_connections import BrokerConnections
from kpybroker.client.dialer import broker_dialer
from kpybroker.config.component import read_settings
from kpybroker.controller import commands
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import TRANSACTION_FEATURE, TopicImage
from kpybroker.replication.node.producer_ids import ProducerIds
from kpybroker.replication.node.replication import Replication
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.state_log import PartitionLog
from kpybroker.replication.partition.txn_markers import TxnMarkers
from kpybroker.scheduled.delivery_logs import CLIENT_ID, DeliveryLogs
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_TOPIC
from kpybroker.wire.rpc import allocate_producer_ids
from kpybroker.world import World

if TYPE_CHECKING:
    from kpybroker.broker.streams_topics import StreamsTopics
    from kpybroker.groups.coordinator import GroupCoordinator
    from kpybroker.shares.coordinator import ShareCoordinator
    from kpybroker.shares.leader import ShareLeader
    from kpybroker.shares.persister import Persister
    from kpybroker.transactions.client import TransactionsClient
    from kpybroker.transactions.coordinator import TransactionCoordinator

    Coordinator: TypeAlias = GroupCoordinator | TransactionCoordinator | ShareCoordinator

BY_TOPIC = {OFFSETS_TOPIC: "groups", SHARE_STATE_TOPIC: "shares", TRANSACTION_TOPIC: "transactions"}
"""The attribute with the coordinator whose state is in an internal topic."""
CLOSED_IN_THIS_ORDER = (
    "share_leader",
    "delivery_logs",
    "groups",
    "streams_topics",
    "shares",
    "transactions",
    "transactions_client",
    "persister",
    "connections",
)


class Coordinators:
    """The coordinators of a broker. Each one serves the partitions of its internal topic that this broker leads.

    A coordinator is created at its first use, and its modules are imported then: many brokers have no groups,
    transactions or share groups, and would start later and need more memory otherwise.
    """

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
        self._hosting = replication.hosting
        self._membership = membership
        self._log_dirs = log_dirs
        self._topic_creation = topic_creation
        self._node_id = node_id
        self._config = metadata.config
        """The settings at the start, for those that do not change."""
        self.connections = _connections(world, metadata, f"broker-{node_id}-coordinators")
        self.txn_markers = TxnMarkers(
            replication.hosting,
            replication.flush_queue,
            world,
            self._config.request_timeout_ms,
            lambda *marker: self.groups.end_transaction(*marker),
        )
        """Writes the markers that transaction coordinators send to this broker."""
        self.producer_ids = ProducerIds(self._allocate_producer_ids)
        self.delivery_logs = self._delivery_logs()
        """The delivery logs that this broker leads."""

    @cached_property
    def groups(self) -> GroupCoordinator:
        """The group coordinator."""
        from kpybroker.groups.coordinator import GroupCoordinator
        from kpybroker.groups.ground.settings import GroupSettings

        metadata = self._metadata
        return GroupCoordinator(
            self._world,
            GroupSettings.of(metadata.config),
            lambda: metadata.partition_count(OFFSETS_TOPIC, metadata.config.offsets_topic_num_partitions),
            image=lambda: metadata.image,
            keeper=lambda: self.persister,
        )

    @cached_property
    def streams_topics(self) -> StreamsTopics:
        """Creates the internal topics of streams applications."""
        from kpybroker.broker.streams_topics import StreamsTopics

        return StreamsTopics(self._membership.channel, self._world.steady_ms)

    @cached_property
    def transactions(self) -> TransactionCoordinator:
        """The transaction coordinator."""
        from kpybroker.transactions.coordinator import TransactionCoordinator
        from kpybroker.transactions.machine import TransactionSettings
        from kpybroker.transactions.markers import Markers

        metadata = self._metadata
        return TransactionCoordinator(
            self._world,
            read_settings(TransactionSettings, self._config),
            lambda: metadata.partition_count(TRANSACTION_TOPIC, metadata.config.transaction_state_log_num_partitions),
            lambda: metadata.image.features.get(TRANSACTION_FEATURE, 0),
            self.producer_ids.next,
            Markers(self._node_id, lambda: metadata.image, self.connections, self.txn_markers.write),
        )

    @cached_property
    def transactions_client(self) -> TransactionsClient:
        """Asks transaction coordinators, on any broker, about transactions."""
        from kpybroker.transactions.client import TransactionsClient

        metadata = self._metadata
        return TransactionsClient(
            self._node_id, lambda: metadata.config, lambda: metadata.image, self.transactions, self.connections
        )

    @cached_property
    def shares(self) -> ShareCoordinator:
        """The share coordinator."""
        from kpybroker.shares.coordinator import ShareCoordinator
        from kpybroker.shares.machine import ShareSettings

        metadata, config = self._metadata, self._config
        return ShareCoordinator(
            self._world,
            read_settings(ShareSettings, config),
            lambda: metadata.partition_count(
                SHARE_STATE_TOPIC, metadata.config.share_coordinator_state_topic_num_partitions
            ),
            lambda: metadata.image,
            partial(_delete_below, self._hosting, self._log_dirs),
            config.share_coordinator_state_topic_prune_interval_ms,
        )

    @cached_property
    def persister(self) -> Persister:
        """Calls share coordinators, for the group coordinator and for the leaders of share partitions."""
        from kpybroker.shares.persister import Persister

        metadata = self._metadata
        return Persister(
            self._node_id,
            lambda: metadata.image,
            self.shares,
            self.connections,
            lambda: self._topic_creation.internal(SHARE_STATE_TOPIC),
            lambda: metadata.config.share_coordinator_write_timeout_ms,
        )

    @cached_property
    def share_leader(self) -> ShareLeader:
        """The part of share groups that this broker serves as the leader of partitions."""
        from kpybroker.broker.letter_sources import read_sources
        from kpybroker.shares.dead_letters import DeadLetters
        from kpybroker.shares.leader import ShareLeader
        from kpybroker.shares.settings import LeaderSettings, RememberedRules

        world, metadata = self._world, self._metadata
        rules = RememberedRules(lambda: metadata.image, read_settings(LeaderSettings, self._config))
        letters = DeadLetters(
            lambda: metadata.config,
            lambda: metadata.image,
            rules,
            partial(read_sources, world, self._hosting),
            self._topic_creation.dead_letters,
            self.connections,
            world.wall_ms,
        )
        return ShareLeader(self.persister, rules, world.expiry, letters.write)

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

    def of(self, topic: str) -> Coordinator:
        """The coordinator whose state is in an internal topic."""
        coordinator: Coordinator = getattr(self, BY_TOPIC[topic])
        return coordinator

    def created(self) -> Iterator[Coordinator]:
        """The coordinators that have been used."""
        return (self.of(topic) for topic, name in BY_TOPIC.items() if name in vars(self))

    def configure(self) -> None:
        """Apply changed broker settings."""
        if "groups" in vars(self):
            from kpybroker.groups.ground.settings import GroupSettings

            self.groups.configure(GroupSettings.of(self._metadata.config))

    def on_topic_deleted(self, topic: TopicImage) -> None:
        """Delete, in the background, the state that the coordinators keep for a deleted topic."""
        used = vars(self)
        if "groups" in used:
            self.groups.on_topics_deleted({topic.name: topic.id})
        if "shares" in used:
            self.shares.on_topics_deleted({topic.id})
        if "share_leader" in used:
            self.share_leader.forget(topic.id)

    def on_connection_closed(self, number: int) -> None:
        """Close the share session of a connection."""
        if "share_leader" in vars(self):
            self.share_leader.closed(number)

    def leadership_changed(self, partition: Partition, leads: bool) -> None:
        """Load or unload a coordinator when this broker has started or stopped leading a partition."""
        used = vars(self)
        if not leads and "share_leader" in used:
            self.share_leader.forget(partition.topic_id, partition.index)
        self.delivery_logs.leadership_changed(partition, leads)
        name = BY_TOPIC.get(partition.topic)
        if name is None:
            return
        if leads:
            log = PartitionLog(partition, self._world)
            self.of(partition.topic).become_leader(partition.index, log, partition.leader_epoch)
        elif name in used:
            self.of(partition.topic).resign(partition.index)

    async def _allocate_producer_ids(self) -> commands.ProducerIdBlock:
        request = allocate_producer_ids.Request(broker_id=self._node_id, broker_epoch=self._membership.epoch)
        response = await self._membership.channel.ask("AllocateProducerIds", request, CONTROLLER_TIMEOUT_MS)
        if response.error_code:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode(response.error_code).name)
        return commands.ProducerIdBlock(response.producer_id_start, response.producer_id_len)

    def close(self) -> None:
        """Stop the coordinators, and close the connections to other brokers."""
        for name in CLOSED_IN_THIS_ORDER:
            if name in vars(self):
                getattr(self, name).close()


def _connections(world: World, metadata: MetadataView, client_id: str) -> BrokerConnections:
    return BrokerConnections(
        broker_dialer(world, lambda: metadata.config),
        client_id,
        metadata.address_for_brokers,
    )


async def _delete_below(hosting: Hosting, log_dirs: LogDirectories, index: int, offset: int) -> None:
    """Delete the records of `__share_group_state` below an offset. Raises KafkaError."""
    storage = hosting.leads(SHARE_STATE_TOPIC, index).log
    if storage.start < offset <= storage.high_watermark:
        storage.advance_start(offset)
        await log_dirs.start_written(storage)
