"""Creates the internal topics of streams applications for a client when its group lacks them (KIP-1071).

The heartbeat that finds topics missing does not wait for them. A failure is stored for a while: later responses
contain it, and the creation is not retried until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from kpybroker.broker.envelopes import forwarded
from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import InternalTopic
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.wire.api import by_name
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.rpc import create_topics

log = logging.getLogger(__name__)

TIMEOUT_MS = 30_000
CREATED_MAX = 10_000
"""The maximum number of topics that are being created at a time. A later heartbeat creates the others."""
FAILURES_MAX = 1_000
"""The maximum number of stored failures. A new one replaces the oldest one."""
DEFAULT_REPLICATION_FACTOR = -1
_API = by_name["CreateTopics"]


class StreamsTopics:
    """Has the controller create topics, with the rights of the client whose group needs them."""

    def __init__(self, channel: ControllerChannel, now_ms: Callable[[], int]) -> None:
        self._channel = channel
        self._now_ms = now_ms
        self._creating: set[str] = set()
        self._failures: dict[str, tuple[int, str]] = {}
        """Topic -> the time until which the failure is stored, and its reason."""
        self._tasks: set[asyncio.Task[None]] = set()

    def create(self, call: Call, topics: Mapping[str, InternalTopic], keep_ms: int) -> None:
        """Begin to create the topics that are not being created yet and have not failed recently. A failure is stored
        for `keep_ms`."""
        failed = self.failures(topics)
        left = ((name, topic) for name, topic in topics.items() if name not in failed and name not in self._creating)
        wanted = dict(islice(left, CREATED_MAX - len(self._creating)))
        if wanted:
            self._creating.update(wanted)
            task = asyncio.get_running_loop().create_task(self._create(call, wanted, keep_ms))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def failures(self, topics: Iterable[str]) -> dict[str, str]:
        """The reasons why some of these topics could not be created recently."""
        now_ms = self._now_ms()
        found = ((name, self._failures.get(name)) for name in topics)
        return {name: failure[1] for name, failure in found if failure is not None and failure[0] > now_ms}

    def close(self) -> None:
        """Cancel all creations, because the broker is stopping."""
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("bug in the creation of internal topics", exc_info=error)

    async def _create(self, call: Call, topics: Mapping[str, InternalTopic], keep_ms: int) -> None:
        try:
            failed = await self._ask(call, topics)
        except KafkaError as refusal:
            failed = dict.fromkeys(topics, refusal.message or refusal.code.name)
        finally:
            self._creating.difference_update(topics)
        until_ms = self._now_ms() + keep_ms
        for name, why in failed.items():
            self._failures.pop(name, None)
            self._failures[name] = (until_ms, why)
        while len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]

    async def _ask(self, call: Call, topics: Mapping[str, InternalTopic]) -> dict[str, str]:
        """Have topics created. Returns the reasons why some were not created. Raises KafkaError."""
        request = create_topics.Request(
            topics=[
                create_topics.CreatableTopic(
                    name=name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication_factor or DEFAULT_REPLICATION_FACTOR,
                    configs=[
                        create_topics.CreatableTopicConfig(name=key, value=value)
                        for key, value in topic.configs.items()
                    ],
                )
                for name, topic in topics.items()
            ],
            timeout_ms=TIMEOUT_MS,
        )
        body = await forwarded(self._channel, _API, _API.max, call, build(request, _API.max), TIMEOUT_MS)
        told = parse(create_topics.Response, _API.max, body)
        return {row.name: row.error_message or ErrorCode(row.error_code).name for row in told.topics if row.error_code}
