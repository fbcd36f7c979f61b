"""The metadata that this node has applied: the Image, settings, addresses, and brokers that have just left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from kpybroker.broker.closed_partitions import ClosedPartitions
from kpybroker.call import Answers, Call
from kpybroker.config import BrokerConfig, LogSettings
from kpybroker.config.delivery_keys import SCHEDULED
from kpybroker.config.own_keys import JSON
from kpybroker.config.resource_type import ResourceType
from kpybroker.metadata import whereabouts
from kpybroker.metadata.dynamic_configs import DynamicConfigs
from kpybroker.metadata.image import Image
from kpybroker.metadata.whereabouts import Leader
from kpybroker.security.audit import Json
from kpybroker.security.authorizer import Authorizer
from kpybroker.security.standard_authorizer import StandardAuthorizer
from kpybroker.topics import TopicPartition, delivery_log_of, is_internal


class MetadataView:
    """The current Image of one node. `follow` moves it to the next one."""

    def __init__(self, config: BrokerConfig, wall_ms: Callable[[], int]) -> None:
        self._node_id = config.node_id
        self.image = Image()
        self.dynamic = DynamicConfigs(config, config.node_id)
        """The effective settings."""
        self.answers = Answers()
        """Encoded responses that depend on the current Image only."""
        self.authorizer: Authorizer | None = None
        """None if everything is allowed."""
        self.standard_authorizer: StandardAuthorizer | None = None
        """The same authorizer, if it is a StandardAuthorizer. It receives the ACLs of each new Image."""
        if config.authorizer_class_name:
            self.authorizer = self.standard_authorizer = StandardAuthorizer(
                config.super_users,
                allow_everyone=config.allow_everyone_if_no_acl_found,
                now=asyncio.get_running_loop().time,
                wording=Json(wall_ms) if config.audit_format == JSON else None,
            )
        self.closed = ClosedPartitions()
        self._departed = whereabouts.Departed()

    @property
    def config(self) -> BrokerConfig:
        """The broker's effective settings."""
        return self.dynamic.config

    def follow(self, old: Image, new: Image) -> None:
        """Adopt a new Image. Its settings take effect with `dynamic.follow`."""
        self.image = new
        if self.standard_authorizer is not None:
            self.standard_authorizer.follow(new.acls, new.retired_topics)
        self.answers.clear()
        now_s = asyncio.get_running_loop().time()
        self.closed.follow(new, now_s)
        self._departed.follow(old, new, now_s)

    def log_settings(self, topic: str) -> LogSettings:
        """The settings of a topic's logs."""
        image = self.image
        settings = self.dynamic.log_settings(image, topic, replayed=is_internal(topic))
        if delivery_log_of(topic) in image.topics and SCHEDULED not in image.config(ResourceType.TOPIC, topic):
            return replace(settings, delivery_scheduled=True)  # Apache Kafka drops the setting from its snapshots
        return settings

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id; None if there is none."""
        topic = self.image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def kept_in(self, topic: str, index: int) -> TopicPartition:
        """The partition that has the records of a partition: for a view, that of its source, and for retired
        partitions, that of the topic; otherwise the partition itself."""
        image = self.image
        if image.views and (view := image.view(topic)) is not None:
            return view.source, index
        return image.stored_as(topic, index)

    def admit_late(self, topic: str, index: int, call: Call) -> None:
        """Check a Produce for a partition that may be retired. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        self.closed.admit(topic, index, call.client_id, call.host, asyncio.get_running_loop().time())

    def is_closed(self, topic: str, index: int) -> bool:
        """Whether a retired partition accepts no more records."""
        return self.closed.has(topic, index, asyncio.get_running_loop().time())

    def partition_count(self, topic: str, when_created: int) -> int:
        """The number of partitions of a topic; `when_created` if the topic does not exist yet."""
        found = self.image.topic(topic)
        return when_created if found is None else len(found.partitions)

    def leader_of(self, topic: str, index: int, listener: str) -> Leader | None:
        """The leader of a partition in the applied metadata."""
        return whereabouts.leader_of(self.image, topic, index, listener)

    def departed(self) -> tuple[int, ...]:
        """The brokers that have just been fenced."""
        return self._departed.at(asyncio.get_running_loop().time(), self.image)

    def endpoints(
        self, listener: str | None = None, departed: tuple[int, ...] = ()
    ) -> list[tuple[int, str, int, str | None]]:
        """Node id, host, port and rack of every live broker and of the `departed` ones, for clients of a listener."""
        return whereabouts.endpoints(self.image, listener, departed)

    def address_for_brokers(self, node_id: int) -> tuple[str, int] | None:
        """The host and port at which other brokers reach a broker; None if they are unknown."""
        return whereabouts.address_for_brokers(self.image, node_id, self.config.inter_broker_listener_name)

    def any_live_broker(self) -> int:
        """The id of this node if it is live, otherwise of another live broker. Metadata responses contain it as the
        controller id, because any broker forwards requests to the controller."""
        live = [broker.id for broker in self.image.brokers.values() if not broker.fenced]
        return self._node_id if self._node_id in live or not live else live[0]

    def others_live(self) -> bool:
        """Whether other brokers are live, that is, not fenced."""
        return whereabouts.others_live(self.image, self._node_id)
