"""Topics that a broker creates by itself: topics that clients use before they exist, and internal topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.controller import commands
from kpybroker.controller.internal_topics import (
    REPLICATION_FACTORS,
    offsets_topic,
    share_state_topic,
    transaction_topic,
)
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.topics import INTERNAL_TOPICS, OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_TOPIC
from kpybroker.wire.rpc import create_topics

log = logging.getLogger(__name__)

CONTROLLER_TIMEOUT_MS = 30_000
DEAD_LETTER_SETTINGS = (("errors.deadletterqueue.group.enable", "true"), ("message.timestamp.type", "CreateTime"))
MADE_HERE = {OFFSETS_TOPIC: offsets_topic, SHARE_STATE_TOPIC: share_state_topic, TRANSACTION_TOPIC: transaction_topic}


class TopicCreation:
    """Sends CreateTopics requests to the controller.

    `ask` is `ControllerChannel.ask`. `voters` returns the ids of the current voters of the quorum.
    """

    def __init__(
        self,
        ask: Callable[[str, Any, int], Awaitable[Any]],
        config: Callable[[], BrokerConfig],
        image: Callable[[], Image],
        voters: Callable[[], Collection[int]],
    ) -> None:
        self._ask = ask
        self._config = config
        self._image = image
        self._voters = voters
        self._internal: dict[str, asyncio.Task[None]] = {}

    async def _create(self, topics: list[commands.NewTopic]) -> list[Any]:
        """Have the controller create the topics, and return its results in the same order."""
        asked = create_topics.Request(
            topics=[
                create_topics.CreatableTopic(
                    name=topic.name,
                    num_partitions=topic.num_partitions,
                    replication_factor=topic.replication_factor,
                    configs=[create_topics.CreatableTopicConfig(name=name, value=text) for name, text in topic.configs],
                )
                for topic in topics
            ],
            timeout_ms=CONTROLLER_TIMEOUT_MS,
        )
        told = await self._ask("CreateTopics", asked, CONTROLLER_TIMEOUT_MS)
        return list(told.topics)

    async def wanted(self, names: list[str]) -> None:
        """Create the missing topics that a client wants to use. Topics that cannot be created are only logged."""
        if not self._config().auto_create_topics_enable:
            return
        missing = []
        for name in dict.fromkeys(names):
            if name in self._image().topics:
                continue
            if name in MADE_HERE:
                try:
                    await self.internal(name)
                except KafkaError as refusal:
                    log.warning("did not create topic %r: %s", name, refusal.message)
            if name in INTERNAL_TOPICS:
                continue
            missing.append(commands.NewTopic(name))
        if missing:
            for result in await self._create(missing):
                if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    log.info("did not create topic %r: %s", result.name, result.error_message)

    async def dead_letters(self, name: str) -> None:
        """Create a dead letter topic of share groups, with the settings that Kafka gives it. Raises KafkaError."""
        [made] = await self._create([commands.NewTopic(name, configs=DEAD_LETTER_SETTINGS)])
        if made.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(ErrorCode(made.error_code), f"{name} cannot be created: {made.error_message}")

    async def internal(self, name: str) -> None:
        """Create an internal topic unless it exists; concurrent callers wait for the same request."""
        if name in self._image().topics:
            return
        task = self._internal.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._create_internal(name))
            self._internal[name] = task
            task.add_done_callback(lambda done: self._created(name, done))
        await asyncio.shield(task)

    def _created(self, name: str, done: asyncio.Task[None]) -> None:
        self._internal.pop(name, None)
        if not done.cancelled():
            done.exception()  # otherwise asyncio logs it if every caller has gone

    async def _create_internal(self, name: str) -> None:
        if name not in MADE_HERE:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} belongs to a feature that is not served")
        [made] = await self._create([MADE_HERE[name](self._config(), self._most_replicas())])
        if made.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            text = f"{name} cannot be created: {made.error_message}"
            if made.error_code == ErrorCode.INVALID_REPLICATION_FACTOR:
                text += f" Start more brokers, or set {REPLICATION_FACTORS[name]} on each broker."
            raise KafkaError(ErrorCode(made.error_code), text)

    def _most_replicas(self) -> int | None:
        """The highest replication factor of internal topics: the number of brokers if the only controller is also a
        broker, otherwise None. See docs/decisions/0020."""
        brokers, voters = self._image().brokers, self._voters()
        return len(brokers) if len(voters) == 1 and all(voter in brokers for voter in voters) else None
